"""Reading a topic back, as an independent consumer does, and damage to its batches."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

if TYPE_CHECKING:
    from services.kafka import Broker

_GZIP = b"\x1f\x8b"
DAMAGES = pytest.mark.parametrize(
    # Begin of the compressed records, and version of their batch.
    "damage",
    [_GZIP, b"\x02(?=.{44}" + _GZIP + b")"],
    ids=["records", "version"],
)
"""Places of a compressed batch for :meth:`~services.kafka.Broker.damage`."""


def consume(broker: Broker, topic: str, timeout: float = 60) -> list[Any]:
    """Return every message of *topic*, each partition in its order, to the ends of all.

    The ends are those of the call, so that a topic that is written all the time ends, too: its
    consumer is seldom at the end.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": f"check-{uuid.uuid4()}",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 10,
        }
    )
    partitions = [
        TopicPartition(topic, each, OFFSET_BEGINNING)
        for each in consumer.list_topics(topic, timeout=30).topics[topic].partitions
    ]
    ends = {
        each.partition: consumer.get_watermark_offsets(each, timeout=30)[1] for each in partitions
    }
    # Without joining a group: its coordinator may take long on a busy machine.
    consumer.assign(partitions)
    messages = []
    deadline = time.monotonic() + timeout
    while ends and time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.5):
            if not message.error():
                messages.append(message)
            # The last offset may be a transaction's marker, behind which only the end is seen.
            if message.error() or message.offset() >= ends.get(message.partition(), 0) - 1:
                ends.pop(message.partition(), None)
    consumer.close()
    assert not ends
    return messages

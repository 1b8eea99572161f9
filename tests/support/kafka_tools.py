"""Reading a topic back, as an independent consumer does."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

if TYPE_CHECKING:
    from services.kafka import Broker


def consume(broker: Broker, topic: str, timeout: float = 60) -> list[Any]:
    """Return every message of *topic*, each partition in its order, to the ends of all."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": f"check-{uuid.uuid4()}",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 10,
        }
    )
    partitions = set(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    # Without joining a group: its coordinator may take long on a busy machine.
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
    messages, ended = [], set()
    deadline = time.monotonic() + timeout
    while ended != partitions and time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.5):
            if message.error():
                ended.add(message.partition())
            else:
                messages.append(message)
    consumer.close()
    assert ended == partitions
    return messages

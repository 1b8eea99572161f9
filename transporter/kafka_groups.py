"""What consumer groups of Kafka keep, asked and said by those who are no members.

The client for administration can do so, too, but ends the process where a
coordinator is not there (librdkafka issue 5040). A consumer that never joins cannot.
"""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

_SOON: Final = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)
"""The coordinator will answer soon: it has moved, or still writes a transaction's end."""

HELD_BACK: Final = frozenset(
    {KafkaError._TIMED_OUT, KafkaError.UNSTABLE_OFFSET_COMMIT}  # noqa: SLF001 - a public code
)
"""What is told when a transaction that does not end holds back what was committed."""

AT_ONCE: Final = 3.0
"""Seconds after which what should be settled counts as held back."""

NOWHERE: Final = TopicPartition("__consumer_offsets", 0, 0)
"""A partition that is always there, and of which our groups keep nothing."""

_PAUSE: Final = 0.02


def committed(
    consumer: Consumer, places: list[TopicPartition], ends: float
) -> list[TopicPartition]:
    """Return what *consumer*'s group keeps of *places*, by the monotonic time *ends* at most.

    Raises:
        KafkaException: If the brokers do not answer in time, or refuse.
    """
    while True:
        found, error = _answer(consumer, places, max(0.1, ends - time.monotonic()))
        if error is None:
            return found
        if error.code() not in _SOON or time.monotonic() >= ends:
            raise KafkaException(error)
        consumer.poll(_PAUSE)  # Nothing tells when the coordinator is ready.


def _answer(
    consumer: Consumer, places: list[TopicPartition], seconds: float
) -> tuple[list[TopicPartition], KafkaError | None]:
    try:
        found: list[TopicPartition] = consumer.committed(places, seconds)
    except KafkaException as error:
        return [], error.args[0]
    return found, next((each.error for each in found if each.error is not None), None)


def membership(group: str) -> object:
    """Return what says that an offset is committed for *group* by none of its members."""
    consumer = Consumer({"group.id": group, "log_level": 0})  # Without brokers: it never connects.
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()

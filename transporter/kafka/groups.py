"""Committed offsets of Kafka consumer groups, read and written by clients that are not members.

The admin client can do so, too, but it ends the process if a coordinator is
missing (librdkafka issue 5040). A consumer that never joins does not.
"""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

_TRANSIENT: Final = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)
"""The coordinator will answer soon: it has moved, or is still writing a transaction's end."""

BLOCKED: Final = frozenset(
    {KafkaError._TIMED_OUT, KafkaError.UNSTABLE_OFFSET_COMMIT}  # noqa: SLF001 - a public code
)
"""Errors that report committed offsets blocked by a transaction that does not end."""

AT_ONCE: Final = 3.0
"""Seconds after which offsets that should be settled count as blocked."""

NOWHERE: Final = TopicPartition("__consumer_offsets", 0, 0)
"""A partition that always exists, and of which our groups keep no offsets."""

_PAUSE: Final = 0.02


def committed_offsets(
    consumer: Consumer, partitions: list[TopicPartition], deadline: float
) -> list[TopicPartition]:
    """Return the committed offsets of *consumer*'s group in *partitions*.

    The call lasts until *deadline* at most, by the monotonic clock.

    Raises:
        KafkaException: If the brokers do not answer in time, or refuse.
    """
    while True:
        found, error = _fetch_committed(consumer, partitions, max(0.1, deadline - time.monotonic()))
        if error is None:
            return found
        if error.code() not in _TRANSIENT or time.monotonic() >= deadline:
            raise KafkaException(error)
        consumer.poll(_PAUSE)  # There is no notification of a ready coordinator.


def _fetch_committed(
    consumer: Consumer, partitions: list[TopicPartition], seconds: float
) -> tuple[list[TopicPartition], KafkaError | None]:
    try:
        found: list[TopicPartition] = consumer.committed(partitions, seconds)
    except KafkaException as error:
        return [], error.args[0]
    return found, next((each.error for each in found if each.error is not None), None)


def non_member_metadata(group: str) -> object:
    """Return group metadata for a commit to *group* by a client that is not a member."""
    consumer = Consumer({"group.id": group, "log_level": 0})  # Without brokers: it never connects.
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()

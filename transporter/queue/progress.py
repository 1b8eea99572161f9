"""Offsets of groups and topics, read from outside, and partitions that a transaction blocks."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException, TopicPartition

from transporter.kafka import groups
from transporter.kafka.groups import AT_ONCE, BLOCKED
from transporter.queue import clients

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from confluent_kafka import Consumer, Message

    from transporter.queue.settings import QueueSettings

_TIMEOUT: Final = 5.0
_LATEST: Final = -1
_GROUP: Final = "transporter-onlooker"

Offsets = dict[int, int]
"""Offset by partition."""


def committed_offsets(settings: QueueSettings, group: str, topic: str) -> Offsets:
    """Return the committed offset of *group* in each partition of *topic* that has one.

    Raises:
        TransporterError: If the brokers do not answer in time, or refuse.
    """
    places = _stable_offsets(settings, group, topic)
    return {each.partition: each.offset for each in places if each.offset >= 0}


def blocked_offsets(settings: QueueSettings, group: str, topic: str) -> Offsets:
    """Return the committed offsets of *group* behind which a transaction does not end.

    Raises:
        TransporterError: If the brokers do not answer in time, or refuse.
    """
    # This call fails if brokers are away, so a failure below can only mean a transaction.
    places = _stable_offsets(settings, group, topic)
    with _standalone_client(settings, group, "read_committed") as client:
        return {each.partition: each.offset for each in places if not _is_settled(client, each)}


def blocked_partitions(settings: QueueSettings, topics: Iterable[str]) -> list[TopicPartition]:
    """Return the last stable offset of each blocked partition of *topics*.

    Raises:
        TransporterError: If the brokers do not answer, or refuse.
    """
    names = list(topics)
    with _standalone_client(settings, _GROUP, "read_uncommitted") as client:
        counts = clients.count_partitions(client, settings, names)
        places = [
            TopicPartition(topic, each)
            for topic, count in zip(names, counts, strict=True)
            for each in range(count)
        ]
        ends = end_offsets(
            client, places
        )  # Read first, so that a transaction that ends meanwhile does not count.
    with _standalone_client(settings, _GROUP, "read_committed") as client:
        stable = end_offsets(client, places)
    return [place for place, end in zip(stable, ends, strict=True) if place.offset < end.offset]


def record_at(settings: QueueSettings, place: TopicPartition) -> Message | None:
    """Return the record at *place*, committed or not, or ``None`` if it cannot be read.

    Raises:
        TransporterError: If the client refuses.
    """
    with _standalone_client(settings, _GROUP, "read_uncommitted") as client:
        client.assign([place])
        records: list[Message] = client.consume(1, _TIMEOUT)
    return records[0] if records and records[0].error() is None else None


def end_offsets(
    client: Consumer, places: list[TopicPartition], timeout: float = _TIMEOUT
) -> list[TopicPartition]:
    """Return the end offset of each of *places*, as visible at the isolation level of *client*.

    Raises:
        KafkaException: If the brokers do not answer in time, or refuse.
    """
    places = [TopicPartition(each.topic, each.partition, _LATEST) for each in places]
    found: list[TopicPartition] = client.offsets_for_times(places, timeout=timeout)
    for place in found:
        if place.error is not None:
            raise KafkaException(place.error)
    return found


def _is_settled(client: Consumer, place: TopicPartition) -> bool:
    """Return whether *place* has no open transaction at some moment within the time-out."""
    try:
        wanted = [TopicPartition(place.topic, place.partition)]
        groups.committed_offsets(client, wanted, time.monotonic() + AT_ONCE)
    except KafkaException as error:
        if error.args[0].code() in BLOCKED:
            return False
        raise
    return True


def _stable_offsets(settings: QueueSettings, group: str, topic: str) -> list[TopicPartition]:
    """Return the stable committed offsets of *group* in each partition of *topic*."""
    with _standalone_client(settings, group, "read_uncommitted") as client:
        (count,) = clients.count_partitions(client, settings, [topic])
        places = [TopicPartition(topic, each) for each in range(count)]
        return groups.committed_offsets(client, places, time.monotonic() + settings.timeout)


@contextmanager
def _standalone_client(settings: QueueSettings, group: str, isolation: str) -> Iterator[Consumer]:
    """Yield a consumer that reads the offsets of *group* and never joins it."""
    client = clients.standalone_consumer(
        settings, **{"group.id": group, "isolation.level": isolation}
    )
    try:
        yield client
    except KafkaException as error:
        raise clients.kafka_failure(settings, error) from error
    finally:
        client.close()

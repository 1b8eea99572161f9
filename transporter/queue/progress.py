"""How far groups and topics are, asked from outside, and what a transaction holds back there."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException, TopicPartition

from transporter import kafka_groups
from transporter.kafka_groups import AT_ONCE, HELD_BACK
from transporter.queue import clients

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from confluent_kafka import Consumer, Message

    from transporter.queue.settings import QueueSettings

_ASK: Final = 5.0
_LATEST: Final = -1
_NOBODY: Final = "transporter-onlooker"

Offsets = dict[int, int]
"""Offset by partition."""


def committed(settings: QueueSettings, group: str, topic: str) -> Offsets:
    """Return how far *group* is in each partition of *topic* in which it is anywhere.

    Raises:
        TransporterError: If the brokers do not answer in time, or refuse.
    """
    places = _read(settings, group, topic)
    return {each.partition: each.offset for each in places if each.offset >= 0}


def group_is_held_back(settings: QueueSettings, group: str, topic: str) -> bool:
    """Tell whether a transaction that does not end holds back what *group* has committed.

    Raises:
        TransporterError: If the brokers do not answer in time, or refuse.
    """
    # Brokers that are away are told by this one, so that what follows tells of nothing else.
    places = _read(settings, group, topic)
    with _reading(settings, group, "read_committed") as client:
        return not all(_settles(client, place) for place in places)


def held_back(settings: QueueSettings, topics: Iterable[str]) -> list[TopicPartition]:
    """Return up to where partitions of *topics* can be read, of those that are held back.

    Raises:
        TransporterError: If the brokers do not answer, or refuse.
    """
    names = list(topics)
    with _reading(settings, _NOBODY, "read_uncommitted") as client:
        counts = clients.partitions(client, settings, names)
        places = [
            TopicPartition(topic, each)
            for topic, count in zip(names, counts, strict=True)
            for each in range(count)
        ]
        ends = latest(client, places)  # First, so that what ends meanwhile does not count.
    with _reading(settings, _NOBODY, "read_committed") as client:
        stable = latest(client, places)
    return [place for place, end in zip(stable, ends, strict=True) if place.offset < end.offset]


def record_at(settings: QueueSettings, place: TopicPartition) -> Message | None:
    """Return the record at *place*, committed or not; ``None`` when it cannot be read.

    Raises:
        TransporterError: If the client refuses.
    """
    with _reading(settings, _NOBODY, "read_uncommitted") as client:
        client.assign([place])
        records: list[Message] = client.consume(1, _ASK)
    return records[0] if records and records[0].error() is None else None


def latest(
    client: Consumer, places: list[TopicPartition], timeout: float = _ASK
) -> list[TopicPartition]:
    """Return where each of *places* ends, as far as the isolation of *client* reads.

    Raises:
        KafkaException: If the brokers do not answer in time, or refuse.
    """
    places = [TopicPartition(each.topic, each.partition, _LATEST) for each in places]
    found: list[TopicPartition] = client.offsets_for_times(places, timeout=timeout)
    for place in found:
        if place.error is not None:
            raise KafkaException(place.error)
    return found


def _settles(client: Consumer, place: TopicPartition) -> bool:
    """Tell whether nothing is under way in *place* at some moment, as between transactions."""
    try:
        wanted = [TopicPartition(place.topic, place.partition)]
        kafka_groups.committed(client, wanted, time.monotonic() + AT_ONCE)
    except KafkaException as error:
        if error.args[0].code() in HELD_BACK:
            return False
        raise
    return True


def _read(settings: QueueSettings, group: str, topic: str) -> list[TopicPartition]:
    """Return what *group* has committed for good in each partition of *topic*."""
    with _reading(settings, group, "read_uncommitted") as client:
        (count,) = clients.partitions(client, settings, [topic])
        places = [TopicPartition(topic, each) for each in range(count)]
        return kafka_groups.committed(client, places, time.monotonic() + settings.timeout)


@contextmanager
def _reading(settings: QueueSettings, group: str, isolation: str) -> Iterator[Consumer]:
    """Return a consumer that can ask for *group*, and never joins it."""
    client = clients.onlooker(settings, **{"group.id": group, "isolation.level": isolation})
    try:
        yield client
    except KafkaException as error:
        raise clients.failure(settings, error) from error
    finally:
        client.close()

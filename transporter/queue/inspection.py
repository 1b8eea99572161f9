"""Inspection of queues from outside: it consumes nothing, joins no group, changes nothing."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from transporter.queue import clients
from transporter.queue.backlog import BacklogEstimator
from transporter.queue.failures import (
    BadMarker,
    QueueUnavailable,
    is_reading_fault,
    reading_fault,
)
from transporter.queue.in_progress import InProgress
from transporter.queue.markers import decode_marker
from transporter.queue.message import PREFIX, message_from_record
from transporter.queue.progress import committed_offsets
from transporter.queue.settings import check_queue_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from confluent_kafka import Message

    from transporter.queue.message import Headers, QueueMessage
    from transporter.queue.progress import Offsets
    from transporter.queue.settings import QueueSettings


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Contents of one queue. Ages are in seconds by the wall clock, for information only."""

    queue: str
    depth: int
    """Messages that no consumer has begun; an estimate is never too small."""
    in_progress: int | None
    """Messages that were begun and are not settled; ``None`` if not counted."""
    dead_letters: int | None
    oldest_waiting: float | None
    oldest_in_progress: float | None


def peek(settings: QueueSettings, queue: str, most: int) -> Iterator[QueueMessage]:
    """Return messages that no consumer of *queue* has begun, at most *most*."""
    check_queue_name(queue)
    begin = committed_offsets(settings, settings.consumer_group(queue), settings.queue_topic)
    yield from _queue_messages(settings, settings.queue_topic, begin, queue, most)


def dead_letters(
    settings: QueueSettings, queue: str, most: int
) -> Iterator[tuple[QueueMessage, Headers]]:
    """Return dead letters of *queue*, at most *most*, each with its transporter headers."""
    check_queue_name(queue)
    found = 0
    for record in _scan(settings, settings.dead_letter_topic, {}):
        if found < most and record.key() == queue.encode():
            found += 1
            headers = tuple(record.headers() or ())
            yield _to_message(record, queue), tuple(h for h in headers if h[0].startswith(PREFIX))


def stats(settings: QueueSettings, queues: Sequence[str] = ()) -> list[QueueStats]:
    """Return the contents of *queues*, or of all queues that have messages or consumers.

    Reads the queue topic from the consumers' offsets (from its beginning for
    all queues), the part of the markers topic that trackers would read, and the
    dead letters. The time grows with their size.
    """
    now = time.time()
    consumed = _consumed_offsets(settings, queues)
    waiting = _waiting_times(settings, queues, consumed)
    working = _in_progress_times(settings)
    dead = _count_by_queue(settings, settings.dead_letter_topic)
    names = sorted(queues or {*consumed, *waiting, *working, *dead})
    return [
        QueueStats(
            name,
            *_counts_and_ages(waiting.get(name, []), working.get(name, []), dead.get(name, 0), now),
        )
        for name in names
    ]


def estimates(settings: QueueSettings, queues: Sequence[str] = ()) -> list[QueueStats]:
    """Estimate the number of waiting messages of *queues*, or of all that have had consumers.

    The time does not depend on that number. See :class:`~transporter.queue.backlog.Backlog`.
    """
    return [_estimate(settings, name) for name in sorted(queues or _known_queues(settings))]


def _estimate(settings: QueueSettings, queue: str) -> QueueStats:
    with closing(BacklogEstimator(settings, queue)) as estimator:
        found = estimator.estimate(settings.timeout)
    age = None if found.oldest is None else _oldest_age([found.oldest], time.time())
    return QueueStats(queue, found.depth, None, None, age, None)


def _counts_and_ages(
    waiting: list[float], working: list[float], dead: int, now: float
) -> tuple[int, int, int, float | None, float | None]:
    return len(waiting), len(working), dead, _oldest_age(waiting, now), _oldest_age(working, now)


def _oldest_age(times: list[float], now: float) -> float | None:
    return max(0.0, now - min(times)) if times else None


def _consumed_offsets(settings: QueueSettings, queues: Sequence[str]) -> dict[str, Offsets]:
    """Return the committed offsets of each of *queues*, or of all queues."""
    names = [check_queue_name(each) for each in queues] or _known_queues(settings)
    return {
        name: committed_offsets(settings, settings.consumer_group(name), settings.queue_topic)
        for name in names
    }


def _known_queues(settings: QueueSettings) -> list[str]:
    prefix = settings.consumer_group("")
    client = clients.admin(settings)  # Keep a reference: its requests end with the client.
    try:
        listed = client.list_consumer_groups(request_timeout=settings.timeout)
        groups = [each.group_id for each in listed.result().valid]
    except KafkaException as error:
        raise clients.kafka_failure(settings, error) from error
    return [each.removeprefix(prefix) for each in groups if each.startswith(prefix)]


def _waiting_times(
    settings: QueueSettings, queues: Sequence[str], consumed: dict[str, Offsets]
) -> dict[str, list[float]]:
    """Return the send times of the messages that no consumer has begun, by queue."""
    begin: Offsets = {}
    if queues:
        shared = set.intersection(*(set(each) for each in consumed.values()))
        begin = {number: min(each[number] for each in consumed.values()) for number in shared}
    found: dict[str, list[float]] = {}
    for record in _scan(settings, settings.queue_topic, begin):
        name = (record.key() or b"").decode(errors="replace")
        done = consumed.get(name, {}).get(record.partition(), 0)
        if name and record.offset() >= done and (not queues or name in queues):
            found.setdefault(name, []).append(record.timestamp()[1] / 1000)
    return found


def _in_progress_times(settings: QueueSettings) -> dict[str, list[float]]:
    """Return the start times of the messages in progress, by queue."""
    begin = committed_offsets(settings, settings.tracker_group, settings.markers_topic)
    partitions: dict[int, InProgress] = {}
    for record in _scan(settings, settings.markers_topic, begin):
        progress = partitions.setdefault(record.partition(), InProgress())
        try:
            marker = decode_marker(record.value() or b"")
        except BadMarker:
            continue
        progress.apply(record.offset(), marker, record.timestamp()[1] / 1000)
    found: dict[str, list[float]] = {}
    for progress in partitions.values():
        for each in progress:
            found.setdefault(each.message.queue, []).append(each.message.since)
    return found


def _count_by_queue(settings: QueueSettings, topic: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for record in _scan(settings, topic, {}):
        name = (record.key() or b"").decode(errors="replace")
        found[name] = found.get(name, 0) + 1
    return found


def _queue_messages(
    settings: QueueSettings, topic: str, begin: Offsets, queue: str, most: int
) -> Iterator[QueueMessage]:
    found, key = 0, queue.encode()
    for record in _scan(settings, topic, begin):
        if found == most:
            return
        if record.key() == key:
            found += 1
            yield _to_message(record, queue)


def _to_message(record: Message, queue: str) -> QueueMessage:
    where = (record.partition(), record.offset())
    return message_from_record(
        where, queue, record.value(), record.headers(), record.timestamp()[1]
    )


def _scan(settings: QueueSettings, topic: str, begin: Offsets) -> Iterator[Any]:
    """Return the records of *topic* from *begin* to the current end of each partition."""
    client = clients.standalone_consumer(settings)
    try:
        (count,) = clients.count_partitions(client, settings, [topic])
        places = [TopicPartition(topic, each, begin.get(each, 0)) for each in range(count)]
        client.assign(places)
        left = set(range(count))
        deadline = time.monotonic() + settings.timeout
        while left:
            records = client.consume(1000, 0.1)
            if records:
                deadline = time.monotonic() + settings.timeout
            elif time.monotonic() > deadline:
                raise QueueUnavailable(
                    f"topic {topic} at {settings.bootstrap_servers}: no answer for"
                    f" {settings.timeout:g} s; check whether the brokers are up"
                )
            for record in records:
                if record.error() is None:
                    yield record
                elif record.error().code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - public
                    left.discard(record.partition())
                elif is_reading_fault(record.error()):
                    raise reading_fault(record, f"topic {topic}")
    finally:
        client.close()

"""Looks at queues from outside: consumes nothing, joins no group, changes nothing."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from transporter.queue import clients
from transporter.queue.backlog import BacklogEstimator
from transporter.queue.failures import BadMarker, QueueUnavailable, is_fault, translated
from transporter.queue.markers import decode
from transporter.queue.message import PREFIX, received
from transporter.queue.progress import committed
from transporter.queue.settings import queue_name
from transporter.queue.tracking import InProgress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from confluent_kafka import Message

    from transporter.queue.message import Headers, QueueMessage
    from transporter.queue.progress import Offsets
    from transporter.queue.settings import QueueSettings


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What one queue holds; ages are in seconds, by the wall clock, and only inform."""

    queue: str
    depth: int
    """Messages that no consumer has begun; of an estimate at least that many."""
    in_progress: int | None
    """Messages that were begun and are not settled; ``None`` if they were not counted."""
    dead_letters: int | None
    oldest_waiting: float | None
    oldest_in_progress: float | None


def peek(settings: QueueSettings, queue: str, most: int) -> Iterator[QueueMessage]:
    """Return messages that no consumer of *queue* has begun, at most *most*."""
    queue_name(queue)
    begin = committed(settings, settings.consumer_group(queue), settings.queue_topic)
    yield from _of_queue(settings, settings.queue_topic, begin, queue, most)


def dead_letters(
    settings: QueueSettings, queue: str, most: int
) -> Iterator[tuple[QueueMessage, Headers]]:
    """Return dead letters of *queue*, at most *most*, each with all of its headers of ours."""
    queue_name(queue)
    found = 0
    for record in _scan(settings, settings.dead_letter_topic, {}):
        if found < most and record.key() == queue.encode():
            found += 1
            headers = tuple(record.headers() or ())
            yield _message(record, queue), tuple(h for h in headers if h[0].startswith(PREFIX))


def stats(settings: QueueSettings, queues: Sequence[str] = ()) -> list[QueueStats]:
    """Return what *queues* hold, or all that have messages, or consumers, still.

    Reads the queue topic from where the consumers are (from its beginning for
    all queues), what trackers would read of the markers topic, and the dead
    letters: the more they hold, the longer it takes.
    """
    now = time.time()
    consumed = _consumed(settings, queues)
    waiting = _waiting(settings, queues, consumed)
    working = _working(settings)
    dead = _counted(settings, settings.dead_letter_topic)
    names = sorted(queues or {*consumed, *waiting, *working, *dead})
    return [
        QueueStats(
            name,
            *_split(waiting.get(name, []), working.get(name, []), dead.get(name, 0), now),
        )
        for name in names
    ]


def estimates(settings: QueueSettings, queues: Sequence[str] = ()) -> list[QueueStats]:
    """Return about how many messages wait in *queues*, or in all that have had consumers.

    Takes as long for many messages as for few; see :class:`~transporter.queue.backlog.Backlog`.
    """
    return [_estimate(settings, name) for name in sorted(queues or _known(settings))]


def _estimate(settings: QueueSettings, queue: str) -> QueueStats:
    with closing(BacklogEstimator(settings, queue)) as estimator:
        found = estimator.estimate(settings.timeout)
    age = None if found.oldest is None else _age([found.oldest], time.time())
    return QueueStats(queue, found.depth, None, None, age, None)


def _split(
    waiting: list[float], working: list[float], dead: int, now: float
) -> tuple[int, int, int, float | None, float | None]:
    return len(waiting), len(working), dead, _age(waiting, now), _age(working, now)


def _age(times: list[float], now: float) -> float | None:
    return max(0.0, now - min(times)) if times else None


def _consumed(settings: QueueSettings, queues: Sequence[str]) -> dict[str, Offsets]:
    """Return how far the consumers of each queue are, of those given or of all."""
    names = [queue_name(each) for each in queues] or _known(settings)
    return {
        name: committed(settings, settings.consumer_group(name), settings.queue_topic)
        for name in names
    }


def _known(settings: QueueSettings) -> list[str]:
    prefix = settings.consumer_group("")
    client = clients.admin(settings)  # its requests end with it
    try:
        listed = client.list_consumer_groups(request_timeout=settings.timeout)
        groups = [each.group_id for each in listed.result().valid]
    except KafkaException as error:
        raise clients.failure(settings, error) from error
    return [each.removeprefix(prefix) for each in groups if each.startswith(prefix)]


def _waiting(
    settings: QueueSettings, queues: Sequence[str], consumed: dict[str, Offsets]
) -> dict[str, list[float]]:
    """Return when each message was sent that no consumer has begun, by queue."""
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


def _working(settings: QueueSettings) -> dict[str, list[float]]:
    """Return when each message in progress was begun, by queue."""
    begin = committed(settings, settings.tracker_group, settings.markers_topic)
    partitions: dict[int, InProgress] = {}
    for record in _scan(settings, settings.markers_topic, begin):
        progress = partitions.setdefault(record.partition(), InProgress())
        try:
            marker = decode(record.value() or b"")
        except BadMarker:
            continue
        progress.see(record.offset(), marker, record.timestamp()[1] / 1000)
    found: dict[str, list[float]] = {}
    for progress in partitions.values():
        for each in progress:
            found.setdefault(each.held.queue, []).append(each.held.since)
    return found


def _counted(settings: QueueSettings, topic: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for record in _scan(settings, topic, {}):
        name = (record.key() or b"").decode(errors="replace")
        found[name] = found.get(name, 0) + 1
    return found


def _of_queue(
    settings: QueueSettings, topic: str, begin: Offsets, queue: str, most: int
) -> Iterator[QueueMessage]:
    found, key = 0, queue.encode()
    for record in _scan(settings, topic, begin):
        if found == most:
            return
        if record.key() == key:
            found += 1
            yield _message(record, queue)


def _message(record: Message, queue: str) -> QueueMessage:
    where = (record.partition(), record.offset())
    return received(where, queue, record.value(), record.headers(), record.timestamp()[1])


def _scan(settings: QueueSettings, topic: str, begin: Offsets) -> Iterator[Any]:
    """Return the records of *topic* from *begin* on, to where each partition ends now."""
    client = clients.onlooker(settings)
    try:
        (count,) = clients.partitions(client, settings, [topic])
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
                    f" {settings.timeout:g} s; see whether the brokers are up"
                )
            for record in records:
                if record.error() is None:
                    yield record
                elif record.error().code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - public
                    left.discard(record.partition())
                elif is_fault(record.error()):
                    raise translated(record.error(), f"topic {topic}")
    finally:
        client.close()

"""Redelivery of due messages to their queue, or to the dead-letter topic. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from transporter.queue.failures import BadMarker
from transporter.queue.in_progress import DEADLINE
from transporter.queue.markers import End, Nack, Start
from transporter.queue.message import (
    dead_letter_headers,
    redelivery_count,
    redelivery_headers,
    unpack_headers,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transporter.queue.in_progress import Expired, MessageInProgress
    from transporter.queue.markers import Marker
    from transporter.queue.message import Headers, MessageId
    from transporter.queue.settings import QueueSettings
    from transporter.queue.tracker_partition import AssignedPartition


_MOST_BYTES: Final = 8 * 1024**2


class RedeliveryRecord(NamedTuple):
    """A record to send."""

    topic: str
    queue: str
    value: bytes | None
    headers: Headers
    dead: bool


def redelivery_record(expired: Expired, settings: QueueSettings, time: str) -> RedeliveryRecord:
    """Return the record that redelivers *expired*, or a dead letter that carries *time*."""
    held = expired.message
    try:
        headers = unpack_headers(held.headers)
    except BadMarker:
        headers = ()  # The message matters more than its headers.
    counted = held.nack is None or not held.nack.released
    count = redelivery_count(headers)
    limit = settings.max_redeliveries
    if counted and limit is not None and count >= limit:
        last = redelivery_headers(headers, settings.queue_topic, expired.id, count)
        letter = dead_letter_headers(last, _reason(held), time)
        topic = settings.dead_letter_topic
        return RedeliveryRecord(topic, held.queue, held.value, letter, dead=True)
    again = redelivery_headers(headers, settings.queue_topic, expired.id, count + counted)
    topic = settings.queue_topic
    return RedeliveryRecord(topic, held.queue, held.value, again, dead=False)


def end_markers(ids: Iterable[MessageId]) -> Iterator[End]:
    """Return Ends of the messages with *ids*."""
    found: dict[int, list[int]] = defaultdict(list)
    for partition, offset in ids:
        found[partition].append(offset)
    for partition, offsets in found.items():
        yield End(partition, tuple(offsets))


class Due(NamedTuple):
    """A due message, and the markers partition in which it is in progress."""

    assigned: AssignedPartition
    expired: Expired


def split_for_transactions(due: Iterable[Due]) -> Iterator[list[Due]]:
    """Split *due* into parts of a size for one transaction (Invariant 17)."""
    part: list[Due] = []
    size = 0
    for each in due:
        held = each.expired.message
        more = len(held.value or b"") + len(held.headers)
        if part and size + more > _MOST_BYTES:
            yield part
            part, size = [], 0
        part.append(each)
        size += more
    if part:
        yield part


def group_by_partition(due: Iterable[Due]) -> list[tuple[AssignedPartition, list[Expired]]]:
    """Group due messages by partition."""
    found: dict[int, tuple[AssignedPartition, list[Expired]]] = {}
    for assigned, expired in due:
        found.setdefault(assigned.number, (assigned, []))[1].append(expired)
    return list(found.values())


def restated_markers(old: Iterable[Expired], now: float) -> Iterator[Marker]:
    """Return markers equal in effect to those of *old* for a tracker that reads them at *now*."""
    for (partition, offset), held in old:
        after = _milliseconds(held.after)
        contents = ((held.value,), (held.headers,))
        yield Start(held.queue, partition, (offset,), after, *contents, restated=True)
        if held.nack is not None:
            left = _milliseconds(max(0.0, held.deadline - now))
            yield Nack(partition, (offset,), left, held.nack.reason, held.nack.released)


def _milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def _reason(held: MessageInProgress) -> str:
    return DEADLINE if held.nack is None else held.nack.reason

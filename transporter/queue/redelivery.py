"""Where a message that is due goes: to its queue again, or to the dead letters. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from transporter.queue.failures import BadMarker
from transporter.queue.markers import End, Nack, Start
from transporter.queue.message import count_of, dead, redelivered, unpack
from transporter.queue.tracking import DEADLINE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transporter.queue.assigned import Assigned
    from transporter.queue.markers import Marker
    from transporter.queue.message import Headers
    from transporter.queue.settings import QueueSettings
    from transporter.queue.tracking import Expired, Held


_MOST_BYTES: Final = 8 * 1024**2


class Redelivery(NamedTuple):
    """A record to be sent."""

    topic: str
    queue: str
    value: bytes | None
    headers: Headers
    dead: bool


def redelivery(expired: Expired, settings: QueueSettings, time: str) -> Redelivery:
    """Return what becomes of *expired* at *time*, which a dead letter tells."""
    held = expired.held
    try:
        headers = unpack(held.headers)
    except BadMarker:
        headers = ()  # The message counts for more than what is said about it.
    counted = held.nack is None or not held.nack.released
    count = count_of(headers)
    limit = settings.max_redeliveries
    if counted and limit is not None and count >= limit:
        last = redelivered(headers, settings.queue_topic, expired.id, count)
        letter = dead(last, _reason(held), time)
        topic = settings.dead_letter_topic
        return Redelivery(topic, held.queue, held.value, letter, dead=True)
    again = redelivered(headers, settings.queue_topic, expired.id, count + counted)
    topic = settings.queue_topic
    return Redelivery(topic, held.queue, held.value, again, dead=False)


def ends(expired: Iterable[Expired]) -> Iterator[End]:
    """Return the Ends of what was redelivered."""
    found: dict[int, list[int]] = defaultdict(list)
    for (partition, offset), _ in expired:
        found[partition].append(offset)
    for partition, offsets in found.items():
        yield End(partition, tuple(offsets))


class Due(NamedTuple):
    """A message that is due, and the partition that it is in progress in."""

    assigned: Assigned
    expired: Expired


def parts(due: Iterable[Due]) -> Iterator[list[Due]]:
    """Return *due* in parts that one transaction can take (Invariant 17)."""
    part: list[Due] = []
    size = 0
    for each in due:
        held = each.expired.held
        more = len(held.value or b"") + len(held.headers)
        if part and size + more > _MOST_BYTES:
            yield part
            part, size = [], 0
        part.append(each)
        size += more
    if part:
        yield part


def by_partition(due: Iterable[Due]) -> list[tuple[Assigned, list[Expired]]]:
    """Return what is due of each partition."""
    found: dict[int, tuple[Assigned, list[Expired]]] = {}
    for assigned, expired in due:
        found.setdefault(assigned.number, (assigned, []))[1].append(expired)
    return list(found.values())


def restatements(old: Iterable[Expired], now: float) -> Iterator[Marker]:
    """Return markers that say what those of *old* say, for one that reads them *now* first."""
    for (partition, offset), held in old:
        after = _milliseconds(held.after)
        contents = ((held.value,), (held.headers,))
        yield Start(held.queue, partition, (offset,), after, *contents, restated=True)
        if held.nack is not None:
            left = _milliseconds(max(0.0, held.deadline - now))
            yield Nack(partition, (offset,), left, held.nack.reason, held.nack.released)


def _milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def _reason(held: Held) -> str:
    return DEADLINE if held.nack is None else held.nack.reason

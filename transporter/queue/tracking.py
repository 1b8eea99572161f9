"""What a tracker knows: messages in progress, and when they are to be redelivered. Pure.

Time is an argument: seconds of one monotonic clock, that of the tracker
(Invariant 16). No timestamp of a message or marker is ever looked at, so no
clock but that one matters.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from itertools import count, islice
from typing import TYPE_CHECKING, NamedTuple

from transporter.queue.markers import End, KeepAlive, Nack, Start

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from transporter.queue.markers import Marker
    from transporter.queue.message import MessageId

DEADLINE = "its consumer neither acked it nor kept it alive in time"


class Held:
    """One message in progress."""

    __slots__ = (
        "after",
        "deadline",
        "headers",
        "nack",
        "queue",
        "seen",
        "since",
        "start",
        "value",
    )

    def __init__(
        self,
        queue: str,
        value: bytes | None,
        headers: bytes,
        start: int,
        seen: float,
        after: float,
    ) -> None:
        """Keep what a Start at offset *start*, seen at *seen*, says of it."""
        self.queue = queue
        self.value = value
        self.headers = headers
        self.start = start
        self.seen = self.since = seen
        self.after = after
        self.deadline = seen + after
        self.nack: Nack | None = None
        """Why it is to be redelivered, when its consumer said so."""


class Expired(NamedTuple):
    """A message that is due."""

    id: MessageId
    held: Held


class InProgress:
    """The messages in progress of one partition of the markers topic.

    Three structures: a map from id to message; the Starts by offset, of which
    the smallest that still counts is committed; and the messages by deadline.
    Both queues are deleted from lazily, hold one item a marker, not one a
    message, and are made anew when most of what they list has ended: memory is
    bounded by what is in progress, not by what has passed (Invariant 17).
    Offsets only grow, so the queue by offset is in order by itself and needs no
    heap.

    A Start of a message that is in progress replaces what was known of it, so
    neither a repeated nor a late one does harm. Not thread-safe.
    """

    def __init__(self, next_offset: int = 0, slack: int = 20_000) -> None:
        """Begin before the marker at *next_offset*; list at most *slack* ids without need."""
        self.next = next_offset
        """The offset behind the last marker that was seen."""
        self.caught_up = False
        """Whether all markers that preceded the assignment were seen."""
        self._held: dict[MessageId, Held] = {}
        self._by_offset: deque[tuple[int, list[MessageId]]] = deque()
        self._by_deadline: list[tuple[float, int, Sequence[MessageId]]] = []
        self._order = count()
        self._slack = slack
        self._listed = 0
        """Ids in both queues, those that have ended included."""

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Expired]:
        return (Expired(*item) for item in self._held.items())

    def see(self, offset: int, marker: Marker | None, now: float) -> int:
        """Take in the marker at *offset*; ``None`` stands for one that cannot be read.

        Return of how many messages in progress it told (of all, for a Start).
        """
        self.next = offset + 1
        if self._listed > self._slack + 4 * len(self._held):
            self._tidy()
        match marker:
            case Start():
                return self._start(offset, marker, now)
            case KeepAlive():
                return self._postpone(marker, marker.after_ms / 1000, now, None)
            case Nack():
                return self._postpone(marker, marker.delay_ms / 1000, now, marker)
            case End():
                return self.drop((marker.partition, each) for each in marker.offsets)
        return 0

    def drop(self, ids: Iterable[MessageId]) -> int:
        """Forget *ids*, which are done with or redelivered; return how many were known."""
        pop = self._held.pop
        return sum(pop(each, None) is not None for each in ids)

    @property
    def low(self) -> int:
        """The smallest Start that still counts, else the next offset: what is to be committed.

        A tracker that begins there comes to the same messages in progress.
        """
        while self._by_offset:
            start, ids = self._by_offset[0]
            while ids and not self._counts(ids[-1], start):
                ids.pop()
                self._listed -= 1
            if ids:
                return start
            self._by_offset.popleft()
        return self.next

    def low_without(self, ids: Iterable[MessageId]) -> int:
        """Return :attr:`low` as it will be when *ids* are dropped."""
        gone = set(ids)
        for start, listed in self._by_offset:
            if any(each not in gone and self._counts(each, start) for each in listed):
                return start
        return self.next

    @property
    def oldest(self) -> float | None:
        """When the Start of the message that is longest in progress was seen."""
        if self.low == self.next:
            return None
        return self._held[self._by_offset[0][1][-1]].since

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline, or one that has been put off since; ``None`` without any."""
        return self._by_deadline[0][0] if self._by_deadline else None

    def due(self, now: float) -> bool:
        """Tell whether the deadline of any message is past."""
        while self._by_deadline and self._by_deadline[0][0] <= now:
            if any(self._is_due(each, now) for each in self._by_deadline[0][2]):
                return True
            self._pop_deadline()
        return False

    def expired(self, now: float, most: int) -> list[Expired]:
        """Take the messages whose deadline is past, at most about *most*, the earliest first.

        They stay in progress: :meth:`drop` them when they are redelivered, or
        :meth:`retry` them.
        """
        found: dict[MessageId, Held] = {}
        while len(found) < most and self.due(now):
            ids = self._pop_deadline()
            found.update((each, self._held[each]) for each in ids if self._is_due(each, now))
        return [Expired(*item) for item in found.items()]

    def retry(self, ids: Iterable[MessageId], at: float) -> None:
        """Let *ids*, which were taken but could not be redelivered, be due again at *at*."""
        known = [each for each in ids if each in self._held]
        for each in known:
            self._held[each].deadline = at
        self._due(known, at)

    def old(self, now: float, age: float, most: int) -> list[Expired]:
        """Return messages, at most *most*, whose Start was seen *age* ago or longer."""
        if self.low == self.next:
            return []
        waiting = (
            Expired(each, self._held[each])
            for start, ids in self._by_offset
            for each in ids
            if self._counts(each, start)
        )
        return [each for each in islice(waiting, most) if each.held.seen + age <= now]

    def _start(self, offset: int, marker: Start, now: float) -> int:
        ids = [(marker.partition, each) for each in marker.offsets]
        if marker.restated and self.caught_up:
            return self._restate(offset, ids, now)
        queue, after = marker.queue, marker.after_ms / 1000
        self._held.update(
            (each, Held(queue, value, headers, offset, now, after))
            for each, value, headers in zip(ids, marker.values, marker.headers, strict=True)
        )
        self._starts(offset, ids)
        self._due(tuple(ids), now + after)
        return len(ids)

    def _restate(self, offset: int, ids: list[MessageId], now: float) -> int:
        """Let Starts be the newer one at *offset*; what has ended meanwhile stays so."""
        known = [each for each in ids if each in self._held]
        for each in known:
            self._held[each].start, self._held[each].seen = offset, now
        self._starts(offset, known)
        return len(known)

    def _postpone(
        self, marker: KeepAlive | Nack, seconds: float, now: float, nack: Nack | None
    ) -> int:
        known = []
        for offset in marker.offsets:
            held = self._held.get((marker.partition, offset))
            # Once nacked, a message is its consumer's no more: nothing keeps it alive.
            if held is not None and (nack is not None or held.nack is None):
                held.deadline, held.nack = now + seconds, nack
                if nack is None:
                    held.after = seconds
                known.append((marker.partition, offset))
        self._due(known, now + seconds)
        return len(known)

    def _starts(self, offset: int, ids: list[MessageId]) -> None:
        if ids:
            self._by_offset.append((offset, ids))
            self._listed += len(ids)

    def _due(self, ids: Sequence[MessageId], deadline: float) -> None:
        if ids:
            heapq.heappush(self._by_deadline, (deadline, next(self._order), ids))
            self._listed += len(ids)

    def _pop_deadline(self) -> Sequence[MessageId]:
        _, _, ids = heapq.heappop(self._by_deadline)
        self._listed -= len(ids)
        return ids

    def _counts(self, each: MessageId, start: int) -> bool:
        held = self._held.get(each)
        return held is not None and held.start == start

    def _is_due(self, each: MessageId, now: float) -> bool:
        held = self._held.get(each)
        return held is not None and held.deadline <= now

    def _tidy(self) -> None:
        """Make both queues anew from what is in progress."""
        starts: dict[int, list[MessageId]] = defaultdict(list)
        deadlines: dict[float, list[MessageId]] = defaultdict(list)
        for each, held in self._held.items():
            starts[held.start].append(each)
            deadlines[held.deadline].append(each)
        self._by_offset = deque(sorted(starts.items()))
        self._by_deadline = [
            (deadline, next(self._order), ids) for deadline, ids in deadlines.items()
        ]
        heapq.heapify(self._by_deadline)
        self._listed = 2 * len(self._held)

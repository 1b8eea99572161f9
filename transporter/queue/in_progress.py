"""Messages in progress of a tracker, and their redelivery deadlines. Pure.

Time is an argument: seconds of one monotonic clock, that of the tracker
(Invariant 16). Timestamps of messages and markers are never used, so only that
clock matters.
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


class MessageInProgress:
    """One message in progress."""

    __slots__ = (
        "after",
        "deadline",
        "headers",
        "nack",
        "queue",
        "seen_at",
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
        seen_at: float,
        after: float,
    ) -> None:
        """Keep the contents of a Start at offset *start*, read at *seen_at*."""
        self.queue = queue
        self.value = value
        self.headers = headers
        self.start = start
        self.seen_at = self.since = seen_at
        self.after = after
        self.deadline = seen_at + after
        self.nack: Nack | None = None
        """The Nack of its consumer, if there is one."""


class Expired(NamedTuple):
    """A due message."""

    id: MessageId
    message: MessageInProgress


class InProgress:
    """The messages in progress of one partition of the markers topic.

    There are three structures: a map from id to message, the Starts by offset,
    and the messages by deadline. The smallest Start that still counts is
    committed. Both queues delete lazily and hold one item per marker, not per
    message. They are rebuilt when most of their entries have ended. Memory is
    therefore bounded by the messages in progress, not by those that have passed
    (Invariant 17). Offsets only grow, so the queue by offset is always in order
    and needs no heap.

    A Start of a message in progress replaces the earlier state of that message,
    so a repeated or late Start is harmless. A restated Start does not replace an
    End: its tracker had not read that yet. Not thread-safe.
    """

    def __init__(self, next_offset: int = 0, slack: int = 20_000, most_ends: int = 100_000) -> None:
        """Start before the marker at *next_offset* and list at most *slack* superfluous ids.

        Until it has caught up, it remembers at least the last *most_ends* ended messages.
        """
        self.next_offset = next_offset
        """The offset behind the last marker that was applied."""
        self.caught_up = False
        """Whether all markers before the assignment were applied."""
        self.ends_to_repeat: set[MessageId] = set()
        """Messages with an End before a restated Start and none behind it.

        A tracker that begins between the two needs another End."""
        self._most_ends = most_ends
        self._ended: set[MessageId] = set()
        self._ended_earlier: set[MessageId] = set()
        self._messages: dict[MessageId, MessageInProgress] = {}
        self._by_offset: deque[tuple[int, list[MessageId]]] = deque()
        self._by_deadline: list[tuple[float, int, Sequence[MessageId]]] = []
        self._sequence = count()
        self._slack = slack
        self._listed_count = 0
        """Number of ids in both queues, including ended ones."""

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Expired]:
        return (Expired(*item) for item in self._messages.items())

    def apply(self, offset: int, marker: Marker | None, now: float) -> int:
        """Apply the marker at *offset*. ``None`` stands for an unreadable one.

        Returns:
            The number of messages in progress that it affected; for a Start, of all its messages.
        """
        self.next_offset = offset + 1
        if self._listed_count > self._slack + 4 * len(self._messages):
            self._rebuild_queues()
        match marker:
            case Start():
                return self._apply_start(offset, marker, now)
            case KeepAlive():
                return self._postpone(marker, marker.after_ms / 1000, now, None)
            case Nack():
                return self._postpone(marker, marker.delay_ms / 1000, now, marker)
            case End():
                return self._apply_end([(marker.partition, each) for each in marker.offsets])
        return 0

    def finish_catching_up(self) -> None:
        """Note that all markers before the assignment were applied."""
        self.caught_up = True
        self._ended, self._ended_earlier = set(), set()

    def drop(self, ids: Iterable[MessageId]) -> int:
        """Remove *ids*, which are settled or redelivered, and return how many were in progress."""
        pop = self._messages.pop
        return sum(pop(each, None) is not None for each in ids)

    @property
    def low_offset(self) -> int:
        """Offset to commit: the smallest Start that still counts, else the next offset.

        A tracker that starts there reconstructs the same messages in progress.
        """
        while self._by_offset:
            start, ids = self._by_offset[0]
            while ids and not self._is_current(ids[-1], start):
                ids.pop()
                self._listed_count -= 1
            if ids:
                return start
            self._by_offset.popleft()
        return self.next_offset

    def low_offset_without(self, ids: Iterable[MessageId]) -> int:
        """Return :attr:`low_offset` as it will be once *ids* are dropped."""
        gone = set(ids)
        for start, listed in self._by_offset:
            if any(each not in gone and self._is_current(each, start) for each in listed):
                return start
        return self.next_offset

    @property
    def oldest(self) -> float | None:
        """Time at which the Start of the oldest message in progress was read."""
        if self.low_offset == self.next_offset:
            return None
        return self._messages[self._by_offset[0][1][-1]].since

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline, possibly postponed since; ``None`` without messages."""
        return self._by_deadline[0][0] if self._by_deadline else None

    def has_due(self, now: float) -> bool:
        """Return whether the deadline of any message has passed."""
        while self._by_deadline and self._by_deadline[0][0] <= now:
            if any(self._is_due(each, now) for each in self._by_deadline[0][2]):
                return True
            self._pop_deadline()
        return False

    def take_expired(self, now: float, most: int) -> list[Expired]:
        """Take the messages whose deadline has passed, at most about *most*, earliest first.

        They stay in progress until the caller passes them to :meth:`drop` after a
        redelivery. Pass them to :meth:`retry` if it failed.
        """
        found: dict[MessageId, MessageInProgress] = {}
        while len(found) < most and self.has_due(now):
            ids = self._pop_deadline()
            found.update((each, self._messages[each]) for each in ids if self._is_due(each, now))
        return [Expired(*item) for item in found.items()]

    def retry(self, ids: Iterable[MessageId], at: float) -> None:
        """Make *ids*, whose redelivery failed, due again at *at*."""
        known = [each for each in ids if each in self._messages]
        for each in known:
            self._messages[each].deadline = at
        self._schedule(known, at)

    def older_than(self, now: float, age: float, most: int) -> list[Expired]:
        """Return at most *most* messages whose Start was read at least *age* ago."""
        if self.low_offset == self.next_offset:
            return []
        waiting = (
            Expired(each, self._messages[each])
            for start, ids in self._by_offset
            for each in ids
            if self._is_current(each, start)
        )
        return [each for each in islice(waiting, most) if each.message.seen_at + age <= now]

    def _apply_start(self, offset: int, marker: Start, now: float) -> int:
        ids = [(marker.partition, each) for each in marker.offsets]
        if marker.restated and (self.caught_up or all(map(self._was_ended, ids))):
            return self._apply_restated(offset, ids, now)
        if self.ends_to_repeat:
            self.ends_to_repeat.difference_update(ids)
        queue, after = marker.queue, marker.after_ms / 1000
        self._messages.update(
            (each, MessageInProgress(queue, value, headers, offset, now, after))
            for each, value, headers in zip(ids, marker.values, marker.headers, strict=True)
        )
        self._index_starts(offset, ids)
        self._schedule(tuple(ids), now + after)
        return len(ids)

    def _apply_restated(self, offset: int, ids: list[MessageId], now: float) -> int:
        """Move messages to the newer Start at *offset*. Messages ended meanwhile stay ended."""
        known = [each for each in ids if each in self._messages]
        for each in known:
            self._messages[each].start, self._messages[each].seen_at = offset, now
        self._index_starts(offset, known)
        self.ends_to_repeat.update(each for each in ids if each not in self._messages)
        return len(known)

    def _apply_end(self, ids: list[MessageId]) -> int:
        self.ends_to_repeat.difference_update(ids)
        if not self.caught_up:
            if len(self._ended) >= self._most_ends:
                self._ended, self._ended_earlier = set(), self._ended
            self._ended.update(ids)
        return self.drop(ids)

    def _was_ended(self, each: MessageId) -> bool:
        """Return whether an End of *each* was read, as far as it is remembered."""
        return each in self._ended or each in self._ended_earlier

    def _postpone(
        self, marker: KeepAlive | Nack, seconds: float, now: float, nack: Nack | None
    ) -> int:
        known = []
        for offset in marker.offsets:
            held = self._messages.get((marker.partition, offset))
            # A nacked message no longer belongs to its consumer, so no keep-alive applies.
            if held is not None and (nack is not None or held.nack is None):
                held.deadline, held.nack = now + seconds, nack
                if nack is None:
                    held.after = seconds
                known.append((marker.partition, offset))
        self._schedule(known, now + seconds)
        return len(known)

    def _index_starts(self, offset: int, ids: list[MessageId]) -> None:
        if ids:
            self._by_offset.append((offset, ids))
            self._listed_count += len(ids)

    def _schedule(self, ids: Sequence[MessageId], deadline: float) -> None:
        if ids:
            heapq.heappush(self._by_deadline, (deadline, next(self._sequence), ids))
            self._listed_count += len(ids)

    def _pop_deadline(self) -> Sequence[MessageId]:
        _, _, ids = heapq.heappop(self._by_deadline)
        self._listed_count -= len(ids)
        return ids

    def _is_current(self, each: MessageId, start: int) -> bool:
        held = self._messages.get(each)
        return held is not None and held.start == start

    def _is_due(self, each: MessageId, now: float) -> bool:
        held = self._messages.get(each)
        return held is not None and held.deadline <= now

    def _rebuild_queues(self) -> None:
        """Rebuild both queues from the messages in progress."""
        starts: dict[int, list[MessageId]] = defaultdict(list)
        deadlines: dict[float, list[MessageId]] = defaultdict(list)
        for each, held in self._messages.items():
            starts[held.start].append(each)
            deadlines[held.deadline].append(each)
        self._by_offset = deque(sorted(starts.items()))
        self._by_deadline = [
            (deadline, next(self._sequence), ids) for deadline, ids in deadlines.items()
        ]
        heapq.heapify(self._by_deadline)
        self._listed_count = 2 * len(self._messages)

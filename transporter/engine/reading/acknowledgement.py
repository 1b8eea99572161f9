"""Acknowledgement of a reader's logged entries to its source, and the batches that wait for it."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from transporter.adaptor import DeliveredReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from transporter.adaptor import Reader
    from transporter.engine.reading.delivery_progress import DeliveryProgress
    from transporter.engine.reading.reader_condition import ActionGate
    from transporter.engine.reading.reader_resume import LogResume
    from transporter.log.commit_log import CommitLog
    from transporter.offsets.state import Range

SHORTEST_WAIT: Final = 0.005
"""Seconds that a poll may wait at first while acknowledgements to its source are pending."""
LONGEST_WAIT: Final = 0.1
"""Seconds that it may wait at most: acknowledgements of slow deliveries need not be prompt."""
_SPARE: Final = 64
"""Positions that are kept although no commit may name them: so it is rarely looked which."""


class SourceAcknowledgement:
    """Acknowledges entries to the source once they are durable, or delivered by every route.

    Belongs to the reader's thread. Any thread may read the properties, and wait for a
    confirmation. The order of all steps of a delivery is that of :mod:`.delivery_progress`.
    """

    def __init__(
        self,
        log: CommitLog,
        deliveries: DeliveryProgress | None,
        gate: ActionGate,
        *,
        shared: bool,
        paused_behind: int | None,
    ) -> None:
        """Begin with the entries of the last run, which are not acknowledged yet.

        Args:
            log: the reader's log.
            deliveries: the deliveries of the routes, for which the source waits, or ``None``.
            gate: admits acknowledgements.
            shared: whether engines take turns at the source.
            paused_behind: the offset up to which a reader that is paused from the start needs
                nothing of the log; ``None`` if it is not paused.

        """
        self._log, self._deliveries, self._gate = log, deliveries, gate
        self._batches = UnacknowledgedBatches()
        self._reader: Reader | None = None
        self.row_reader: DeliveredReader | None = None
        """The open reader, if it takes acknowledgements of single rows."""
        self.poll_timeout = SHORTEST_WAIT
        """Seconds that a poll may wait while acknowledgements are pending."""
        self.is_stale = False
        """Whether the entries of the newest poll were superseded before they were appended."""
        # Entries of the last run without an acknowledgement come again, or are acknowledged.
        self._recover_from = 0 if paused_behind is None else paused_behind + 1
        self._recovering = True
        self.first_unacknowledged: int | None = self._recover_from
        """The first offset that is not acknowledged, or ``None``."""
        self._appending: int | None = None
        self.redelivers_released = False
        """Whether the source redelivers entries that were released from a route."""
        # Once every route has delivered what was logged by then, the source gives again what was
        # released from one of them: nothing is taken from a route that delivers.
        self._reopen_after = 0
        self._confirm_changed = threading.Condition()
        self._confirm_requests = self._confirm_answers = 0
        self.is_undecided = shared
        """Whether the reader has yet to supersede its entries in the log, or to continue them."""

    def use(self, reader: Reader) -> None:
        """Acknowledge to *reader* from now on, which is about to be opened."""
        self._reader = reader
        # Checked once: isinstance with a protocol costs more than an idle poll.
        self.row_reader = reader if isinstance(reader, DeliveredReader) else None

    def leave_reader(self) -> None:
        """Take note that the reader is closed, and stays so."""
        self._reader = self.row_reader = None

    @property
    def count(self) -> int:
        """The number of entries that are not acknowledged."""
        return len(self._batches)

    @property
    def waiting_count(self) -> int:
        """The number of entries that are neither delivered nor parked by some route."""
        return self._batches.waiting_count

    @property
    def first_undelivered(self) -> int | None:
        """The first offset that is neither delivered nor parked, or ``None``."""
        return self._batches.first_undelivered

    def load_undelivered(self, resume: LogResume) -> None:
        """Open the entries of earlier runs, for a reader with acknowledgement by position only."""
        parts = list[tuple[int, int]]()
        for position, entries in resume.undelivered():
            parts += _ranges_of(entries.offsets)
            if position is not None and parts:
                self._batches.add(position, parts)
                parts = []
        if parts and resume.position is not None:
            # Nothing else up to that position is left.
            self._batches.add(resume.position, parts)

    def begin_batch(self) -> None:
        """Take note of a new batch, after which no entry of an earlier run is redelivered."""
        self.is_stale = False
        # A full log whose readers all wait for room must not be held for redelivered messages.
        self.end_recovery()

    def end_recovery(self) -> None:
        """Hold nothing of an earlier run any more: it need not be recognised."""
        self._recovering = False
        self.hold_from(None)

    def hold_from(self, appending: int | None) -> None:
        """Publish the first unacknowledged offset: of open batches, and of the one *appending*.

        Waiting routes check it again (Invariant 9).
        """
        self._appending = appending
        oldest = self._recover_from if self._recovering else None
        pending = (
            each
            for each in (self._batches.first_undelivered, appending, oldest)
            if each is not None
        )
        before, self.first_unacknowledged = self.first_unacknowledged, min(pending, default=None)
        if before != self.first_unacknowledged and self._deliveries is not None:
            self._deliveries.notify_acknowledged()

    def add(self, position: str, logged: list[tuple[int, int]], *, whole: bool) -> None:
        """Acknowledge the batch at *position*, which is durable, or keep it open.

        *logged* are its offsets, of each append the first and the last. Without *whole* a stop
        has cut it short.
        """
        if self._deliveries is None:
            if whole and self._reader is not None:
                # Invariant 1: only now, when the frames are durable.
                self._reader.commit(position)
        elif whole or self.row_reader is not None:
            # Single rows can be acknowledged also of a batch that a stop has cut short.
            self._batches.add(position, logged)
            self.poll_timeout = SHORTEST_WAIT

    def slow_down(self) -> None:
        """Let the next poll wait longer, because acknowledgements of slow deliveries may wait."""
        self.poll_timeout = min(2 * self.poll_timeout, LONGEST_WAIT)

    def acknowledge(self) -> None:
        """Acknowledge the new deliveries of every route to the source."""
        deliveries = self._deliveries
        if deliveries is None:
            return
        with self._gate.lock:
            if self._gate.is_closed:
                return  # It may be acknowledged without a removed route, too.
            # In this order: an entry is parked before a watermark passes it.
            through = deliveries.through
            given_up = self._batches.given_up
            # A source that takes positions in order gives no single row again: its reader has held
            # what it was not told of, so that none of it was released.
            released = () if self.row_reader is None else deliveries.released
            delivered = self._batches.deliver(through, deliveries.parked, released)
        whole = self._batches.take_whole_position()
        if self.row_reader is not None:
            for position, rows in delivered:
                self.row_reader.delivered(position, rows)
        elif whole is not None and self._reader is not None:
            self._reader.commit(whole)
        if delivered:
            self.poll_timeout = SHORTEST_WAIT
        self._recovering = self._recovering and not delivered
        # Also if only parked entries are left: they are not acknowledged, and no wait is for them.
        self.hold_from(self._appending)
        if self._batches.given_up > given_up:
            self._reopen_after = self._log.durable

    @property
    def must_reopen(self) -> bool:
        """Whether the source is to redeliver released entries, at no cost to any other route."""
        return (
            self._deliveries is not None
            and self._batches.given_up > 0
            and self._deliveries.through >= self._reopen_after
        )

    def wait_for_delivery(self, timeout: float, finishing: threading.Event) -> None:
        """Wait up to *timeout* seconds for a delivery that can be acknowledged."""
        first = self._batches.first_undelivered
        if self._deliveries is not None and first is not None:
            self._deliveries.wait(first, timeout)
        else:
            finishing.wait(timeout)

    def confirm_leadership(self) -> None:
        """Let the reader confirm that it leads, if a route has requested it."""
        if (request := self._confirm_requests) > self._confirm_answers:
            if self.row_reader is not None and self.row_reader.confirm() is False:
                return
            self.is_undecided = False
            with self._confirm_changed:
                self._confirm_answers = request
                self._confirm_changed.notify_all()

    def wait_until_confirmed(
        self, cancelled: Callable[[], bool], can_confirm: Callable[[], bool]
    ) -> bool:
        """Wait until the reader has confirmed that it leads, or no longer *can_confirm*.

        False if *cancelled* came first.
        """
        with self._confirm_changed:
            self._confirm_requests += 1
            request = self._confirm_requests
            while self._confirm_answers < request and can_confirm():
                if cancelled():
                    return False
                self._confirm_changed.wait(SHORTEST_WAIT)
        return True

    def drop_superseded(self) -> None:
        """Drop entries that the source redelivers, with those that are not appended yet."""
        self.is_stale, self.is_undecided, self._recovering = True, False, False
        self._batches.clear()
        self.hold_from(None)

    def reopen_batches(self, batches: Iterable[tuple[str, Sequence[int]]]) -> None:
        """Wait for the delivery of the logged entries, in place of all open batches."""
        self.is_undecided = self._recovering = False
        self._batches.clear()
        for position, offsets in batches:
            self._batches.add(position, list(_ranges_of(offsets)))
        self.hold_from(None)


def _ranges_of(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges that *offsets*, which ascend, are made of: first and last of each."""
    numbers = iter(offsets)
    first = last = next(numbers, None)
    for offset in numbers:
        if last is not None and first is not None and offset != last + 1:
            yield first, last
            first = offset
        last = offset
    if first is not None and last is not None:
        yield first, last


class DeliveredPart(NamedTuple):
    """Rows of the batch at ``position`` that every route has delivered."""

    position: str
    rows: Sequence[int]


@dataclass(slots=True)
class _Part:
    """A range of offsets that was appended at once. ``row`` is the row at ``next``."""

    position: str
    row: int
    next: int
    last: int


class UnacknowledgedBatches:
    """The logged batches of a reader that waits for their delivery, oldest first.

    Pure, and not thread-safe.

    An entry that some route has parked is *withheld*: it is below the watermark and not
    delivered while it is parked. ``park_limit`` bounds their number. An entry that was released
    from some route is *given up*: it counts among the entries until :meth:`clear`.
    """

    def __init__(self) -> None:
        self._parts: deque[_Part] = deque()
        self._positions: deque[tuple[str, int]] = deque()
        self._withheld: dict[int, tuple[str, int]] = {}
        self.given_up = 0
        # Read before each poll, and there may be as many parts as entries.
        self._count = self._kept = 0

    def __len__(self) -> int:
        """Return how many entries are not delivered."""
        return self._count

    @property
    def waiting_count(self) -> int:
        """How many entries are neither delivered nor withheld."""
        return self._count - len(self._withheld)

    @property
    def first_undelivered(self) -> int | None:
        """The first offset that is neither delivered nor withheld, or ``None``."""
        return self._parts[0].next if self._parts else None

    def add(self, position: str, parts: Sequence[tuple[int, int]]) -> None:
        """Open the batch at *position*, logged as *parts*: first and last offset of each append."""
        row = 0
        for first, last in parts:
            self._parts.append(_Part(position, row, first, last))
            row += last - first + 1
        self._count += row
        self._positions.append((position, parts[-1][1]))

    def deliver(
        self, through: int, parked: AbstractSet[int], released: Sequence[Range] = ()
    ) -> list[DeliveredPart]:
        """Return the entries that are delivered now that all routes have passed *through*.

        Except those that are *parked*, and those that were *released* from some route. A row
        is returned once.
        """
        found = []
        for offset in sorted(self._withheld.keys() - parked):
            position, row = self._withheld.pop(offset)
            if any(first <= offset <= last for first, last, _ in released):
                self.given_up += 1  # Another route has parked it, and settled it since.
            else:
                found.append(DeliveredPart(position, (row,)))
        while (part := self._next_part(through)) is not None:
            end = min(part.last, through)
            rows = self._take_rows(part, end, parked)
            left = _exclude_released(rows, part, released)
            self.given_up += len(rows) - len(left)
            found.append(DeliveredPart(part.position, left))
            part.row += end + 1 - part.next
            part.next = end + 1
            if part.next > part.last:
                self._parts.popleft()
        self._count -= sum(len(each.rows) for each in found)
        return [each for each in found if each.rows]

    def take_whole_position(self) -> str | None:
        """Return the position up to which all is delivered, if that is further than before."""
        # Not by a walk of the parts, because this is read before each poll.
        first = () if self.first_undelivered is None else (self.first_undelivered,)
        limit = min([*self._withheld, *first], default=None)
        position = None
        while self._positions and (limit is None or self._positions[0][1] < limit):
            position = self._positions.popleft()[0]
        if len(self._positions) > 2 * self._kept + _SPARE:
            self._drop_positions()
        return position

    def _drop_positions(self) -> None:
        """Drop positions that no commit can name, because a later one comes before the next limit.

        The kept positions are bounded by the open and withheld entries (Invariant 17).
        """
        limits = sorted([*self._withheld, *(part.next for part in self._parts)])
        places = [bisect_right(limits, last) for _, last in self._positions]
        pairs = zip(self._positions, [*places[1:], None], places, strict=True)
        self._positions = deque(end for end, following, place in pairs if following != place)
        self._kept = len(self._positions)

    def clear(self) -> None:
        """Forget all of it: the source gives it again."""
        self._parts.clear()
        self._positions.clear()
        self._withheld.clear()
        self._count = self._kept = self.given_up = 0

    def _next_part(self, through: int) -> _Part | None:
        part = self._parts[0] if self._parts else None
        return part if part is not None and part.next <= through else None

    def _take_rows(self, part: _Part, end: int, parked: AbstractSet[int]) -> Sequence[int]:
        rows = range(part.row, part.row + end + 1 - part.next)
        aside = sorted(each for each in parked if part.next <= each <= end)
        if not aside:
            return rows
        held = {part.row + each - part.next: each for each in aside}
        self._withheld |= {offset: (part.position, row) for row, offset in held.items()}
        return [row for row in rows if row not in held]


def _exclude_released(rows: Sequence[int], part: _Part, released: Sequence[Range]) -> Sequence[int]:
    """Return those of *rows*, the next ones of *part*, whose offsets were not *released*."""
    for first, last, _ in released:
        low, high = (part.row + offset - part.next for offset in (first, last))
        if rows and low <= rows[-1] and high >= rows[0]:
            rows = [row for row in rows if not low <= row <= high]
    return rows

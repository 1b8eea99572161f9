"""Acknowledgement of a reader's logged entries to its source."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from transporter.adaptor import DeliveredReader
from transporter.engine.reading.unacknowledged import UnacknowledgedBatches, ranges_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from transporter.adaptor import Reader
    from transporter.engine.reading.delivery_progress import DeliveryProgress
    from transporter.engine.reading.reader_condition import ActionGate
    from transporter.engine.reading.reader_resume import LogResume
    from transporter.log.commit_log import CommitLog

SHORTEST_WAIT: Final = 0.005
"""Seconds that a poll may wait at first while acknowledgements to its source are pending."""
LONGEST_WAIT: Final = 0.1
"""Seconds that it may wait at most: acknowledgements of slow deliveries need not be prompt."""


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
            parts += ranges_of(entries.offsets)
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
            self._batches.add(position, list(ranges_of(offsets)))
        self.hold_from(None)

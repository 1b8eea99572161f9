"""The offset that a sink itself stores: it may be ahead of the route's offset log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.offsets.state import Range
from transporter.protocol.messages import Failure, FailureKind
from transporter.worker.writers import is_from_forgotten

if TYPE_CHECKING:
    from transporter.adaptor import StoredOffset
    from transporter.log.commit_log import CommitLog
    from transporter.offsets.offset_log import OffsetLog
    from transporter.protocol.messages import Opened


class OffsetAdoption:
    """Settles entries by the stored offset of one route's sink. Belongs to the route's thread."""

    def __init__(self, offsets: OffsetLog, log: CommitLog) -> None:
        """Compare with *offsets*, and prove by the history of *log*."""
        self._offsets, self._log = offsets, log
        self.handed = -1
        """The highest offset that this run has handed to a worker."""

    def note_handed(self, through: int) -> None:
        """Record that offsets up to *through* are in a worker's hands."""
        self.handed = max(self.handed, through)

    def adopt(self, opened: Opened, shards: int) -> Failure | None:
        """Settle entries by the sink's stored offsets; return the reason if that is impossible.

        Offsets that were stored with another number of *shards* do not count.
        """
        told = filter(None, opened.shards or (opened.stored,))
        for each in (stored for stored in told if self._is_news(stored, shards)):
            if each.offset > self._log.durable or not self._is_proved(each):
                # Invariant 5: an entry that this offset stood for in a copy of the log is
                # not the one that stands there now.
                return _foreign(each, self._offsets.route)
        if opened.stored is not None and self._is_news(opened.stored, shards):
            self._settle(opened.stored.offset)
        return None

    def _is_news(self, stored: StoredOffset, shards: int) -> bool:
        """Return whether *stored* is of this route as it is now, and beyond the settled entries."""
        state = self._offsets.state
        told = (stored.log_id, stored.route, stored.generation, stored.shards)
        mine = (self._log.log_id, self._offsets.route, state.generation, shards)
        if told != mine or stored.offset < state.next_offset():
            return False
        return not is_from_forgotten(stored, self._log.runs, state.declared)

    def _is_proved(self, stored: StoredOffset) -> bool:
        return self._log.runs.prove(stored.run, stored.epoch, stored.offset, self.handed)

    def _settle(self, through: int) -> None:
        state = self._offsets.state
        if state.replay is not None:
            state = self._offsets.advance_replay(min(through, state.replay.last), state.generation)
        if state.replay is None and through > state.watermark:
            self._offsets.settle(Range(state.next_live(), through), self._log.durable)


def _foreign(stored: StoredOffset, route: str) -> Failure:
    run = f"run {stored.run}" if stored.run else "no run"
    return Failure(
        FailureKind.FAULT,
        f"the sink has stored offset {stored.offset} (epoch {stored.epoch}, {run}), which is of "
        "another history of this log: the log was replaced by an older copy while the sink was "
        "further on, so other entries may have that offset now. Put the newer log back; or have "
        "the sink take what this log holds: 'transporter replay' the route's newest offset, "
        f"which begins a generation that the sink has not seen (route {route} then delivers all "
        "that follows, also what the sink may have), or empty the sink",
    )

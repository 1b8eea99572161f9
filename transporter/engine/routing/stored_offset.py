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
        self.highest_handed = -1
        """The highest offset that this run has handed to a worker."""

    def record_handed(self, through: int) -> None:
        """Record that offsets up to *through* are in a worker's hands."""
        self.highest_handed = max(self.highest_handed, through)

    def adopt(self, opened: Opened, shards: int) -> Failure | None:
        """Settle entries by the sink's stored offsets; return the reason if that is impossible.

        Offsets that were stored with another number of *shards* do not count.
        """
        offsets = filter(None, opened.shards or (opened.stored,))
        for each in (stored for stored in offsets if self._is_ahead(stored, shards)):
            if each.offset > self._log.durable or not self._is_proved(each):
                # Invariant 5: an entry that this offset stood for in a copy of the log is
                # not the one that stands there now.
                return _foreign_history(each, self._offsets.route)
        if opened.stored is not None and self._is_ahead(opened.stored, shards):
            self._settle(opened.stored.offset)
        return None

    def _is_ahead(self, stored: StoredOffset, shards: int) -> bool:
        """Return whether *stored* is of this route as it is now, and beyond the settled entries."""
        state = self._offsets.state
        origin = (stored.log_id, stored.route, stored.generation, stored.shards)
        own = (self._log.log_id, self._offsets.route, state.generation, shards)
        if origin != own or stored.offset < state.next_offset():
            return False
        return not is_from_forgotten(stored, self._log.runs, state.declared)

    def _is_proved(self, stored: StoredOffset) -> bool:
        return self._log.runs.has_offset(
            stored.run, stored.epoch, stored.offset, self.highest_handed
        )

    def _settle(self, through: int) -> None:
        state = self._offsets.state
        if state.replay is not None:
            state = self._offsets.advance_replay(min(through, state.replay.last), state.generation)
        if state.replay is None and through > state.watermark:
            self._offsets.settle(Range(state.next_unsettled(), through), self._log.durable)


def _foreign_history(stored: StoredOffset, route: str) -> Failure:
    run = f"run {stored.run}" if stored.run else "no run"
    return Failure(
        FailureKind.FAULT,
        f"the sink has stored offset {stored.offset} (epoch {stored.epoch}, {run}), which belongs "
        "to another history of this log: the log was replaced by an older copy while the sink was "
        "ahead, so another entry may have that offset now. Restore the newer log. Without it, "
        f"empty the sink, or replay the newest offset of route {route} with 'transporter replay': "
        "this begins a new generation, in which the route delivers all later entries, including "
        "those that the sink may already have",
    )

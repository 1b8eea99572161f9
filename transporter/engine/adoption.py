"""What a sink itself remembers: it may know more than the route's offset log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.engine.protocol import Failure, FailureKind
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from transporter.adaptor import StoredOffset
    from transporter.log.commit_log import CommitLog
    from transporter.offsets.offset_log import OffsetLog


def adopt(
    stored: StoredOffset | None, offsets: OffsetLog, log: CommitLog, shards: int = 1
) -> Failure | None:
    """Settle what the sink has *stored*; return why that cannot be, if it cannot.

    What was stored when the keys went to another number of *shards* says nothing of these.
    """
    state = offsets.state
    if stored is None or (
        stored.log_id,
        stored.route,
        stored.generation,
        stored.shards,
    ) != (log.log_id, offsets.route, state.generation, shards):
        return None
    if stored.offset > log.durable:
        return _ahead(stored, log.durable)
    if state.replay is not None:
        offsets.advance_replay(min(stored.offset, state.replay.last), state.generation)
    if offsets.state.replay is None and stored.offset > offsets.state.watermark:
        part = Range(offsets.state.next_live(), stored.offset)
        offsets.settle(part, log.durable)
    return None


def _ahead(stored: StoredOffset, durable: int) -> Failure:
    return Failure(
        FailureKind.FAULT,
        f"the sink has stored offset {stored.offset}, but the log ends at {durable}: "
        "the log was replaced by an older copy; restore it, or empty the sink",
    )

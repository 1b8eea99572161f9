"""What a route hands to its worker next: slices of the log, cut as its settings say."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from transporter.engine.protocol import Slice
from transporter.engine.redelivery import Redelivery
from transporter.errors import EntriesLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.log.commit_log import CommitLog
    from transporter.log.reader import Gap, LogReader
    from transporter.offsets.offset_log import OffsetLog
    from transporter.offsets.state import RouteState
    from transporter.pipeline.config import RouteConfig


class Cutter:
    """Cuts one slice after another. Belongs to its route's thread.

    ``plan`` says what is delivered one at a time; the route keeps it current, and
    so it does with ``config``.
    """

    def __init__(
        self,
        config: RouteConfig,
        log: CommitLog,
        reader: LogReader,
        offsets: OffsetLog,
        ahead: OffsetLog | None,
        hurried: Callable[[], bool],
    ) -> None:
        """Cut for the route of *config*.

        Args:
            config: the route's settings.
            log: what is cut.
            reader: the route's own reader of it.
            offsets: how far the route has come.
            ahead: the offset log of the route that this one follows (``after``).
            hurried: tells that the route shall end soon, so nothing is waited for.

        """
        self.config, self._log, self._reader = config, log, reader
        self._offsets, self._ahead, self._hurried = offsets, ahead, hurried
        self.plan = Redelivery()

    def next(self, wait: float) -> Slice | None:
        """Return what comes next, waiting up to *wait* seconds; ``None`` for nothing.

        Raises:
            EntriesLost: what comes next was lost, and no operator has acked that.

        """
        state = self._offsets.state
        first, limit = state.next_offset(), state.limit()
        if limit is not None and limit < first:
            return None
        end = state.replay.last if state.replay else self._live_end(state, first, wait)
        if _asked_of(self._offsets.state) != _asked_of(state):
            # An operator has changed something meanwhile.
            return None
        if limit is not None:
            end = min(end, limit)
        if end < first:
            return None
        if (gap := self._reader.lost(first, end)) is not None:
            if gap.first <= first:
                return self._pass_in_replay(gap, state, wait)
            end = gap.first - 1
        end, single = self.plan.cut(first, end)
        config = self.config
        last = self._reader.bound(first, end, config.slice_rows, config.slice_bytes)
        namespace = state.replay.namespace if state.replay is not None else ""
        return Slice(first, last, state.generation, single=single, namespace=namespace)

    def _pass_in_replay(self, gap: Gap, state: RouteState, wait: float) -> Slice | None:
        """Go on behind *gap* in a replay, for the route had passed it; else halt (Invariant 4)."""
        if state.replay is None:
            raise EntriesLost(
                f"the entries {max(gap.first, state.next_live())}..{gap.last} were lost: a repair "
                "of the log could not save them; ack these offsets to let the route go on behind"
            )
        self._offsets.advance_replay(min(gap.last, state.replay.last), state.generation)
        return self.next(wait)

    def _live_end(self, state: RouteState, first: int, wait: float) -> int:
        end = self._available(first, wait)
        if end >= first and self.config.linger and not state.paused:
            end = self._linger(first, end)
        # What an operator has acked further on is not delivered.
        return min([end, *(part.first - 1 for part in state.above)])

    def _available(self, first: int, wait: float) -> int:
        """Return the last offset that this route may deliver now."""
        if self._ahead is None:
            return self._log.wait_beyond(first - 1, wait)
        return min(self._ahead.wait_beyond(first - 1, wait), self._log.durable)

    def _linger(self, first: int, end: int) -> int:
        """Wait for a fuller slice, at most ``linger`` from now on."""
        deadline = time.monotonic() + self.config.linger
        full = first + self.config.slice_rows - 1
        while end < full and not self._hurried():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            # In short waits, so that a stop is not kept waiting by a long linger.
            end = max(end, self._available(end + 1, min(left, 0.5)))
        return end


def _asked_of(state: RouteState) -> tuple[object, ...]:
    return state.next_offset(), state.generation, state.limit(), state.above

"""Slices: the next range of the log that a route hands to its worker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from transporter.errors import EntriesLost
from transporter.log.reader import Append
from transporter.protocol.messages import Slice

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.engine.routing.failure_policy import RedeliveryPlan
    from transporter.log.active_segment import RecentFrame
    from transporter.log.commit_log import CommitLog
    from transporter.log.reader import Gap, LogReader
    from transporter.offsets.offset_log import OffsetLog
    from transporter.offsets.state import RouteState
    from transporter.pipeline.config import RouteConfig


_MOST_SENT: Final = 64 << 10
"""Bytes of the frames that a slice carries. They fit into the socket of a worker that does not
read, so that its route still sees a stop."""


class Slicer:
    """Cuts one slice after another. Belongs to its route's thread.

    The route keeps ``config`` current.
    """

    def __init__(
        self,
        config: RouteConfig,
        log: CommitLog,
        reader: LogReader,
        offsets: OffsetLog,
        upstream: OffsetLog | None,
        is_interrupted: Callable[[], bool],
    ) -> None:
        """Cut for the route of *config*.

        Args:
            config: the route's settings.
            log: the log that is cut.
            reader: the route's own reader of it.
            offsets: the route's progress.
            upstream: the offset log of the route that this one follows (``after``).
            is_interrupted: returns whether the route has other work, so that waits end.

        """
        self.config, self._log, self._reader = config, log, reader
        self._offsets, self._upstream, self._is_interrupted = offsets, upstream, is_interrupted
        self._linger_deadline = (-1, 0.0)
        self.appends: list[Append] = []
        """The appends of the last slice; empty for a replay, whose entries are not new."""

    def wait(self, seconds: float) -> None:
        """Wait up to *seconds* for something to deliver, and for ``linger`` once there is some."""
        state = self._offsets.state
        if state.replay is not None:
            return
        end = self._last_available(state.next_unsettled(), seconds)
        if end > state.watermark and self.config.linger and not state.paused:
            self._linger(state.next_unsettled(), end)

    def cut(self, plan: RedeliveryPlan, max_rows: int | None = None) -> Slice | None:
        """Return the next slice by *plan* without waiting, or ``None``.

        With *max_rows* it has at most that many entries.

        Raises:
            EntriesLost: the next entries were lost, and no operator has acked that.

        """
        state = self._offsets.state
        first, end = state.next_offset(), self._last_deliverable(state)
        if end < first:
            return None
        if (gap := self._reader.lost_gap(first, end)) is not None:
            if gap.first <= first:
                return self._skip_gap_in_replay(gap, state, plan, max_rows)
            end = gap.first - 1
        end, single = plan.cut(first, end)
        config = self.config
        limit = config.slice_rows if max_rows is None else min(max_rows, config.slice_rows)
        if state.replay is None and (found := self._find_recent(first, end, limit)):
            self.appends = [Append(at.last, at.count, at.logged_at) for at, _ in found]
            frames = tuple(data for _, data in found)
            return Slice(first, end, state.generation, single=single, frames=frames)
        appends = list[Append]()
        last = self._reader.slice_end(first, end, limit, config.slice_bytes, appends)
        self.appends = appends if state.replay is None else []
        namespace = state.replay.namespace if state.replay is not None else ""
        return Slice(first, last, state.generation, single=single, namespace=namespace)

    def _find_recent(self, first: int, end: int, limit: int) -> list[RecentFrame]:
        """Return the frames of a small slice up to *end* that memory still has, or none."""
        found = self._log.recent_frames(first, end) if end - first < limit else []
        if sum(len(data) for _, data in found) > _MOST_SENT:
            return []
        is_small = sum(at.entries_bytes for at, _ in found) <= self.config.slice_bytes
        return found if is_small or len(found) == 1 else []

    def is_current(self, slice_: Slice) -> bool:
        """Return whether *slice_* is still the next slice, after all changes since it was cut.

        An operator may have acked some of it, paused the route, or begun or cancelled a replay,
        and its oldest entries may have been released. Entries parked since are in ``without``.
        """
        state = self._offsets.state
        limit, passed = state.delivery_limit(), state.next_offset() - slice_.first
        return (
            slice_.generation == state.generation
            and (limit is None or slice_.last <= limit)
            and 0 <= passed <= slice_.last - slice_.first
            and passed <= len(slice_.without)
            and slice_.without[:passed] == tuple(range(slice_.first, state.next_offset()))
            and not any(part.first <= slice_.last for part in state.above if part.kind != "parked")
        )

    def _skip_gap_in_replay(
        self, gap: Gap, state: RouteState, plan: RedeliveryPlan, max_rows: int | None
    ) -> Slice | None:
        """Continue after *gap* in a replay, which had passed it; else halt (Invariant 4)."""
        if state.replay is None:
            raise EntriesLost(
                f"the entries {max(gap.first, state.next_unsettled())}..{gap.last} were lost: a "
                "repair of the log could not save them; acknowledge them to let the route continue"
            )
        self._offsets.advance_replay(min(gap.last, state.replay.last), state.generation)
        return self.cut(plan, max_rows)

    def _last_deliverable(self, state: RouteState) -> int:
        """Return the last offset that may be delivered in *state*."""
        limit = state.delivery_limit()
        end = state.replay.last if state.replay is not None else self._last_live(state)
        return end if limit is None else min(end, limit)

    def _last_live(self, state: RouteState) -> int:
        # Entries that an operator has acked further on are not delivered.
        acked = (part.first - 1 for part in state.above)
        return min([self._last_available(state.next_unsettled(), 0), *acked])

    def _last_available(self, first: int, wait: float) -> int:
        """Return the last offset that this route may deliver now."""
        if self._upstream is None:
            return self._log.wait_beyond(first - 1, wait)
        return min(self._upstream.wait_beyond(first - 1, wait), self._log.durable)

    def _linger(self, first: int, end: int) -> None:
        """Wait for a fuller slice than *first* to *end*, at most ``linger`` in all."""
        if self._linger_deadline[0] != first:
            # A call ends this wait, and the next wait continues with its deadline.
            self._linger_deadline = first, time.monotonic() + self.config.linger
        full = first + self.config.slice_rows - 1
        while end < full and not self._is_interrupted():
            left = self._linger_deadline[1] - time.monotonic()
            if left <= 0:
                break
            # In short waits, so that a stop is not kept waiting by a long linger.
            end = max(end, self._last_available(end + 1, min(left, 0.5)))


_SPAN: Final = 1.0
"""Seconds of deliveries that one slice may bring at once."""


class RateLimit:
    """Limits entries to a rate, without bursts after idle times.

    Each delivered entry delays the next slice by 1 / *rate* seconds. A slice has at most the
    entries of one second, or a single one. Belongs to the route's thread, but :attr:`active_rate`
    may be read by any.
    """

    def __init__(self, rate: float | None) -> None:
        """Allow *rate* entries a second, or all with ``None``."""
        self._rate = rate
        self._due = 0.0

    @property
    def max_rows(self) -> int | None:
        """The maximum of entries in the next slice, or ``None``."""
        return None if self._rate is None else max(1, int(self._rate * _SPAN))

    @property
    def longest_wait(self) -> float:
        """The longest time in seconds that it keeps a route waiting after a slice."""
        return 0.0 if self._rate is None else max(_SPAN, 1 / self._rate)

    @property
    def active_rate(self) -> float:
        """The rate in entries a second, while it makes the route wait; else 0."""
        return self._rate if self._rate is not None and self.seconds_left() > 0 else 0.0

    def seconds_left(self) -> float:
        """Return the seconds until the next slice; at most 0 if it may go now."""
        return self._due - time.monotonic()

    def spend(self, entries: int) -> None:
        """Count *entries* that were delivered."""
        if self._rate is not None and entries:
            self._due = max(self._due, time.monotonic()) + entries / self._rate

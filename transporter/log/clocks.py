"""The clocks of a log: uptime for durations, wall time for entries, and wall clock jumps."""

from __future__ import annotations

import time
from typing import Final

AHEAD: Final = 3600.0
"""Seconds by which a wall clock may be wrong without a report."""
_SECOND: Final = 1_000_000


def uptime() -> float:
    """Return an uptime in seconds that includes sleep and that no change of the clock affects."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class JumpDetector:
    """Detector of wall clock jumps, by comparison with uptime. Not thread-safe."""

    def __init__(self) -> None:
        """Start with the first time that is noted."""
        self._last: tuple[int, float] | None = None
        self._greatest = 0.0

    def record(self, wall: int) -> None:
        """Note the wall time *wall*, µs UTC, which was just read."""
        up = uptime()
        before, since = self._last or (wall, up)
        ahead = (wall - before) / _SECOND - (up - since)
        if ahead > AHEAD:
            self._greatest = max(self._greatest, ahead)
        self._last = wall, up

    def take_greatest(self) -> float:
        """Return the greatest forward jump since the last call in seconds, or 0 without one."""
        greatest, self._greatest = self._greatest, 0.0
        return greatest

"""The lag of a route in time: the log time of its oldest unsettled entry."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from transporter.errors import TransporterError
from transporter.log.reader import LogReader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transporter.engine.events import RouteStatus

_SECOND: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class LagAge:
    """How long ago the oldest unsettled entry was logged, and how long before the newest one."""

    oldest: float = 0.0
    lag: float = 0.0


class LagAges:
    """Looks log times up, once for each offset that a route waits at. Thread-safe."""

    def __init__(self, directory: Path, clock: Callable[[], int]) -> None:
        """Read the log in *directory*. *clock* returns the wall time in µs UTC (Invariant 16)."""
        self._reader, self._clock = LogReader(directory), clock
        self._lock = threading.Lock()
        self._log_times: dict[str, tuple[int, int]] = {}

    def close(self) -> None:
        """Close open files."""
        with self._lock:
            self._reader.close()

    def age_of(self, route: RouteStatus, last: int) -> LagAge | None:
        """Return the age in seconds of *route*'s lag, in a log that ends at *last*.

        ``None`` if its oldest entry cannot be read, which the route will report.
        """
        if route.lag <= 0:
            return LagAge()
        with self._lock:
            oldest = self._log_time(f"route {route.name}", route.watermark + 1, last)
            newest = self._log_time("the newest", last, last)
        if oldest is None or newest is None:
            return None
        return LagAge(
            max(0, self._clock() - oldest) / _SECOND,
            max(0, newest - oldest) / _SECOND,
        )

    def _log_time(self, key: str, offset: int, last: int) -> int | None:
        if (known := self._log_times.get(key)) is not None and known[0] == offset:
            return known[1]
        try:
            frame = next(self._reader.frames(offset, last)).frame
        except (TransporterError, StopIteration):
            # Segments may have been replaced or removed: the next call reopens them.
            self._reader.clear_cache()
            return None
        self._log_times[key] = offset, frame.logged_at
        return frame.logged_at

"""The rate at which rows leave an outbox, read at intervals as goharvest does. Pure."""

from __future__ import annotations

from typing import Final

INTERVAL: Final = 5.0
"""Seconds between two readings."""


class RowMeter:
    """Counter of purged rows with a reading at most each :data:`INTERVAL`, and none while idle."""

    def __init__(self) -> None:
        self._total = self._since = 0
        self._read_at: float | None = None

    def add(self, rows: int, now: float) -> dict[str, object] | None:
        """Count *rows* at the monotonic time *now*, and return a reading if one is due."""
        if self._read_at is None:
            self._read_at = now
        self._total += rows
        self._since += rows
        seconds = now - self._read_at
        if seconds < INTERVAL:
            return None
        rate = self._since / seconds
        self._read_at, self._since = now, 0
        return {"purged": self._total, "rate": round(rate, 1), "seconds": round(seconds, 1)}

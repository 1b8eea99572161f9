"""Rate limit of a route: ``max_rate``."""

from __future__ import annotations

import time
from typing import Final

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

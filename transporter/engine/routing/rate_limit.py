"""Rate limit of a route: ``max_rate``."""

from __future__ import annotations

import time
from typing import Final

_SPAN: Final = 1.0
"""Seconds of deliveries that one slice may bring at once."""


class Pace:
    """Lets entries go at most at a rate, without saving up what was not used.

    Each delivered entry puts the next slice off by 1 / *rate* seconds, so a slice is one
    second's worth at most, or a single entry. Belongs to the route's thread; :attr:`limited`
    may be asked from any.
    """

    def __init__(self, rate: float | None) -> None:
        """Allow *rate* entries a second; ``None`` allows all."""
        self._rate = rate
        self._due = 0.0

    @property
    def rows(self) -> int | None:
        """The most entries that the next slice may hold; ``None`` for any number."""
        return None if self._rate is None else max(1, int(self._rate * _SPAN))

    @property
    def gap(self) -> float:
        """The longest time in seconds that it keeps a route waiting after a slice."""
        return 0.0 if self._rate is None else max(_SPAN, 1 / self._rate)

    @property
    def limited(self) -> float:
        """The rate in entries a second, while it makes the route wait; else 0."""
        return self._rate if self._rate is not None and self.left() > 0 else 0.0

    def left(self) -> float:
        """Return the seconds until more may go; not above 0 when it may go now."""
        return self._due - time.monotonic()

    def spend(self, entries: int) -> None:
        """Count *entries* that were delivered."""
        if self._rate is not None and entries:
            self._due = max(self._due, time.monotonic()) + entries / self._rate

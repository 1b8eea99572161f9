"""Exponential backoff with jitter between retries."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackoffWait:
    """Failures in a row: for so many seconds, and the seconds until the next attempt (0: now)."""

    since: float
    left: float


@dataclass(slots=True)
class Backoff:
    """Doubling delays with jitter, from *first* to *most* seconds.

    Not thread-safe, but :meth:`current_wait` may be called from any thread.
    """

    first: float = 0.2
    longest: float = 30.0
    failures: int = 0
    _times: tuple[float, float] | None = None
    """When the first failure was, and when the next attempt is to be."""

    def next(self, least: float = 0.0) -> float:
        """Count a failure and return the seconds to wait: between half of the delay and all.

        They are never fewer than *least*.
        """
        delay = min(self.longest, self.first * 2.0 ** min(self.failures, 32))
        self.failures += 1
        delay = max(least, delay * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
        now = time.monotonic()
        first, _ = self._times or (now, now)
        self._times = first, now + delay
        return delay

    def reset(self) -> None:
        """Reset after a success."""
        self.failures, self._times = 0, None

    def current_wait(self) -> BackoffWait | None:
        """Return the time of the first failure since the last success, or ``None``."""
        times, now = self._times, time.monotonic()
        return times and BackoffWait(now - times[0], max(0.0, times[1] - now))

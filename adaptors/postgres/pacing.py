"""When to look at the outbox, when without a lower bound, and how much to ask for.

Pure: time comes in as an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SWEEP_INTERVAL: Final = 1.0
SETTLING_INTERVAL: Final = 1.0
"""For at least so long a gap is looked at when all that can fill it have a number."""
SWEEP_SHARE: Final = 0.05
"""Sweeps take at most this share of the time, however slow they become."""


@dataclass(slots=True)
class Pace:
    """Decides when the next look is due. Not thread-safe.

    ``interval`` is the time between two looks of an idle reader. A look is due
    at once after one that left rows behind and after a notification.
    """

    interval: float
    _look_at: float = float("-inf")
    _sweep_at: float = float("-inf")
    _settled_at: float = float("-inf")
    _hurry: bool = True

    def woken(self) -> None:
        """Note that something was committed."""
        self._hurry = True

    @property
    def hurry(self) -> bool:
        """Whether rows are known to wait, so that asking first would be a waste."""
        return self._hurry

    def wait(self, now: float) -> float:
        """Return the seconds until the next look is due; 0 when it is due now."""
        return 0.0 if self._hurry else max(0.0, self._look_at - now)

    def sweep_due(self, now: float) -> bool:
        """Whether the next look should have no lower bound."""
        return now >= self._sweep_at

    def settling_due(self, now: float) -> bool:
        """Whether the next look may settle gaps."""
        return now >= self._settled_at + SETTLING_INTERVAL

    def settled(self, began: float) -> None:
        """Note a settling look that began at this time."""
        self._settled_at = began

    def begin(self, now: float) -> None:
        """Note that a look begins: only what is committed from here on hurries the next."""
        self._hurry = False
        self._look_at = now + self.interval

    def more(self) -> None:
        """Note that the look left rows behind."""
        self._hurry = True

    def swept(self, began: float, ended: float) -> None:
        """Note a sweep, and put the next one far enough away to keep the share."""
        took = ended - began
        self._sweep_at = began + max(SWEEP_INTERVAL, took / SWEEP_SHARE)


@dataclass(slots=True)
class Portion:
    """How much a look asks for: *most_rows* and *most_bytes*, or less where the server is slow.

    ``limit`` is how many seconds a look may take. Not thread-safe.
    """

    most_rows: int
    most_bytes: int
    limit: float
    _halvings: int = 0

    @property
    def rows(self) -> int:
        """Return the most rows of the next look."""
        return max(1, self.most_rows >> self._halvings)

    @property
    def size(self) -> int:
        """Return about how many bytes the next look may take."""
        return max(1, self.most_bytes >> self._halvings)

    def halve(self) -> bool:
        """Note that a look took too long; return false if it cannot ask for less."""
        if self.rows == 1:
            return False
        self._halvings += 1
        return True

    def took(self, seconds: float) -> None:
        """Note how long a look took: a quarter of the limit leaves room for twice as much."""
        if self._halvings and seconds <= self.limit / 4:
            self._halvings -= 1

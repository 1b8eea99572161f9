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
SHORTEST: Final = 0.005
"""Seconds from a look that found rows to the next one, where the table is polled."""
POLLED: Final = ((1.0, SHORTEST), (180.0, 0.1))
"""The longest pause, for so many seconds after the last rows; the interval after that."""
LOOK_SHARE: Final = 0.2
"""Looks that find nothing in a polled table take at most this share of the time.

So a server that is slow, or far away, is asked less often, down to once an interval."""


@dataclass(slots=True)
class Pace:
    """Decides when the next look is due. Not thread-safe.

    A look is due at once after one that left rows behind and after a notification. Otherwise
    it is due after a pause of at most ``interval``: of just that where notifications announce
    the rows, which needs ``notified``, that the table has a trigger for it. Where they do
    not, the table is polled: the pause is short while rows come and grows after the last ones.
    """

    interval: float
    notified: bool = False
    _polled: bool = False
    _timed: bool = False
    _pause: float = SHORTEST
    _rows_at: float = float("inf")
    _look_at: float = float("-inf")
    _sweep_at: float = float("-inf")
    _settled_at: float = float("-inf")
    _hurry: bool = True

    def __post_init__(self) -> None:
        """Poll until a notification comes, unless a trigger sends them."""
        self._polled = not self.notified

    def woken(self) -> None:
        """Note that something was committed."""
        self._hurry = True
        # Another table may share the channel: only with a trigger of its own is ours announced.
        self._polled = not self.notified

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
        self._timed, self._hurry = not self._hurry, False
        self._rows_at = min(self._rows_at, now)
        self._look_at = now + self.interval

    def looked(self, now: float, seconds: float = 0.0, *, rows: bool) -> None:
        """Note that the look has ended, which took so many *seconds*, and whether it found rows."""
        if rows:
            self._rows_at, self._pause, seconds = now, SHORTEST, 0.0
            # They came without a notification, whatever triggers there are.
            self._polled = self._polled or self._timed
        else:
            quiet = now - self._rows_at
            longest = next((pause for until, pause in POLLED if quiet < until), self.interval)
            self._pause = min(2 * self._pause, longest)
        pause = max(self._pause, seconds * (1 / LOOK_SHARE - 1)) if self._polled else self.interval
        self._look_at = now + min(pause, self.interval)

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

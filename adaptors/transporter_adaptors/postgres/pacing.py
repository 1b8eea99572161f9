"""The times of looks at the outbox, of sweeps without a lower bound, and the size of looks.

Pure: time comes in as an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SWEEP_INTERVAL: Final = 1.0
SETTLING_INTERVAL: Final = 1.0
"""Least time for which looks include a gap once all transactions that can fill it have a number."""
SWEEP_SHARE: Final = 0.05
"""Largest share of the time that sweeps take, however slow they become."""
SHORTEST: Final = 0.005
"""Seconds from a look that found rows to the next one, where the table is polled."""
POLLED: Final = ((1.0, SHORTEST), (180.0, 0.1))
"""Longest pause for so many seconds after the last rows. Later it is ``poll_interval``."""
LOOK_SHARE: Final = 0.2
"""Largest share of the time that looks without rows take in a polled table.

So a slow or distant server is queried less often, down to once an interval."""


@dataclass(slots=True)
class PollPace:
    """A schedule of looks. Not thread-safe.

    A look is due at once after one that left rows behind and after a notification. Otherwise
    it is due after a pause of at most ``interval``. Where notifications announce rows the pause
    is just that. This needs ``has_trigger``: the table has a trigger for it. Elsewhere the table is
    polled: the pause is short while rows come and grows after the last ones.
    """

    interval: float
    has_trigger: bool = False
    _is_polled: bool = False
    _is_timed: bool = False
    _pause: float = SHORTEST
    _rows_at: float = float("inf")
    _look_at: float = float("-inf")
    _sweep_at: float = float("-inf")
    _settled_at: float = float("-inf")
    _has_known_rows: bool = True

    def __post_init__(self) -> None:
        """Poll until a notification comes, unless a trigger sends notifications."""
        self._is_polled = not self.has_trigger

    def record_notification(self) -> None:
        """Record a notification of a commit."""
        self._has_known_rows = True
        # Another table may share the channel, so only a trigger of our own announces our rows.
        self._is_polled = not self.has_trigger

    @property
    def has_known_rows(self) -> bool:
        """Whether rows surely wait, so that a peek would be wasted."""
        return self._has_known_rows

    def seconds_until_due(self, now: float) -> float:
        """Return the seconds until the next look is due, or 0 when it is due now."""
        return 0.0 if self._has_known_rows else max(0.0, self._look_at - now)

    def is_sweep_due(self, now: float) -> bool:
        """Return whether the next look should have no lower bound."""
        return now >= self._sweep_at

    def is_settling_due(self, now: float) -> bool:
        """Return whether the next look may settle gaps."""
        return now >= self._settled_at + SETTLING_INTERVAL

    def record_settling(self, began: float) -> None:
        """Record a settling look that began at the time *began*."""
        self._settled_at = began

    def record_start(self, now: float) -> None:
        """Record the start of a look: only later commits make the next look due at once."""
        self._is_timed, self._has_known_rows = not self._has_known_rows, False
        self._rows_at = min(self._rows_at, now)
        self._look_at = now + self.interval

    def record_look(self, now: float, seconds: float = 0.0, *, rows: bool) -> None:
        """Record the end of a look that took *seconds*, and whether it found *rows*."""
        if rows:
            self._rows_at, self._pause, seconds = now, SHORTEST, 0.0
            # These rows came without a notification, whatever triggers there are.
            self._is_polled = self._is_polled or self._is_timed
        else:
            quiet = now - self._rows_at
            longest = next((pause for until, pause in POLLED if quiet < until), self.interval)
            self._pause = min(2 * self._pause, longest)
        pause = (
            max(self._pause, seconds * (1 / LOOK_SHARE - 1)) if self._is_polled else self.interval
        )
        self._look_at = now + min(pause, self.interval)

    def record_rows_left(self) -> None:
        """Record that the look left rows behind."""
        self._has_known_rows = True

    def record_sweep(self, began: float, ended: float) -> None:
        """Record a sweep, and schedule the next one late enough to keep the share."""
        took = ended - began
        self._sweep_at = began + max(SWEEP_INTERVAL, took / SWEEP_SHARE)


@dataclass(slots=True)
class Portion:
    """The size of a look: *most_rows* and *most_bytes*, or less where the server is slow.

    Not thread-safe.

    Attributes:
        limit: Seconds that a look may take.
    """

    most_rows: int
    most_bytes: int
    limit: float
    _halvings: int = 0

    @property
    def rows(self) -> int:
        """Maximum rows of the next look."""
        return max(1, self.most_rows >> self._halvings)

    @property
    def size(self) -> int:
        """Approximate maximum bytes of the next look."""
        return max(1, self.most_bytes >> self._halvings)

    def halve(self) -> bool:
        """Halve the size after a look that took too long, or return false at a size of one row."""
        if self.rows == 1:
            return False
        self._halvings += 1
        return True

    def record_duration(self, seconds: float) -> None:
        """Record the time of a look. A quarter of the limit leaves room for twice the size."""
        if self._halvings and seconds <= self.limit / 4:
            self._halvings -= 1

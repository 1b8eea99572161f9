"""Rates of readers and routes over the last two minutes, from successive looks. Pure."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SAMPLES: Final = 120
SPACING: Final = 0.9
"""Least seconds between two samples that are kept."""
PartKey = tuple[str, str]
"""A kind (``reader`` or ``route``) and a name."""


class Series(NamedTuple):
    """Entries a second: the rate now, and points of (seconds ago, rate), the oldest first."""

    now: float
    points: tuple[tuple[float, float], ...]


Rates = dict[PartKey, Series]


class RateMeter:
    """The counts of the last :data:`SAMPLES` looks at one engine. Not thread-safe."""

    def __init__(self) -> None:
        """Start without samples."""
        self._samples: deque[tuple[float, dict[PartKey, int]]] = deque(maxlen=SAMPLES + 1)
        self._pid: object = None

    def add(self, at: float, status: Mapping[str, Any]) -> None:
        """Add the counts in *status*, seen *at* a monotonic time. Another engine counts anew."""
        if status.get("pid") != self._pid:
            self._samples.clear()
            self._pid = status.get("pid")
        if not self._samples or at - self._samples[-1][0] >= SPACING:
            self._samples.append((at, dict(_counts(status))))

    def rates(self) -> Rates:
        """Return the rates of every part that at least two samples have."""
        if len(self._samples) < 2:  # noqa: PLR2004 - a rate is between two
            return {}
        last_at, last = self._samples[-1]
        found: Rates = {}
        for part in last:
            points = tuple(
                (last_at - at, max(0, after[part] - before[part]) / (at - earlier))
                for (earlier, before), (at, after) in pairwise(self._samples)
                if part in before and part in after
            )
            if points:
                found[part] = Series(points[-1][1], points)
        return found


def _counts(status: Mapping[str, Any]) -> Iterator[tuple[PartKey, int]]:
    for reader in status.get("readers", ()):
        yield ("reader", reader["name"]), reader["logged"]
    for route in status.get("routes", ()):
        yield ("route", route["name"]), route.get("delivered", 0)

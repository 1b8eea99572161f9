"""Rates of readers and routes: over two minutes from successive looks, over 30 from history."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from transporter.control.history_rates import TOTALS, rates

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


def history_rates(history: Mapping[str, Any] | None, now: float) -> Rates:
    """Return the rates in an engine's *history* at the wall time *now*."""
    found: Rates = {}
    for series in (history or {"series": ()})["series"]:
        totals = next((series[name] for name in TOTALS if name in series), ())
        times = history["times"] if history is not None else ()
        if len(totals) != len(times):
            continue
        points = tuple(
            (max(0.0, now - at), rate)
            for at, rate in zip(times[1:], rates(times, totals), strict=True)
            if rate is not None
        )
        if points:
            found[series["kind"], series["name"]] = Series(points[-1][1], points)
    return found


def with_history(measured: Rates, history: Rates) -> Rates:
    """Return *measured* rates with the points of *history* where that has more than one."""
    long = {
        part: Series(measured[part].now if part in measured else each.now, each.points)
        for part, each in history.items()
        if len(each.points) > 1
    }
    return {**measured, **long}


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

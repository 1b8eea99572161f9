"""The counts in an engine's history, as people see them. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TOTALS: Final = ("logged", "delivered")
"""Counts that only grow, of which the rate is shown."""
_NAMES: Final = ("kind", "name")


class Count(NamedTuple):
    """One count of a reader or route, or its rate per second, at these times (s since 1970)."""

    kind: str
    name: str
    what: str
    is_rate: bool
    times: Sequence[float]
    values: Sequence[float | None]


def known_counts(history: Mapping[str, Any]) -> Iterator[Count]:
    """Yield the counts of *history* that are known at some time."""
    for series in history["series"]:
        for what, values in series.items():
            if what in _NAMES:
                continue
            is_rate, times, shown = what in TOTALS, history["times"], values
            if is_rate:
                times, shown = times[1:], rates(times, values)
            if any(each is not None for each in shown):
                yield Count(series["kind"], series["name"], what, is_rate, times, shown)


def rates(times: Sequence[float], totals: Sequence[int | None]) -> list[float | None]:
    """Return the rate per second between each two of *totals*, ``None`` where it is unknown."""
    found: list[float | None] = []
    for (before, after), (begin, end) in zip(pairwise(totals), pairwise(times), strict=True):
        known = before is not None and after is not None and after >= before and end > begin
        found.append((after - before) / (end - begin) if known else None)  # type: ignore[operator]
    return found

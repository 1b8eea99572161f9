"""Rates of the counts in an engine's history. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

TOTALS: Final = ("logged", "delivered")
"""Counts that only grow, of which the rate is shown."""


def rates(times: Sequence[float], totals: Sequence[int | None]) -> list[float | None]:
    """Return the rate per second between each two of *totals*, ``None`` where it is unknown."""
    found: list[float | None] = []
    for (before, after), (begin, end) in zip(pairwise(totals), pairwise(times), strict=True):
        known = before is not None and after is not None and after >= before and end > begin
        found.append((after - before) / (end - begin) if known else None)  # type: ignore[operator]
    return found

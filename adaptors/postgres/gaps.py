"""Which ids below the highest one seen may still get a row (Invariant 8).

Ids are given out in order, but transactions commit in any order: a look at the
table may find 7 while the transaction that holds 5 is still open. Every id
between two rows that was not there belongs to a *gap*, and every further look
includes the open gaps, so a late row is neither lost nor overtaken by a later
row of its key. A gap closes

1. when its row comes, or
2. when every transaction that can have been in flight when it was first seen
   has ended (``xmin`` of a later snapshot is past its ``xmax``) and one more
   unbounded sweep after that did not find a row either. The extra sweep is for
   ids taken shortly *before* their transaction got its own number.

Pure: no clock, no database.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LOWEST: Final = -(2**63)
"""The least id a row can have."""
MOST_GAPS: Final = 1_000
"""Above this, neighbouring gaps are joined: bounded memory, a little more to read."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the table found.

    ``ids`` ascend. ``xmin`` and ``xmax`` are those of the look's snapshot.
    ``cut`` tells that more rows were there than it was allowed to take, so it
    says nothing about ids above the last one. ``sweep``: it had no lower bound.
    """

    ids: Sequence[int]
    xmin: int
    xmax: int
    cut: bool = False
    sweep: bool = False

    @property
    def covered(self) -> float:
        """The highest id that this look speaks about."""
        if not self.cut:
            return float("inf")
        return self.ids[-1] if self.ids else LOWEST - 1


@dataclass(frozen=True, slots=True)
class Gap:
    """Ids *first* to *last*, missing when the next transaction number was *xmax*."""

    first: int
    last: int
    xmax: int
    passed: bool = False


class Gaps:
    """The open gaps of one term, and the highest id seen. Not thread-safe.

    At first everything is unknown: whatever lies below the first row found is
    one large gap, so rows that were in flight when the term began are waited
    for like any other.
    """

    def __init__(self) -> None:
        self._high = LOWEST - 1
        self._gaps: list[Gap] = []

    @property
    def low(self) -> int:
        """The least id that is above everything seen."""
        return self._high + 1

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The open gaps, ascending, as (first, last)."""
        return [(gap.first, gap.last) for gap in self._gaps]

    def observe(self, look: Look) -> None:
        """Take in what *look* found: fill gaps, close old ones, open new ones."""
        gaps = [
            kept
            for gap in self._gaps
            for piece in _without(gap, look.ids)
            if (kept := _settle(piece, look)) is not None
        ]
        gaps.extend(self._opened(look))
        if look.ids:
            self._high = max(self._high, look.ids[-1])
        while len(gaps) > MOST_GAPS:
            gaps = list(_joined(gaps))
        self._gaps = gaps

    def _opened(self, look: Look) -> Iterator[Gap]:
        new = look.ids[bisect_right(look.ids, self._high) :]
        if not new or new[-1] - self._high == len(new):
            return
        for before, after in pairwise((self._high, *new)):
            if after - before > 1:
                yield Gap(before + 1, after - 1, look.xmax)


def _without(gap: Gap, ids: Sequence[int]) -> Iterator[Gap]:
    """Yield what is left of *gap* when the rows of *ids* have come."""
    came = ids[bisect_left(ids, gap.first) : bisect_right(ids, gap.last)]
    if not came:
        yield gap
        return
    for before, after in pairwise((gap.first - 1, *came, gap.last + 1)):
        if after - before > 1:
            yield replace(gap, first=before + 1, last=after - 1)


def _settle(gap: Gap, look: Look) -> Gap | None:
    """Return *gap* as it stands after *look*; ``None`` when it is closed."""
    if gap.last > look.covered:
        return gap
    if gap.passed:
        return None if look.sweep else gap
    return replace(gap, passed=True) if look.xmin > gap.xmax else gap


def _joined(gaps: Sequence[Gap]) -> Iterator[Gap]:
    """Join gaps two by two; the rows between them are read again, and are known."""
    for place in range(0, len(gaps), 2):
        pair = gaps[place : place + 2]
        yield Gap(
            pair[0].first,
            pair[-1].last,
            max(gap.xmax for gap in pair),
            all(gap.passed for gap in pair),
        )

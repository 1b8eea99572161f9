"""Gaps: ids below the highest one seen that may still get a row (Invariant 8).

Ids are assigned in order, but transactions commit in any order: a look at the
table may find 7 while the transaction that holds 5 is still open. Every missing
id between two rows belongs to a *gap*, and looks include the open gaps. So a late
row is neither lost nor overtaken by a later row of its key. A part of a gap
closes when its row comes. The rest of it is

1. *open*, and part of every look, until a settling look finds that numbers
   above its *horizon* are in use, and a later one finds no row either. Settling
   looks are a second apart because ids may be taken shortly *before* their
   transaction gets its own number. After that only a transaction up to the
   horizon that was running all the time can fill it.
2. Then it is closed, if none is running, or else *held*: excluded from looks until
   one of these has ended. So a transaction that lasts for hours adds no cost
   to looks, however many rows come and go meanwhile.

Pure: no clock, no database.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LOWEST: Final = -(2**63)
"""The lowest id that a row can have."""
HIGHEST: Final = 2**63 - 1
"""A number above every transaction's number."""
MOST_GAPS: Final = 1_000
"""Neighbouring gaps are merged above this: bounded memory, a little more to read."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The transactions that had ended when a look began: all below *xmax* but the *running* ones.

    Transactions from *xmax* on may be running too, with unknown numbers.
    """

    xmax: int
    running: Sequence[int] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a ``pg_snapshot`` as the server spells it, such as ``10:20:10,14``."""
        _, xmax, running = text.split(":")
        return cls(int(xmax), tuple(map(int, running.split(","))) if running else ())


@dataclass(frozen=True, slots=True)
class Poll:
    """The result of one look at the table.

    Attributes:
        ids: The ids of the rows, ascending.
        snapshot: The snapshot of the look.
        horizon: A number above those of all transactions in flight in the snapshot. Required
            if the look found rows.
        cut: Whether more rows were there than the look was allowed to take. Then it proves
            nothing about ids above the last one.
        settling: Whether the previous settling look was at least a second ago.
    """

    ids: Sequence[int]
    snapshot: Snapshot
    horizon: int = HIGHEST
    cut: bool = False
    settling: bool = False

    @property
    def highest_covered(self) -> float:
        """The highest id about which this look proves anything."""
        if not self.cut:
            return float("inf")
        return self.ids[-1] if self.ids else LOWEST - 1


@dataclass(frozen=True, slots=True)
class IdBounds:
    """The range of a look: ids from *low* on, and gaps below, each with first, last and *until*.

    A gap is read only if a transaction of *waited* with a number of at most *until* has visibly
    ended. An open gap has :data:`HIGHEST`, and is always read.
    """

    low: int
    gaps: Sequence[tuple[int, int, int]] = ()
    waited: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class IdGap:
    """Ids *first* to *last*, missing when numbers below *horizon* were in flight."""

    first: int
    last: int
    horizon: int
    passed: bool = False
    held: bool = False


class IdGaps:
    """The open and held gaps of one term, and the highest id seen. Not thread-safe.

    At first everything is unknown: the ids below the first row found are
    one large gap, so rows that were in flight when the term began are awaited
    like any other.
    """

    def __init__(self) -> None:
        self._high = LOWEST - 1
        self._gaps: list[IdGap] = []
        self._waited: Sequence[int] = ()

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """All gaps, ascending, as (first, last)."""
        return [(gap.first, gap.last) for gap in self._gaps]

    @property
    def bounds(self) -> IdBounds:
        """The range of the next look."""
        gaps = [(gap.first, gap.last, gap.horizon if gap.held else HIGHEST) for gap in self._gaps]
        return IdBounds(self._high + 1, gaps, self._waited)

    def observe(self, look: Poll) -> None:
        """Apply the result of *look*, which was within the bounds or had none."""
        running = look.snapshot.running
        ended = min((number for number in self._waited if number not in running), default=HIGHEST)
        gaps = [
            kept
            for gap in self._gaps
            for piece in _split_gap(gap, look.ids)
            if (kept := _settle_gap(piece, look, ended)) is not None
        ]
        gaps.extend(self._new_gaps(look))
        if look.ids:
            self._high = max(self._high, look.ids[-1])
        last_held = max((gap.horizon for gap in gaps if gap.held), default=LOWEST)
        self._waited = running[: bisect_right(running, last_held)]
        self._gaps = _merge_neighbours(gaps, self._waited)

    def _new_gaps(self, look: Poll) -> Iterator[IdGap]:
        new = look.ids[bisect_right(look.ids, self._high) :]
        if not new or new[-1] - self._high == len(new):
            return
        for before, after in pairwise((self._high, *new)):
            if after - before > 1:
                yield IdGap(before + 1, after - 1, look.horizon)


def _split_gap(gap: IdGap, ids: Sequence[int]) -> Iterator[IdGap]:
    """Yield the rest of *gap* after the rows of *ids* have come."""
    came = ids[bisect_left(ids, gap.first) : bisect_right(ids, gap.last)]
    if not came:
        yield gap
        return
    for before, after in pairwise((gap.first - 1, *came, gap.last + 1)):
        if after - before > 1:
            yield replace(gap, first=before + 1, last=after - 1)


def _settle_gap(gap: IdGap, look: Poll, ended: int) -> IdGap | None:
    """Return the state of *gap* after *look*, or ``None`` when it is closed.

    *ended* is the lowest awaited number, of those that held gaps wait for, whose end the look saw.
    """
    if gap.held and ended > gap.horizon:
        return gap
    if gap.last > look.highest_covered:
        return replace(gap, held=False)
    running = look.snapshot.running
    kept = replace(gap, held=True) if running and running[0] <= gap.horizon else None
    if gap.held or (gap.passed and look.settling):
        return kept
    return replace(gap, passed=gap.passed or (look.settling and look.snapshot.xmax > gap.horizon))


def _merge_neighbours(gaps: list[IdGap], waited: Sequence[int]) -> list[IdGap]:
    """Merge neighbours until :data:`MOST_GAPS` are left. The rows between them are read again.

    Merges only gaps that wait for the same transactions, or for none. There are never more
    kinds of gaps than transactions on the server.
    """
    while len(gaps) > MOST_GAPS:
        fewer = [
            pair
            for _, alike in groupby(
                gaps, lambda gap: gap.held and bisect_right(waited, gap.horizon)
            )
            for pair in _merge_pairs(list(alike))
        ]
        if len(fewer) == len(gaps):
            break
        gaps = fewer
    return gaps


def _merge_pairs(gaps: Sequence[IdGap]) -> Iterator[IdGap]:
    for place in range(0, len(gaps), 2):
        pair = gaps[place : place + 2]
        yield replace(
            pair[-1],
            first=pair[0].first,
            horizon=max(gap.horizon for gap in pair),
            passed=all(gap.passed for gap in pair),
        )

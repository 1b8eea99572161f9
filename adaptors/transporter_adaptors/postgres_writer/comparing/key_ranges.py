"""Division of two tables by ranges of their key until the rows that differ are found. Pure.

A range is compared by the number of its rows and a hash of them. One that differs is divided by
keys of the expected side, and the rows of a small one are compared one by one. Keys are tuples of
texts.

The servers need not sort alike. The ends of ranges form a chain from the beginning to the end of
the key's order. Whatever that order is, every row is behind one end and not behind the next, so it
is in some range of each side. Sides that sort differently only have more rows to look at: a row is
then found in a range of one side, and in another range of the other. A look-up by its key
finds it equal.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Key = tuple[str, ...]
Bound = Key | None
"""An end of a range: its last key, or no limit."""

CHUNK: Final = 50_000
"""Rows of a range that is compared as a whole."""
LEAF: Final = 200
"""Rows of a range whose rows are compared one by one."""
_PARTS: Final = 16
"""Ranges into which one that differs is divided."""
_PAGE: Final = 5000
"""Rows that are found and compared one by one at a time."""


class Digest(NamedTuple):
    """The number of rows of a range, and a hash of them that does not depend on their order."""

    rows: int
    hash: int


class Side(Protocol):
    """One of the two tables. Ranges are behind *low* and up to *high*."""

    def key_at(self, low: Bound, rows: int) -> Bound:
        """Return the key of the row at this place behind *low*, or ``None`` behind the last."""

    def split(self, low: Bound, high: Bound, rows: int) -> list[Key]:
        """Return each key of the range at a multiple of this number of rows."""

    def hashes(self, low: Bound, high: Bound, rows: int) -> dict[Key, int]:
        """Return the hash of each of the first *rows* rows of the range, in the key's order."""


class Ranges:
    """The comparison of two sides."""

    def __init__(
        self,
        expected: Side,
        found: Side,
        digest_both: Callable[[Bound, Bound], tuple[Digest, Digest]],
    ) -> None:
        """Compare two sides, whose digests *digest_both* returns."""
        self._expected, self._found = expected, found
        self._digest_both = digest_both

    def find(self) -> Iterator[tuple[int, set[Key]]]:
        """Yield the number of expected rows of each range, with keys of rows that may differ.

        A range with many such rows comes several times, and its number of rows once.
        """
        low: Bound = None
        while True:
            high = self._expected.key_at(low, CHUNK)
            expected, found = self._digest_both(low, high)
            for keys in self._search(low, high, expected, found):
                yield 0, keys
            yield expected.rows, set()
            if high is None:
                return
            low = high

    def _search(
        self, low: Bound, high: Bound, expected: Digest, found: Digest
    ) -> Iterator[set[Key]]:
        """Yield the keys of a range with these digests that may differ."""
        if expected == found:
            return
        if expected.rows <= LEAF:
            yield from self._compare_rows(low, high)
            return
        bounds = self._expected.split(low, high, max(LEAF, -(-expected.rows // _PARTS)))
        for begin, end in pairwise([low, *(key for key in bounds if key != high), high]):
            yield from self._search(begin, end, *self._digest_both(begin, end))

    def _compare_rows(self, low: Bound, high: Bound) -> Iterator[set[Key]]:
        """Yield the keys of a range that differ. The range may have many rows that are found."""
        expected = self._expected.hashes(low, high, CHUNK)
        while True:
            found = self._found.hashes(low, high, _PAGE)
            yield {key for key, each in found.items() if expected.pop(key, None) != each}
            if len(found) < _PAGE:
                break
            low = [*found][-1]
        yield {*expected}

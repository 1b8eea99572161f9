"""The division of ranges finds every row that differs, whatever the orders of the two sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transporter_adaptors.postgres_writer.comparing import key_ranges
from transporter_adaptors.postgres_writer.comparing.key_ranges import Bound, Digest, Key, Ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    Order = Callable[[str], object]


class Rows:
    """A side in memory, sorted by an order of its own."""

    def __init__(self, rows: dict[str, int], order: Order) -> None:
        self.rows, self.order = rows, order
        self.looked_at = 0

    def _within(self, low: Bound, high: Bound) -> list[str]:
        order = self.order
        return sorted(
            (
                key
                for key in self.rows
                if (low is None or order(key) > order(low[0]))  # type: ignore[operator]
                and (high is None or order(key) <= order(high[0]))  # type: ignore[operator]
            ),
            key=order,  # type: ignore[arg-type]
        )

    def digest(self, low: Bound, high: Bound) -> Digest:
        """Return the number of rows, and a hash."""
        found = 0
        keys = self._within(low, high)
        for key in keys:
            found ^= hash((key, self.rows[key]))
        return Digest(len(keys), found)

    def key_at(self, low: Bound, rows: int) -> Bound:
        """Return a key by its place."""
        keys = self._within(low, None)
        return (keys[rows - 1],) if len(keys) >= rows else None

    def split(self, low: Bound, high: Bound, rows: int) -> list[Key]:
        """Return each key at a multiple of *rows*."""
        return [(key,) for key in self._within(low, high)[rows - 1 :: rows]]

    def hashes(self, low: Bound, high: Bound, rows: int) -> dict[Key, int]:
        """Return the hash of each of the first rows."""
        keys = self._within(low, high)[:rows]
        self.looked_at += len(keys)
        return {(key,): hash(self.rows[key]) for key in keys}


def search(expected: Rows, found: Rows) -> tuple[int, set[str]]:
    """Return the number of expected rows, and all candidates."""

    def digest_both(low: Bound, high: Bound) -> tuple[Digest, Digest]:
        return expected.digest(low, high), found.digest(low, high)

    rows, candidates = 0, set[str]()
    for more, keys in Ranges(expected, found, digest_both).find():
        rows += more
        candidates |= {key for (key,) in keys}
    return rows, candidates


ORDERS: list[Order] = [str, str.lower, lambda key: key[::-1], lambda key: (-len(key), key)]
KEYS = st.text("aAbBz", min_size=1, max_size=4)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use ranges of a few rows."""
    sizes = {"CHUNK": 20, "LEAF": 3, "_PARTS": 4, "_PAGE": 4}
    for name, size in sizes.items():
        monkeypatch.setattr(key_ranges, name, size)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(KEYS, st.integers(0, 9), max_size=60),
    st.dictionaries(KEYS, st.integers(10, 19), max_size=60),
    st.sets(KEYS),
    st.sampled_from(ORDERS),
    st.sampled_from(ORDERS),
)
def test_every_row_that_differs_is_found(
    same: dict[str, int], other: dict[str, int], gone: set[str], order: Order, theirs: Order
) -> None:
    """Rows that are added, changed or gone are candidates, even if the sides sort differently."""
    if str.lower in {order, theirs}:  # Equal in the order is equal.
        same, other = ({k.lower(): v for k, v in each.items()} for each in (same, other))
        gone = {key.lower() for key in gone}
    found = {key: value for key, value in (same | other).items() if key not in gone}
    rows, candidates = search(Rows(same, order), Rows(found, theirs))
    differing = {key for key, _ in same.items() ^ found.items()}
    assert candidates >= differing
    if order is theirs:
        assert (rows, candidates) == (len(same), differing)


def test_few_rows_are_looked_at() -> None:
    """Of many rows, only those around one that differs are looked at one by one."""
    same = {f"{n:04}": n for n in range(400)}
    expected, found = Rows(same, str), Rows(same | {"0300": -1}, str)
    assert search(expected, found) == (400, {"0300"})
    assert expected.looked_at <= 3


def test_rows_that_only_one_side_has() -> None:
    """Many rows of one side within a range of the other, or behind its end, are found."""
    few = {f"{n:04}": n for n in (0, 250)}
    many = {f"{n:04}": n for n in range(300)}
    for expected, found in ((few, many), (many, few), ({}, many), (many, {})):
        _, candidates = search(Rows(expected, str), Rows(found, str))
        assert candidates == expected.keys() ^ found.keys()
    assert search(Rows({}, str), Rows({}, str)) == (0, set())

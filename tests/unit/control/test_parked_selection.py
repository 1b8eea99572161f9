"""Parked entries named by offsets and ranges: what is chosen, missing and refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transporter.control.parked_selection import MOST, range_text, requested_ranges, select_parked
from transporter.control.requests import RetryParked, SkipParked
from transporter.control.wire import MAX_REQUEST, encode_request
from transporter.errors import ActionRefused

RANGES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda each: (each[0], sum(each))),
    min_size=1,
    max_size=8,
)


@given(known=st.sets(st.integers(0, 50)), ranges=RANGES, unreadable=st.sets(st.integers(0, 50)))
def test_each_named_offset_is_chosen_missing_or_refused(
    known: set[int], ranges: list[tuple[int, int]], unreadable: set[int]
) -> None:
    """Whatever the ranges overlap, each named offset is in one of the three, and no other is."""
    named = {offset for first, last in ranges for offset in range(first, last + 1)}
    wanted = requested_ranges(RetryParked("r", offsets=tuple(ranges)))
    found = select_parked(sorted(known), wanted, unreadable)
    missing = [offset for first, last in found.missing for offset in range(first, last + 1)]
    assert set(found.chosen) == (known & named) - unreadable
    assert found.chosen == sorted(found.chosen)
    assert sorted(missing) == sorted(named - known)
    assert {first for first, _, _ in found.refused} == known & named & unreadable
    for first, last in found.absent:
        assert known.isdisjoint(range(first, last + 1))
    json.dumps(found.to_json())


def test_all_parked_entries_have_none_missing() -> None:
    """A request for everything names no offset, so nothing is missing from it."""
    found = select_parked([3, 7], requested_ranges(RetryParked("r")))
    assert (found.chosen, found.missing, found.absent) == ([3, 7], [], [])


def test_a_skip_that_names_nothing_skips_nothing() -> None:
    """Without offsets a skip is refused, because it must never mean everything."""
    with pytest.raises(ActionRefused, match=r"0\.\.-1 is not an offset range"):
        requested_ranges(SkipParked("r"))


@pytest.mark.parametrize("ranges", [((5, 3),), ((-1, 3),), ((0, 1), (9, 8))])
def test_a_range_that_is_none_is_refused(ranges: tuple[tuple[int, int], ...]) -> None:
    """A range that ends before it begins, or begins before the log, is an error."""
    with pytest.raises(ActionRefused, match="is not an offset range"):
        requested_ranges(RetryParked("r", offsets=ranges))


def test_one_request_has_a_limit_and_says_what_is_beyond_it() -> None:
    """Parked entries beyond the limit are refused by name, and too many ranges at once."""
    found = select_parked(range(MOST + 5), [(0, 1 << 62)])
    assert found.chosen == [*range(MOST)]
    ((first, last, reason),) = found.refused
    assert (first, last) == (MOST, MOST + 4)
    assert "repeat" in reason
    many = tuple((each, each) for each in range(0, 3 * MOST, 2))
    with pytest.raises(ActionRefused, match="more than the 10,000"):
        requested_ranges(RetryParked("r", offsets=many))


def test_ten_thousand_ranges_fit_into_a_request() -> None:
    """The limit of a line leaves room for as many single offsets as one request may name."""
    offsets = tuple((each, each) for each in range(10_000_000, 10_000_000 + 2 * MOST, 2))
    message = encode_request(SkipParked("events", offsets=offsets))
    assert len(json.dumps({"v": 1, **message})) < MAX_REQUEST


def test_ranges_are_written_as_people_do() -> None:
    """A single offset is a number, a range has two."""
    assert range_text([(3, 3), (7, 9)]) == "3, 7..9"

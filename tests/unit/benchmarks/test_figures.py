"""The statistics of the benchmarks, on known numbers."""

from __future__ import annotations

import pytest

from benchmarks.figures import OURS, Aim, Comparison, Section, Spread, percentile, ratios


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.5, 50), (0.95, 95), (0.99, 99), (0.991, 100), (1.0, 100)]
)
def test_a_percentile_is_the_value_at_its_rank(share: float, expected: int) -> None:
    """The 99th percentile of 1 to 100, in any order, is 99 and not a value in between."""
    values = [float(number) for number in (*range(51, 101), *range(1, 51))]
    assert percentile(values, share) == expected


def test_a_percentile_of_one_value_is_that_value() -> None:
    """One measurement is its own median and its own worst case."""
    assert [percentile([7.5], share) for share in (0.0, 0.5, 0.99, 1.0)] == [7.5] * 4


def test_a_percentile_of_nothing_is_refused() -> None:
    """A percentile of no measurement is an error, not zero."""
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_a_spread_is_median_least_and_greatest() -> None:
    """An outlier changes the bounds of a spread, and not its median."""
    assert Spread.of([3.0, 1000.0, 1.0, 2.0, 4.0]) == Spread(3.0, 1.0, 1000.0)


def test_ratios_are_taken_pair_by_pair() -> None:
    """A machine that becomes ten times slower for both sides leaves the ratio unchanged."""
    assert ratios([8.0, 0.8], [10.0, 1.0]) == [0.8, 0.8]


def test_a_side_that_was_measured_less_often_is_refused() -> None:
    """Unequal numbers of measurements are an error, because pairs would not match in time."""
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


def test_the_ratio_is_the_median_of_pairs_and_not_the_ratio_of_medians() -> None:
    """A single outlying pair does not change the ratio."""
    comparison = Comparison("a", "b", "x/s", (10.0, 20.0, 90.0), (10.0, 40.0, 90.0))
    assert comparison.ratio == Spread(1.0, 0.5, 1.0)


@pytest.mark.parametrize(
    ("aim", "reached"),
    [
        (None, None),
        (Aim(0.5, at_least=True), True),
        (Aim(0.51, at_least=True), False),
        (Aim(0.5, at_least=False), True),
        (Aim(0.49, at_least=False), False),
        (Aim(4.0, at_least=False, figure=OURS), True),
        (Aim(3.9, at_least=False, figure=OURS), False),
    ],
)
def test_an_aim_is_about_the_ratio_or_about_our_own_figure(
    aim: Aim | None, reached: bool | None
) -> None:
    """An aim is checked against the named figure, and its own limit counts as reached."""
    assert Comparison("a", "b", "ms", (4.0,), (8.0,), aim).is_reached is reached


def test_a_section_has_missed_when_one_of_its_aims_is_missed() -> None:
    """One missed aim is enough, and comparisons without an aim are not missed."""
    free = Comparison("a", "b", "ms", (4.0,), (8.0,))
    good = Comparison("a", "b", "ms", (4.0,), (8.0,), Aim(0.5, at_least=True))
    bad = Comparison("a", "b", "ms", (4.0,), (8.0,), Aim(0.6, at_least=True))
    assert not Section("s", "", (free, good)).has_missed_aim
    assert Section("s", "", (free, good, bad)).has_missed_aim

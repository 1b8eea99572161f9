"""Pace: when the next look is due, and when it is a sweep."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adaptors.postgres.pacing import SETTLING_INTERVAL, SWEEP_INTERVAL, SWEEP_SHARE, Pace, Portion


def test_the_first_look_is_due_at_once() -> None:
    """A reader that was just opened looks, without a lower bound and without asking first."""
    pace = Pace(interval=5)
    assert pace.wait(100.0) == 0
    assert pace.hurry
    assert pace.sweep_due(100.0)


def test_an_idle_reader_looks_once_an_interval() -> None:
    """After a look that took all, the next one is due an interval after it began."""
    pace = Pace(interval=5)
    pace.begin(100.0)
    assert pace.wait(101.0) == 4
    assert not pace.hurry
    assert pace.wait(106.0) == 0


def test_a_notification_during_a_look_hurries_the_next() -> None:
    """What commits while a look runs is not waited for until the next interval."""
    pace = Pace(interval=5)
    pace.begin(100.0)
    pace.woken()
    assert pace.wait(100.1) == 0
    pace.begin(100.1)
    assert pace.wait(100.1) == 5


def test_rows_left_behind_are_fetched_at_once() -> None:
    """A look that was cut is followed by another."""
    pace = Pace(interval=5)
    pace.begin(100.0)
    pace.more()
    assert pace.wait(100.0) == 0


def test_a_cheap_sweep_comes_each_second() -> None:
    """A sweep that costs next to nothing is repeated after the sweep interval."""
    pace = Pace(interval=5)
    pace.swept(100.0, 100.001)
    assert not pace.sweep_due(100.0 + SWEEP_INTERVAL - 0.01)
    assert pace.sweep_due(100.0 + SWEEP_INTERVAL)


@given(st.lists(st.floats(0.001, 30), min_size=1, max_size=30))
def test_sweeps_never_take_more_than_their_share(durations: list[float]) -> None:
    """However slow sweeps become, they take at most 5 % of the time."""
    pace = Pace(interval=1)
    now = spent = 0.0
    for duration in durations:
        while not pace.sweep_due(now):
            now += 0.25
        pace.swept(now, now + duration)
        now += duration
        spent += duration
    while not pace.sweep_due(now):
        now += 0.25
    assert spent <= SWEEP_SHARE * now * 1.000001


def test_a_look_that_takes_too_long_is_halved_down_to_one_row() -> None:
    """The size follows what the server can do in time; behind one row there is nothing left."""
    portion = Portion(10, 1000, limit=2.0)
    asked = [(portion.rows, portion.size)]
    while portion.halve():
        asked.append((portion.rows, portion.size))
    assert asked == [(10, 1000), (5, 500), (2, 250), (1, 125)]


def test_a_look_grows_again_while_it_is_fast() -> None:
    """It doubles only where twice as much takes half of the limit, and never beyond its size."""
    portion = Portion(8, 800, limit=2.0)
    assert portion.halve()
    assert portion.halve()
    portion.took(0.6)
    assert portion.rows == 2
    for rows in (4, 8, 8):
        portion.took(0.5)
        assert portion.rows == rows


def test_settling_looks_are_a_second_apart() -> None:
    """However many looks there are, gaps stay open for that long at least."""
    pace = Pace(0.01)
    assert pace.settling_due(100.0)
    pace.settled(100.0)
    assert not pace.settling_due(100.0 + SETTLING_INTERVAL - 0.01)
    assert pace.settling_due(100.0 + SETTLING_INTERVAL)

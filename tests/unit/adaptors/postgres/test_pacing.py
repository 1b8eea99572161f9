"""Pace: the times of looks and of sweeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transporter_adaptors.postgres.pacing import (
    LOOK_SHARE,
    SETTLING_INTERVAL,
    SHORTEST,
    SWEEP_INTERVAL,
    SWEEP_SHARE,
    PollPace,
    Portion,
)


def test_the_first_look_is_due_at_once() -> None:
    """A newly opened reader sweeps at once, without a peek first."""
    pace = PollPace(interval=5)
    assert pace.seconds_until_due(100.0) == 0
    assert pace.has_known_rows
    assert pace.is_sweep_due(100.0)


def test_an_idle_reader_looks_once_an_interval() -> None:
    """The next look is due one interval after a complete look began."""
    pace = PollPace(interval=5)
    pace.record_start(100.0)
    assert pace.seconds_until_due(101.0) == 4
    assert not pace.has_known_rows
    assert pace.seconds_until_due(106.0) == 0


def pauses(pace: PollPace, now: float, seconds: float, took: float = 0.0) -> list[float]:
    """Look whenever due and find nothing, for so many seconds, and return the pauses."""
    found, ends = [], now + seconds
    while now < ends:
        pace.record_start(now)
        pace.record_look(now + took, took, rows=False)
        found.append(pace.seconds_until_due(now + took))
        now += took + found[-1]
    return [round(each, 6) for each in found]


def look(pace: PollPace, now: float) -> float:
    """Look and find rows, and return the pause after it."""
    pace.record_start(now)
    pace.record_look(now, rows=True)
    return round(pace.seconds_until_due(now), 6)


def test_a_polled_table_is_looked_at_often_while_rows_come() -> None:
    """After a second without rows pauses double, to 100 ms, and after minutes to the interval."""
    pace = PollPace(interval=1.0)
    assert look(pace, 100.0) == SHORTEST == 0.005
    assert set(pauses(pace, 100.005, 0.9)) == {SHORTEST}
    assert pauses(pace, 101.1, 1)[:5] == [0.01, 0.02, 0.04, 0.08, 0.1]
    assert set(pauses(pace, 103, 170)) == {0.1}
    assert pauses(pace, 281, 5)[:5] == [0.2, 0.4, 0.8, 1, 1]
    assert look(pace, 500.0) == SHORTEST


def test_a_reader_that_was_just_opened_polls_as_if_rows_had_come() -> None:
    """A newly opened reader polls as often as after rows."""
    assert max(pauses(PollPace(interval=60), 100.0, 0.9)) == SHORTEST


@pytest.mark.parametrize("interval", [0.002, 0.05, 7.0])
def test_the_interval_is_the_longest_pause(interval: float) -> None:
    """The longest pause is the interval, and an idle reader reaches it."""
    found = pauses(PollPace(interval), 100.0, 400)
    assert max(found) == found[-1] == pytest.approx(interval)


def test_a_slow_server_is_polled_less_often() -> None:
    """Looks that find nothing take a fifth of the time at most, as far as the interval allows."""
    assert set(pauses(PollPace(interval=1), 100.0, 1, took=0.02)) == {
        round(0.02 / LOOK_SHARE - 0.02, 6)
    }
    assert set(pauses(PollPace(interval=1), 100.0, 5, took=2.0)) == {1}


def test_where_notifications_announce_rows_nothing_is_polled() -> None:
    """With notifications, a hurried look finds the rows and the next is one interval later."""
    pace = PollPace(interval=5, has_trigger=True)
    for now in (100.0, 200.0):
        pace.record_notification()
        assert look(pace, now) == 5
        assert pauses(pace, now + 1, 20) == [5, 5, 5, 5]


def test_rows_without_a_notification_are_polled_for_until_one_comes() -> None:
    """The first row without a notification starts polling, as after a trigger is disabled."""
    pace = PollPace(interval=5, has_trigger=True)
    assert pauses(pace, 100.0, 5) == [5]
    assert look(pace, 105.0) == SHORTEST
    assert max(pauses(pace, 105.005, 0.9)) == SHORTEST
    pace.record_notification()
    assert look(pace, 107.0) == 5


def test_notifications_of_another_table_do_not_stop_the_polling() -> None:
    """Notifications of another table on a shared channel do not stop the polling."""
    pace = PollPace(interval=5)
    pace.record_notification()
    assert pace.seconds_until_due(100.0) == 0
    assert look(pace, 100.0) == SHORTEST


def test_a_notification_during_a_look_hurries_the_next() -> None:
    """A commit during a look is read at once, not after the next interval."""
    pace = PollPace(interval=5)
    pace.record_start(100.0)
    pace.record_notification()
    assert pace.seconds_until_due(100.1) == 0
    pace.record_start(100.1)
    assert pace.seconds_until_due(100.1) == 5


def test_rows_left_behind_are_fetched_at_once() -> None:
    """A cut look is followed by another one at once."""
    pace = PollPace(interval=5)
    pace.record_start(100.0)
    pace.record_rows_left()
    assert pace.seconds_until_due(100.0) == 0


def test_a_cheap_sweep_comes_each_second() -> None:
    """A sweep of almost no cost is repeated after the sweep interval."""
    pace = PollPace(interval=5)
    pace.record_sweep(100.0, 100.001)
    assert not pace.is_sweep_due(100.0 + SWEEP_INTERVAL - 0.01)
    assert pace.is_sweep_due(100.0 + SWEEP_INTERVAL)


@given(st.lists(st.floats(0.001, 30), min_size=1, max_size=30))
def test_sweeps_never_take_more_than_their_share(durations: list[float]) -> None:
    """Sweeps take at most 5 % of the time, however slow they become."""
    pace = PollPace(interval=1)
    now = spent = 0.0
    for duration in durations:
        while not pace.is_sweep_due(now):
            now += 0.25
        pace.record_sweep(now, now + duration)
        now += duration
        spent += duration
    while not pace.is_sweep_due(now):
        now += 0.25
    assert spent <= SWEEP_SHARE * now * 1.000001


def test_a_look_that_takes_too_long_is_halved_down_to_one_row() -> None:
    """The size of a look is halved down to one row while the server is too slow."""
    portion = Portion(10, 1000, limit=2.0)
    asked = [(portion.rows, portion.size)]
    while portion.halve():
        asked.append((portion.rows, portion.size))
    assert asked == [(10, 1000), (5, 500), (2, 250), (1, 125)]


def test_a_look_grows_again_while_it_is_fast() -> None:
    """A look doubles only if its time is at most a quarter of the limit, up to its full size."""
    portion = Portion(8, 800, limit=2.0)
    assert portion.halve()
    assert portion.halve()
    portion.record_duration(0.6)
    assert portion.rows == 2
    for rows in (4, 8, 8):
        portion.record_duration(0.5)
        assert portion.rows == rows


def test_settling_looks_are_a_second_apart() -> None:
    """Settling looks are at least a second apart, however many looks there are."""
    pace = PollPace(0.01)
    assert pace.is_settling_due(100.0)
    pace.record_settling(100.0)
    assert not pace.is_settling_due(100.0 + SETTLING_INTERVAL - 0.01)
    assert pace.is_settling_due(100.0 + SETTLING_INTERVAL)

"""``max_rate``: the limit of the entries that a route delivers per unit of time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from engine_tools import Events, SparklessHost, make_pipeline, offsets, running, until

from transporter.engine.engine import Engine
from transporter.engine.routing.slicer import RateLimit

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class Clock:
    """A clock that stands still unless a test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def test_what_was_not_used_is_not_saved_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unused rate is not saved up: an idle minute allows no larger slice."""
    clock = Clock(monkeypatch)
    pace = RateLimit(10)
    assert (pace.max_rows, pace.seconds_left() <= 0, pace.active_rate) == (10, True, 0)
    pace.spend(10)
    assert (pace.seconds_left(), pace.active_rate) == (1, 10)
    clock.now += 60
    pace.spend(5)
    assert pace.seconds_left() == 0.5
    pace.spend(5)
    assert pace.seconds_left() == 1


def test_a_slow_rate_lets_single_entries_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow rate allows single entries, and a slice without deliveries costs nothing."""
    Clock(monkeypatch)
    pace = RateLimit(0.25)
    pace.spend(0)
    assert (pace.max_rows, pace.seconds_left() <= 0, pace.longest_wait) == (1, True, 4)
    pace.spend(1)
    assert pace.seconds_left() == 4


def test_without_a_rate_nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a rate nothing is delayed, however much was delivered."""
    Clock(monkeypatch)
    pace = RateLimit(None)
    pace.spend(10**9)
    assert (pace.max_rows, pace.seconds_left() <= 0, pace.active_rate, pace.longest_wait) == (
        None,
        True,
        0,
        0,
    )


def test_a_route_keeps_its_rate_says_so_and_holds_nobody_back(tmp_path: Path) -> None:
    """A route keeps and reports its rate under a backlog, and the other route is not slowed."""
    lines = [f"a {number}" for number in range(60)]
    pipeline = make_pipeline(tmp_path, lines, end=False, slow={"max_rate": "20/s"}, fast={})
    with running(pipeline, events=Events()) as engine:
        slow = next(each for each in engine.status().routes if each.name == "slow")
        assert slow.limited in (0, 20)
        until(lambda: len(offsets(tmp_path / "fast.jsonl")) == 60)
        begun, before = time.monotonic(), len(offsets(tmp_path / "slow.jsonl"))
        assert before < 60
        until(lambda: any(each.limited == 20 for each in engine.status().routes))
        until(lambda: len(offsets(tmp_path / "slow.jsonl")) == 60)
        # The first slice may hold a second's worth, and the last one is not waited for.
        assert time.monotonic() - begun >= (60 - before - 40) / 20
    assert offsets(tmp_path / "slow.jsonl") == list(range(60))


def test_a_stop_does_not_wait_for_a_slow_rate(tmp_path: Path) -> None:
    """A stop leaves the entries that a slow rate delays to the next start."""
    pipeline = make_pipeline(tmp_path, ["a 0", "a 1", "a 2"], end=False, out={"max_rate": "1/h"})
    engine = Engine(pipeline, SparklessHost(), Events())
    engine.start()
    until(lambda: engine.status().routes[0].limited)
    begun = time.monotonic()
    engine.stop(0)
    assert time.monotonic() - begun < 10
    assert offsets(tmp_path / "out.jsonl") == [0]

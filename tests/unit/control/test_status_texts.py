"""Text of ``transporter status`` about a route."""

from __future__ import annotations

from typing import Any

import pytest

from transporter.control.status_texts import activity, duration_text, rate_limit_text
from transporter.engine.backoff import BackoffWait
from transporter.engine.events import RouteStatus, State


def route(**changes: Any) -> dict[str, Any]:
    """Return the status of an ordinary running route."""
    plain = {"replay": None, "retries": 0, "step": None, "next": 5, "paused": False}
    return {**plain, "state": "running", **changes}


@pytest.mark.parametrize(
    ("waiting", "told"),
    [
        (None, ""),
        ({"since": 125.0, "left": 18.2}, "failing for 2 min, next try in 18 s"),
        ({"since": 0.2, "left": 0.1}, "failing for 1 s, next try in 1 s"),
        ({"since": 9000.0, "left": 0.0}, "failing for 2 h, tries now"),
    ],
)
def test_a_retrying_route_tells_since_when_and_until_when(
    waiting: dict[str, float] | None, told: str
) -> None:
    """The time of failing and the time to the next try are beside other activity."""
    assert activity(route(waiting=waiting)) == told
    assert activity(route(waiting=waiting, retries=2)).endswith("2 retries requested")


def test_a_log_without_an_engine_waits_for_nothing() -> None:
    """A status read from disk has no back-off."""
    assert activity(route()) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "1 s"), (59.6, "60 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200_000, "2 d")],
)
def test_times_are_told_in_their_largest_unit(seconds: float, text: str) -> None:
    """A unit is used from two of it on."""
    assert duration_text(seconds) == text


def test_only_a_retrying_route_has_something_to_wait_for() -> None:
    """A route that is not retrying has no next try, even after an earlier one."""
    waiting = BackoffWait(61.0, 3.0)
    retrying = RouteStatus("r", "http", State.RETRYING, 0, 0, 0, 9, waiting=waiting)
    assert retrying.patience == waiting
    starting = RouteStatus("r", "http", State.STARTING, 0, 0, 0, 9, waiting=waiting)
    assert starting.patience is None


@pytest.mark.parametrize(
    ("limited", "shown"),
    [(500.0, "500/s"), (0.5, "30/m"), (1 / 360, "10/h"), (1.5, "90/m"), (0.001, "3.6/h")],
)
def test_a_rate_that_holds_a_route_is_shown_as_it_was_written(limited: float, shown: str) -> None:
    """A rate is shown in the unit that makes it short."""
    assert rate_limit_text(limited) == f"limited to {shown} by max_rate"

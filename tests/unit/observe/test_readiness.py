"""When an engine counts as ready, and what it says when it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from transporter.engine.events import EngineStatus, ReaderStatus, RouteStatus, State
from transporter.observe.readiness import reasons, report

READER = ReaderStatus("in", "demo", State.RUNNING, 3)
ROUTE = RouteStatus("out", "lmdb", State.RUNNING, 2, 1, 5, 0)


def status(*, reader: dict[str, Any] | None = None, **route: Any) -> EngineStatus:
    """Return the status of an engine with one reader and one route."""
    routes = (replace(ROUTE, **route),)
    return EngineStatus(
        "log", 9, 1, spark=True, readers=(replace(READER, **(reader or {})),), routes=routes
    )


GREEN = [
    {},
    {"lag": 4, "still": 29},
    {"lag": 0, "still": 900},
    {"state": State.RETRYING, "still": 29},
    {"state": State.PAUSED, "lag": 4, "still": 900},
    {"state": State.ENDED, "lag": 4, "still": 900},
    {"reader": {"state": State.ENDED, "still": 900}},
    {"reader": {"state": State.RETRYING, "still": 29}},
    {"reader": {"state": State.WAITING, "still": 29}},
]
RED = [
    ({"state": State.STOPPED, "problem": "no 3 here"}, "out", "no 3 here"),
    ({"state": State.STARTING}, "out", "its worker has not opened its writer yet"),
    ({"lag": 4, "still": 31}, "out", "it settles nothing although there is something to do"),
    (
        {"replaying": True, "still": 31},
        "out",
        "it settles nothing although there is something to do",
    ),
    ({"state": State.RETRYING, "still": 31, "problem": "down"}, "out", "down"),
    ({"reader": {"state": State.STOPPED, "problem": "gone"}}, "in", "gone"),
    ({"reader": {"state": State.RETRYING, "still": 31, "problem": "down"}}, "in", "down"),
    ({"reader": {"state": State.WAITING, "still": 31, "problem": "full"}}, "in", "full"),
    ({"reader": {"still": 31}}, "in", "its poll does not return"),
]


@pytest.mark.parametrize("changes", GREEN)
def test_ready(changes: dict[str, Any]) -> None:
    """What gets on, has nothing to do, is paused or has not waited long is no reason."""
    assert reasons(status(**changes), 30) == ()


@pytest.mark.parametrize(("changes", "name", "problem"), RED)
def test_not_ready(changes: dict[str, Any], name: str, problem: str) -> None:
    """Who gets nowhere is named with the problem."""
    found = reasons(status(**changes), 30)
    assert [(each.name, each.problem) for each in found] == [(name, problem)]


def test_the_report_names_the_paused() -> None:
    """A paused route is shown, and the engine is ready."""
    found = report(status(state=State.PAUSED, lag=3, still=99), 30)
    assert found == {"ready": True, "spark": True, "reasons": [], "paused": ["out"]}


def test_the_report_tells_how_long() -> None:
    """A reason comes with its state and its seconds."""
    found = report(status(state=State.STOPPED, problem="x", still=1.25), 30)
    assert found["reasons"] == [
        {"kind": "route", "name": "out", "state": "stopped", "problem": "x", "seconds": 1.2}
    ]

"""The readiness of an engine, and its report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from transporter.engine.events import EngineStatus, ReaderStatus, RouteStatus, State
from transporter.engine.readiness import not_ready_reasons, readiness_report

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
    ({"state": State.STOPPED, "problem": "no 3 here"}, "out", "it waits for an operator"),
    ({"state": State.STARTING}, "out", "its worker has not opened its writer yet"),
    ({"lag": 4, "still": 31}, "out", "it settles nothing although entries are pending"),
    (
        {"replaying": True, "still": 31},
        "out",
        "it settles nothing although entries are pending",
    ),
    (
        {"state": State.RETRYING, "still": 31, "problem": "down"},
        "out",
        "its sink fails and is retried",
    ),
    ({"reader": {"state": State.STOPPED, "problem": "gone"}}, "in", "it waits for an operator"),
    (
        {"reader": {"state": State.RETRYING, "still": 31, "problem": "down"}},
        "in",
        "its source fails and is retried",
    ),
    (
        {"reader": {"state": State.WAITING, "still": 31, "problem": "full"}},
        "in",
        "the log has no space",
    ),
    ({"reader": {"still": 31}}, "in", "its poll does not return"),
]


@pytest.mark.parametrize("changes", GREEN)
def test_ready(changes: dict[str, Any]) -> None:
    """A route that progresses, is idle, is paused or has waited briefly is not a reason."""
    assert not_ready_reasons(status(**changes), 30) == ()


@pytest.mark.parametrize(("changes", "name", "why"), RED)
def test_not_ready(changes: dict[str, Any], name: str, why: str) -> None:
    """A reader or route without progress is named, with the consequence."""
    found = not_ready_reasons(status(**changes), 30)
    assert [(each.name, each.why) for each in found] == [(name, why)]


def test_an_engine_that_ends_is_not_ready() -> None:
    """Nothing new is taken, so whoever routes work or counts ready engines must know at once."""
    found = readiness_report(replace(status(), ending=0.25), 30)
    assert (found["ready"], found["reasons"]) == (
        False,
        [{"kind": "engine", "name": "", "state": "stopping",
          "why": "it delivers what is logged, and ends", "seconds": 0.2}],
    )  # fmt: skip


def test_the_report_names_the_paused() -> None:
    """A paused route is shown, and the engine is ready."""
    found = readiness_report(status(state=State.PAUSED, lag=3, still=99), 30)
    assert found == {"ready": True, "spark": True, "reasons": [], "paused": ["out"]}


def test_the_report_tells_how_long_and_how_much_but_quotes_nobody() -> None:
    """A report contains times and counts but no error text, which may quote data (Invariant 20)."""
    card = "4111 1111 1111 1111 is no card"
    reader = {"state": State.STOPPED, "problem": card}
    found = readiness_report(
        status(state=State.STOPPED, problem=card, still=1.25, parked=7, reader=reader), 30
    )
    assert found["reasons"][1] == {
        "kind": "route",
        "name": "out",
        "state": "stopped",
        "why": "it waits for an operator",
        "seconds": 1.2,
        "lag": 0,
        "parked": 7,
    }
    assert card not in str(found)

"""The status of a running engine: its readiness, its address, and routes that settle nothing."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import Events, SparklessHost, make_pipeline, until
from live_tools import lines, operated

from transporter.control import requests
from transporter.control.running_engine import _reader_status, running_status
from transporter.engine.engine import Engine
from transporter.engine.events import ReaderStatus, State
from transporter.observe.metrics_and_health import Monitor
from transporter.pipeline.observe_config import ListenAddress, ObserveConfig

if TYPE_CHECKING:
    from pathlib import Path


def test_a_status_tells_version_start_budget_and_durations(tmp_path: Path) -> None:
    """One status has what pages and probes need, as plain values."""
    began = time.time()
    with operated(tmp_path, lines(4), out={}) as op:
        until(lambda: op.route()["watermark"] == 3)
        found = json.loads(json.dumps(op(requests.Status())))
        assert (found["dead"], found["url"]) == ([], None)
        assert began <= found["started_at"] <= time.time()
        assert (found["used"], found["max_bytes"]) == (found["size"], None)
        assert (found["ready"], found["reasons"]) == (True, [])
        assert sum(found["syncs"]["counts"]) > 0
        assert len(found["syncs"]["counts"]) == len(found["syncs"]["bounds"]) + 1
        assert sum(op.route()["slices"]["counts"]) >= 1
        assert op.route()["slices"]["seconds"] > 0


def test_a_budget_is_shown(tmp_path: Path) -> None:
    """With ``max_bytes`` the status has the limit, and what counts against it."""
    pipeline = make_pipeline(tmp_path, ["a 1"], out={})
    budget = pipeline.log.model_copy(update={"max_bytes": 1 << 30})
    engine = Engine(pipeline.model_copy(update={"log": budget}), SparklessHost(), Events())
    try:
        found = running_status(engine)
        assert found["max_bytes"] == 1 << 30
        assert 0 < found["used"] < 1 << 30
    finally:
        engine.stop(0)


def test_the_address_of_metrics_is_that_of_the_monitor(tmp_path: Path) -> None:
    """With an endpoint the status has its address, and the version in any case."""
    config = ObserveConfig(listen=ListenAddress("127.0.0.1", 0))
    pipeline = make_pipeline(tmp_path, [], out={}).model_copy(update={"observe": config})
    with Monitor(pipeline, Events(), "1.2") as monitor:
        engine = Engine(pipeline, SparklessHost(), monitor.observe)
        monitor.start(engine)
        try:
            found = running_status(engine)
            assert (found["version"], found["url"]) == ("1.2", monitor.url)
            assert str(monitor.url).startswith("http://127.0.0.1:")
        finally:
            engine.stop(0)


def test_a_route_that_cannot_deliver_is_told_from_one_that_need_not(tmp_path: Path) -> None:
    """Only a route with work, whose sink does not take it, settles nothing although it could."""
    with operated(tmp_path, lines(1), out={}, idle={}, paused={}) as op:
        until(lambda: all(op.route(name)["watermark"] == 0 for name in ("out", "idle", "paused")))
        op(requests.Pause("paused"))
        (tmp_path / "out.down").write_text("write")
        op.feed(*lines(3, 1))
        until(lambda: op.route("idle")["watermark"] == 3)
        until(lambda: op.route()["still"] > 0.2)
        assert op.route("idle")["still"] == 0.0
        assert (op.route("paused")["lag"], op.route("paused")["still"]) == (3, 0.0)
        (tmp_path / "out.down").unlink()
        op(requests.Resume("out"))
        until(lambda: op.route()["watermark"] == 3)
        assert op.route()["still"] == 0.0


def test_a_halted_route_is_a_reason_and_waits_for_an_operator(tmp_path: Path) -> None:
    """A halted route is not ready, and is not counted as stuck."""
    with operated(tmp_path, lines(3), out={"on_error": "stop", "writer": {"reject": [1]}}) as op:
        op.events.await_count("route-stopped")
        found = op(requests.Status())
        (reason,) = found["reasons"]
        assert (found["ready"], reason["name"], reason["state"]) == (False, "out", "stopped")
        assert op.route()["still"] == 0.0


@pytest.mark.parametrize(
    ("state", "term", "leader"),
    [
        (State.RUNNING, 7, True),
        (State.CANDIDATE, None, False),
        (State.RUNNING, None, None),
        (State.RETRYING, None, None),
    ],
)
def test_a_reader_tells_whether_it_leads(state: State, term: int | None, leader: Any) -> None:
    """A leader, a candidate, and a reader to which this does not apply are three values."""
    assert _reader_status(ReaderStatus("in", "x", state, 0, term=term))["leader"] is leader

"""Notifications to a service manager, on a real datagram socket, by a real engine without Spark."""

from __future__ import annotations

import json
import os
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import Events, SparklessHost, make_pipeline, until
from service_tools import ServiceManager

from transporter.cli import service_manager
from transporter.cli.run import _run_until_stopped, _Signals
from transporter.cli.service_manager import ServiceNotifier, status_text, take_notifier
from transporter.control.server import attach_control
from transporter.engine import thread_heartbeat
from transporter.engine.engine import Engine
from transporter.engine.events import EngineStatus, ReaderStatus, RouteStatus, State
from transporter.pipeline.config import load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.pipeline.config import Pipeline

READER = ReaderStatus("in", "demo", State.RUNNING, 3)
ROUTE = RouteStatus("out", "lmdb", State.RUNNING, 2, 1, 5, 0)
STATUS = EngineStatus("log", 9, 1, spark=True, readers=(READER,), routes=(ROUTE,))
HELD = {"writer": {"adaptor": "service_tools:HeldWriter"}}


class Report(Events):
    """Keeps the events of a run."""

    def show_status(self, _status: dict[str, Any], _doing: str = "") -> None:
        pass


class Run:
    """The loop of ``transporter run``, in a thread."""

    def __init__(self, pipeline: Pipeline, notifier: ServiceNotifier) -> None:
        self.report, self.signals = Report(), _Signals()
        self.engine = Engine(pipeline, SparklessHost(), self.report)
        attach_control(self.engine, {})
        self._thread = threading.Thread(
            target=_run_until_stopped, args=(self.engine, self.report, self.signals, notifier)
        )
        self._thread.start()

    def route_state(self) -> State:
        """Return the state of the only route."""
        return self.engine.status().routes[0].state

    def stop(self) -> None:
        """Stop as at SIGTERM."""
        self.engine.request_stop("SIGTERM")
        self._thread.join()


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceManager]:
    """Listen for notifications, which come twenty times as often as for a real manager."""
    monkeypatch.setattr(service_manager, "LOOK", 0.05)
    made = ServiceManager(str(tmp_path / "notify"))
    yield made
    made.close()


@contextmanager
def run(pipeline: Pipeline, manager: ServiceManager) -> Iterator[Run]:
    """Run *pipeline* below *manager*, with a watchdog, for the length of a block."""
    environ = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "1000000"}
    found = Run(pipeline, take_notifier(environ))
    try:
        yield found
    finally:
        found.stop()


def test_ready_comes_once_the_routes_can_deliver(tmp_path: Path, manager: ServiceManager) -> None:
    """While a writer opens its sink the start is extended, and READY=1 comes after it."""
    held = tmp_path / "out.held"
    held.touch()
    with run(make_pipeline(tmp_path, ["a 1"], end=False, out=HELD), manager) as found:
        manager.await_line("STATUS=starting: route out: its worker has not opened its writer yet")
        manager.await_line("EXTEND_TIMEOUT_USEC=60000000", 3)
        assert manager.count("READY=1") == 0
        held.unlink()
        manager.await_line("READY=1")
        assert found.route_state() is State.RUNNING
        manager.await_line("STATUS=ready")
        extended = manager.count("EXTEND_TIMEOUT_USEC=60000000")
        manager.await_line("WATCHDOG=1", manager.count("WATCHDOG=1") + 3)
        assert manager.count("EXTEND_TIMEOUT_USEC=60000000") == extended
    lines = manager.look()
    assert lines.count("READY=1") == 1
    assert lines[lines.index("STOPPING=1") + 1].startswith("EXTEND_TIMEOUT_USEC=")
    assert lines[-1].startswith("STATUS=stopping: up to ")
    assert "WATCHDOG=1" not in lines[lines.index("STOPPING=1") :]


def test_a_sink_that_is_away_does_not_hold_up_the_start(
    tmp_path: Path, manager: ServiceManager
) -> None:
    """A route that retries its sink has started: a boot does not wait for another machine."""
    down = tmp_path / "out.down"
    down.write_text("open")
    with run(make_pipeline(tmp_path, ["a 1"], end=False, out={}), manager) as found:
        manager.await_line("READY=1")
        assert found.route_state() is not State.RUNNING
        down.unlink()
        until(lambda: found.route_state() is State.RUNNING)


def test_a_reload_is_reported_from_its_begin_to_its_end(
    tmp_path: Path, manager: ServiceManager
) -> None:
    """SIGHUP is RELOADING=1 with the time, and READY=1 again, also where the file is refused."""
    with run(make_pipeline(tmp_path, ["a 1"], end=False, out={}), manager) as found:
        manager.await_line("READY=1")
        for count, text in enumerate([(tmp_path / "pipeline.yaml").read_text(), "nonsense"], 1):
            (tmp_path / "pipeline.yaml").write_text(text)
            found.signals.on_hangup(1, None)
            assert manager.await_line("MONOTONIC_USEC=", count).partition("=")[2].isdecimal()
            manager.await_line("READY=1", count + 1)
        assert found.report.named("reload-refused")
    lines = [each for each in manager.look() if each in ("RELOADING=1", "READY=1")]
    assert lines == ["READY=1", "RELOADING=1", "READY=1", "RELOADING=1", "READY=1"]


def test_the_watchdog_starves_while_a_poll_hangs(
    tmp_path: Path, manager: ServiceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader whose poll does not return is named and feeds no watchdog, until it returns."""
    monkeypatch.setattr(thread_heartbeat, "HUNG_AFTER", 0.5)
    make_pipeline(tmp_path, ["a 1"], end=False, out={})
    document = json.loads((tmp_path / "pipeline.yaml").read_text())
    document["readers"][0]["adaptor"] = "service_tools:HangingReader"
    (tmp_path / "pipeline.yaml").write_text(json.dumps(document))
    hangs = tmp_path / "source.hangs"
    with run(load(tmp_path / "pipeline.yaml", {}), manager) as found:
        manager.await_line("READY=1")
        hangs.touch()
        manager.await_line("STATUS=not healthy: no sign of life of reader-in")
        fed = manager.count("WATCHDOG=1")
        assert found.engine.status().hung == ("reader-in",)
        threading.Event().wait(0.3)
        assert manager.count("WATCHDOG=1") == fed
        hangs.unlink()
        manager.await_line("WATCHDOG=1", fed + 1)


@pytest.mark.parametrize("part", ["committer", "route"])
def test_the_watchdog_starves_while_a_thread_hangs(
    tmp_path: Path, manager: ServiceManager, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """A committer, or a route beside a worker, that hangs is named and feeds no watchdog."""
    monkeypatch.setattr(thread_heartbeat, "HUNG_AFTER", 0.7)
    go = threading.Event()
    go.set()
    with run(make_pipeline(tmp_path, ["a 1"], end=False, out={}), manager) as found:
        manager.await_line("READY=1")
        engine = found.engine
        # The committer waits for its turn without heartbeats, and hangs once it works.
        blocked = engine._watch if part == "committer" else engine._running.routes[0]._slicer
        call = "check" if part == "committer" else "wait"
        before = getattr(blocked, call)
        monkeypatch.setattr(blocked, call, lambda *each: (go.wait(), before(*each)))
        go.clear()
        try:
            name = "committer" if part == "committer" else "route-out"
            manager.await_line(f"STATUS=not healthy: no sign of life of {name}")
            fed = manager.count("WATCHDOG=1")
            threading.Event().wait(0.3)
            assert manager.count("WATCHDOG=1") == fed
        finally:
            go.set()
        manager.await_line("WATCHDOG=1", fed + 1)
        manager.await_line("STATUS=ready", 2)


def test_the_watchdog_starves_while_a_thread_is_missing(
    tmp_path: Path, manager: ServiceManager
) -> None:
    """A thread that has ended by itself feeds no watchdog, although the main thread runs."""
    with run(make_pipeline(tmp_path, ["a 1"], end=False, out={}), manager) as found:
        manager.await_line("READY=1")
        ended = threading.Thread(target=int, name="committer")
        ended.start()
        ended.join()
        alive, found.engine._committer.thread = found.engine._committer.thread, ended
        manager.await_line("STATUS=not healthy: no sign of life of committer")
        fed = manager.count("WATCHDOG=1")
        threading.Event().wait(0.3)
        assert manager.count("WATCHDOG=1") == fed
        found.engine._committer.thread = alive
        manager.await_line("WATCHDOG=1", fed + 1)


@pytest.mark.exhaustive
def test_a_route_that_waits_for_spark_does_not_hang(
    tmp_path: Path, manager: ServiceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is awaited, and an idle or paused route, are no reasons for a restart."""
    monkeypatch.setattr(thread_heartbeat, "HUNG_AFTER", 1.2)
    held = tmp_path / "out.held"
    held.touch()
    with run(make_pipeline(tmp_path, ["a 1"], end=False, out=HELD), manager) as found:
        threading.Event().wait(1.5)
        assert found.engine.status().hung == ()
        held.unlink()
        manager.await_line("READY=1")
        threading.Event().wait(1.5)
        assert found.engine.status().hung == ()


def test_long_waits_that_are_configured_are_no_hangs(
    tmp_path: Path, manager: ServiceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A route that lingers, and a committer that rarely commits, are alive."""
    monkeypatch.setattr(thread_heartbeat, "HUNG_AFTER", 0.7)
    pipeline = make_pipeline(tmp_path, ["a 1"], end=False, out={"linger": "60s"})
    with run(pipeline.model_copy(update={"commit_interval": 60.0}), manager) as found:
        manager.await_line("READY=1")
        until(lambda: found.engine.status().routes[0].lag)
        threading.Event().wait(1.2)
        assert found.engine.status().hung == ()
        assert found.engine.status().routes[0].lag == 1


@pytest.mark.parametrize("place", ["path", "abstract"])
def test_both_kinds_of_addresses(tmp_path: Path, place: str) -> None:
    """A socket may have a path, or a name in the abstract namespace."""
    address = str(tmp_path / "n") if place == "path" else f"@transporter-test-{os.getpid()}"
    manager = ServiceManager(address)
    take_notifier({"NOTIFY_SOCKET": address}).update(lambda: STATUS, 30)
    assert manager.look() == ["READY=1", "STATUS=ready"]
    manager.close()


def test_its_variables_are_taken_from_the_environment() -> None:
    """Nothing of it is left for children."""
    environ = {"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/"}
    take_notifier(environ)
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize("given", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_nothing_is_sent_without_a_socket(given: dict[str, str]) -> None:
    """Without a service manager the engine is not even looked at."""
    notifier = take_notifier(dict(given))
    notifier.update(lambda: pytest.fail("it looked"), 30)
    with notifier.reloading():
        pass
    notifier.stopping(1)


@pytest.mark.parametrize(
    ("variables", "fed"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 1),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 1),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, 0),
        ({"WATCHDOG_USEC": "0"}, 0),
        ({"WATCHDOG_USEC": "soon"}, 0),
        ({}, 0),
    ],
)
def test_only_its_own_watchdog_is_fed(tmp_path: Path, variables: dict[str, str], fed: int) -> None:
    """A watchdog of another process, or none, is not fed."""
    manager = ServiceManager(str(tmp_path / "n"))
    take_notifier({"NOTIFY_SOCKET": manager.address, **variables}).update(lambda: STATUS, 30)
    assert manager.count("WATCHDOG=1") == fed
    manager.close()


def test_a_manager_that_does_not_listen_hears_it_later(tmp_path: Path) -> None:
    """An engine without a listening manager runs on, and repeats what was not received."""
    notifier = ServiceNotifier(str(tmp_path / "n"))
    notifier.update(lambda: STATUS, 30)
    manager = ServiceManager(str(tmp_path / "n"))
    notifier._next_look = 0
    notifier.update(lambda: STATUS, 30)
    assert manager.look() == ["READY=1", "STATUS=ready"]
    manager.close()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "ready"),
        ({"state": State.PAUSED}, "ready; paused: out"),
        ({"state": State.RETRYING, "still": 31.0}, "its sink fails and is retried"),
        ({"state": State.STOPPED, "problem": "secret"}, "it waits for an operator"),
    ],
)
def test_the_status_is_one_line_of_fixed_texts(changes: dict[str, Any], text: str) -> None:
    """The line names the part and the reason, and quotes no error (Invariant 20)."""
    found = replace(STATUS, routes=(replace(ROUTE, **changes),))
    shown = status_text(found, 30, starting=False)
    assert shown == (text if text.startswith("ready") else f"not ready: route out: {text}")


def test_the_status_counts_further_reasons() -> None:
    """Only the first reason is named."""
    stopped = replace(ROUTE, state=State.STOPPED)
    found = replace(STATUS, routes=(stopped, stopped, stopped))
    shown = status_text(found, 30, starting=False)
    assert shown == "not ready: route out: it waits for an operator (and 2 others)"

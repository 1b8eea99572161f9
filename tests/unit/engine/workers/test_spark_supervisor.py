"""The carrier: one host kept alive, and a worker for each request."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import PATIENCE, Events, SparklessHost, hello, until, worker_spec

from transporter.engine.workers import spark_supervisor as module
from transporter.engine.workers.spark_supervisor import SparkSupervisor
from transporter.errors import HostFailed
from transporter.protocol.channel import EngineChannel
from transporter.protocol.messages import HostHello, Opened, Ticket
from transporter.protocol.network import connect_engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

    from transporter.protocol.messages import WorkerSpec


class Failures:
    """The failures that a carrier has reported."""

    def __init__(self) -> None:
        self.all: list[HostFailed] = []
        self._first = threading.Event()

    def __call__(self, error: HostFailed) -> None:
        self.all.append(error)
        self._first.set()

    def await_first(self) -> str:
        """Wait for a failure and return its text."""
        assert self._first.wait(PATIENCE), "nothing failed"
        return str(self.all[0])


@contextmanager
def started(
    host: SparklessHost, events: Events | None = None, failures: Failures | None = None
) -> Iterator[SparkSupervisor]:
    """Run a carrier for the length of a ``with`` block."""
    carrier = SparkSupervisor(host, events or Events(), failures or Failures())
    carrier.start()
    try:
        yield carrier
    finally:
        carrier.stop()


def connect(
    carrier: SparkSupervisor, spec: WorkerSpec, stopping: threading.Event | None = None
) -> Any:
    """Ask for a worker and return its connection."""
    found = carrier.connect(spec, (stopping or threading.Event()).is_set)
    assert found is None or found.poll(PATIENCE)
    return found


def test_a_worker_is_started_for_whoever_asks(tmp_path: Path) -> None:
    """``connect`` returns a connection to a worker whose writer is open."""
    with started(SparklessHost()) as carrier:
        with connect(carrier, worker_spec(tmp_path)) as worker:
            assert worker.recv() == Opened(None)
        assert carrier.ready


def test_supervisors_that_start_at_once_know_their_hosts() -> None:
    """Each takes the call of its own host only, as several engines in one process have them."""
    host, failures = SparklessHost(), Failures()
    with ExitStack() as stack:
        found = [stack.enter_context(started(host, failures=failures)) for _ in range(12)]
        until(lambda: failures.all or all(each.ready for each in found))
    assert failures.all == []


def test_a_dead_worker_is_replaced_by_the_next_connect(tmp_path: Path) -> None:
    """After a worker was killed, a new one serves the same shard."""
    events = Events()
    with started(SparklessHost(), events) as carrier:
        spec = worker_spec(tmp_path)
        with connect(carrier, spec) as worker:
            worker.recv()
            os.kill(events.named("worker-connected")[0]["pid"], 9)
            with pytest.raises(EOFError):
                worker.recv()
        with connect(carrier, spec) as worker:
            assert worker.recv() == Opened(None)
    pids = [details["pid"] for details in events.named("worker-connected")]
    assert len(set(pids)) == 2


def test_the_end_of_an_older_worker_is_not_taken_for_that_of_the_new(tmp_path: Path) -> None:
    """A late report of a dead worker's end does not fail its successor."""
    events = Events()
    with started(SparklessHost(["gossip"]), events) as carrier:
        spec = worker_spec(tmp_path)
        with connect(carrier, spec):
            os.kill(events.named("worker-connected")[0]["pid"], 9)
        with connect(carrier, spec) as worker:
            assert worker.recv() == Opened(None)


def test_a_worker_that_cannot_start_is_reported_with_its_reason(tmp_path: Path) -> None:
    """When a task ends before it has called back, ``connect`` raises the host's reason."""
    with started(SparklessHost()) as carrier:
        spec = worker_spec(tmp_path)
        carrier._listener.worker_address = "/nowhere"
        with pytest.raises(HostFailed, match="exit code 1"):
            connect(carrier, spec)


def test_a_missing_slot_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that never calls back is an error that names its route and shard."""
    monkeypatch.setattr(module, "WORKER_START", 0.1)
    with started(SparklessHost(["busy"])) as carrier:
        spec = worker_spec(tmp_path)
        with pytest.raises(HostFailed, match="no worker for route out, shard 0"):
            connect(carrier, spec)


def test_a_dead_host_is_launched_again_and_the_waiting_get_their_workers(tmp_path: Path) -> None:
    """A route that waits for a worker when the host dies gets it from the next host."""
    events, host, failures = Events(), SparklessHost(["busy", "good"]), Failures()
    with started(host, events, failures) as carrier:
        spec = worker_spec(tmp_path)
        got: list[Connection] = []
        asking = threading.Thread(target=lambda: got.append(connect(carrier, spec)))
        asking.start()
        events.await_count("spark-ready")
        host.processes[0].kill()
        asking.join(PATIENCE)
        with got[0] as worker:
            assert worker.recv() == Opened(None)
    assert len(events.named("spark-host-lost")) == 1
    assert failures.all == []


def test_a_host_that_reads_nothing_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen host holds nobody up for ever: the routes get their workers from the next."""
    monkeypatch.setattr(module, "_GRACE", 0.1)
    events = Events()
    with started(SparklessHost(["frozen", "good"]), events) as carrier:
        events.await_count("spark-ready")
        assert carrier._host is not None
        with pytest.raises(BlockingIOError):
            carrier._host.send_raw(bytes(4 << 20))
        with connect(carrier, worker_spec(tmp_path)) as worker:
            assert worker.recv() == Opened(None)
    assert len(events.named("spark-host-lost")) == 1


def test_a_greeting_of_an_earlier_host_is_refused() -> None:
    """Only the running host is greeted: another one's line would be taken for its end."""
    events, ours, theirs = Events(), *socket.socketpair()
    with started(SparklessHost(), events) as carrier, EngineChannel(ours), theirs:
        theirs.settimeout(PATIENCE)
        events.await_count("spark-ready")
        carrier._accept_host(HostHello(os.getpid()), EngineChannel(ours))
        assert theirs.recv(1) == b""
        assert carrier.ready
    assert len(events.named("spark-host-connected")) == 1


def test_a_host_whose_spark_has_stopped_is_replaced_and_the_cause_is_reported(
    tmp_path: Path,
) -> None:
    """A route that waits for a worker gets it from the next host, without a failure of its own."""
    events, host = Events(), SparklessHost(["removed", "good"])
    with started(host, events) as carrier, connect(carrier, worker_spec(tmp_path)) as us:
        assert us.recv() == Opened(None)
    (lost,) = events.named("spark-host-lost")
    assert lost["problem"] == "the master has removed it"


def test_hosts_that_are_lost_again_and_again_are_backed_off(tmp_path: Path) -> None:
    """A Spark that is soon lost after each start is started less and less often."""
    events = Events()
    with started(SparklessHost(["removed"]), events) as carrier:
        stopping = threading.Event()
        spec = worker_spec(tmp_path)
        asking = threading.Thread(target=connect, args=(carrier, spec, stopping))
        asking.start()
        events.await_count("spark-host-lost", 4)
        stopping.set()
        carrier.wake()
        asking.join(PATIENCE)
    delays = [each["retry_in"] for each in events.named("spark-host-lost")]
    assert delays[3] > 2 * delays[0]


def test_a_host_that_fails_at_its_start_is_reported_with_its_cause() -> None:
    """Spark's reason is in the failure that ends the engine."""
    failures = Failures()
    with started(SparklessHost(["doomed"]), failures=failures):
        assert "ended before Spark was up: no master answers" in failures.await_first()


def test_why_a_worker_is_gone_is_kept_for_its_route(tmp_path: Path) -> None:
    """The cause of a worker's end is returned once, and an unknown one is empty."""
    with started(SparklessHost(["refusing"])) as carrier:
        with pytest.raises(HostFailed, match="no Python here"):
            connect(carrier, worker_spec(tmp_path))
        carrier._problems["out", 0] = "its own doing"
        assert carrier.take_problem("other") == ""
        assert carrier.take_problem("out") == "its own doing"
        assert carrier.take_problem("out") == ""


@pytest.mark.parametrize("behaviour", ["dead", "mute", "slow"])
def test_a_host_that_never_comes_up_is_reported(
    behaviour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that ends, never calls, or is never ready becomes a failure after a bounded wait."""
    monkeypatch.setattr(module, "HOST_START", 0.3)
    host, failures = SparklessHost([behaviour]), Failures()
    with started(host, failures=failures):
        expected = "ended before Spark was up" if behaviour == "dead" else "spark.log"
        assert expected in failures.await_first()
        until(lambda: host.processes[0].poll() is not None)
    assert len(host.processes) == 1


def test_a_host_that_cannot_be_launched_is_reported() -> None:
    """A host process that cannot be started is reported to the engine with the reason."""

    def launch(ticket: Ticket) -> Any:
        raise OSError(28, "No space left on device")

    failures = Failures()
    carrier = SparkSupervisor(launch, Events(), failures)
    carrier.start()
    assert "No space left on device" in failures.await_first()
    carrier.stop()


@pytest.mark.parametrize("behaviour", ["mute", "slow", "stubborn"])
def test_a_stop_does_not_wait_for_a_host_that_hangs(
    behaviour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop ends a starting host at once, and one that does not end after a grace period."""
    monkeypatch.setattr(module, "_GRACE", 0.2)
    events, host = Events(), SparklessHost([behaviour])
    with started(host, events):
        if behaviour != "mute":
            events.await_count("spark-ready" if behaviour == "stubborn" else "spark-host-connected")
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert all(process.poll() is not None for process in host.processes)


def test_who_waits_for_a_worker_can_be_called_off(tmp_path: Path) -> None:
    """Once *stopping* is set and the carrier woken, ``connect`` returns nothing."""
    events, stopping = Events(), threading.Event()
    with started(SparklessHost(["slow"]), events) as carrier:
        spec = worker_spec(tmp_path)
        events.await_count("spark-host-connected")
        got: list[object] = []
        asking = threading.Thread(target=lambda: got.append(connect(carrier, spec, stopping)))
        asking.start()
        stopping.set()
        carrier.wake()
        asking.join(PATIENCE)
        assert got == [None]


def test_a_worker_that_nobody_waits_for_is_turned_away(tmp_path: Path) -> None:
    """A worker of an earlier epoch gets no slices, and its connection is closed."""
    with started(SparklessHost()) as carrier:
        spec = replace(worker_spec(tmp_path), epoch=99)
        with connect_engine(carrier._listener.ticket(hello(spec).claim)) as stranger:
            stranger.send(hello(spec))
            with pytest.raises(EOFError):
                stranger.recv()


def test_a_stop_hangs_up_on_a_worker_that_came_too_late(tmp_path: Path) -> None:
    """A stop closes the connection of a worker that came too late."""
    spec = worker_spec(tmp_path)
    with started(SparklessHost()) as carrier:
        carrier._wanted[spec.route, spec.shard] = spec
        late = connect_engine(carrier._listener.ticket(hello(spec).claim))
        late.send(hello(spec))
        until(lambda: carrier._callers)
    with late:
        assert late.poll(PATIENCE)
        with pytest.raises(EOFError):
            late.recv()

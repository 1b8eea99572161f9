"""Attackers between an engine and its workers, and attackers with a job of Spark's."""

from __future__ import annotations

import pickle
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import PATIENCE, Events, SparklessHost, hello, offsets, until, worker_spec

from transporter.engine.workers import spark_supervisor as module
from transporter.engine.workers.spark_supervisor import SparkSupervisor
from transporter.engine.workers.worker_spec import create_invitation
from transporter.log.commit_log import CommitLog
from transporter.message import Message, messages_to_batch
from transporter.protocol.messages import (
    Begin,
    Invitation,
    Opened,
    Outcome,
    Slice,
    StartWorker,
    TaskHello,
    Ticket,
)
from transporter.protocol.network import Network, connect_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from transporter.engine.workers.worker_connection import WorkerConnection

CANARY = b"canary-17"
LOOPBACK = Network("127.0.0.1", 0, "127.0.0.1")


class Relay:
    """A relay that passes on data, keeps a copy, and may change it."""

    def __init__(self, there: tuple[str, int]) -> None:
        self._there, self.heard = there, bytearray()
        self.change: Callable[[bytes], bytes] = lambda data: data
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = self._door.getsockname()
        self._lines: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Close both sides."""
        for each in (self._door, *self._lines):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._door.accept()
                onward = socket.create_connection(self._there)
                self._lines += [caller, onward]
                for ends in ((caller, onward), (onward, caller)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.heard += data
                sink.sendall(self.change(data))
            sink.shutdown(socket.SHUT_WR)


@contextmanager
def carrying() -> Iterator[tuple[SparkSupervisor, Relay]]:
    """Run a carrier that workers reach only through a relay."""
    carrier = SparkSupervisor(SparklessHost(), Events(), pytest.fail, LOOPBACK)
    relay = Relay(carrier._listener.worker_address)
    carrier._listener.worker_address = relay.address
    carrier.start()
    try:
        yield carrier, relay
    finally:
        carrier.stop()
        relay.close()


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return a log of ten entries with a canary in each, which workers do not see."""
    monkeypatch.setattr(module, "place_of", lambda _: "another machine")
    with CommitLog.open(tmp_path / "log", compression=None) as log:
        for _ in range(10):
            log.append(messages_to_batch([Message("a", b"data " + CANARY)]), "r")


def connected(carrier: SparkSupervisor, tmp_path: Path) -> WorkerConnection:
    """Yield the line to a worker whose settings hold a canary."""
    found = carrier.connect(
        worker_spec(tmp_path, path=str(tmp_path / f"{CANARY.decode()}.jsonl")), lambda: False
    )
    assert found is not None
    return found


@pytest.mark.usefixtures("log")
def test_nothing_can_be_read_between_engine_and_worker(tmp_path: Path) -> None:
    """Settings, entries and outcomes never cross the network in clear."""
    with carrying() as (carrier, relay), connected(carrier, tmp_path) as line:
        assert line.recv() == Opened(None)
        line.send(Slice(0, 9, 0))
        while not isinstance(line.recv(), Outcome):
            assert line.poll(PATIENCE)
    assert offsets(tmp_path / f"{CANARY.decode()}.jsonl") == list(range(10))
    assert len(relay.heard) > 2000
    for word in (CANARY, b"jsonl", b"Hello", b"Slice", b"worker", b"out"):
        assert word not in relay.heard, word


@pytest.mark.usefixtures("log")
def test_nothing_can_be_changed_between_engine_and_worker(tmp_path: Path) -> None:
    """One changed bit on the network breaks the connection and is not delivered."""
    with carrying() as (carrier, relay), connected(carrier, tmp_path) as line:
        assert line.recv() == Opened(None)
        relay.change = altered
        line.send(Slice(0, 9, 0))
        with pytest.raises((EOFError, ConnectionError)):
            line.recv()
    assert offsets(tmp_path / f"{CANARY.decode()}.jsonl") == []


def altered(data: bytes) -> bytes:
    """Return *data* with an earlier end of its slice, where it shows, or with one bit changed."""
    if (shorter := data.replace(b"K\x09", b"K\x08")) != data:
        return shorter
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("network", [None, LOOPBACK], ids=["unix", "tcp"])
def test_a_job_holds_no_secret(tmp_path: Path, network: Network | None) -> None:
    """A job holds neither settings nor steps, nor any key but the worker's own."""
    carrier = SparkSupervisor(SparklessHost(["busy"]), Events(), pytest.fail, network)
    sent: list[Any] = []
    carrier._send = sent.append  # type: ignore[method-assign]
    spec = worker_spec(tmp_path, password=CANARY.decode(), writer="engine_tools:LinesWriter")
    carrier._request_worker(spec)
    carrier._listener.close()
    (started,) = sent
    assert isinstance(started, StartWorker)
    job = pickle.dumps(started)
    assert CANARY not in job
    assert b"LinesWriter" not in job
    assert carrier._listener._root not in job
    assert carrier._listener.host_ticket().key not in job


def test_a_ticket_is_good_for_one_call(tmp_path: Path) -> None:
    """A ticket allows one call, so that a job found later proves nothing."""
    carrier = SparkSupervisor(SparklessHost(), Events(), pytest.fail)
    carrier.start()
    try:
        spec = worker_spec(tmp_path)
        stolen = create_invitation(spec, carrier._listener.ticket).ticket
        line = carrier.connect(spec, lambda: False)
        assert line is not None
        with line:
            assert line.recv() == Opened(None)
            with connect_engine(stolen) as thief:
                thief.send(hello(spec))
                assert thief.poll(PATIENCE)
                with pytest.raises(EOFError):
                    thief.recv()
            line.send(Slice(0, -1, 0))
    finally:
        carrier.stop()


def test_a_worker_that_has_called_is_not_pushed_aside(tmp_path: Path) -> None:
    """A second caller with a worker's ticket is closed, also before the route takes the first."""
    carrier = SparkSupervisor(SparklessHost(), Events(), pytest.fail)
    carrier.start()
    try:
        spec = worker_spec(tmp_path)
        carrier._wanted["out", 0] = spec
        ticket = create_invitation(spec, carrier._listener.ticket).ticket
        with connect_engine(ticket) as worker, connect_engine(ticket) as thief:
            worker.send(hello(spec))
            until(lambda: carrier._callers)
            thief.send(hello(spec))
            assert thief.poll(PATIENCE)
            with pytest.raises(EOFError):
                thief.recv()
            assert not worker.poll(0)
            carrier._callers.pop(("out", 0))[1].close()
    finally:
        carrier.stop()


@pytest.mark.parametrize("attempt", [0, 1])
def test_tasks_are_told_what_their_worker_was_told(tmp_path: Path, attempt: int) -> None:
    """Only a task of the current worker gets its settings, and with a ticket of its own."""
    carrier = SparkSupervisor(SparklessHost(), Events(), pytest.fail)
    carrier.start()
    try:
        spec = worker_spec(tmp_path)
        carrier._on_frames["out"] = spec
        said = TaskHello("out", spec.epoch, attempt)
        ticket = carrier._listener.ticket(said.claim)
        with connect_engine(ticket) as task:
            task.send(said)
            assert task.poll(PATIENCE)
            if attempt == spec.attempt:
                assert task.recv() == Begin(spec)
            with pytest.raises(EOFError):
                task.recv()
        with connect_engine(carrier._listener.ticket(hello(spec).claim)) as worker:
            worker.send(said)
            assert worker.poll(PATIENCE)
            with pytest.raises((EOFError, ConnectionError)):
                worker.recv()
    finally:
        carrier.stop()


def test_an_invitation_that_is_shown_proves_nothing() -> None:
    """The text of an invitation does not show its key."""
    shown = repr(Invitation(Ticket("nowhere", "claim", CANARY), "out", 0, 1, 0, "log"))
    assert "claim" in shown
    assert CANARY.decode() not in shown

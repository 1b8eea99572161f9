"""Access to the control socket, its limits, and its defence against faulty clients."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import Events, until

from transporter.audit import Operator, this_operator
from transporter.control import requests, server
from transporter.control.client import EngineClient, NoEngine, perform
from transporter.control.server import CLIENTS, ControlServer, StatusServer
from transporter.control.wire import MAX_REQUEST, JsonLines
from transporter.errors import (
    ActionRefused,
    EngineUnreachable,
    EnvironmentFault,
    LogPoisoned,
    OffsetRefused,
)
from transporter.log.commit_log import CommitLog
from transporter.offsets.offset_log import OffsetLog, read_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Doubles:
    """Operations that only record the requests.

    A pause takes until it may end, a replay until its client has gone.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[requests.Request, Operator]] = []
        self.may_end, self.noticed = threading.Event(), threading.Event()
        self.error: BaseException | None = None

    def perform(
        self, request: requests.Request, by: Operator, gone: Callable[[], bool]
    ) -> dict[str, Any]:
        self.asked.append((request, by))
        if isinstance(request, requests.Replay):
            until(gone)
            self.noticed.set()
        if isinstance(request, requests.Pause):
            assert self.may_end.wait(20)
        if self.error is not None:
            raise self.error
        return {"done": type(request).__name__}


class Served:
    """A control server with its operations, events and failures."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.operations, self.events = Doubles(), Events()
        self.failures: list[BaseException] = []
        self.server = ControlServer(self.operations, directory, self.events)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Serve recording operations in a directory."""
    made = Served(tmp_path)
    made.server.start(made.failures.append)
    yield made
    made.operations.may_end.set()
    made.server.stop()
    assert made.failures == [] or made.operations.error is not None


def test_an_operator_is_known_by_the_system(served: Served) -> None:
    """The operator is identified by the kernel, not by the client's own claim."""
    with EngineClient(served.directory) as engine:
        assert engine.pid == os.getpid()
        assert engine.call(requests.Resume("r", "why")) == {"done": "Resume"}
    ((asked, by),) = served.operations.asked
    assert asked == requests.Resume("r", "why")
    assert by == this_operator()


def test_only_the_owner_may_connect(served: Served) -> None:
    """The socket has no rights for group and others."""
    assert (served.directory / "control.sock").stat().st_mode & 0o777 == 0o600


def test_a_client_that_hangs_holds_nobody(served: Served) -> None:
    """A third client is served while one action takes its time and another client is silent."""
    with socket.socket(socket.AF_UNIX) as silent, EngineClient(served.directory) as slow:
        silent.connect(str(served.directory / "control.sock"))
        waiting = threading.Thread(target=slow.call, args=(requests.Pause("r"),))
        waiting.start()
        try:
            until(lambda: served.operations.asked)
            assert perform(served.directory, requests.Step("r")) == {"done": "Step", "live": True}
        finally:
            served.operations.may_end.set()
            waiting.join()


def test_an_action_can_see_that_its_client_has_gone(served: Served) -> None:
    """An action is notified when its client closes the connection, or is killed."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(served.directory / "control.sock"))
        client.sendall(b'{"v": 1, "op": "replay", "args": {"route": "r", "dry_run": true}}\n')
        until(lambda: served.operations.asked)
        assert not served.operations.noticed.wait(0.1)
    assert served.operations.noticed.wait(20)


def test_an_action_can_see_that_the_engine_ends(tmp_path: Path) -> None:
    """A stop does not wait for a dry run, however long."""
    served = Served(tmp_path)
    served.server.start(served.failures.append)
    with EngineClient(tmp_path) as client:
        asking = threading.Thread(target=client.call, args=(requests.Replay("r", dry_run=True),))
        asking.start()
        until(lambda: served.operations.asked)
        served.server.stop()
        asking.join(20)
    assert served.operations.noticed.is_set()


def test_no_more_operators_than_there_are_threads_for(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client over the limit is refused, and admitted once another has gone."""
    monkeypatch.setattr(server, "CLIENTS", 3)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(EngineClient(served.directory))
        with pytest.raises(EngineUnreachable, match="3 operators are connected"):
            EngineClient(served.directory)
    until(lambda: perform(served.directory, requests.Status(), patience=1))


def test_an_operator_without_a_thread_is_refused_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit of threads a client is refused, and neither the engine nor its end fails."""
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith("operator-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(EngineUnreachable, match="can start no further thread"):
            EngineClient(served.directory)
    assert perform(served.directory, requests.Status()) == {"done": "Status", "live": True}


def test_a_full_descriptor_table_ends_no_engine(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that cannot be accepted yet is accepted once there is a descriptor."""
    accept, failed = socket.socket.accept, []

    def full(listener: socket.socket) -> Any:
        if len(failed) < 3:
            failed.append(errno.EMFILE)
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", full)
    perform(served.directory, requests.Status())
    assert perform(served.directory, requests.Status()) == {"done": "Status", "live": True}
    assert failed == [errno.EMFILE] * 3


@pytest.mark.parametrize("sent", [b"{" * (MAX_REQUEST + 200_000), b"nonsense\n", b'{"v": 9}\n'])
def test_what_cannot_be_understood_ends_that_conversation_only(served: Served, sent: bytes) -> None:
    """The sender of an invalid request gets an error and is closed, and others are served."""
    with socket.socket(socket.AF_UNIX) as rude:
        rude.settimeout(20)
        rude.connect(str(served.directory / "control.sock"))
        file = rude.makefile("rwb")
        assert json.loads(file.readline())["pid"] == os.getpid()
        try:
            rude.sendall(sent)
            assert json.loads(file.readline())["ok"] is False
            assert file.readline() == b""
        except (BrokenPipeError, ConnectionResetError):
            pass  # The connection was closed before everything was sent.
    assert perform(served.directory, requests.Status())["done"] == "Status"
    assert len(served.operations.asked) == 1


def test_an_error_is_the_operators(served: Served) -> None:
    """A refusal is returned to the client, and the engine goes on."""
    served.operations.error = OffsetRefused("beyond the end")
    with pytest.raises(OffsetRefused, match="beyond the end"):
        perform(served.directory, requests.Status())
    assert served.failures == []


def test_a_bug_is_told_without_its_text(served: Served) -> None:
    """An unforeseen error is reported by type only, because its text may hold a secret."""
    served.operations.error = ValueError("hunter22")
    with pytest.raises(ActionRefused, match="ValueError") as raised:
        perform(served.directory, requests.Status())
    assert "hunter22" not in str(raised.value)


def test_a_failed_sync_ends_the_engine(served: Served) -> None:
    """A failed sync during an operator's action ends the engine, too (Invariant 13)."""
    served.operations.error = LogPoisoned("a sync failed")
    with pytest.raises(LogPoisoned):
        perform(served.directory, requests.Status())
    assert served.failures == [served.operations.error]


def test_a_socket_of_a_dead_engine_is_replaced(tmp_path: Path) -> None:
    """The socket of a killed engine is replaced by the next engine."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "control.sock"))
    with pytest.raises(NoEngine):
        EngineClient(tmp_path)
    served = Served(tmp_path)
    served.server.start(served.failures.append)
    try:
        assert perform(tmp_path, requests.Status())["live"]
    finally:
        served.server.stop()
    assert not (tmp_path / "control.sock").exists()
    assert served.failures == []


def test_the_socket_of_the_next_engine_is_left_alone(served: Served) -> None:
    """An engine that ends does not remove the socket of the next engine in its directory."""
    following = Served(served.directory)
    following.server.start(following.failures.append)

    served.server.stop()

    with EngineClient(served.directory) as engine:
        assert engine.call(requests.Status()) == {"done": "Status"}
    following.server.stop()
    with pytest.raises(NoEngine):
        EngineClient(served.directory)


def test_a_directory_with_a_long_path_is_served(tmp_path: Path) -> None:
    """A path that is too long for a socket's address is served."""
    deep = tmp_path / ("d" * 200)
    deep.mkdir()
    served = Served(deep)
    served.server.start(served.failures.append)
    try:
        assert perform(deep, requests.Status())["live"]
        assert (deep / "control.sock").stat().st_mode & 0o777 == 0o600
    finally:
        served.server.stop()
    assert not (deep / "control.sock").exists()


def test_an_engine_that_cannot_listen_runs_without(tmp_path: Path) -> None:
    """An engine without a control socket runs, and reports a warning."""
    served = Served(tmp_path)
    (tmp_path / "control.sock").mkdir()
    served.server.start(served.failures.append)
    served.server.stop()
    assert [event for event, _ in served.events.all] == ["control-unavailable"]


def test_an_engine_that_finds_no_room_to_listen_listens_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine on a full disk retries to listen, and a stop does not wait for it."""
    monkeypatch.setattr("transporter.control.server.ROOM", 0.02)
    full = threading.Event()
    full.set()
    bind = ControlServer._bind

    def try_to_bind(server: ControlServer) -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        bind(server)

    monkeypatch.setattr(ControlServer, "_bind", try_to_bind)
    for freed in (False, True):
        served = Served(tmp_path)
        served.server.start(served.failures.append)
        if freed:
            full.clear()
            served.events.await_count("control-opened")
            assert perform(tmp_path, requests.Resume("out", ""))["done"] == "Resume"
        served.server.stop()
        assert len(served.events.named("control-unavailable")) == 1
        assert not (tmp_path / "control.sock").exists()
    assert not served.failures


def test_stop_waits_for_answers_under_way(tmp_path: Path) -> None:
    """An action that has begun is answered, and a later one is not begun."""
    served = Served(tmp_path)
    served.server.start(served.failures.append)
    answers: list[Any] = []
    with EngineClient(tmp_path) as slow, EngineClient(tmp_path) as idle:
        asking = threading.Thread(target=lambda: answers.append(slow.call(requests.Pause("r"))))
        asking.start()
        until(lambda: served.operations.asked)
        stopping = threading.Thread(target=served.server.stop)
        stopping.start()
        until(lambda: not (tmp_path / "control.sock").exists())
        served.operations.may_end.set()
        stopping.join(20)
        asking.join(20)
        assert answers == [{"done": "Pause"}]
        with pytest.raises(Exception, match="ended before it answered"):
            idle.call(requests.Status())
    assert len(served.operations.asked) == 1


def test_clients_that_lost_their_places_are_waited_for(tmp_path: Path) -> None:
    """Evicted clients that are still being answered are few, and a stop waits for them."""
    operations, failures = Doubles(), list[BaseException]()
    status = StatusServer(operations, tmp_path, Events())  # type: ignore[arg-type]
    status.start(failures.append)
    with ExitStack() as clients:
        for number in range(2 * CLIENTS):
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(str(tmp_path / "status.sock"))
            client.sendall(b'{"v": 1, "op": "pause", "args": {"route": "r"}}\n')
            until(lambda number=number: len(operations.asked) > number)
        refused = clients.enter_context(socket.socket(socket.AF_UNIX))
        refused.connect(str(tmp_path / "status.sock"))
        assert b"which is the limit" in refused.recv(1000)
        stopping = threading.Thread(target=status.stop)
        stopping.start()
        stopping.join(0.2)
        assert stopping.is_alive()
        operations.may_end.set()
        stopping.join(20)
        assert not stopping.is_alive()
    assert not failures


def test_without_an_engine_the_log_is_taken_under_its_lock(tmp_path: Path) -> None:
    """Without an engine an action is done at once, durably, and is reported as not live."""
    log = tmp_path / "log"
    with CommitLog.open(log), OffsetLog(log, "r"):
        pass
    assert perform(log, requests.Pause("r"))["live"] is False
    assert read_state(log, "r").paused


def test_an_engine_that_does_not_answer_is_named(tmp_path: Path) -> None:
    """A locked log whose process does not listen is an error with that process's id."""
    log = tmp_path / "log"
    with CommitLog.open(log), OffsetLog(log, "r"):
        pass
    with (
        CommitLog.open(log),
        pytest.raises(EngineUnreachable, match=rf"in use by the process with pid {os.getpid()}"),
    ):
        perform(log, requests.Pause("r"), patience=0.2)


def test_an_engine_that_is_just_starting_is_waited_for(tmp_path: Path) -> None:
    """A command between the lock and the socket waits for the engine, which executes it."""
    log = tmp_path / "log"
    with CommitLog.open(log), OffsetLog(log, "r"):
        pass
    served = Served(log)
    answers: list[Any] = []
    with CommitLog.open(log):
        asking = threading.Thread(
            target=lambda: answers.append(perform(log, requests.Pause("r"), patience=20))
        )
        asking.start()
        served.operations.may_end.set()
        served.server.start(served.failures.append)
        asking.join(20)
        served.server.stop()
    assert answers == [{"done": "Pause", "live": True}]


def test_a_look_outlives_an_engine_that_is_killed_at_that_moment(tmp_path: Path) -> None:
    """After a kill, reads are answered from disk, and any other action has an unknown outcome."""
    log = tmp_path / "log"
    with CommitLog.open(log), OffsetLog(log, "r"):
        pass
    for request in (requests.Status(), requests.LogMetadata(), requests.Pause("r")):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(log / "control.sock"))
        listener.listen()
        killed = threading.Thread(target=_greet_and_die, args=(listener, log))
        killed.start()
        if isinstance(request, requests.Pause):
            with pytest.raises(EnvironmentFault, match="ended before it answered"):
                perform(log, request)
        else:
            assert perform(log, request)["live"] is False
        killed.join()


def _greet_and_die(listener: socket.socket, log: Path) -> None:
    caller, _ = listener.accept()
    with caller, listener:
        lines = JsonLines(caller, 1 << 20)
        lines.send({"pid": 1})
        lines.receive()
        (log / "control.sock").unlink()

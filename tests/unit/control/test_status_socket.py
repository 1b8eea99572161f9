"""Read-only access by the socket for the log directory's group, tested as another user."""

from __future__ import annotations

import gc
import json
import os
import socket
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
from engine_tools import Events, SparklessHost, make_pipeline, until
from root_tools import NOBODY, need_root

from transporter.cli import app
from transporter.control import requests, stopped_log
from transporter.control.client import EngineClient as Connection
from transporter.control.client import NoEngine, perform
from transporter.control.metadata import MOST, ReadOnly
from transporter.control.server import CLIENTS, StatusServer, attach_control
from transporter.control.wire import decode_request, encode_request
from transporter.engine.engine import Engine
from transporter.errors import ActionRefused, TransporterError

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP = 42_424
CARD = "4111 1111 1111 1111"


@pytest.fixture
def place() -> Iterator[Path]:
    """Yield a folder that all users may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


class Neighbour:
    """Another user of the host, in its own process, which sends the given requests."""

    def __init__(self, group: int) -> None:
        """Fork before an engine has threads. This needs root."""
        need_root("another user's id needs root")
        ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if not self._pid:
            # Kafka clients of earlier tests would be freed without their threads, and crash.
            gc.disable()
            try:
                ours.close()
                os.setgroups([])
                os.setgid(group)
                os.setuid(NOBODY)
                with theirs.makefile("rw") as lines:
                    for line in lines:
                        lines.write(json.dumps(_asked(**json.loads(line))) + "\n")
                        lines.flush()
            finally:
                os._exit(0)
        theirs.close()
        self._lines = ours.makefile("rw")
        ours.close()

    def asks(self, directory: Path, request: requests.Request) -> dict[str, Any]:
        """Return the answer to *request*, as this user."""
        message = {"directory": str(directory), "message": encode_request(request)}
        self._lines.write(json.dumps(message) + "\n")
        self._lines.flush()
        found: dict[str, Any] = json.loads(self._lines.readline())
        return found

    def close(self) -> None:
        """End the process."""
        self._lines.close()
        os.waitpid(self._pid, 0)


def _asked(directory: str, message: dict[str, Any]) -> dict[str, Any]:
    try:
        with Connection(Path(directory)) as engine:
            return engine.call(decode_request(message))
    except NoEngine:
        return {"error": "nobody"}
    except TransporterError as error:
        return {"error": f"{type(error).__name__}: {error}"}


@pytest.fixture
def member() -> Iterator[Neighbour]:
    """Yield a user of the group."""
    made = Neighbour(GROUP)
    yield made
    made.close()


@pytest.fixture
def stranger() -> Iterator[Neighbour]:
    """Yield a user who is not in the group."""
    made = Neighbour(NOBODY)
    yield made
    made.close()


@contextmanager
def served(place: Path, mode: int = 0o710, **out: Any) -> Iterator[tuple[Path, Events]]:
    """Run an engine whose log directory belongs to the group, with *mode*."""
    log = place / "log"
    log.mkdir()
    os.chown(log, -1, GROUP)
    log.chmod(mode)
    lines = [f"orders {CARD} {number}" for number in range(20)]
    pipeline = make_pipeline(place, lines, end=False, out=out)
    events = Events()
    engine = Engine(pipeline, SparklessHost(), events)
    attach_control(engine, {})
    engine.start()
    try:
        until(lambda: (log / "status.sock").exists() and engine.log.durable == 19)
        yield log, events
    finally:
        engine.stop(0)


def test_a_member_of_the_group_may_look(place: Path, member: Neighbour) -> None:
    """A member sees the status and the entries' metadata, and none of their content."""
    with served(place, writer={"reject": [3]}, steps=[]) as (log, events):
        events.await_count("route-stopped")
        found = member.asks(log, requests.Status())
        assert (found["running"], found["last"]) == (True, 19)
        (route,) = found["routes"]
        assert (route["name"], route["state"], route["watermark"]) == ("out", "stopped", 2)
        assert route["problem"] == "there is a problem; only the engine's user may see its text"
        assert "offset 3" in perform(log, requests.Status())["routes"][0]["problem"]
        unready = member.asks(log, requests.Readiness())
        assert [each["why"] for each in unready["reasons"]] == ["it waits for an operator"]
        (entry,) = member.asks(log, requests.LogMetadata(4, 4))["entries"]
        assert entry.pop("logged_at") > 1_700_000_000_000_000
        size = len(f"{CARD} 4")
        assert entry == {
            "offset": 4, "namespace": "orders", "op": "insert", "phase": "sync", "size": size
        }  # fmt: skip
        newest = member.asks(log, requests.LogMetadata(most=3))["entries"]
        assert [each["offset"] for each in newest] == [17, 18, 19]
        assert CARD not in json.dumps([found, unready, newest, entry])
    assert not (log / "status.sock").exists()


CHANGING = [
    name for name, kind in requests.KINDS.items() if kind not in get_args(requests.ReadRequest)
]


@pytest.mark.parametrize("name", CHANGING)
def test_a_member_of_the_group_changes_nothing(name: str) -> None:
    """Each other request is refused before it reaches the operations."""

    class Asked:
        def perform(self, *_: object) -> dict[str, Any]:
            raise AssertionError

    arguments = {"route": "out", "reader": "in", "first": 0, "last": 0, "offset": 0, "text": ""}
    kind = requests.KINDS[name]
    known = {key: value for key, value in arguments.items() if key in kind.__dataclass_fields__}
    with pytest.raises(ActionRefused, match="change nothing"):
        ReadOnly(Asked()).perform(kind(**known), None)  # type: ignore[arg-type]


def test_who_may_only_look_is_refused_over_the_socket(place: Path, member: Neighbour) -> None:
    """The refusal has its reason, and nothing is changed or audited."""
    with served(place) as (log, _):
        told = member.asks(log, requests.Pause("out"))["error"]
        assert told.startswith(
            "ActionRefused: you may read this engine's status but change nothing"
        )
        assert not perform(log, requests.Status())["routes"][0]["paused"]
        assert not (log / "audit.jsonl").exists()


def test_a_long_path_is_reached_without_the_right_to_list_it(
    place: Path, member: Neighbour
) -> None:
    """The socket is reached although its path is longer than a socket's address."""
    deep = place / ("d" * 120)
    deep.mkdir()
    deep.chmod(0o755)
    with served(deep) as (log, _):
        assert member.asks(log, requests.Status())["running"]


def test_others_reach_neither_socket(place: Path, stranger: Neighbour) -> None:
    """Another user reaches no socket, even in a directory that all may enter."""
    with served(place, 0o755) as (log, _):
        assert stranger.asks(log, requests.Status()) == {"error": "nobody"}


def test_a_closed_directory_is_closed_to_its_group(place: Path, member: Neighbour) -> None:
    """In the directory that the engine creates, its group reaches no socket."""
    with served(place, 0o700) as (log, _):
        assert member.asks(log, requests.Status()) == {"error": "nobody"}


def test_idle_connections_silence_nobody(place: Path) -> None:
    """An idle connection loses its place to a new client with a request."""
    with served(place) as (log, _):
        idle = []
        for _ in range(2 * CLIENTS):
            idle.append(socket.socket(socket.AF_UNIX))
            idle[-1].connect(str(log / "status.sock"))
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(log / "status.sock"))
            asking.settimeout(10)
            with asking.makefile("rw") as lines:
                assert json.loads(lines.readline())["pid"] == os.getpid()
                lines.write('{"v": 1, "op": "status"}\n')
                lines.flush()
                assert json.loads(lines.readline())["ok"]
        # Operators have places of their own.
        assert perform(log, requests.Status())["live"]
        for each in idle:
            each.close()


@pytest.mark.parametrize("umask", [0, 0o077])
def test_its_rights_are_those_of_the_group_alone(tmp_path: Path, umask: int) -> None:
    """The status socket is open to the group under any umask, and the other one is not."""
    before = os.umask(umask)
    try:
        server = StatusServer(ReadOnly(stopped_log.StoppedLog(tmp_path)), tmp_path, Events())
        server.start(lambda _: None)
        found = (tmp_path / "status.sock").stat()
        assert (found.st_mode & 0o777, found.st_gid) == (0o660, tmp_path.stat().st_gid)
        server.stop()
    finally:
        os.umask(before)


def test_nothing_else_is_opened_to_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link in the socket's place does not give the group rights to its target."""
    target = tmp_path / "private"
    target.touch(0o600)
    listen = socket.socket.bind

    def bind(self: socket.socket, address: str) -> None:
        listen(self, address)
        Path(address).unlink()
        Path(address).symlink_to(target)

    monkeypatch.setattr("socket.socket.bind", bind)
    events = Events()
    server = StatusServer(ReadOnly(stopped_log.StoppedLog(tmp_path)), tmp_path, events)
    server.start(lambda _: None)
    assert target.stat().st_mode & 0o777 == 0o600
    assert "status.sock" in events.named("control-unavailable")[0]["problem"]
    server.stop()


def test_log_show_tells_metadata(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Metadata is shown with an engine and without, by offsets or the last, up to a limit."""
    with served(place) as (log, _):
        running = shown(capsys, log, "--last", "2")
    assert [each["offset"] for each in running] == [18, 19]
    assert shown(capsys, log, "--last", "2") == running
    assert [each["offset"] for each in shown(capsys, log, "3..5")] == [3, 4, 5]
    assert len(shown(capsys, log)) == 10
    assert app.execute(["log", "show", str(log), "--metadata", "3"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["OFFSET", "LOGGED", "AT", "NAMESPACE", "OP", "PHASE", "SIZE"]
    assert "orders" in row
    assert CARD not in row
    assert app.execute(["log", "show", str(log), "--metadata", "--last", str(MOST + 1)]) == 1
    assert app.execute(["log", "show", str(log), "--metadata", "--key", "k"]) == 2


def shown(capsys: pytest.CaptureFixture[str], log: Path, *words: str) -> list[dict[str, Any]]:
    """Return the output of ``log show --metadata``."""
    capsys.readouterr()
    assert app.execute(["log", "show", str(log), "--metadata", "--json", *words]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["result"]
    return found

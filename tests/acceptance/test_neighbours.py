"""The effects of other users of the host on a running engine: none."""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import socket
import stat
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil
import pytest
from acceptance_tools import Running, await_true, page, running
from root_tools import NOBODY, need_root
from spark_ports import blocks, listening_ports

from transporter.cli import app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.spark
COMMAND = Path(sys.executable).with_name("transporter")
PIPELINE = """
log: {dir: log}
observe: {listen: "off"}
readers: [{name: lines, adaptor: file, path: in.jsonl, follow: true}]
routes:
  - {name: copy, writer: {adaptor: file, path: out.jsonl}}
  - {name: query, steps: [{sql: {query: SELECT * FROM entries}}],
     writer: {adaptor: spark, path: out, format: json}}
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Create a folder that all may enter, with a umask that lets a group write."""
    before = os.umask(0o002)
    # Those of pytest, and perhaps of TMPDIR, are closed to others.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)
    os.umask(before)


def as_nobody(paths: list[Path]) -> list[str]:
    """Return those of *paths* that nobody, with this process's group, can open or connect to."""
    with Nobody(lambda _: [str(path) for path in paths if _reached(path)]) as nobody:
        found: list[str] = nobody.result()
    return found


class Nobody:
    """A process of user nobody with this process's group, doing *work* during a block.

    *work* takes the end of a socket pair: it may send a byte when it is ready, and must return
    when it receives one. Its return value, as JSON, is the result.
    """

    def __init__(self, work: Callable[[socket.socket], object]) -> None:
        """Fork, which needs root."""
        need_root("another user's id needs root")
        self._ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            # Kafka clients of earlier tests would be freed without their threads, and crash.
            gc.disable()
            try:
                self._ours.close()
                os.close(reading)
                os.setgroups([])
                os.setgid(os.getegid())
                os.setuid(NOBODY)
                with os.fdopen(writing, "w") as answer:
                    json.dump(work(theirs), answer)
            finally:
                os._exit(0)
        theirs.close()
        os.close(writing)
        self._child, self._answer = child, os.fdopen(reading)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._ours.sendall(b".")
        self._ours.close()
        self._answer.close()
        os.waitpid(self._child, 0)

    def await_ready(self, timeout: float) -> None:
        """Wait until the work has sent its byte."""
        self._ours.settimeout(timeout)
        assert self._ours.recv(1), "the process ended before it was ready"

    def result(self) -> Any:
        """End the work, and return its result."""
        with suppress(OSError):
            self._ours.sendall(b".")
        return json.loads(self._answer.read())


def _reached(path: Path) -> bool:
    with suppress(OSError):
        if stat.S_ISSOCK(path.stat().st_mode):
            with socket.socket(socket.AF_UNIX) as tried:
                tried.connect(str(path))
                return True
        os.close(os.open(path, os.O_RDONLY))
        return True
    with suppress(OSError):
        os.close(os.open(path, os.O_WRONLY))
        return True
    return False


def sockets(processes: list[psutil.Process]) -> list[Path]:
    """Return the named sockets on which *processes* listen."""
    return [
        Path(each.laddr)
        for process in processes
        for each in process.net_connections("unix")
        if isinstance(each.laddr, str) and each.laddr.startswith("/")
    ]


@pytest.mark.exhaustive
def test_a_group_member_reaches_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets of Spark and its workers, and files of an open log directory, stay closed to it.

    Modules in the folder where the command is typed are not imported either.
    """
    monkeypatch.chdir(planted(place))
    monkeypatch.setattr(Running, "command", (str(COMMAND), "run", "--log-format", "json"))
    (place / "log").mkdir(mode=0o755)
    (place / "in.jsonl").write_text('{"card": "4111 1111 1111 1111"}\n' * 10)
    (place / "p.yaml").write_text(PIPELINE)
    with running(place / "p.yaml") as engine:
        await_true(lambda: any((place / "out").glob("*.json")), 120, "both have delivered")
        await_true((place / "out.jsonl").exists, 60, "both have delivered")
        everybody = [psutil.Process(engine.process.pid), *engine.descendants()]
        listening = sockets(everybody)
        files = [each for each in (place / "log").rglob("*") if not each.is_dir()]
        assert len(listening) >= 2
        assert as_nobody([place / "p.yaml"]) == [str(place / "p.yaml")]
        # This one is for the log directory's group, and reports no contents of a log.
        status = place / "log" / "status.sock"
        assert set(as_nobody([*listening, *files])) == {str(status)}
        doors = [
            each.laddr
            for process in everybody
            for each in process.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN
        ]
        assert len(doors) >= 2
        assert {door.ip for door in doors} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
        told = b"".join(blocks(door.port, 30) for door in doors)
        assert told == b""
        assert engine.stop() == 0
    assert not (place / "imported").exists()


def planted(place: Path) -> Path:
    """Return a folder of modules that record their import in the file ``imported``."""
    (place / "work").mkdir()
    for name in ("py4j", "pyspark", "transporter", "adaptors"):
        note = f"open({str(place / 'imported')!r}, 'a').write('{name} ')\n"
        (place / "work" / f"{name}.py").write_text(note)
    return place / "work"


PATIENCE = 240
"""Seconds for Spark to start and to deliver on a busy machine."""
CROWD = 64
"""Connections of each kind to every door, more than any of them serves at once."""
NOTE = "canary-of-a-secret-file"
BESIEGED = """
log: {dir: log}
observe: {listen: "127.0.0.1:0"}
readers: [{name: lines, adaptor: file, path: in.jsonl, follow: true}]
routes:
  - name: away
    writer: {adaptor: http, url: "http://127.0.0.1:1/", headers: {X-Note: "${file:secret}"}}
  - {name: query, steps: [{sql: {query: SELECT * FROM entries}}],
     writer: {adaptor: spark, path: out, format: json}}
"""


class Crowd:
    """Connections to all *doors*, of which half are idle and half drip.

    A connection that is closed is made again.
    """

    def __init__(self, doors: list[Path | int]) -> None:
        self._held: dict[socket.socket, tuple[Path | int, int]] = {}
        self._missing = [(door, number) for door in doors for number in range(2 * CROWD)]
        self._came, self._received = dict.fromkeys(map(str, doors), 0), bytearray()

    def besiege(self, engine: socket.socket) -> dict[str, Any]:
        """Hold on until *engine* sends a byte, and return the counts by door and all output."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        ready = False
        while not select.select([engine], [], [], 0.1)[0]:
            self._come()
            for caller, place in list(self._held.items()):
                if not self._holds(caller, drips=place[1] >= CROWD):
                    caller.close()
                    self._missing.append(self._held.pop(caller))
            if not ready and min(self._came.values()) >= 2 * CROWD:
                engine.sendall(b".")
                ready = True
        return {"came": self._came, "received": self._received.decode("latin-1")}

    def _come(self) -> None:
        missing, self._missing = self._missing, []
        for place in missing:
            try:
                self._held[_connected(place[0])] = place
                self._came[str(place[0])] += 1
            except OSError:
                self._missing.append(place)  # the system's queue of waiting connections is full

    def _holds(self, caller: socket.socket, *, drips: bool) -> bool:
        try:
            if drips:
                caller.send(b"G")
            said = caller.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._received += said
        return bool(said)


def _connected(door: Path | int) -> socket.socket:
    if isinstance(door, int):
        made = socket.create_connection(("127.0.0.1", door), 5)
    else:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(5)
        made.connect(str(door))
    made.setblocking(False)  # noqa: FBT003 - the name of its only argument
    return made


def changed(folders: list[Path]) -> Callable[[socket.socket], list[str]]:
    """Return work that tries to change *folders*, and returns the changes that succeeded."""

    def work(_: socket.socket) -> list[str]:
        done = []
        for folder in folders:
            new = folder / "new"
            names = [folder / each for each in ("LOCK", "audit.jsonl", "control.sock", "offsets")]
            acts: dict[str, Callable[[], object]] = {
                "make a file": new.touch,
                "make a folder": new.mkdir,
                "make a link": lambda new=new: new.symlink_to("/etc/passwd"),
                "take a lock file": lambda folder=folder: (folder / "LOCK").touch(),
                "open the folder": lambda folder=folder: folder.chmod(0o777),
                **{f"remove {each.name}": each.unlink for each in names},
                **{
                    f"move {each.name}": lambda each=each, new=new: each.rename(new)
                    for each in names
                },
            }
            for name, act in acts.items():
                with suppress(OSError):
                    act()
                    done.append(f"{name} in {folder}")
        return done

    return work


def delivered(folder: Path) -> str:
    """Return the contents of the files in *folder*."""
    return "".join(each.read_text() for each in folder.glob("*.json"))


def seconds(ask: Callable[[], object]) -> float:
    """Return the shortest of three times, because other tests keep the machine busy."""
    found = []
    for _ in range(3):
        begun = time.monotonic()
        ask()
        found.append(time.monotonic() - begun)
    return min(found)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_crowd_of_others_silences_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Idle and dripping connections to all open doors delay, reveal and change nothing."""
    log = place / "log"
    log.mkdir(mode=0o755)
    (place / "secret").write_text(NOTE)
    (place / "secret").chmod(0o600)
    (place / "in.jsonl").write_text('{"card": "4111 1111 1111 1111"}\n' * 10)
    (place / "p.yaml").write_text(BESIEGED)

    def status() -> None:
        assert app.execute(["status", str(place / "p.yaml"), "--json"]) == 0

    with running(place / "p.yaml") as engine:
        url = engine.await_event("endpoint-opened", timeout=120)["url"]
        engine.await_event("route-retrying", route="away", timeout=PATIENCE)
        await_true(lambda: any((place / "out").glob("*.json")), PATIENCE, "it has delivered")
        everybody = [psutil.Process(engine.process.pid), *engine.descendants()]
        doors: list[Path | int] = [*map(Path, as_nobody(sockets(everybody)))]
        assert doors == [log / "status.sock"]
        doors += sorted(set(listening_ports(everybody)))
        assert len(doors) >= 4, "the endpoint's port and those of Spark"
        with Nobody(Crowd(doors).besiege) as crowd:
            crowd.await_ready(120)
            for name in ("healthz", "metrics", "readyz"):
                assert seconds(lambda name=name: page(f"{url}/{name}")) < 2, name
            assert page(f"{url}/healthz")[0] == 200
            assert seconds(status) < 2
            with (place / "in.jsonl").open("a") as file:
                file.write('{"card": "4111 1111 1111 1111", "id": "the last"}\n')
            # Spark's own workers continue, too.
            await_true(lambda: "the last" in delivered(place / "out"), PATIENCE, "it goes on")
            found = crowd.result()
        assert all(number >= 2 * CROWD for number in found["came"].values()), found["came"]
        for word in ("4111", "card", NOTE, "canary"):
            assert word not in found["received"]
        inside = [log, *(each for each in log.rglob("*") if each.is_dir())]
        with Nobody(changed(inside)) as nobody:
            assert nobody.result() == []
        files = [each for each in log.rglob("*") if not each.is_dir()]
        assert set(as_nobody([*files, place / "secret"])) == {str(log / "status.sock")}
        assert engine.stop() == 0


OPEN = """
log: {dir: log}
observe: {listen: "off"}
# Whoever likes may have what Spark has: nothing of it must be worth having.
spark: {config: {spark.authenticate: false, spark.broadcast.compress: false}}
readers: [{name: lines, adaptor: file, path: in.jsonl, follow: true}]
routes:
  - {name: copy, steps: [{python: {function: "mine:canary"}}],
     writer: {adaptor: file, path: canary-1.jsonl}}
  - {name: query, steps: [{python: {function: "mine:canary"}}, {sql: "SELECT * FROM entries"}],
     writer: {adaptor: file, path: canary-2.jsonl}}
"""


@pytest.mark.exhaustive
def test_jobs_hold_no_secret(place: Path) -> None:
    """Data that Spark keeps of jobs, read without authentication, contains no setting."""
    (place / "in.jsonl").write_text('{"id": 1}\n' * 10)
    (place / "mine.py").write_text("def canary(message):\n    return message\n")
    (place / "p.yaml").write_text(OPEN)
    with running(place / "p.yaml") as engine:
        for number in (1, 2):
            await_true((place / f"canary-{number}.jsonl").exists, 120, "both have delivered")
        everybody = [psutil.Process(engine.process.pid), *engine.descendants()]
        told = b"".join(blocks(port, 60) for port in listening_ports(everybody))
        assert engine.stop() == 0
    assert b"transporter" in told, "what Spark keeps of jobs"
    assert b"canary" not in told

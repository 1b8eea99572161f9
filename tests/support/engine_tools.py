"""Shared tools for tests of the engine: a host without Spark, file adaptors, a pipeline maker.

Run as a program this file forks hosts. Each responds to the engine as the Spark host does, but
starts its workers by a plain fork.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from transporter.adaptor import AdaptorConfig, Batch, EndOfSource, LocalPath, StoredOffset
from transporter.errors import Rejected, RouteFault, SinkUnavailable
from transporter.message import Message
from transporter.offsets.offset_log import route_folder
from transporter.protocol.messages import (
    Hello,
    HostEnding,
    HostHello,
    HostReady,
    Invitation,
    StartWorker,
    StopHost,
    Ticket,
    WorkerEnded,
    WorkerSpec,
)
from transporter.protocol.network import connect_engine
from transporter.worker import worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from transporter.adaptor import Ack, Entries, Resume, WriterContext
    from transporter.engine.engine import Engine
    from transporter.engine.reload import LeftReader
    from transporter.offsets.offset_log import OffsetLog
    from transporter.pipeline.config import Pipeline
    from transporter.protocol.channel import WorkerChannel

PATIENCE = 20.0
"""Seconds after which a test fails. No wait lasts that long in a passing run."""


@dataclass
class SparklessHost:
    """Launches hosts without Spark. Implements ``carrier.Launch``.

    Each launch uses the next behaviour, and the last one is used for ever:

    - ``good``
    - ``dead`` ends at once
    - ``mute`` never calls
    - ``frozen`` is ready and reads nothing
    - ``slow`` calls and is never ready
    - ``busy`` is ready and starts no worker
    - ``stubborn`` never ends by itself
    - ``gossip`` reports the end of a worker only when it has started the next
    - ``doomed`` calls and ends for a reason
    - ``removed`` ends for a reason when a worker is requested
    - ``refusing`` starts none and reports why
    """

    behaviours: list[str] = field(default_factory=lambda: ["good"])
    processes: list[Host] = field(default_factory=list)

    def __call__(self, ticket: Ticket) -> Host:
        """Start the next host."""
        behaviour = self.behaviours[0] if len(self.behaviours) == 1 else self.behaviours.pop(0)
        self.processes.append(_nursery().bear(behaviour, ticket))
        return self.processes[-1]


class Host:
    """A host process with the ``subprocess.Popen`` members that the carrier uses."""

    def __init__(self, pid: int, stdin: BinaryIO) -> None:
        self.pid, self.stdin = pid, stdin
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(pid)
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, or ``None`` while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        with self._lock:
            if self.returncode is None:
                if not select.select([self._pidfd], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired("host", timeout or 0)
                os.close(self._pidfd)
                self.returncode = -1
            return self.returncode

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        if self.returncode is None:
            with suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


class Nursery:
    """The line to a process that has imported everything and forks hosts. Thread-safe.

    Each takes 10 ms.
    """

    def __init__(self, channel: socket.socket) -> None:
        """Ask for hosts by *channel*, at whose other end is :func:`fork_hosts`."""
        self._channel, self._lock = channel, threading.Lock()

    def bear(self, behaviour: str, ticket: Ticket) -> Host:
        """Fork a host and send it the engine's address. It starts when it reads that."""
        reading, writing = os.pipe()
        with self._lock:  # The numbers come back in the order of the questions.
            socket.send_fds(self._channel, [b"h"], [reading])
            pid = int.from_bytes(self._channel.recv(4), "little")
        os.close(reading)
        host = Host(pid, os.fdopen(writing, "wb"))
        with suppress(BrokenPipeError):
            line = json.dumps([behaviour, ticket.address, ticket.key.hex()])
            host.stdin.write(line.encode() + b"\n")
            host.stdin.flush()
        return host


@cache
def _nursery() -> Nursery:
    channel, theirs = socket.socketpair()
    process = subprocess.Popen([sys.executable, __file__], stdin=theirs)
    theirs.close()

    def end() -> None:
        channel.close()
        process.wait()

    atexit.register(end)
    return Nursery(channel)


def fork_hosts() -> None:
    """Fork a host for every descriptor that arrives, which becomes its standard input."""
    channel = socket.socket(fileno=0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        said, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
        if not said:
            return
        if (pid := os.fork()) == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            channel.close()
            with os.fdopen(descriptors[0], "rb") as stdin:
                be_host(stdin)
            os._exit(0)
        os.close(descriptors[0])
        channel.sendall(pid.to_bytes(4, "little"))


def be_host(stdin: BinaryIO) -> None:
    """Be a host: see :class:`SparklessHost`."""
    behaviour, address, key = json.loads(stdin.readline())
    if behaviour == "dead":
        return
    if behaviour == "mute":
        stdin.read()
        return
    with connect_engine(Ticket(address, HostHello.claim, bytes.fromhex(key))) as engine:
        engine.send(HostHello(os.getpid()))
        if behaviour == "slow":
            stdin.read()
            return
        if behaviour == "doomed":
            engine.send(HostEnding("no master answers"))
            return
        engine.send(HostReady("none", "local"))
        if behaviour == "frozen":
            stdin.read()
            return
        with suppress(EOFError, ConnectionError):
            _start_workers(engine, behaviour)


def _start_workers(engine: WorkerChannel, behaviour: str) -> None:
    fork = multiprocessing.get_context("fork")
    running: dict[int, tuple[Any, Invitation]] = {}
    untold: list[WorkerEnded] = []
    lifeline = os.pipe()
    while True:
        for ready in wait([engine.fileno(), *running]):
            if ready == engine.fileno():
                match engine.recv():
                    case StartWorker() if behaviour == "removed":
                        engine.send(HostEnding("the master has removed it"))
                        return
                    case StartWorker(asked) if behaviour == "refusing":
                        told = WorkerEnded(
                            asked.route, asked.shard, "no Python here", asked.attempt
                        )
                        engine.send(told)
                    case StartWorker(asked) if behaviour != "busy":
                        process = fork.Process(target=_work, args=(asked, engine, lifeline))
                        process.start()
                        running[process.sentinel] = (process, asked)
                        while untold:
                            engine.send(untold.pop())
                    case StopHost() if behaviour != "stubborn":
                        return
            else:
                process, asked = running.pop(int(ready))
                process.join()
                problem = "" if process.exitcode == 0 else f"exit code {process.exitcode}"
                untold.append(WorkerEnded(asked.route, asked.shard, problem, asked.attempt))
                while untold and behaviour != "gossip":
                    engine.send(untold.pop())


def _work(asked: Invitation, engine: WorkerChannel, lifeline: tuple[int, int]) -> None:
    """Serve the invitation as long as the host lives, as a Python worker of Spark does."""
    engine.close()
    os.close(lifeline[1])

    def die_with_host() -> None:
        os.read(lifeline[0], 1)
        os._exit(1)

    threading.Thread(target=die_with_host, daemon=True).start()
    worker.run(asked)
    os._exit(0)


class LinesConfig(AdaptorConfig):
    """Settings of a :class:`LinesReader`."""

    path: LocalPath
    end: bool = True
    rows: int = 100


class LinesReader:
    """Reads ``namespace data`` lines of a file. The position is the number of lines read."""

    Config: ClassVar[type[AdaptorConfig]] = LinesConfig

    def __init__(self, config: LinesConfig) -> None:
        self._config = config
        self._next = 0

    def open(self, resume: Resume) -> None:
        self._next = int(resume.position or 0)

    def poll(self, timeout: float) -> Batch:
        lines = self._config.path.read_text().splitlines()
        found = lines[self._next : self._next + self._config.rows]
        if not found:
            if self._config.end:
                raise EndOfSource
            time.sleep(min(timeout, 0.01))
            return Batch([])
        self._next += len(found)
        pairs = (line.split(" ", 1) for line in found)
        return Batch([Message(name, data.encode()) for name, data in pairs], str(self._next))

    def commit(self, position: str) -> None:
        pass

    def close(self) -> None:
        pass


class LinesWriterConfig(AdaptorConfig):
    """Settings of a :class:`LinesWriter`."""

    path: LocalPath
    reject: tuple[int, ...] = ()
    stores_offset: bool = False
    show: bool = False
    die_at: int = -1
    """Offset at which the worker exits abruptly, once."""
    pause_at: int = -1
    """Offset at which it waits as long as the file ``<path>.paused`` exists."""


class LinesWriter:
    """Appends delivered entries to a file, one line of JSON each.

    While a file ``<path>.down`` exists the sink is unavailable. Its content is the name of the step
    that fails, ``open`` or ``write``.
    """

    Config: ClassVar[type[AdaptorConfig]] = LinesWriterConfig

    def __init__(self, config: LinesWriterConfig) -> None:
        self._config = config
        self._context: WriterContext | None = None

    def open(self, context: WriterContext) -> StoredOffset | None:
        self._context = context
        self._fail_if_down("open")
        stored = self._beside("stored")
        if not (self._config.stores_offset and stored.exists()):
            return None
        return StoredOffset(**json.loads(stored.read_text()))

    def write(self, batch: Entries, ack: Ack) -> None:
        for entry in batch:
            try:
                self._deliver(entry.offset, entry.message, batch.generation)
            except Rejected as error:
                ack.fail(error, entry.offset)
                return
            ack([entry.offset])
        if self._config.stores_offset:
            self._store(batch)

    def close(self) -> None:
        pass

    def _deliver(self, offset: int, message: Message, generation: int) -> None:
        self._fail_if_down("write")
        if offset in self._config.reject:
            raise Rejected(f"no {offset} here", offset)
        if offset == self._config.die_at and not self._beside("died").exists():
            self._beside("died").touch()
            os._exit(9)
        while offset == self._config.pause_at and self._beside("paused").exists():
            self._beside("waiting").touch()
            time.sleep(0.01)
        line = {"offset": offset, "generation": generation, "pid": os.getpid()}
        with self._config.path.open("a") as file:
            file.write(json.dumps(line | {"data": (message.data or b"").decode()}) + "\n")
        if self._config.show:
            print(f"delivered {offset}")  # noqa: T201 - what a writer prints is under test

    def _store(self, batch: Entries) -> None:
        assert self._context is not None
        stored = self._context.stored(batch.generation, batch.offsets[-1])
        self._beside("stored").write_text(json.dumps(asdict(stored)))

    def _fail_if_down(self, step: str) -> None:
        with suppress(FileNotFoundError):
            if (what := self._beside("down").read_text()) == step:
                raise SinkUnavailable("the sink is down for the test")
            if what == "fault":
                raise RouteFault("no rights")

    def _beside(self, suffix: str) -> Path:
        return self._config.path.with_suffix(f".{suffix}")


def delivered(path: Path) -> list[dict[str, Any]]:
    """Return the entries a :class:`LinesWriter` has delivered to *path*, in order.

    A line that is being written at this moment does not count yet.
    """
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def offsets(path: Path) -> list[int]:
    """Return the offsets delivered to *path*, in order."""
    return [line["offset"] for line in delivered(path)]


@dataclass
class Holders:
    """Running offset logs without a reader, as a ``retention_holds.Holders``."""

    offsets: dict[str, OffsetLog]
    feeds: tuple[()] = ()
    routes: tuple[()] = ()
    handover_lock: threading.Lock = field(default_factory=threading.Lock)
    handovers: int = 0
    left: dict[str, LeftReader] = field(default_factory=dict)


def make_pipeline(folder: Path, lines: list[str], *, end: bool = True, **routes: Any) -> Pipeline:
    """Return a pipeline from ``source.txt`` with *lines* into ``<route>.jsonl`` for each route.

    A route is given as its keys, with those of its writer under ``writer``.
    """
    from transporter.pipeline.config import load  # noqa: PLC0415 - the host does without

    with (folder / "source.txt").open("a") as file:
        file.writelines(f"{line}\n" for line in lines)
    reader = {"name": "in", "adaptor": "engine_tools:LinesReader", "path": "source.txt", "end": end}
    document = {
        "readers": [reader],
        "routes": [_route(name, keys) for name, keys in routes.items()],
        "log": {"dir": "log"},
        "commit_interval": "50ms",
    }
    path = folder / "pipeline.yaml"
    path.write_text(json.dumps(document))
    return load(path, {})


def _route(name: str, keys: dict[str, Any]) -> dict[str, Any]:
    writer = {"adaptor": "engine_tools:LinesWriter", "path": f"{name}.jsonl"}
    retry = {"attempts": 2, "backoff": "1ms..5ms"}
    return {"name": name, "retry": retry, **keys, "writer": writer | keys.get("writer", {})}


class Events:
    """Keeps the engine's events. Implements ``events.Observer``."""

    def __init__(self) -> None:
        self.all: list[tuple[str, dict[str, Any]]] = []
        self._changed = threading.Condition()

    def __call__(self, event: str, **details: Any) -> None:
        with self._changed:
            self.all.append((event, details))
            self._changed.notify_all()

    def named(self, event: str) -> list[dict[str, Any]]:
        """Return the details of every *event* so far."""
        return [details for name, details in list(self.all) if name == event]

    def await_count(self, event: str, count: int = 1) -> dict[str, Any]:
        """Wait for *count* of *event*. Return the details of the last of them."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.named(event)) >= count, PATIENCE), (
                event,
                self.all,
            )
        return self.named(event)[count - 1]


def until(condition: Callable[[], object]) -> None:
    """Wait for an event in another process."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


@contextmanager
def running(
    pipeline: Pipeline,
    host: SparklessHost | None = None,
    events: Events | None = None,
    *,
    fail_fast: bool = False,
) -> Iterator[Engine]:
    """Run *pipeline* for the length of a ``with`` block, without Spark, and drain it then."""
    from transporter.engine.engine import Engine  # noqa: PLC0415 - the host does without

    engine = Engine(pipeline, host or SparklessHost(), events or Events(), fail_fast=fail_fast)
    engine.start()
    try:
        yield engine
    except BaseException:
        engine.stop(0)
        raise
    engine.stop()


def run_to_end(pipeline: Pipeline, events: Events | None = None) -> Engine:
    """Run *pipeline* until its sources have ended and every route is done or halted."""
    with running(pipeline, events=events) as engine:
        until(lambda: engine.wait(0.02))
    return engine


def worker_spec(folder: Path, **settings: Any) -> WorkerSpec:
    """Return the specification of a worker for route ``out`` of a log in *folder*.

    Settings but ``namespace`` and ``writer`` are the writer's.
    """
    route_folder(folder / "log", "out").mkdir(parents=True, exist_ok=True)
    return WorkerSpec(
        route="out",
        shard=0,
        shards=1,
        epoch=1,
        generation=0,
        log_directory=str(folder / "log"),
        log_id="log",
        namespace=settings.pop("namespace", ".*"),
        writer=settings.pop("writer", "engine_tools:LinesWriter"),
        settings={"path": "out.jsonl", **settings},
        folder=str(folder),
        # Some workers are threads of the test's own process, which a watchdog that fires would end.
        slice_timeout=3600.0,
    )


def hello(spec: WorkerSpec) -> Hello:
    """Return the first message of a worker for *spec*."""
    return Hello(spec.route, spec.shard, spec.epoch, os.getpid())


if __name__ == "__main__":
    fork_hosts()

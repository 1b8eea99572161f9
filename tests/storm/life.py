"""One life of an engine in a storm, or one act on a log without an engine, in a forked child.

The engine is the real one, with the sparkless host of the other tests. Only numbers are smaller, so
that segments roll, files turn over and timers end within a fraction of a second.
"""

from __future__ import annotations

import faulthandler
import importlib
import io
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import redirect_stderr, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import engine_tools
import pyarrow.acero  # noqa: F401 - whatever is forked finds it imported
import storm.sinks
import storm.sources  # noqa: F401 - the same
from storm.disk import HostileDisk
from storm.journal import Journal
from storm.rows import logged_rows

from transporter.audit import Operator
from transporter.cli import app, commands
from transporter.control.requests import KINDS
from transporter.control.running_engine import RunningEngine
from transporter.control.server import ControlServer
from transporter.control.stopped_log import StoppedLog
from transporter.engine.backoff import Backoff
from transporter.engine.engine import Engine
from transporter.engine.routing.slicer import Slicer
from transporter.engine.workers.worker_connection import WorkerConnection
from transporter.errors import TransporterError
from transporter.log.commit_log import CommitLog
from transporter.offsets.offset_log import OffsetLog
from transporter.offsets.parked import ParkedStore
from transporter.offsets.verify_repair import verify
from transporter.pipeline import config, yaml_document
from transporter.protocol.messages import Slice

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.pipeline.config import Pipeline

commands.build()  # whatever is forked finds every command imported

NUMBERS: Final[dict[str, Any]] = {
    "transporter.log.active_segment.PREALLOCATION": 32 << 10,
    "transporter.log.index.STRIDE": 8 << 10,
    "transporter.log.reserve.RESERVE_BYTES": 64 << 10,
    "transporter.offsets.offset_log.FILE_BYTES": 16 << 10,
    "transporter.engine.routing.route.IDLE": 0.02,
    "transporter.engine.routing.session.IDLE": 0.02,
    "transporter.engine.workers.worker_connection.IDLE": 0.02,
    "transporter.engine.reading.feed.POLL": 0.02,
    "transporter.engine.reading.feed.GRACE": 0.4,
    "transporter.engine.reading.reader_condition.Backoff": partial(Backoff, 0.005, 0.05),
    "transporter.engine.workers.spark_supervisor.Backoff": partial(Backoff, 0.005, 0.05),
    "transporter.engine.maintenance.log_budget.TICK": 0.1,
    "transporter.engine.maintenance.log_budget.PRESSED": 0.02,
    "transporter.engine.maintenance.log_budget.STUCK": 0.3,
}
"""Settings that are smaller, or timers that are shorter, than in production."""
_LOOK: Final = 0.01


def live(request: dict[str, Any], channel: socket.socket) -> None:
    """Carry out *request*, and answer on *channel*."""
    os.setpgid(0, 0)
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    world = Path(request["world"])
    output = os.open(world / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    os.chdir(world)
    try:
        if request["do"] == "run":
            _Life(request, channel).run()
        else:
            _tell(channel, **_alone(request))
    except BaseException:  # noqa: BLE001 - the driver wants to know
        traceback.print_exc()
        _tell(channel, bug=traceback.format_exc())
    sys.stdout.flush()


def shrink_numbers() -> None:
    """Make files small and timers short. A constant that no longer exists is a mistake here.

    Pipelines are read as plain JSON, because the parser of YAML takes longer than a life.
    """
    yaml_document._parse = lambda text, *_: yaml_document.from_values(json.loads(text))
    for place, value in NUMBERS.items():
        module, _, name = place.rpartition(".")
        found = importlib.import_module(module)
        assert hasattr(found, name), place
        setattr(found, name, value)


def watch_opens(journal: Journal) -> Callable[[], list[int] | None]:
    """Journal a log's content when it is opened, before compaction or retention takes any of it.

    Return a function that returns the offsets which the log that was opened last holds now, or
    ``None`` where it cannot be read.
    """
    opened = CommitLog.open.__func__  # type: ignore[attr-defined]
    logs = list[CommitLog]()

    def opening(cls: type[CommitLog], directory: Path, **more: Any) -> CommitLog:
        log: CommitLog = opened(cls, directory, **more)
        logs[:] = [log]
        offsets, rows = list[int](), list[str]()
        with suppress(TransporterError):
            for offset, row in logged_rows(log.directory, log.durable):
                offsets.append(offset)
                rows.append(row)
        journal.write(what="held", offsets=offsets, rows=rows)
        return log

    def held() -> list[int] | None:
        try:
            return [offset for offset, _ in logged_rows(logs[0].directory, logs[0].durable)]
        except TransporterError:
            return None

    CommitLog.open = classmethod(opening)  # type: ignore[assignment]
    return held


class _Life:
    """An engine from its start to its end. The main thread executes the driver's commands."""

    def __init__(self, request: dict[str, Any], channel: socket.socket) -> None:
        self._request, self._channel = request, channel
        self._world = Path(request["world"])
        self._journal = Journal(self._world / f"{request['engine']}.journal")
        self._skew = request.get("skew", 0)

    def run(self) -> None:
        """Run until a stop command, or until the engine ends by itself."""
        self._bear_hosts()
        shrink_numbers()
        self._jump_clocks()
        pipeline = config.load(Path(self._request["pipeline"]), {})
        self._disk = HostileDisk(pipeline.log.dir, record=self._request["record"])
        self._disk.install()
        self._disk.set_fault(self._request.get("fault", {}))
        self._held = watch_opens(self._journal)
        self._watch_appends()
        self._watch_slices()
        engine = self._started(pipeline)
        if engine is not None:
            _tell(self._channel, started=True, log=engine.log.log_id, epoch=engine.log.epoch)
            self._serve(engine)

    def _bear_hosts(self) -> None:
        """Fork, before there is a thread, the process that forks the engine's hosts."""
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            ours.close()
            self._channel.close()
            os.dup2(theirs.fileno(), 0)
            engine_tools.fork_hosts()
            os._exit(0)
        theirs.close()
        made = engine_tools.Nursery(ours)
        engine_tools._nursery = lambda: made  # type: ignore[assignment]

    def _jump_clocks(self) -> None:
        now, zero = time.time_ns, time.time
        time.time_ns = lambda: now() + self._skew * 1_000_000_000
        time.time = lambda: zero() + self._skew

    def _watch_appends(self) -> None:
        """Journal each row's offset, and the entries that are settled undelivered."""
        append, supersede, journal = CommitLog.append, OffsetLog.supersede, self._journal
        settle, audit, park_all = OffsetLog.settle, OffsetLog.audit, ParkedStore.park_all

        def appending(log: CommitLog, messages: Any, reader: str, *rest: Any, **more: Any) -> Any:
            skew = self._skew
            first, last = append(log, messages, reader, *rest, **more)
            sources = messages.column("source_id").to_pylist()
            # The clock may jump meanwhile: what was certainly ahead is what was so all along.
            skew = min(skew, self._skew)
            told = {"epoch": log.epoch, "first": first, "last": last, "skew": skew}
            journal.write(what="appended", rows=sources, **told)
            return first, last

        def superseding(
            offsets: OffsetLog, reader: str, through: int, parts: Any, *rest: Any, **more: Any
        ) -> Any:
            parts = list(parts)
            told = {"route": offsets.route, "reader": reader, "through": through, "parts": parts}
            journal.write(what="superseded", **told)
            return supersede(offsets, reader, through, parts, *rest, **more)

        def settling(offsets: OffsetLog, part: Any, *rest: Any, **more: Any) -> Any:
            first, last, kind = part
            if kind != "acked":
                told = {"route": offsets.route, "first": first, "last": last, "kind": kind}
                journal.write(what="settling", **told)
            return settle(offsets, part, *rest, **more)

        def parking(store: ParkedStore, parked: Any) -> None:
            journal.write(what="copying", offsets=[each.offset for each in parked])
            park_all(store, parked)

        def auditing(offsets: OffsetLog, action: str, /, **details: Any) -> Any:
            if action == "release":  # also of a replay, of which nothing is settled
                first, last = details["first"], details["last"]
                journal.write(what="releasing", route=offsets.route, first=first, last=last)
            return audit(offsets, action, **details)

        CommitLog.append = appending  # type: ignore[method-assign]
        OffsetLog.supersede = superseding  # type: ignore[method-assign]
        OffsetLog.settle = settling  # type: ignore[method-assign]
        OffsetLog.audit = auditing  # type: ignore[method-assign]
        ParkedStore.park_all = parking  # type: ignore[method-assign]

    def _watch_slices(self) -> None:
        """Journal when each slice was cut. A superseded entry must not be in a later one."""
        name = "cut" if hasattr(Slicer, "cut") else "next"
        cut, send, journal = getattr(Slicer, name), WorkerConnection.send, self._journal
        moment = threading.local()

        def cutting(cutter: Slicer, *rest: Any, **more: Any) -> Slice | None:
            found = cut(cutter, *rest, **more)
            moment.route, moment.cut = cutter.config.name, time.monotonic()
            return found

        def sending(line: WorkerConnection, message: Any) -> None:
            if isinstance(message, Slice) and hasattr(moment, "cut"):
                told = {"route": moment.route, "cut": moment.cut, "generation": message.generation}
                journal.write(what="sent", first=message.first, last=message.last, **told)
            send(line, message)

        setattr(Slicer, name, cutting)
        WorkerConnection.send = sending  # type: ignore[method-assign]

    def _observe(self, event: str, **details: Any) -> None:
        if event == "route-begins":
            details["left"] = self._held()
        self._journal.write(what="event", event=event, **details)

    def _started(self, pipeline: Pipeline) -> Engine | None:
        try:
            engine = Engine(pipeline, engine_tools.SparklessHost(), self._observe)
            operations = RunningEngine(engine, {})
            engine.attach(ControlServer(operations, pipeline.log.dir, self._observe))
            engine.start()
        except TransporterError as error:
            self._journal.write(what="refused", type=type(error).__name__, text=str(error))
            _tell(self._channel, refused=type(error).__name__, text=str(error))
            return None
        return engine

    def _serve(self, engine: Engine) -> None:
        while True:
            if select.select([self._channel], [], [], _LOOK)[0]:
                command = _received(self._channel)
                if command is None or command["do"] == "stop":
                    self._end(engine, asked=True)
                    return
                self._obey(engine, command)
            elif engine.wait(0):
                self._end(engine, asked=False)
                return

    def _obey(self, engine: Engine, command: dict[str, Any]) -> None:
        match command:
            case {"do": "fault", "fault": fault}:
                self._disk.set_fault(fault)
                _tell(self._channel, done=True)
            case {"do": "clock", "seconds": seconds}:
                self._skew += seconds
                _tell(self._channel, done=True)
            case {"do": "cut", "seed": seed, "target": target}:
                label = self._disk.cut_power(Random(seed), Path(target))
                self._journal.write(what="cut", image=label)
                _tell(self._channel, image=label)
                os.kill(os.getpid(), signal.SIGKILL)
            case {"do": "look"}:
                _tell(self._channel, misused=self._disk.misused, cpu=time.process_time())
            case _:
                _tell(self._channel, bug=f"unknown command {command}")

    def _end(self, engine: Engine, *, asked: bool) -> None:
        begun, problem = time.monotonic(), None
        try:
            engine.stop()
        except TransporterError as error:
            problem = [type(error).__name__, str(error)]
        took = time.monotonic() - begun
        if any(each.name.startswith("reader-") for each in threading.enumerate()):
            time.sleep(0.6)  # it was left behind, and may come back to a log that is closed
        ended = {"asked": asked, "problem": problem, "took": took, "misused": self._disk.misused}
        self._journal.write(what="ended", **ended)
        _tell(self._channel, ended=ended)
        # A part left behind (a source that hangs) must not keep the process alive.
        os._exit(0)


def _alone(request: dict[str, Any]) -> dict[str, Any]:
    """Do one act on a log without an engine."""
    shrink_numbers()
    directory = Path(request["directory"])
    watch_opens(Journal(Path(request["world"]) / f"{directory.name.removeprefix('log-')}.journal"))
    try:
        match request["do"]:
            case "perform":
                asked = KINDS[request["kind"]](**request["fields"])
                return {"result": StoppedLog(directory).perform(asked, Operator("storm", 0, 0))}
            case "verify":
                found = verify(directory)
                # The storm itself damages parked entries.
                return {"sound": not (found.damages or found.routes), "text": str(found)}
            case "command":
                return _command(request["words"])
    except TransporterError as error:
        return {"refused": type(error).__name__, "text": str(error)}
    return {"bug": f"unknown request {request}"}


def _command(words: list[str]) -> dict[str, Any]:
    """Run a command of the command line in this process."""
    with redirect_stderr(io.StringIO()) as said:
        return {"code": app.execute(words), "text": said.getvalue()}


def _tell(channel: socket.socket, **answer: Any) -> None:
    with suppress(OSError):  # the driver may be gone
        channel.sendall(json.dumps(answer, default=str).encode() + b"\n")


def _received(channel: socket.socket) -> dict[str, Any] | None:
    line = b""
    while not line.endswith(b"\n"):
        found = channel.recv(1 << 16)
        if not found:
            return None
        line += found
    command: dict[str, Any] = json.loads(line)
    return command

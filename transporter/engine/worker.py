"""The worker's side of a route: reads slices, delivers them, answers.

Runs as the body of a long-running Spark task; knows nothing of Spark.
"""

from __future__ import annotations

import faulthandler
import fcntl
import io
import os
import resource
import sys
import time
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from multiprocessing.connection import Client
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from transporter.adaptor import WriterContext
from transporter.engine.delivery import Delivery, deliver, deliver_singly
from transporter.engine.protocol import (
    Failure,
    Hello,
    Opened,
    OpenFailed,
    Outcome,
    Output,
    Progress,
    Retry,
    Slice,
    WorkerSpec,
)
from transporter.errors import TransporterError
from transporter.log.reader import LogReader
from transporter.message import concat
from transporter.offsets.offset_log import route_folder
from transporter.offsets.parked import ParkedStore
from transporter.pipeline.namespace import Namespace
from transporter.pipeline.registry import find_writer, forget_modules
from transporter.pipeline.steps import compile_steps
from transporter.units import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from transporter.adaptor import Writer


_OUT_OF_MEMORY: Final = 71
"""Exit code of a worker that reached its memory limit."""


def run(spec: WorkerSpec) -> None:
    """Serve one shard of a route until the engine closes the connection."""
    try:
        _run(spec)
    except BaseException as error:
        # Spark writes what we raise into its own log (Invariant 20).
        spec.secrets.hide_in(error)
        raise


def _run(spec: WorkerSpec) -> None:
    # This process may have served before, with what the user's files held then.
    forget_modules(Path(spec.folder))
    # An engine that hangs up, in the middle of a slice even, is no error of the worker's.
    with (
        suppress(EOFError, ConnectionError),
        Client(spec.address, authkey=spec.authkey) as connection,
    ):
        connection.send(Hello(spec.route, spec.shard, spec.epoch, os.getpid(), spec.attempt))
        with _shard_lock(spec), redirect_stdout(_EngineOutput(connection)):
            _open_and_serve(spec, connection)


@contextmanager
def _shard_lock(spec: WorkerSpec) -> Iterator[None]:
    """Hold the shard: a worker of a dead engine may still be finishing its slice.

    No two workers, of this engine or another, ever deliver for one shard at the same time.
    """
    path = route_folder(Path(spec.log_directory), spec.route) / f"{spec.shard}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _open_and_serve(spec: WorkerSpec, connection: Connection) -> None:
    context = WriterContext(
        log_id=spec.log_id,
        route=spec.route,
        epoch=spec.epoch,
        generation=spec.generation,
        shard=spec.shard,
        shards=spec.shards,
        # Below the watch's limit, so that a slow sink is a timeout and not a dead worker.
        deadline=spec.slice_timeout / 2,
    )
    writer: Writer | None = None
    _limit_memory(spec.memory)
    watch = _Watch(spec.slice_timeout)
    watch.rearm()
    try:
        try:
            writer = _make_writer(spec)
            stored = writer.open(context)
        except Exception as error:  # noqa: BLE001 - it is the route's failure, not the worker's
            _tell(connection, OpenFailed(Failure.of(error).without(spec.secrets)))
            return
        _tell(connection, Opened(stored))
        _Worker(spec, connection, writer, watch).serve()
    finally:
        # The process may be used again, for another task.
        faulthandler.cancel_dump_traceback_later()
        if writer is not None:
            writer.close()


def _limit_memory(size: int | None) -> None:
    """Let this process allocate *size* bytes more than it has, and no others."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = resource.RLIM_INFINITY if size is None else _data_bytes() + size
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int:
    """Return what counts against the limit already: allocators reserve ahead, a GiB at a time."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[5]
    except OSError:
        return 0  # not Linux
    return int(pages) * resource.getpagesize()


def _make_writer(spec: WorkerSpec) -> Writer:
    folder = Path(spec.folder)
    kind = find_writer(spec.writer, folder)
    made: Writer = kind(kind.Config.model_validate(spec.settings, context={FOLDER: folder}))
    return made


class _Watch:
    """Ends this process when it is not re-armed in time, whatever holds the interpreter.

    Arming starts a thread, which would cost a small slice half its time; so it
    is done at most four times in *seconds*, and what hangs is ended after three
    quarters of them at the earliest, and all of them at the latest.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._armed = seconds, float("-inf")
        self.patience = seconds / 4

    def rearm(self) -> None:
        """Begin anew, if that is due."""
        now = time.monotonic()
        if now - self._armed >= self.patience:
            faulthandler.dump_traceback_later(self._seconds, exit=True)
            self._armed = now

    def disarm(self) -> None:
        """Watch no longer."""
        faulthandler.cancel_dump_traceback_later()


class _Worker:
    """Answers what the engine asks of one shard."""

    def __init__(
        self, spec: WorkerSpec, connection: Connection, writer: Writer, watch: _Watch
    ) -> None:
        self._spec, self._connection, self._writer = spec, connection, writer
        folder = Path(spec.folder)
        self._route = Delivery(
            namespace=Namespace(spec.namespace),
            log_id=spec.log_id,
            steps=compile_steps(spec.steps, folder) if spec.steps else None,
            one_per_key=spec.one_per_key,
        )
        self._parked = route_folder(Path(spec.log_directory), spec.route)
        self._watch = watch

    def serve(self) -> None:
        """Answer until the engine closes the connection."""
        with LogReader(Path(self._spec.log_directory)) as log:
            while (asked := self._asked()) is not None:
                outcome = self._answer(asked, log)
                if outcome.failure is not None:
                    failure = outcome.failure.without(self._spec.secrets)
                    outcome = replace(outcome, failure=failure)
                sys.stdout.flush()
                self._connection.send(outcome)

    def _asked(self) -> Slice | Retry | None:
        while not self._connection.poll(self._watch.patience):
            self._watch.rearm()
        self._watch.rearm()
        return _received(self._connection)

    def _answer(self, asked: Slice | Retry, log: LogReader) -> Outcome:
        try:
            if isinstance(asked, Retry):
                return self._retry(asked)
            return self._deliver(asked, log)
        except MemoryError:
            # Nothing of this process is to be trusted now; the engine sees it end.
            os._exit(_OUT_OF_MEMORY)

    def _deliver(self, asked: Slice, log: LogReader) -> Outcome:
        batches, damage = _read(asked, log)
        whole = _without(concat(batches), asked.without)
        if asked.namespace:
            whole = whole.filter(Namespace(asked.namespace).mask(whole.column("namespace")))
        last = asked.last
        if damage is not None:
            # Invariant 3: the route halts at what is damaged, not where its slice began.
            last = batches[-1].column("offset")[-1].as_py() if batches else asked.first - 1
        if asked.single:
            bounds = (asked.first, last, asked.generation)
            outcome = deliver_singly(whole, bounds, self._route, self._writer, self._announce)
        else:
            outcome = deliver(whole, last, asked.generation, self._route, self._writer)
        if damage is None or outcome.failure or outcome.through < last:
            return outcome
        return replace(outcome, failure=damage)

    def _retry(self, asked: Retry) -> Outcome:
        parked = ParkedStore.read(self._parked, asked.offset)
        bounds = (asked.offset, asked.offset, asked.generation)
        return deliver_singly(parked.entries, bounds, self._route, self._writer, self._announce)

    def _announce(self, offset: int) -> None:
        sys.stdout.flush()
        self._connection.send(Progress(offset))
        self._connection.recv()
        self._watch.rearm()


def _tell(connection: Connection, message: object) -> None:
    # An engine that has hung up is no fault of the task: the next receive finds it out.
    with suppress(ConnectionError):
        connection.send(message)


def _received(connection: Connection) -> Slice | Retry | None:
    try:
        asked = connection.recv()
    except (EOFError, ConnectionError):
        return None
    return asked if isinstance(asked, Slice | Retry) else None


def _without(entries: pa.RecordBatch, offsets: tuple[int, ...]) -> pa.RecordBatch:
    if not offsets:
        return entries
    settled = pc.is_in(entries.column("offset"), pa.array(offsets, pa.int64()))
    return entries.filter(pc.invert(settled))


def _read(asked: Slice, log: LogReader) -> tuple[list[pa.RecordBatch], Failure | None]:
    """Return the entries of the slice up to the first that cannot be read, and why."""
    batches: list[pa.RecordBatch] = []
    try:
        batches.extend(log.read(asked.first, asked.last))
    except (TransporterError, OSError) as error:
        return batches, Failure.of(error)
    return batches, None


class _EngineOutput(io.TextIOWrapper):
    """Standard output of a worker: what writers print reaches the engine's own."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._held = io.BytesIO()
        super().__init__(self._held, encoding="utf-8", newline="\n")

    def flush(self) -> None:
        super().flush()
        if data := self._held.getvalue():
            self._held.seek(0)
            self._held.truncate()
            # An engine that is gone shows nothing; the slice's own answer will find that out.
            with suppress(OSError):
                self._connection.send(Output(data.decode(errors="replace")))

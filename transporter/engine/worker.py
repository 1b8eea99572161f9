"""The worker's side of a route: reads slices, delivers them, answers.

Runs as the body of a long-running Spark task; knows nothing of Spark.
"""

from __future__ import annotations

import fcntl
import io
import os
import sys
from contextlib import contextmanager, redirect_stdout, suppress
from multiprocessing.connection import Client
from pathlib import Path
from typing import TYPE_CHECKING

from transporter.adaptor import WriterContext
from transporter.engine.delivery import Delivery, deliver
from transporter.engine.protocol import (
    Failure,
    Hello,
    Opened,
    OpenFailed,
    Outcome,
    Output,
    Slice,
    WorkerSpec,
)
from transporter.errors import LogError, TransporterError
from transporter.log.reader import LogReader
from transporter.message import concat
from transporter.offsets.offset_log import route_folder
from transporter.pipeline.namespace import Namespace
from transporter.pipeline.registry import find_writer
from transporter.units import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from transporter.adaptor import Writer


def run(spec: WorkerSpec) -> None:
    """Serve one shard of a route until the engine closes the connection."""
    with Client(spec.address, authkey=spec.authkey) as connection:
        connection.send(Hello(spec.route, spec.shard, spec.epoch, os.getpid()))
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
    )
    writer: Writer | None = None
    try:
        try:
            writer = _make_writer(spec)
            stored = writer.open(context)
        except Exception as error:  # noqa: BLE001 - it is the route's failure, not the worker's
            connection.send(OpenFailed(Failure.of(error)))
            return
        connection.send(Opened(stored))
        _serve(spec, connection, writer)
    finally:
        if writer is not None:
            writer.close()


def _make_writer(spec: WorkerSpec) -> Writer:
    folder = Path(spec.folder)
    kind = find_writer(spec.writer, folder)
    made: Writer = kind(kind.Config.model_validate(spec.settings, context={FOLDER: folder}))
    return made


def _serve(spec: WorkerSpec, connection: Connection, writer: Writer) -> None:
    route = Delivery(Namespace(spec.namespace), spec.log_id)
    with LogReader(Path(spec.log_directory)) as log:
        while (asked := _received(connection)) is not None:
            outcome = _deliver(asked, log, route, writer)
            sys.stdout.flush()
            connection.send(outcome)


def _received(connection: Connection) -> Slice | None:
    try:
        asked = connection.recv()
    except (EOFError, ConnectionError):
        return None
    return asked if isinstance(asked, Slice) else None


def _deliver(asked: Slice, log: LogReader, route: Delivery, writer: Writer) -> Outcome:
    try:
        entries = concat(log.read(asked.first, asked.last))
    except (LogError, TransporterError, OSError) as error:
        return Outcome(asked.first - 1, 0, 0, 0, {}, Failure.of(error))
    return deliver(entries, asked.last, asked.generation, route, writer)


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

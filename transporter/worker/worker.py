"""The worker process of a route: reads slices, delivers them, and answers.

Runs as the body of a long-running Spark task, and does not import Spark.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from transporter.log.open_segments import SWEEP, sweep_open_segments
from transporter.message import concat
from transporter.pipeline.adaptor_registry import forget_modules
from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.steps.chain import compile_steps
from transporter.process_limits import limit_memory
from transporter.protocol.messages import (
    Announcement,
    Begin,
    Failure,
    Invitation,
    Need,
    Opened,
    OpenFailed,
    Outcome,
    Output,
    PartialOutcome,
    Retry,
    Slice,
    WorkerSpec,
)
from transporter.protocol.network import connect_engine, is_at_place, is_tcp, this_host
from transporter.worker.delivery import Delivery, Reporter, deliver, deliver_singly
from transporter.worker.entry_source import EntrySource, LocalEntries, RemoteEntries
from transporter.worker.shard_lock import hold_shard_lock, lock_path
from transporter.worker.shards import ShardProgress, entries_of_shard
from transporter.worker.user_modules import unpack_modules
from transporter.worker.watchdog import Watchdog
from transporter.worker.writers import context_of, make_writer, proven_offset

if TYPE_CHECKING:
    from transporter.adaptor import StoredOffset, Writer
    from transporter.protocol.channel import WorkerChannel


_OUT_OF_MEMORY: Final = 71
"""Exit code of a worker that reached its memory limit."""
_PRINTED: Final = 1 << 20
"""Characters of printed output in one message."""
_TOO_LATE: Final = 72
"""Exit code of a worker whose leave to deliver was over before it knew of it."""


def run(invitation: Invitation) -> None:
    """Serve the shard that *invitation* is for until the engine closes the connection."""
    directory = Path(invitation.log_directory)
    # An engine that closes the connection, even within a slice, is not an error here.
    with (
        suppress(EOFError, ConnectionError, TimeoutError),
        connect_engine(invitation.ticket) as connection,
    ):
        remote = is_tcp(invitation.ticket.address) and not is_at_place(invitation.place, directory)
        connection.send(invitation.hello(os.getpid(), remote=remote))
        # After the engine's answer no other worker of the shard can be delivering.
        begin = connection.recv()
        try:
            _begin(begin, connection, remote=remote)
        except BaseException as error:
            # Spark writes raised errors into its own log (Invariant 20).
            begin.spec.secrets.hide_in(error)
            raise


def _begin(begin: Begin, connection: WorkerChannel, *, remote: bool) -> None:
    spec = begin.spec
    # This process may have served before, with older contents of the user's files.
    forget_modules(Path(spec.folder))
    with ExitStack() as stack:
        folder = stack.enter_context(unpack_modules(begin.modules)) if remote else Path(spec.folder)
        if not remote:
            stack.enter_context(hold_shard_lock(lock_path(spec, Path(spec.log_directory))))
        stack.enter_context(redirect_stdout(_EngineOutput(connection)))
        _open_and_serve(spec, connection, folder, remote=remote)


def _open_and_serve(
    spec: WorkerSpec, connection: WorkerChannel, folder: Path, *, remote: bool
) -> None:
    """Deliver for *spec* with the user's modules of *folder*."""
    writer: Writer | None = None
    limit_memory(spec.memory)
    watch = Watchdog(spec.slice_timeout)
    watch.rearm()
    engine = _Engine(connection, watch)
    try:
        if remote:
            # To open a writer is to act on the sink: only by leave that is fresh.
            engine.ask(Need())
        try:
            writer = make_writer(spec, folder)
            stored = writer.open(context_of(spec, spec.generation))
        except Exception as error:  # noqa: BLE001 - it is the route's failure, not the worker's
            failure = Failure.of(error).redact(spec.secrets)
            where = f"on {this_host()}: " if remote else ""
            _send(connection, OpenFailed(replace(failure, text=f"{where}{failure.text}")))
            return
        _send(connection, Opened(stored))
        with ExitStack() as stack:
            source: EntrySource = (
                RemoteEntries(engine, spec.runs.first_own_offset)
                if remote
                else stack.enter_context(LocalEntries.open(spec))
            )
            Worker(spec, engine, writer, source, folder, stored).serve()
    finally:
        watch.disarm()
        if writer is not None:
            writer.close()


class _Engine:
    """The conversation of a worker with its engine; each answer permits the next action."""

    def __init__(self, connection: WorkerChannel, watch: Watchdog) -> None:
        self.connection, self.watch = connection, watch
        self._asked_at = _clock()

    def ask(self, message: object) -> Any:  # noqa: ANN401 - the answer's type depends on the message
        """Return the engine's answer to *message*.

        The watchdog is armed before the request: everything that the answer permits has ended
        ``slice_timeout`` later. An engine that replaces this worker relies on that.
        """
        self.request(message)
        return self.receive_answer()

    def request(self, message: object) -> None:
        """Send *message*, to which :meth:`receive_answer` returns the engine's answer."""
        self._rearm_when_due()
        self._asked_at = _clock()
        self.connection.send(message)

    def receive_answer(self) -> Any:  # noqa: ANN401 - as above
        """Return the engine's answer to the last request."""
        answer = self.connection.recv()
        if _clock() - self._asked_at > self.watch.seconds:
            # The machine has slept, and with it the clock of the watch.
            os._exit(_TOO_LATE)
        return answer

    def fetch(self, size: int) -> pa.Buffer:
        """Return the next *size* bytes after the answer."""
        return self.connection.receive_raw(size)

    def next(self) -> Slice | Retry | None:
        """Return the next request, or ``None`` after the engine has closed."""
        while not self.connection.poll(min(self.watch.patience, SWEEP)):
            self._rearm_when_due()
            # An idle worker keeps no room on the disk that the engine has made free.
            sweep_open_segments()
        self._rearm_when_due()
        return receive_request(self.connection)

    def send(self, message: object) -> None:
        """Send *message*."""
        self.connection.send(message)

    def _rearm_when_due(self) -> None:
        if time.monotonic() >= self.watch.due:
            self.watch.rearm()


class EngineConnection(Protocol):
    """How a worker talks with its engine."""

    def ask(self, message: object) -> Any:  # noqa: ANN401 - the answer's type depends on the message
        """Return the engine's answer to *message*."""

    def next(self) -> Slice | Retry | None:
        """Return the next request, or ``None`` after the engine has closed."""

    def send(self, message: object) -> None:
        """Send *message*."""


class Worker:
    """Performs the engine's requests for one shard."""

    def __init__(
        self,
        spec: WorkerSpec,
        engine: EngineConnection,
        writer: Writer,
        source: EntrySource,
        folder: Path,
        stored: StoredOffset | None = None,
    ) -> None:
        self._spec, self._engine, self._writer, self._source = spec, engine, writer, source
        self._route = Delivery(
            namespace=NamespaceFilter(spec.namespace),
            log_id=spec.log_id,
            steps=compile_steps(spec.steps, folder) if spec.steps else None,
            one_per_key=spec.one_per_key,
        )
        self._progress = ShardProgress(
            spec.generation, proven_offset(spec, stored, spec.generation)
        )

    def serve(self) -> None:
        """Answer until the engine closes the connection."""
        while (request := self._engine.next()) is not None:
            outcome = self.perform(request)
            if outcome.failure is not None:
                failure = outcome.failure.redact(self._spec.secrets)
                outcome = replace(outcome, failure=failure)
            sys.stdout.flush()
            self._engine.send(outcome)

    def perform(self, request: Slice | Retry) -> Outcome:
        """Return the outcome of *request*."""
        try:
            if isinstance(request, Retry):
                return self._retry(request)
            return self._deliver(request)
        except MemoryError:
            # This process cannot be trusted any more; the engine sees it end.
            os._exit(_OUT_OF_MEMORY)

    def _deliver(self, request: Slice) -> Outcome:
        batches, damage = self._source.read(request)
        whole = _drop_offsets(concat(batches), request.without)
        if request.namespace:
            whole = whole.filter(NamespaceFilter(request.namespace).mask(whole.column("namespace")))
        if self._is_sharded:
            mine = entries_of_shard(whole, self._spec.shard, self._spec.shards)
            whole = self._progress.undelivered(mine, request)
        last = request.last
        if damage is not None:
            # Invariant 3: the route halts at the damaged entry, not at the start of its slice.
            last = batches[-1].column("offset")[-1].as_py() if batches else request.first - 1
        ahead = (
            self._progress.delivered_through(request)
            if self._is_sharded and self._spec.one_per_key
            else None
        )
        if ahead is not None:
            # Invariant 9: a skipped entry is not settled yet, so nothing follows it.
            damage = None if ahead < last else damage
            whole, last = whole.slice(0, 0), min(last, ahead)
        reporter = self._reporter() if whole.num_rows > 1 else None
        if request.single:
            bounds = (request.first, last, request.generation)
            outcome = deliver_singly(
                whole, bounds, self._route, self._writer, self._announce, reporter
            )
        else:
            outcome = deliver(whole, last, request.generation, self._route, self._writer, reporter)
        if self._is_sharded:
            self._progress.advance(request, outcome.through)
        if damage is None or outcome.failure or outcome.through < last:
            return outcome
        return replace(outcome, failure=damage)

    @property
    def _is_sharded(self) -> bool:
        """Whether other workers deliver the other keys. Spark partitions DataFrames itself."""
        return self._spec.shards > 1 and not self._spec.on_frames

    def _retry(self, request: Retry) -> Outcome:
        entries = self._source.read_parked(request)
        bounds = (request.offset, request.offset, request.generation)
        return deliver_singly(entries, bounds, self._route, self._writer, self._announce)

    def _reporter(self) -> Reporter | None:
        """Return the reporter of a slice's parts, or ``None`` if it has no parts."""
        return Reporter(self._report)

    def _report(self, part: Outcome) -> None:
        sys.stdout.flush()
        # Called while a writer writes: a closed engine is not a failure of the sink.
        with suppress(OSError):
            self._engine.send(PartialOutcome(part))

    def _announce(self, offset: int) -> None:
        sys.stdout.flush()
        self._engine.ask(Announcement(offset))


def _send(connection: WorkerChannel, message: object) -> None:
    # A closed engine is not a fault of the task: the next receive detects it.
    with suppress(ConnectionError):
        connection.send(message)


def receive_request(connection: WorkerChannel) -> Slice | Retry | None:
    """Return the next request, or ``None`` after the engine has closed."""
    try:
        request = connection.recv()
    except (EOFError, ConnectionError):
        return None
    return request if isinstance(request, Slice | Retry) else None


def _drop_offsets(entries: pa.RecordBatch, offsets: tuple[int, ...]) -> pa.RecordBatch:
    if not offsets:
        return entries
    settled = pc.is_in(entries.column("offset"), pa.array(offsets, pa.int64()))
    return entries.filter(pc.invert(settled))


def _clock() -> float:
    """Return a time that goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class _EngineOutput(io.TextIOWrapper):
    """Standard output of a worker, which is forwarded to the engine's own."""

    def __init__(self, connection: WorkerChannel) -> None:
        self._connection, self._thread = connection, threading.get_ident()
        self._buffer = io.BytesIO()
        super().__init__(self._buffer, encoding="utf-8", newline="\n")

    def flush(self) -> None:
        super().flush()
        if threading.get_ident() != self._thread:
            # The connection belongs to one thread: it sends others' output with its next message.
            return
        if data := self._buffer.getvalue():
            self._buffer.seek(0)
            self._buffer.truncate()
            text = data.decode(errors="replace")
            # If the engine is gone, the slice's own answer detects it.
            with suppress(OSError):
                for at in range(0, len(text), _PRINTED):
                    self._connection.send(Output(text[at : at + _PRINTED]))

"""A route whose slices are Spark DataFrames: with ``sql`` steps, or into a Spark sink.

It answers the engine like a worker, ``Slice`` to ``Outcome``, from a thread of the Spark driver.
Each slice is a job. If one fails and no entry is named, the slice is halved until one entry is
left. The entries before it are then delivered, and the rest follow it.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from transporter.adaptor import AdaptorConfig, DataFrameSlice
from transporter.errors import Rejected, SinkError, SinkTimeout
from transporter.message import ENTRY_SCHEMA
from transporter.pipeline.adaptor_registry import find_writer, takes_frames
from transporter.protocol.messages import Failure, Opened, OpenFailed, Output
from transporter.protocol.network import connect_engine
from transporter.spark.job_failures import sink_error
from transporter.spark.slice_dataframes import SliceDataFrames
from transporter.spark.step_plan import plan_steps
from transporter.spark.writer_tasks import plan_delivery, read_stored_offset, run_delivery
from transporter.worker.entry_source import LocalEntries
from transporter.worker.shard_lock import hold_shard_lock, lock_path
from transporter.worker.worker import Worker, receive_request
from transporter.worker.writers import context_of, make_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from transporter.adaptor import Ack, DataFrameWriter, Entries, StoredOffset, WriterContext
    from transporter.protocol.channel import WorkerChannel
    from transporter.protocol.messages import Begin, Invitation, Outcome, Retry, Slice, WorkerSpec
    from transporter.spark.step_plan import Source
    from transporter.worker.entry_source import EntrySource

_GRACE: Final = 5.0
"""Seconds after ``slice_timeout`` in which a task may end its own process and report why."""

_ABANDONED: Final = 15.0
"""Seconds after that in which a sink whose jobs were cancelled must return."""

_PATIENCE: Final = 2
"""Seconds that Spark's own listeners have to report their counts."""


def serve(
    invitation: Invitation,
    session: SparkSession,
    scratch: Path,
    abandon: Callable[[str], None],
) -> None:
    """Serve the route that *invitation* is for until the engine closes the connection.

    *session* belongs to this route alone, so routes share no views. *abandon* ends this process
    and reports its reason. Nothing else ends a thread whose sink does not return.
    """
    with (
        suppress(EOFError, ConnectionError, TimeoutError),
        connect_engine(invitation.ticket) as connection,
    ):
        connection.send(invitation.hello(os.getpid()))
        begin = connection.recv()
        spec = begin.spec
        try:
            with hold_shard_lock(lock_path(spec, Path(spec.log_directory))):
                engine = _Engine(connection)
                delivery = DataFrameDelivery(
                    begin, session, scratch, lambda text: engine.send(Output(text)), abandon
                )
                _open_and_serve(spec, engine, delivery)
        except BaseException as error:
            # The host reports our exceptions to the engine (Invariant 20).
            spec.secrets.hide_in(error)
            raise


def _open_and_serve(spec: WorkerSpec, engine: _Engine, delivery: DataFrameDelivery) -> None:
    try:
        try:
            stored = delivery.open(context_of(spec, spec.generation))
        except SinkError as error:
            engine.send(OpenFailed(Failure.of(error).redact(spec.secrets)))
            return
        engine.send(Opened(stored))
        with LocalEntries.open(spec) as source:
            DataFrameWorker(spec, engine, delivery, source).serve()
    finally:
        delivery.close()


class _Engine:
    """The connection of a route in the driver to its engine, which ends the route by closing it.

    The route's jobs are cancelled when they take too long. If that does not help, its process
    ends.
    """

    def __init__(self, connection: WorkerChannel) -> None:
        self._connection = connection

    def ask(self, message: object) -> Any:  # noqa: ANN401 - the answer to the message
        """Return the engine's answer to *message*."""
        self._connection.send(message)
        return self._connection.recv()

    def next(self) -> Slice | Retry | None:
        """Return the next slice or retry to deliver."""
        return receive_request(self._connection)

    def send(self, message: object) -> None:
        """Send *message*."""
        self._connection.send(message)


class DataFrameWorker(Worker):
    """A worker for DataFrames. It counts delivered entries that the queries dropped as skipped."""

    def __init__(
        self, spec: WorkerSpec, engine: _Engine, delivery: DataFrameDelivery, source: EntrySource
    ) -> None:
        """Deliver the entries of *source* by *delivery*, whose plan has the steps."""
        super().__init__(replace(spec, steps=()), engine, delivery, source, Path(spec.folder))
        self._delivery = delivery

    def perform(self, request: Slice | Retry) -> Outcome:
        """Return the outcome of *request*."""
        outcome = super().perform(request)
        gone = min(self._delivery.dropped_count, outcome.delivered)
        self._delivery.dropped_count = 0
        return replace(outcome, delivered=outcome.delivered - gone, skipped=outcome.skipped + gone)

    def _reporter(self) -> None:
        """Report no parts, because the number of dropped entries is known only at a slice's end."""


class DeliveryStopped(Exception):
    """A slice that was delivered only up to an offset."""

    def __init__(self, offset: int, error: SinkError, /) -> None:
        """Keep the first *offset* that was not delivered, and its *error*."""
        super().__init__(offset, error)
        self.offset, self.error = offset, error


class DataFrameDelivery:
    """An ``adaptor.Writer`` that delivers the slices of one route as DataFrames.

    ``dropped_count`` counts the entries that the queries have dropped. Its reader sets it to 0.
    """

    Config: ClassVar[type[AdaptorConfig]] = AdaptorConfig

    def __init__(
        self,
        begin: Begin,
        session: SparkSession,
        scratch: Path,
        show: Callable[[str], None],
        abandon: Callable[[str], None],
    ) -> None:
        """Prepare the route of *begin*. *show* receives the text that a writer prints."""
        assert begin.tasks is not None  # noqa: S101 - a route on DataFrames has tasks
        self._spec, self._ticket = begin.spec, begin.tasks
        self._session, self._show = session, show
        self._abandon = abandon
        self._slices = SliceDataFrames(session, scratch, self._spec.route)
        self._tag = f"transporter-{self._spec.route}"
        self._sink: DataFrameWriter | None = None
        self.dropped_count = 0

    def open(self, context: WriterContext) -> StoredOffset | None:
        """Plan the queries and open the sink."""
        self._session.sparkContext.addJobTag(self._tag)
        _without_checksum_files(self._session)
        frames = takes_frames(find_writer(self._spec.writer, Path(self._spec.folder)))
        self._sink = make_writer(self._spec, Path(self._spec.folder)) if frames else None
        with _translate_errors():
            # Planning reveals the mistakes in a query.
            nothing = ENTRY_SCHEMA.empty_table().to_batches()
            empty = nothing[0] if nothing else pa.RecordBatch.from_pylist([], ENTRY_SCHEMA)
            self._make_frame(empty, DataFrameSlice(0, -1, context.generation))
            if self._sink is not None:
                stored: StoredOffset | None = self._sink.open(context)
                return stored
            one = self._session.range(0, 1, 1, 1).toDF("id")
            return read_stored_offset(one, self._spec, self._ticket)

    def write(self, batch: Entries, ack: Ack) -> None:
        """Deliver *batch*, and halve a part that fails without naming an entry."""
        todo = [batch.batch]
        while todo:
            part = todo.pop(0)
            offsets = part.column("offset").to_pylist()
            try:
                self._deliver(part, batch.generation)
            except DeliveryStopped as stopped:
                gone = sum(offset < stopped.offset for offset in offsets)
                ack(offsets[:gone])
                rest, error = part.slice(gone), stopped.error
                if _is_conclusive(error, offsets):
                    ack.fail(error, error.offset if isinstance(error, Rejected) else None)
                    return
                if rest.num_rows == 1:
                    ack.fail(Rejected(str(error), offsets[gone]), offsets[gone])
                    return
                half = rest.num_rows // 2
                todo[:0] = [rest.slice(0, half), rest.slice(half)]
            else:
                ack(offsets)

    def close(self) -> None:
        """Close the sink."""
        self._slices.close()
        if self._sink is not None:
            self._sink.close()

    def _deliver(self, part: pa.RecordBatch, generation: int) -> None:
        offsets = part.column("offset")
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        bounds = DataFrameSlice(first, last, generation)
        late = threading.Event()
        try:
            with self._watch_job(late), _translate_errors():
                self._save(part, bounds)
        except SinkError as error:
            text = f"the job took longer than slice_timeout ({self._spec.slice_timeout:g} s)"
            raise DeliveryStopped(first, SinkTimeout(text) if late.is_set() else error) from error

    def _save(self, part: pa.RecordBatch, bounds: DataFrameSlice) -> None:
        frame = self._make_frame(part, bounds)
        if self._sink is None:
            found = run_delivery(frame)
            if found.printed:
                self._show(found.printed)
            if found.failure is not None and found.stopped is not None:
                raise DeliveryStopped(found.stopped, found.failure.error())
            rows = found.delivered
        else:
            seen = Observation()
            observed = frame.observe(seen, F.count(F.lit(1)).alias("rows"))
            self._sink.save(observed, replace(bounds, rows=partial(_row_count, seen)))
            counted = _row_count(seen)
            rows = part.num_rows if counted is None else counted
        self.dropped_count += max(0, part.num_rows - rows)

    def _make_frame(self, part: pa.RecordBatch, bounds: DataFrameSlice) -> DataFrame:
        limits = (bounds.first, bounds.last, bounds.generation)
        return self._slices.frame(part, limits, self._plan_frame)

    def _plan_frame(self, source: Source) -> DataFrame:
        frame = plan_steps(self._spec, self._ticket, source)
        return plan_delivery(frame, self._spec, self._ticket) if self._sink is None else frame

    @contextmanager
    def _watch_job(self, late: threading.Event) -> Iterator[None]:
        """Cancel the job and set *late* when it takes too long.

        If the sink does not return even then, this process ends.
        """
        context = self._session.sparkContext
        returned = threading.Event()

        def cancel() -> None:
            late.set()
            context.cancelJobsWithTag(self._tag)
            if not returned.wait(_ABANDONED):
                limit = self._spec.slice_timeout
                text = (
                    f"its sink has not returned {_ABANDONED:g} s after its jobs were cancelled "
                    f"(slice_timeout {limit:g} s)"
                )
                self._abandon(f"route {self._spec.route}: {text}")

        timer = threading.Timer(self._spec.slice_timeout + _GRACE, cancel)
        timer.name = f"watch-{self._spec.route}"
        timer.start()
        try:
            yield
        finally:
            returned.set()
            timer.cancel()
            timer.join()


def _without_checksum_files(session: SparkSession) -> None:
    """Turn off the files ``.name.crc``, which are synced with each file written but never read.

    Without Hadoop's native library each file also costs a process that runs chmod.
    """
    context: Any = session.sparkContext
    jvm, conf = context._jvm, context._jsc.hadoopConfiguration()  # noqa: SLF001 - Spark has no other way
    local = jvm.org.apache.hadoop.fs.FileSystem.getLocal(conf)
    local.setWriteChecksum(False)


def _is_conclusive(error: SinkError, offsets: list[int]) -> bool:
    """Return whether halving is useless: the failed entry is known, or no entry is the cause."""
    return not isinstance(error, Rejected) or error.offset in offsets


def _row_count(seen: Observation) -> int | None:
    """Return Spark's count of rows, or ``None`` when the sink took them without an action.

    ``Observation.get`` would wait forever for an action.
    """
    jvm: Any = seen._jvm  # noqa: SLF001 - Observation has no limit of its own
    patience = jvm.scala.concurrent.duration.Duration.create(_PATIENCE, "s")
    try:
        jvm.scala.concurrent.Await.ready(seen._jo.future(), patience)  # noqa: SLF001 - as above
    except Py4JJavaError:
        return None
    return int(seen.get["rows"])


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Turn Spark's exceptions into errors of the sink."""
    try:
        yield
    except (DeliveryStopped, MemoryError):
        raise
    except Exception as error:
        raise sink_error(error) from error

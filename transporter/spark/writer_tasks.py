"""Delivery of a DataFrame by a writer in Python: one task per shard, in log order."""

from __future__ import annotations

import io
import json
from bisect import bisect_right
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext

from transporter.adaptor import StoredOffset
from transporter.message import Entries, concat
from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.steps.documents import clear_false_json
from transporter.process_limits import limit_process
from transporter.protocol.messages import Failure, FailureKind
from transporter.spark.slice_dataframes import map_in_arrow, slice_bounds
from transporter.spark.step_plan import as_entries, entries_of
from transporter.spark.task_spec import spec_of
from transporter.worker.delivery import write
from transporter.worker.shard_lock import hold_shard_lock, lock_path
from transporter.worker.user_modules import provide_modules
from transporter.worker.writers import context_of, make_writer, proven_offset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from transporter.adaptor import Writer
    from transporter.protocol.messages import Ticket, WorkerSpec

    Batches = Iterator[pa.RecordBatch]

_ANSWER: Final = "answer STRING"


@dataclass(frozen=True, slots=True)
class Written:
    """The outcome of a task: the number of entries delivered, and the offset where it stopped."""

    delivered: int = 0
    stopped: int | None = None
    failure: Failure | None = None
    printed: str = ""

    def to_json(self) -> str:
        """Return one line."""
        failure = self.failure
        details = failure and [failure.kind.value, failure.text, failure.offset, failure.wait]
        return json.dumps([self.delivered, self.stopped, details, self.printed])

    @classmethod
    def from_json(cls, text: str) -> Written:
        """Return the outcome that :meth:`to_json` wrote."""
        delivered, stopped, details, printed = json.loads(text)
        failure = Failure(FailureKind(details[0]), *details[1:]) if details else None
        return cls(delivered, stopped, failure, printed)


def plan_delivery(frame: DataFrame, spec: WorkerSpec, ticket: Ticket) -> DataFrame:
    """Return the DataFrame that delivers *frame* when collected, with one outcome per task.

    A key's entries go to one task, in the order of their offsets (Invariant 9).
    """
    rows = as_entries(frame)
    rows = rows.repartition(1) if spec.shards == 1 else rows.repartition(spec.shards, "key")
    return map_in_arrow(rows.sortWithinPartitions("offset"), partial(_deliver, ticket), _ANSWER)


def run_delivery(frame: DataFrame) -> Written:
    """Run *frame*, made by :func:`plan_delivery`, and return the outcome of the whole slice."""
    found = [Written.from_json(row.answer) for row in frame.collect()]
    stopped = min((each for each in found if each.failure), key=_stop_offset, default=Written())
    return Written(
        sum(each.delivered for each in found),
        stopped.stopped,
        stopped.failure,
        "".join(each.printed for each in found),
    )


def read_stored_offset(numbers: DataFrame, spec: WorkerSpec, ticket: Ticket) -> StoredOffset | None:
    """Open the writer of *spec* in a task, and return the offset that its sink stores.

    Raises:
        SinkError: it cannot be opened.

    """
    answer = json.loads(
        map_in_arrow(numbers, partial(_open_writer, ticket), _ANSWER).collect()[0].answer
    )
    if answer[0] == "failed":
        raise Failure(FailureKind(answer[1]), answer[2]).error()
    # One shard's offset proves nothing about the other shards.
    return StoredOffset(**answer[1]) if answer[1] and spec.shards == 1 else None


def _stop_offset(part: Written) -> int:
    return -1 if part.stopped is None else part.stopped


def _open_writer(ticket: Ticket, numbers: Batches) -> Batches:
    for _ in numbers:
        pass
    spec = spec_of(ticket)
    with (
        limit_process(spec.slice_timeout, spec.memory),
        provide_modules(Path(spec.folder), spec.modules) as folder,
        _hold_task_lock(spec),
    ):
        writer = None
        try:
            writer = make_writer(spec, folder)
            stored = writer.open(context_of(spec, spec.generation))
            answer: list[object] = ["opened", asdict(stored) if stored else None]
        except Exception as error:  # noqa: BLE001 - it is the route's failure, not the task's
            failure = Failure.of(error).redact(spec.secrets)
            answer = ["failed", failure.kind.value, failure.text]
        finally:
            if writer is not None:
                writer.close()
    yield _answer_batch(json.dumps(answer))


def _deliver(ticket: Ticket, batches: Batches) -> Batches:
    spec = spec_of(ticket)
    task = TaskContext.get()
    if spec.shards > 1 and task is not None:
        # A key's entries go to the task of one number, and each task has its own sink.
        spec = replace(spec, shard=task.partitionId())
    whole = concat([entries_of(batch) for batch in batches])
    if not whole.num_rows:
        return
    # A query may change data without changing its content type.
    whole = clear_false_json(whole, NamespaceFilter())
    # A writer may print text, or bytes by way of the buffer.
    printed = io.BytesIO()
    text = io.TextIOWrapper(printed, encoding="utf-8", newline="\n", write_through=True)
    with (
        limit_process(spec.slice_timeout, spec.memory),
        provide_modules(Path(spec.folder), spec.modules) as folder,
        _hold_task_lock(spec),
        redirect_stdout(text),
    ):
        done = _deliver_entries(spec, whole, folder)
    yield _answer_batch(
        replace(done, printed=printed.getvalue().decode(errors="replace")).to_json()
    )


def _deliver_entries(spec: WorkerSpec, whole: pa.RecordBatch, folder: Path) -> Written:
    first, last, generation = slice_bounds()
    offsets = whole.column("offset").to_pylist()
    if offsets[0] < first or offsets[-1] > last:
        strange = offsets[0] if offsets[0] < first else offsets[-1]
        text = f"the query made offset {strange}, which is not in the slice {first}..{last}"
        return Written(0, first, Failure(FailureKind.FAULT, text))
    writer: Writer = make_writer(spec, folder)
    done = 0
    try:
        done = _rows_done(offsets, writer.open(context_of(spec, generation)), spec, generation)
        rest = Entries(whole.slice(done), spec.log_id, generation)
        count, failure = write(rest, writer)
        count += done
    except Exception as error:  # noqa: BLE001 - whatever opening raises is the route's failure
        count, failure = done, Failure.of(error)
    finally:
        writer.close()
    delivered = len(set(offsets[:count]))
    if failure is None:
        return Written(delivered)
    return Written(delivered, offsets[count], failure.redact(spec.secrets))


def _rows_done(
    offsets: list[int], stored: StoredOffset | None, spec: WorkerSpec, generation: int
) -> int:
    """Return how many rows the sink has, because a task may end between commit and answer.

    With several shards it is unknown: a changed query may have given an entry another key.
    """
    known = proven_offset(spec, stored, generation, offsets[-1]) if spec.shards == 1 else -1
    return bisect_right(offsets, known)


@contextmanager
def _hold_task_lock(spec: WorkerSpec) -> Iterator[None]:
    """Wait for a task of a JVM that is gone, or of a cancelled job, to end its slice."""
    path = lock_path(spec, Path(spec.log_directory)).with_suffix(".task.lock")
    # Tasks of a cluster may not see the log, and then there is no file to lock.
    with hold_shard_lock(path) if path.parent.is_dir() else nullcontext():
        yield


def _answer_batch(text: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([text], pa.string())], names=["answer"])

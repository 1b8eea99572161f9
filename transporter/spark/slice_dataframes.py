"""Slices as DataFrames, and Arrow batches through Python steps.

A plan is made once and run for each slice. The entries, which change, lie in a file that a
property of the job names. A new DataFrame for each slice cost 30 ms more. The plan is still made
again where a query reads other tables, which change, or has a function like ``uuid()``, whose
seed belongs to the plan. Tasks of a cluster cannot see that file. There the entries are
broadcast, and the plan is made again.
"""

from __future__ import annotations

import json
import os
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.udf import _create_udf
from pyspark.util import PythonEvalType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark import Broadcast
    from pyspark.sql import SparkSession

    Batches = Iterator[pa.RecordBatch]

ENTRIES: Final = (
    "offset BIGINT, logged_at TIMESTAMP, namespace STRING, op STRING, phase STRING, key BINARY, "
    "timestamp TIMESTAMP, source_id STRING, data BINARY, content_type STRING, "
    "headers ARRAY<STRUCT<name: STRING, value: BINARY>>"
)
"""``message.ENTRY_SCHEMA`` in Spark's notation."""
_FILE: Final = "transporter.slice.file"
_BOUNDS: Final = "transporter.slice.bounds"
_ROWS_A_TASK: Final = 20_000
_OTHER_TABLES: Final = re.compile(r"(?<!Local)(?<!OneRow)Relation")
"""Matches the text of a plan that reads another table besides the slice."""


def map_in_arrow(
    frame: DataFrame, function: Callable[[Batches], Batches], schema: str
) -> DataFrame:
    """Do the same as ``DataFrame.mapInArrow``, which requires pandas without using it.

    With pandas installed, the first use of pyarrow imports it. That costs a second at each
    command, and tens of MiB in each process.
    """
    made = _create_udf(function, schema, PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    columns = made(*[frame[name] for name in frame.columns])
    return DataFrame(frame._jdf.mapInArrow(columns._jc, False, None), frame.sparkSession)  # noqa: FBT003, SLF001 - as mapInArrow itself does


class SliceDataFrames:
    """The slices of one route, run one after the other by its plan. Belongs to one thread."""

    def __init__(self, session: SparkSession, scratch: Path, route: str) -> None:
        """Keep the file of the current slice in *scratch*."""
        self._session, self._context = session, session.sparkContext
        self._local = self._context.master.startswith("local")
        self._scratch, self._name, self._count = scratch, f"slice-{route}", 0
        self._file: Path | None = None
        self._plans: dict[int, DataFrame] = {}
        self._broadcast: Broadcast[bytes] | None = None

    def frame(
        self,
        entries: pa.RecordBatch,
        bounds: tuple[int, int, int],
        plan: Callable[[Callable[[Callable[[Batches], Batches], str], DataFrame]], DataFrame],
    ) -> DataFrame:
        """Return the DataFrame that *plan* makes of *entries*.

        Args:
            entries: the slice's entries, of ENTRY_SCHEMA.
            bounds: its first and last offset and its generation. Tasks call :func:`slice_bounds`.
            plan: makes a DataFrame. Its argument is a function that returns the DataFrame of
                the entries. That function takes a function of Arrow batches, through which the
                entries are run, and the schema of its output.

        """
        self._context.setLocalProperty(_BOUNDS, json.dumps(bounds))
        tasks = max(1, min(self._context.defaultParallelism, entries.num_rows // _ROWS_A_TASK))
        if not self._local:
            return plan(partial(self._make_frame, tasks, self._broadcast_entries(entries, tasks)))
        self._context.setLocalProperty(_FILE, str(self._write_file(entries, tasks)))
        known = self._plans.get(tasks)
        made = plan(partial(self._make_frame, tasks, None)) if known is None else known
        if known is None and _is_reusable(made):
            self._plans[tasks] = made
        # Each slice gets its own DataFrame, because a second run would reuse the first's shuffle.
        return made.select("*")

    def close(self) -> None:
        """Remove the files and the broadcast of the last slice."""
        self._remove_file()
        self._drop_broadcast()

    def _write_file(self, entries: pa.RecordBatch, tasks: int) -> Path:
        """Write *entries* to a new file, because a cancelled task may still read the last one."""
        self._remove_file()
        self._count += 1
        self._file = self._scratch / f"{self._name}-{self._count}.arrow"
        with self._file.open("wb") as file:
            _write(file, entries, tasks)
        return self._file

    def _remove_file(self) -> None:
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _make_frame(
        self,
        tasks: int,
        sent: Broadcast[bytes] | None,
        through: Callable[[Batches], Batches],
        schema: str,
    ) -> DataFrame:
        numbers = self._session.range(0, tasks, 1, tasks)
        return map_in_arrow(numbers, partial(_slice_entries, sent, through), schema)

    def _broadcast_entries(self, entries: pa.RecordBatch, tasks: int) -> Broadcast[bytes]:
        self._drop_broadcast()
        sink = pa.BufferOutputStream()
        _write(sink, entries, tasks)
        self._broadcast = self._context.broadcast(sink.getvalue().to_pybytes())
        return self._broadcast

    def _drop_broadcast(self) -> None:
        if self._broadcast is not None:
            self._broadcast.destroy()
            self._broadcast = None


def _is_reusable(frame: DataFrame) -> bool:
    """Return whether runs of *frame* differ only by the slice."""
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - Spark has no other way
    return plan.deterministic() and not _OTHER_TABLES.search(plan.treeString())


def slice_bounds() -> tuple[int, int, int]:
    """Return the first and last offset and the generation of the slice. Call it in a task only."""
    first, last, generation = json.loads(_job_property(_BOUNDS))
    return first, last, generation


def _write(sink: Any, entries: pa.RecordBatch, parts: int) -> None:  # noqa: ANN401 - file or stream
    """Write *entries* in one batch per task, so that each can be read alone."""
    size = -(-entries.num_rows // parts)
    with pa.ipc.new_file(sink, entries.schema) as writer:
        for number in range(parts):
            writer.write_batch(entries.slice(number * size, size))


def _slice_entries(
    sent: Broadcast[bytes] | None, through: Callable[[Batches], Batches], numbers: Batches
) -> Batches:
    """Yield this task's part of the slice, run through *through*."""
    # The input is read to its end: a task that leaves input behind costs its Python process.
    mine = [number for batch in numbers for number in batch.column(0).to_pylist()]
    source = pa.BufferReader(sent.value) if sent else pa.OSFile(_job_property(_FILE), "rb")
    with source, pa.ipc.open_file(source) as file:
        yield from through(iter([file.get_batch(number) for number in mine]))


def _job_property(name: str) -> str:
    context = TaskContext.get()
    found: str | None = context.getLocalProperty(name) if context else None
    if found is None:
        raise RuntimeError(f"the job has no property {name} (process {os.getpid()})")
    return found

"""The steps of a route as one Spark plan: runs of Python steps with queries between them."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from transporter.errors import RouteFault
from transporter.message import ENTRY_SCHEMA
from transporter.pipeline.steps.chain import compile_steps
from transporter.pipeline.steps.sql import SQL, SqlSettings
from transporter.process_limits import limit_process
from transporter.spark.job_failures import EntryFailed
from transporter.spark.slice_dataframes import ENTRIES, map_in_arrow
from transporter.spark.task_spec import spec_of
from transporter.worker.user_modules import provide_modules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame

    from transporter.pipeline.steps.step import StepConfig
    from transporter.protocol.messages import Ticket, WorkerSpec

    Batches = Iterator[pa.RecordBatch]
    Source = Callable[[Callable[[Batches], Batches], str], DataFrame]

VIEW: Final = "entries"
_TEXT: Final = ("key", "data")
_IS_TEXT: Final = "__transporter_is_text"
"""A column hidden from queries: whether key and data of the whole batch are UTF-8.

Arrow checks this many times faster than Spark. Spark checks a row's text only if Arrow has found
other bytes in its batch, and only if the query reaches that row.
"""
_MARKED: Final = f"{ENTRIES}, {_IS_TEXT} BOOLEAN"


def plan_steps(spec: WorkerSpec, ticket: Ticket, source: Source) -> DataFrame:
    """Return the frame of *source* after the steps of *spec*, which tasks request by *ticket*.

    Raises:
        RouteFault: a query drops ``offset``, or a column that Python needs after it.

    """
    numbers = groupby(range(len(spec.steps)), lambda number: _is_query(spec.steps[number]))
    runs = [(is_query, tuple(run)) for is_query, run in numbers]
    before = runs.pop(0)[1] if runs and not runs[0][0] else ()
    first = partial(_mark_text, partial(_run_steps, ticket, before))
    frame = source(first, _MARKED)
    for is_query, run in runs:
        if is_query:
            for number in run:
                frame = _apply_query(frame, spec.steps[number])
        else:
            ordered = as_entries(frame).sortWithinPartitions("offset")
            through = partial(_mark_text, partial(_run_steps, ticket, run))
            frame = map_in_arrow(ordered, through, _MARKED)
    return frame.drop(_IS_TEXT)


def as_entries(frame: DataFrame) -> DataFrame:
    """Return *frame* with the columns of ENTRY_SCHEMA and no others, ready for Python.

    Raises:
        RouteFault: a column is missing, unknown, or of a type that no message has.

    """
    wanted, found = ENTRY_SCHEMA.names, frame.columns
    if missing := [name for name in wanted if name not in found]:
        raise RouteFault(
            f"the query leaves out {', '.join(missing)}: a step in Python or its writer needs "
            "every column of a message; select them too"
        )
    if extra := [name for name in found if name not in wanted]:
        raise RouteFault(
            f"the query makes columns that no message has: {', '.join(extra)}; put them into the "
            "document: to_json(struct(…)) AS data"
        )
    return frame.select(*[_message_column(frame, name) for name in wanted])


def _is_query(step: StepConfig) -> bool:
    return step.name == SQL


def _apply_query(frame: DataFrame, step: StepConfig) -> DataFrame:
    settings = SqlSettings.model_validate(step.settings)
    _prepare_view(frame, settings).createOrReplaceTempView(VIEW)
    made = frame.sparkSession.sql(settings.query)
    if "offset" not in made.columns or not isinstance(made.schema["offset"].dataType, LongType):
        raise RouteFault(
            "the query must keep the column offset: it identifies the delivered entries; "
            f"it returns {', '.join(made.columns)}"
        )
    return made


def _prepare_view(frame: DataFrame, settings: SqlSettings) -> DataFrame:
    """Return *frame* prepared for the query of *settings*."""
    for name in _TEXT:
        if name in frame.columns and not settings.bytes_ and _has_type(frame, name, BinaryType):
            frame = frame.withColumn(name, _text_column(frame, name))
    if settings.schema_ is not None:
        # Data that does not fit fails, and its route's policy applies to it (Invariant 5).
        read = F.from_json(F.col("data"), settings.schema_, {"mode": "FAILFAST"})
        frame = frame.withColumn("data", read)
    return frame.drop(_IS_TEXT)


def _text_column(frame: DataFrame, name: str) -> Column:
    """Return the bytes of *name* as text. A row that is not text fails when it is read."""
    text = F.col(name).cast("string")
    checked = F.validate_utf8(text)
    if _IS_TEXT not in frame.columns:
        return checked
    return F.when(F.col(_IS_TEXT), text).otherwise(checked)


def _message_column(frame: DataFrame, name: str) -> Column:
    wanted = StructType.fromDDL(ENTRIES)[name].dataType
    if frame.schema[name].dataType == wanted:
        return F.col(name)
    if name in _TEXT and _has_type(frame, name, StringType):
        return F.col(name).cast("binary").alias(name)
    hint = "; write to_json(data) AS data" if name == "data" else ""
    raise RouteFault(
        f"the query makes {name} a {frame.schema[name].dataType.simpleString()}, "
        f"but messages have {wanted.simpleString()} there{hint}"
    )


def _has_type(frame: DataFrame, name: str, kind: type) -> bool:
    return isinstance(frame.schema[name].dataType, kind)


def _run_steps(ticket: Ticket, numbers: tuple[int, ...], batches: Batches) -> Batches:
    """Run *batches* through the steps with these *numbers*.

    The first entry that fails is named and fails the job.
    """
    spec = spec_of(ticket)
    try:
        yield from _apply_steps(spec, [spec.steps[number] for number in numbers], batches)
    except BaseException as error:
        # Spark writes our exceptions into its own log (Invariant 20).
        spec.secrets.hide_in(error)
        raise


def _mark_text(through: Callable[[Batches], Batches], batches: Batches) -> Batches:
    """Run *batches* through *through*, and mark in each result whether it is text."""
    for batch in through(batches):
        marks = pa.repeat(is_text(batch), batch.num_rows)
        yield pa.RecordBatch.from_arrays(
            [*batch.columns, marks], names=[*batch.schema.names, _IS_TEXT]
        )


def is_text(batch: pa.RecordBatch) -> bool:
    """Return whether every key and all data of *batch* are UTF-8."""
    try:
        for name in _TEXT:
            batch.column(name).cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _apply_steps(spec: WorkerSpec, steps: Sequence[StepConfig], batches: Batches) -> Batches:
    with (
        limit_process(spec.slice_timeout, spec.memory),
        # Without steps, no user code is imported and no folder is searched.
        provide_modules(Path(spec.folder), spec.modules)
        if steps
        else nullcontext(Path()) as folder,
    ):
        chain = compile_steps(steps, folder)
        last = bool(steps) and steps[-1] is spec.steps[-1]
        apply = chain.apply_before_failure if last else chain.run_through
        for batch in batches:
            made, failed = apply(entries_of(batch))
            if failed is not None:
                raise EntryFailed(failed.offset, spec.secrets.hide(failed.problem))
            yield made


def entries_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return *batch*, which comes from Spark, in ENTRY_SCHEMA."""
    if batch.schema.equals(ENTRY_SCHEMA):
        return batch
    table = pa.Table.from_batches([batch]).cast(ENTRY_SCHEMA).combine_chunks()
    found: list[pa.RecordBatch] = table.to_batches()
    return found[0] if found else ENTRY_SCHEMA.empty_table().to_batches()[0]

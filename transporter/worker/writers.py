"""A route's writer where it is made: in a worker, or in a task of Spark's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from transporter.accepts import apply_accepts
from transporter.adaptor import WriterContext
from transporter.pipeline.adaptor_registry import find_writer
from transporter.units import FOLDER

if TYPE_CHECKING:
    from transporter.adaptor import StoredOffset
    from transporter.log.runs import Runs
    from transporter.protocol.messages import WorkerSpec


def make_writer(spec: WorkerSpec, folder: Path) -> Any:  # noqa: ANN401 - a Writer or a DataFrameWriter
    """Return the writer of *spec*, not opened yet. Its module may be in *folder*."""
    kind = find_writer(spec.writer, folder)
    # Paths stay relative to the pipeline file, wherever its modules have been unpacked.
    beside = {FOLDER: Path(spec.folder)}
    return apply_accepts(kind(kind.Config.model_validate(spec.settings, context=beside)))


def context_of(spec: WorkerSpec, generation: int) -> WriterContext:
    """Return the context with which the writer of *spec* is opened."""
    return WriterContext(
        log_id=spec.log_id,
        route=spec.route,
        epoch=spec.epoch,
        generation=generation,
        shard=spec.shard,
        shards=spec.shards,
        # Below the watch's limit, so that a slow sink is a timeout and not a dead worker.
        deadline=spec.slice_timeout / 2,
        turns=spec.turns,
        run=spec.runs.current,
    )


def is_from_forgotten(stored: StoredOffset, runs: Runs, declared: int) -> bool:
    """Return whether a forgotten route of this name *stored* that during a replay.

    Generations are reused from the epoch on in which the route was *declared*. Entries that
    generation 0 stored are in the sink, whichever of the two routes it was.
    """
    return stored.generation > 0 and runs.is_run_before(stored.run, stored.epoch, declared)


def proven_offset(
    spec: WorkerSpec, stored: StoredOffset | None, generation: int, handed: int = -1
) -> int:
    """Return the offset up to which this shard's sink reports to have everything, or -1.

    A report counts only if the log's own history proves it (Invariant 5). *handed* is the
    last offset that was handed to workers since *spec* was made.
    """
    if stored is None or not spec.runs.has_offset(
        stored.run, stored.epoch, stored.offset, max(handed, spec.handed)
    ):
        return -1
    if is_from_forgotten(stored, spec.runs, spec.declared):
        return -1
    told = (stored.log_id, stored.route, stored.generation, stored.shard, stored.shards)
    mine = (spec.log_id, spec.route, generation, spec.shard, spec.shards)
    return stored.offset if told == mine else -1

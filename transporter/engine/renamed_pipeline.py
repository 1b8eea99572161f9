"""Changes of the pipeline's name: recorded in its log, and logs that it left behind."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from transporter.errors import TransporterError
from transporter.log.lock import owner_of
from transporter.log.meta import published_offset
from transporter.log.pipeline_record import (
    PipelineRecord,
    read_pipeline_record,
    write_pipeline_record,
)
from transporter.offsets.offset_log import declared_routes, read_state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.engine.events import Observer
    from transporter.log.filesystem import FileSystem
    from transporter.pipeline.config import Pipeline


def record_names(pipeline: Pipeline, files: FileSystem, observe: Observer) -> None:
    """Record the pipeline's name in its log, and report logs that a change of it left behind."""
    directory = pipeline.log.dir
    record = PipelineRecord(pipeline.name, str(pipeline.file))
    before = read_pipeline_record(files, directory)
    if before is not None and before.name != record.name:
        observe("pipeline-renamed", before=before.name, name=record.name)
    if before != record:
        # A disk without room must not keep an engine from delivering.
        with suppress(OSError):
            write_pipeline_record(files, directory, record)
    for left, name, entries in _find_left_behind(files, directory, record.file):
        observe("log-left-behind", log=str(left), name=name, undelivered=entries)


def _find_left_behind(
    files: FileSystem, directory: Path, file: str
) -> Iterator[tuple[Path, str, int]]:
    """Find the logs beside *directory* on which the pipeline in *file* ran, and that hold more.

    Each with the name that the pipeline had, and how many offsets its furthest route lacks.
    """
    beside: list[Path] = []
    with suppress(OSError):
        # Files of other users are ignored, because they may be made to block us.
        ours = (each for each in directory.parent.iterdir() if each.lstat().st_uid == os.geteuid())
        beside = sorted(each for each in ours if each != directory and each.is_dir())
    for each in beside:
        found = read_pipeline_record(files, each)
        if found is None or found.file != file:
            continue
        # A log that cannot be read, or is in use, is skipped.
        with suppress(OSError, TransporterError):
            last = published_offset(files, each)
            marks = [read_state(each, route, files).watermark for route in declared_routes(each)]
            if owner_of(each) is None and last is not None and marks and min(marks) < last:
                yield each, found.name, last - min(marks)

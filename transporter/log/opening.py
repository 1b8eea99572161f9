"""Opening a log directory: begin a new log, or recover the existing one.

Afterwards the last segment may be extended (Invariant 13), its header and all before it
were checked, and ``meta`` records that durably.
"""

from __future__ import annotations

import secrets
import uuid
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from transporter.errors import Corrupt, EnvironmentFault
from transporter.log import format as layout
from transporter.log.filesystem import NO_SPACE, TEMPORARY, SyncFailed
from transporter.log.index import index_path, make_index
from transporter.log.meta import Meta, read_meta, write_meta
from transporter.log.recovery import copy_tail, last_covered_offset, survey
from transporter.log.reserve import ensure_reserve, free_reserve
from transporter.log.runs import Runs
from transporter.log.segment import (
    Segment,
    base_of,
    segment_bases,
    segment_name,
    stray_files,
    write_segment,
)

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.log.filesystem import FileSystem


def prepare_log(files: FileSystem, directory: Path, proved: int, now: int) -> Meta:
    """Recover the log or begin a new one. Afterwards the last segment may be extended."""
    _refuse_blocked_names(files, directory)
    _remove_temporaries(files, directory)
    try:
        meta = _recover_or_create(files, directory, proved, now)
    except OSError as error:
        if isinstance(error, SyncFailed) or error.errno not in NO_SPACE:
            raise
        free_reserve(files, directory)
        meta = _recover_or_create(files, directory, proved, now)
    ensure_reserve(files, directory)
    return meta


def _refuse_blocked_names(files: FileSystem, directory: Path) -> None:
    """Refuse a folder or other file with the name of a segment, because a roll could reach it."""
    for stray in stray_files(files, directory):
        if base_of(stray.name) is not None:
            raise EnvironmentFault(
                f"{directory / stray.name}: not a regular file, but it has a segment's name; "
                "move it out of the log directory"
            )


def _remove_temporaries(files: FileSystem, directory: Path) -> None:
    """Remove incomplete files of a crash. One of a segment may be as large as the segment."""
    for name in files.names(directory):
        if name.endswith(TEMPORARY) and files.is_file(directory / name):
            files.remove(directory / name)


def _recover_or_create(files: FileSystem, directory: Path, proved: int, now: int) -> Meta:
    meta = read_meta(files, directory)
    bases = segment_bases(files, directory)
    if meta is None:
        _refuse_without_meta(files, directory, bases)
        return _create_log(files, directory, now)
    if not bases:
        raise Corrupt("the log has a meta file but no segment", str(directory))
    _check_chain(files, directory, bases, meta)
    meta = replace(meta, epoch=meta.epoch + 1)
    segment = Segment(files, directory / segment_name(bases[-1]))
    try:
        found = survey(files, segment, max(proved, meta.proved), meta.clean)
        if not found.clean:
            path = copy_tail(
                files,
                segment,
                found,
                segment_id=secrets.randbits(63),
                epoch=meta.epoch,
                created_at=now,
            )
            # A new name may need a block, which only the reserve has on a full disk.
            make_index(files, path)
    finally:
        segment.close()
    # Cleared before the first append. The proof itself stays (Invariant 3).
    runs = meta.runs.begin(meta.epoch, found.last + 1)
    meta = replace(meta, clean=None, proved=found.last, runs=runs)
    write_meta(files, directory, meta)
    return meta


def _refuse_without_meta(files: FileSystem, directory: Path, bases: list[int]) -> None:
    """Allow only the remains of a crash while creating a log: at most one empty segment."""
    if not bases:
        return
    segment = Segment(files, directory / segment_name(bases[0]))
    try:
        if bases != [0] or next(segment.frames(), None) is not None:
            raise Corrupt("this log's meta file is missing; restore it", str(directory))
    finally:
        segment.close()


def _create_log(files: FileSystem, directory: Path, now: int) -> Meta:
    log_id = uuid.uuid4()
    header = layout.SegmentHeader(
        log_id=log_id.bytes,
        segment_id=secrets.randbits(63),
        base=0,
        previous=-1,
        next_offset=0,
        epoch=1,
        created_at=now,
    )
    # Segment first: a log without meta that holds only an empty segment 0 is begun again.
    path = write_segment(files, directory, header)
    files.remove(index_path(path))
    meta = Meta(log_id=str(log_id), epoch=1, proved=-1, runs=Runs().begin(1, 0))
    write_meta(files, directory, meta)
    return meta


def _check_chain(files: FileSystem, directory: Path, bases: list[int], meta: Meta) -> None:
    """Refuse a log whose segments do not join or do not belong together."""
    covered: int | None = -1
    for base in bases:
        with closing(Segment(files, directory / segment_name(base))) as segment:
            header = segment.header
            if str(uuid.UUID(bytes=header.log_id)) != meta.log_id:
                raise Corrupt("this segment belongs to another log", str(segment.path), 16)
            if base != bases[0] and covered is not None and covered < header.previous:
                raise Corrupt("the segment before it is missing", str(segment.path), 0, covered + 1)
            if base != bases[-1]:
                covered = last_covered_offset(files, segment)

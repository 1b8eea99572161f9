"""Read-only inspection of a log directory, without the lock, changes or recovery."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transporter.errors import EnvironmentFault
from transporter.log.filesystem import RealFileSystem, open_file
from transporter.log.lock import owner_of
from transporter.log.meta import published_offset, read_meta
from transporter.log.reader import MAX_LISTINGS
from transporter.log.recovery import survey
from transporter.log.segment import Segment, segment_bases, segment_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.log.filesystem import FileSystem


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment: its file name, base offset, length in bytes and time of creation (µs UTC)."""

    name: str
    base: int
    size: int
    created_at: int


@dataclass(frozen=True, slots=True)
class LogInfo:
    """Summary of a log directory.

    Attributes:
        last: the last readable offset (-1: none).
        confirmed: the last offset that was proved durable. Entries behind it are readable,
            but after an unclean stop and before the next start they are not promised.
        owner: the pid of the engine that runs on the log, if one does.

    """

    directory: Path
    log_id: str
    epoch: int
    first: int
    last: int
    confirmed: int
    owner: str | None
    segments: tuple[SegmentInfo, ...]

    @property
    def size(self) -> int:
        """Bytes of all segment files, including preallocated bytes."""
        return sum(segment.size for segment in self.segments)


def segments_size(directory: Path, files: FileSystem | None = None) -> int:
    """Return the bytes of all segment files in *directory*, including preallocated bytes."""
    files = files or RealFileSystem()
    total = 0
    for base in segment_bases(files, directory):
        # Retention may have removed the segment since it was listed.
        with suppress(FileNotFoundError), open_file(files, directory / segment_name(base)) as file:
            total += file.size()
    return total


def inspect(directory: Path, proved: int = -1, files: FileSystem | None = None) -> LogInfo:
    """Inspect the log in *directory*. *proved* is the highest offset of its offset logs.

    Raises:
        EnvironmentFault: there is no log.
        Corrupt: the last segment is damaged at or below its floor.

    """
    files = files or RealFileSystem()
    for _ in range(MAX_LISTINGS):
        # An engine that starts meanwhile may roll and remove the last segment: try again.
        with suppress(FileNotFoundError):
            return _inspect_once(files, directory, proved)
    raise EnvironmentFault(
        f"{directory}: its segments are removed faster than they can be read; try again"
    )


def _inspect_once(files: FileSystem, directory: Path, proved: int) -> LogInfo:
    # Read the owner first: an engine that stops meanwhile leaves a log at least as long.
    owner = owner_of(directory)
    meta = read_meta(files, directory)
    bases = segment_bases(files, directory)
    if meta is None or not bases:
        raise EnvironmentFault(
            f"{directory}: no transporter log here. Either the pipeline has not run yet, or its "
            "log is in another folder; give that folder, or see log.dir and name in the file"
        )
    segments = tuple(_segment_infos(files, directory, bases))
    last, confirmed = _last_and_confirmed(
        files, directory, bases[-1], proved, running=owner is not None
    )
    return LogInfo(
        directory=directory,
        log_id=meta.log_id,
        epoch=meta.epoch,
        first=segments[0].base,
        last=last,
        confirmed=confirmed,
        owner=owner,
        segments=segments,
    )


def _last_and_confirmed(
    files: FileSystem, directory: Path, base: int, proved: int, *, running: bool
) -> tuple[int, int]:
    """Return the last readable offset and the last confirmed one (Invariant 12)."""
    meta = read_meta(files, directory)
    if running and meta and (offset := published_offset(files, directory, meta.epoch)) is not None:
        return offset, offset
    segment = Segment(files, directory / segment_name(base))
    try:
        found = survey(files, segment, max(proved, meta.proved if meta else -1), None)
    finally:
        segment.close()
    return found.last, found.floor


def _segment_infos(files: FileSystem, directory: Path, bases: list[int]) -> Iterator[SegmentInfo]:
    for base in bases:
        try:
            with closing(Segment(files, directory / segment_name(base))) as segment:
                created_at = segment.header.created_at
                yield SegmentInfo(segment.path.name, base, segment.size(), created_at)
        except FileNotFoundError:
            # Retention may have removed it since it was listed. The result then leaves it out.
            if base == bases[-1]:
                raise

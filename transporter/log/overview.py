"""Read-only overview of the segments of a log, for operators: offsets, times, gaps."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transporter.errors import Corrupt
from transporter.log.filesystem import RealFileSystem, translate_os_errors
from transporter.log.index import nearest_byte
from transporter.log.reader import Gap, LogReader
from transporter.log.segment import Segment, segment_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.log.filesystem import FileSystem


@dataclass(frozen=True, slots=True)
class SegmentOverview:
    """One segment, which covers the offsets ``base`` to ``last``, unless ``last`` is below.

    Attributes:
        oldest: the log time of the first entry, µs UTC; ``None`` if it is not known.
        newest: the log time of the last entry, µs UTC; ``None`` if it is not known.
        gaps: the gaps right before its base, or where recovery moved frames into it.
        dropped: the number of its entries that compaction has dropped.

    """

    name: str
    base: int
    last: int
    size: int
    sealed: bool
    epoch: int
    created_at: int
    oldest: int | None
    newest: int | None
    gaps: tuple[Gap, ...]
    dropped: int


def describe_segments(
    directory: Path, bases: list[int], last: int, files: FileSystem | None = None
) -> list[SegmentOverview]:
    """Describe the segments at *bases* (ascending), the newest of which covers up to *last*.

    A segment that was removed meanwhile is left out.
    """
    files = files or RealFileSystem()
    found: list[SegmentOverview] = []
    with translate_os_errors(directory), LogReader(directory, files) as reader:
        for base in reversed(bases):
            with (
                suppress(FileNotFoundError),
                closing(Segment(files, directory / segment_name(base))) as segment,
            ):
                found.append(_describe(files, segment, last, reader))
                last = segment.header.previous
    return found[::-1]


def _describe(files: FileSystem, segment: Segment, last: int, reader: LogReader) -> SegmentOverview:
    header, trailer = segment.header, segment.trailer()
    first = segment.frame_at(segment.first_byte)
    if first is None or first.first > last:
        oldest = newest = None
    else:
        oldest = first.logged_at
        newest = trailer.newest if trailer is not None else _newest_time(reader, last)
    return SegmentOverview(
        name=segment.path.name,
        base=header.base,
        last=last,
        size=segment.size(),
        sealed=trailer is not None,
        epoch=header.epoch,
        created_at=header.created_at,
        oldest=oldest,
        newest=newest,
        gaps=tuple(_declared_gaps(files, segment)),
        dropped=reader.count_dropped(header.base, last),
    )


def _newest_time(reader: LogReader, last: int) -> int | None:
    # A reader of the entries reports the damage. Here only the time is missing.
    with suppress(Corrupt):
        return next(found.frame.logged_at for found in reader.frames_backwards(last))
    return None


def _declared_gaps(files: FileSystem, segment: Segment) -> Iterator[Gap]:
    header = segment.header
    if header.previous + 1 < header.base:
        yield Gap(header.previous + 1, header.base - 1, lost=header.lost)
    if header.base < header.next_offset:
        moved = header.base - 1
        for frame in segment.frames(nearest_byte(files, segment, header.next_offset - 1)):
            if frame.first >= header.next_offset:
                break
            moved = frame.last
        if moved + 1 < header.next_offset:
            yield Gap(moved + 1, header.next_offset - 1, lost=False)

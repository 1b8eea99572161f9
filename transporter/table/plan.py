"""The offsets that a query reads, and their division into tasks.

Reads headers and indexes only, takes no lock, and never reads beyond the confirmed offset
(Invariant 12).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from transporter.errors import EntriesLost, EnvironmentFault, OffsetRefused
from transporter.log.filesystem import RealFileSystem, translate_os_errors
from transporter.log.index import block_starts
from transporter.log.meta import read_meta
from transporter.log.reader import LogReader
from transporter.log.search import END, offsets_around
from transporter.log.segment import Segment, segment_bases, segment_name
from transporter.offsets.offset_log import inspect_log
from transporter.table.options import Moment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.log.filesystem import FileSystem
    from transporter.log.inspection import LogInfo
    from transporter.table.options import Options, Place


class TablePart(NamedTuple):
    """The offsets, both included, that one task reads."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """A part of the log: offsets from ``first`` to ``last``, log times ``since`` to ``until``.

    All are included. Times are in µs UTC. With ``offsets`` only these, ascending.
    """

    first: int = 0
    last: int = END
    since: int = 0
    until: int = END
    offsets: tuple[int, ...] | None = None

    def intersect(self, other: OffsetBounds) -> OffsetBounds:
        """Return the intersection of both."""
        known = [each for each in (self.offsets, other.offsets) if each is not None]
        offsets = sorted(set(known[0]).intersection(*known)) if known else None
        return OffsetBounds(
            max(self.first, other.first),
            min(self.last, other.last),
            max(self.since, other.since),
            min(self.until, other.until),
            None if offsets is None else tuple(offsets),
        )


def read_log_info(directory: Path) -> LogInfo:
    """Inspect the log in *directory*.

    Raises:
        EnvironmentFault: there is no log.
        Corrupt: its last segment is damaged.

    """
    with translate_os_errors(directory):
        if read_meta(RealFileSystem(), directory) is None:
            raise EnvironmentFault(
                f"{directory}: no transporter log here; load() takes the log directory of a "
                "pipeline, its log.dir"
            )
        return inspect_log(directory)


def bounds_of(options: Options) -> OffsetBounds:
    """Return the bounds from the options ``from`` and ``to``."""
    first, since = _place_bounds(options.start, 0)
    last, until = _place_bounds(options.end, OffsetBounds().last)
    return OffsetBounds(
        first, last, since, until if isinstance(options.end, Moment) else OffsetBounds().until
    )


def _place_bounds(place: Place | None, default: int) -> tuple[int, int]:
    """Return *place* as an offset and a time, one of which is no bound."""
    if isinstance(place, Moment):
        return default, place.time
    return (default if place is None else place), 0


def plan_parts(options: Options, bounds: OffsetBounds) -> list[TablePart]:
    """Divide the confirmed part of *bounds* into tasks of about ``partition_bytes``.

    Raises:
        EntriesLost: a repair could not save some of it, and the options do not allow that.

    """
    found = read_log_info(options.directory)
    first, last = max(found.first, bounds.first), min(found.confirmed, bounds.last)
    if bounds.since > OffsetBounds().since:
        first = max(first, offsets_around(options.directory, bounds.since)[0])
    if bounds.until < OffsetBounds().until:
        last = min(last, offsets_around(options.directory, bounds.until + 1)[1])
    if options.fail_on_loss:
        refuse_lost(options.directory, first, last)
    parts = split_offsets(options.directory, first, last, options.partition_bytes)
    return [kept for part in parts if (kept := _narrow_to_offsets(part, bounds.offsets))]


def refuse_lost(directory: Path, first: int, last: int) -> None:
    """Raise :class:`EntriesLost` if a repair could not save all from *first* to *last*."""
    with LogReader(directory) as reader:
        gap = reader.lost_gap(first, last)
    if gap is not None:
        raise EntriesLost(
            f"{directory}: offsets {gap.first}..{gap.last} were lost: a repair could not save "
            "them; set the option failOnDataLoss to false to read without them"
        )


def first_present_offset(options: Options, first: int) -> int:
    """Return *first*, or the oldest offset in the log if that is higher.

    Raises:
        OffsetRefused: entries from *first* on are gone, and the options do not allow that.

    """
    with LogReader(options.directory) as reader:
        oldest = reader.first_offset()
    if oldest > first and options.fail_on_loss:
        raise OffsetRefused(
            f"{options.directory}: offsets {first}..{oldest - 1} were removed before this query "
            f"read them: the log is retained from {oldest}; set the option failOnDataLoss to "
            "false to continue there"
        )
    return max(first, oldest)


def split_offsets(
    directory: Path, first: int, last: int, size: int, files: FileSystem | None = None
) -> list[TablePart]:
    """Divide the offsets from *first* to *last* at frames, about *size* bytes on the disk each.

    A part has at least the size of the index's stride, and at least one frame.
    """
    if last < first:
        return []
    files = files or RealFileSystem()
    starts = [first]
    held = 0
    with translate_os_errors(directory):
        for offset, length in _offset_blocks(files, directory, first, last):
            # What recovery moved to the next segment may begin a block in both.
            if held >= size and starts[-1] < offset <= last:
                starts.append(offset)
                held = 0
            held += length
    return [TablePart(start, end - 1) for start, end in pairwise([*starts, last + 1])]


def _offset_blocks(
    files: FileSystem, directory: Path, first: int, last: int
) -> Iterator[tuple[int, int]]:
    """Yield the first offset and the size of each block of about an index's stride."""
    bases = segment_bases(files, directory)
    begin = max(0, bisect_right(bases, first) - 1)
    for base in bases[begin : bisect_right(bases, last)]:
        try:
            with closing(Segment(files, directory / segment_name(base))) as segment:
                found = list(_segment_blocks(files, segment))
        except FileNotFoundError:
            continue  # removed since it was listed: the reader of its part reports it
        # Bytes before the first block of interest do not count for any task.
        at = max(0, bisect_right(found, first, key=lambda block: block[0]) - 1)
        yield from (block for block in found[at:] if block[0] <= last)


def _segment_blocks(files: FileSystem, segment: Segment) -> Iterator[tuple[int, int]]:
    starts = block_starts(files, segment)
    for byte, end in pairwise([*starts, segment.size()]):
        frame = segment.frame_at(byte)
        if frame is not None:
            yield frame.first, end - byte


def _narrow_to_offsets(part: TablePart, offsets: tuple[int, ...] | None) -> TablePart | None:
    """Narrow *part* to those *offsets* that lie in it; return ``None`` if none does."""
    if offsets is None:
        return part
    inside = offsets[bisect_left(offsets, part.first) : bisect_right(offsets, part.last)]
    return TablePart(inside[0], inside[-1]) if inside else None

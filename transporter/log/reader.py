"""Reader of the log by offsets: slices for routes and workers, views for operators.

Takes no lock and changes nothing, so it works beside a running engine and from other
processes. It never looks beyond the durable offset that it is given.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from transporter.errors import Corrupt, EnvironmentFault, OffsetRefused
from transporter.log.filesystem import RealFileSystem, translate_os_errors
from transporter.log.format import MAX_OFFSET
from transporter.log.index import block_starts, nearest_byte
from transporter.log.open_segments import open_segments
from transporter.log.segment import (
    MisplacedSegment,
    Segment,
    SegmentEnd,
    segment_bases,
    segment_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.filesystem import FileSystem
    from transporter.log.format import FrameHeader, Source

MAX_LISTINGS: Final = 1000
"""Most times in a row that segments may vanish between being listed and being opened."""


class LocatedFrame(NamedTuple):
    """A frame and its segment, which stays open with it.

    ``trusted`` is true if this run of the engine wrote the frame.
    """

    segment: Segment
    frame: FrameHeader
    trusted: bool = False

    def entries(self) -> pa.RecordBatch:
        """Return the frame's entries, verified."""
        with translate_os_errors(self.segment.path, reading=True):
            return self.segment.entries(self.frame, trusted=self.trusted)

    def entries_within(self, first: int, last: int) -> pa.RecordBatch:
        """Return the frame's entries from *first* to *last*, verified."""
        return clip_entries(self.entries(), self.frame, first, last)

    def source(self) -> Source | None:
        """Return the reader of the frame, with its position."""
        with translate_os_errors(self.segment.path, reading=True):
            return self.segment.source(self.frame)


def clip_entries(
    entries: pa.RecordBatch, frame: FrameHeader, first: int, last: int
) -> pa.RecordBatch:
    """Return the *entries* of *frame* that lie from *first* to *last*."""
    if frame.first >= first and frame.last <= last:
        return entries
    offsets = entries.column("offset").to_pylist()
    start = bisect_left(offsets, first)
    return entries.slice(start, bisect_right(offsets, last) - start)


def dropped_text(count: int) -> str:
    """Return a text for people that compaction has dropped *count* entries."""
    return f"compaction has dropped {count} {'entry' if count == 1 else 'entries'}"


class Append(NamedTuple):
    """What a slice has of one append: entries up to offset ``last``, and their log time (µs)."""

    last: int
    entries: int
    logged_at: int

    def split(self, through: int) -> tuple[Append, Append]:
        """Return the part up to *through*, and the rest; there is no gap within."""
        rest = min(self.entries, self.last - through)
        return self._replace(last=through, entries=self.entries - rest), self._replace(entries=rest)


class Gap(NamedTuple):
    """The offsets before a segment that the log does not hold, as its header declares."""

    first: int
    last: int
    lost: bool


@dataclass(slots=True)
class _Cursor:
    """Place of the last known frame that begins at or behind ``offset``.

    Valid in the segment of this id only, because another file of its base has other places.
    """

    segment_id: int
    byte: int
    offset: int


class LogReader:
    """Reader of entries of one log directory. Not thread-safe: use one reader per thread.

    Segments are kept open by :class:`OpenSegments`, for all readers of the process.
    """

    def __init__(
        self, directory: Path, files: FileSystem | None = None, trusted_from: int | None = None
    ) -> None:
        """Open nothing yet. Segments are opened when they are needed.

        Offsets from *trusted_from* on were written by this run of the engine, and are trusted once
        their checksum matches. ``None`` means that there are none.
        """
        self.directory = directory
        self.files = files or RealFileSystem()
        self._trusted_from = MAX_OFFSET if trusted_from is None else trusted_from
        self._bases: list[int] = []
        self._segments, self._registered = open_segments(self.files), False
        self._paths: dict[int, Path] = {}
        self._gaps: dict[int, Gap] = {}
        self._ends: dict[int, int] = {}
        self._lost: list[Gap] = []
        self._cursor: _Cursor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the shared open segments."""
        if self._registered:
            self._registered = False
            self._segments.remove_user()

    def clear_cache(self) -> None:
        """Discard all cached state of the directory, because its files may have been replaced."""
        self._segments.clear()
        self._bases, self._lost, self._cursor = [], [], None
        self._gaps.clear()
        self._ends.clear()

    def close_removed(self) -> None:
        """Close segments that were removed, now and then. For users that read nothing for long."""
        self._segments.sweep_if_due()

    def first_offset(self) -> int:
        """Return the oldest offset that the log still holds."""
        with translate_os_errors(self.directory, reading=True):
            self._refresh()
        return self._bases[0] if self._bases else 0

    def lost_gap(self, first: int, last: int) -> Gap | None:
        """Return the first gap in *first* to *last* whose entries a repair could not save."""
        if not self._bases:
            with translate_os_errors(self.directory, reading=True):
                self._refresh()
        overlapping = (gap for gap in self._lost if gap.first <= last and gap.last >= first)
        return next(overlapping, None)

    def count_dropped(
        self, first: int, last: int, progress: Callable[[int], object] = lambda _: None
    ) -> int:
        """Count the entries from *first* to *last* that compaction has dropped.

        Offsets that a frame header covers without an entry were dropped. Not counted are entries
        that retention has removed, and those behind damage in their segment. *progress* is called
        with each offset up to which frames were examined, and may raise.

        Raises:
            Corrupt: a frame that reaches over *first* or *last* is damaged.
            EnvironmentFault: the disk cannot be read.

        """
        with translate_os_errors(self.directory, reading=True):
            if not self._bases:
                self._refresh()
            covered = [
                base for base in self._bases if base <= last and self._last_of(base) >= first
            ]
            return sum(self._count_dropped_in(base, first, last, progress) for base in covered)

    def _count_dropped_in(
        self, base: int, first: int, last: int, progress: Callable[[int], object]
    ) -> int:
        if (segment := self._segment_at(base)) is None:
            return 0
        total, last = 0, min(last, self._last_of(base), self._last_moved_offset(segment))
        for frame in segment.frames(self._start_byte(segment, max(first, base))):
            if frame.first > last:
                break
            progress(frame.last)
            begin, end = max(first, frame.first), min(last, frame.last)
            held = frame.count
            if begin > end or held > frame.last - frame.first:
                continue
            if (begin, end) != (frame.first, frame.last):
                held = LocatedFrame(segment, frame).entries_within(begin, end).num_rows
            total += end - begin + 1 - held
        return total

    def _last_moved_offset(self, segment: Segment) -> int:
        """Return the last offset of *segment* whose frame compaction may have written.

        Such a frame proves no offset of its own segment durable. A frame that proves one was
        appended here, and so were all others that no recovery or repair has moved here before.
        """
        base, following = segment.header.base, segment.header.next_offset
        frame = segment.frame_at(self._start_byte(segment, MAX_OFFSET))
        return following - 1 if frame is not None and frame.durable >= base else MAX_OFFSET

    def reader_of(self, offset: int) -> str | None:
        """Return the reader of *offset*, if its frame names one. Raises as :meth:`frames` does."""
        source = next(self.frames(offset, offset)).source()
        return source.reader if source is not None else None

    def frames(self, first: int, last: int) -> Iterator[LocatedFrame]:
        """Yield the frames that hold the offsets *first* to *last*, in order.

        *last* must be durable, and nothing beyond it is read.

        Raises:
            OffsetRefused: the log does not hold *first* any more.
            Corrupt: a frame is damaged or missing.
            EnvironmentFault: the disk cannot be read.

        """
        with translate_os_errors(self.directory, reading=True):
            wanted = first
            while wanted <= last:
                base = self._base_of(wanted)
                if (segment := self._segment_at(base)) is None:
                    continue
                for found in self._frames_of(segment, wanted, min(last, self._last_of(base))):
                    yield found
                    wanted = found.frame.last + 1
                if wanted <= last:
                    wanted = self._next_readable(base, wanted)

    def read(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Yield the entries from *first* to *last*, one batch per frame. See :meth:`frames`."""
        for found in self.frames(first, last):
            yield found.entries_within(first, last)

    def slice_end(
        self, first: int, last: int, rows: int, size: int, appends: list[Append] | None = None
    ) -> int:
        """Return the last offset of a slice from *first* of at most *rows* and about *size* bytes.

        The bytes are those in memory, not on the disk (Invariant 17). The slice has at least one
        frame, or its allowed *rows*, and never reaches beyond *last*. The slice's part of each
        frame is added to *appends*.
        """
        taken = appends if appends is not None else []
        reached = first - 1
        total = count = 0
        for _, frame, _ in self.frames(first, last):
            begin, end = max(frame.first, first), min(frame.last, last)
            # A compacted frame covers more offsets than it holds entries.
            held = min(frame.count, end - begin + 1)
            total += frame.entries_bytes
            if total > size and reached >= first:
                return reached
            if count + held > rows:
                reached = begin + rows - count - 1
                if count < rows:
                    taken.append(Append(reached, rows - count, frame.logged_at))
                return reached
            taken.append(Append(end, held, frame.logged_at))
            reached, count = end, count + held
        return last

    def frames_backwards(
        self, last: int, skip_block: Callable[[LocatedFrame], bool] | None = None
    ) -> Iterator[LocatedFrame]:
        """Yield the frames up to *last*, newest first.

        *skip_block* is called with the first frame of each block of about 1 MiB, newest first, and
        returns whether to skip the block. An exception that it raises ends the walk.

        Raises:
            Corrupt: a frame is damaged or missing.
            EnvironmentFault: the disk cannot be read.

        """
        with translate_os_errors(self.directory, reading=True):
            yield from self._frames_backwards(last, skip_block)

    def _frames_backwards(
        self, last: int, skip_block: Callable[[LocatedFrame], bool] | None
    ) -> Iterator[LocatedFrame]:
        self._refresh()
        for base in reversed([base for base in self._bases if base <= last]):
            if (segment := self._segment_at(base)) is None:
                # Removed segments are always the oldest.
                return
            starts = block_starts(self.files, segment)
            ends: list[int | None] = [*starts[1:], None]
            limit = min(last, self._last_of(base))
            for start, end in zip(reversed(starts), reversed(ends), strict=True):
                first = next(segment.frames(start), None) if skip_block else None
                if first is not None and first.first > limit:
                    continue  # A recovery has moved it. What is left of it here may be torn.
                if first is None or not skip_block or not skip_block(LocatedFrame(segment, first)):
                    yield from reversed(list(_block_frames(segment, start, end, limit)))

    def _frames_of(self, segment: Segment, first: int, last: int) -> Iterator[LocatedFrame]:
        for frame in segment.frames(self._start_byte(segment, first)):
            if frame.first > last:
                return
            if frame.last >= first:
                yield LocatedFrame(segment, frame, frame.first >= self._trusted_from)
            self._cursor = _Cursor(segment.header.segment_id, frame.end, frame.last + 1)
            if frame.last >= last:
                return

    def _start_byte(self, segment: Segment, offset: int) -> int:
        cursor = self._cursor
        if cursor and (cursor.segment_id, cursor.offset) == (segment.header.segment_id, offset):
            return cursor.byte
        return nearest_byte(self.files, segment, offset)

    def _base_of(self, offset: int) -> int:
        if not self._bases or offset > self._last_of(self._bases[-1]):
            self._refresh()
        at = bisect_right(self._bases, offset) - 1
        if at < 0:
            if not self._bases:
                raise OffsetRefused(
                    f"{self.directory}: offset {offset} is not in the log, which has no segments"
                )
            raise OffsetRefused(
                f"{self.directory}: offset {offset} is no longer in the log; "
                f"it is retained from {self._bases[0]}"
            )
        return self._bases[at]

    def _segment_at(self, base: int) -> Segment | None:
        """Return the segment at *base*. If it was removed, list again and return ``None``."""
        if not self._registered:
            self._registered = True
            self._segments.add_user()
        try:
            return self._segments.get(self._path(base))
        except FileNotFoundError:
            self._gaps.pop(base, None)
            self._refresh()
        return None

    def _last_of(self, base: int) -> int:
        """Return the last offset that this segment is known to cover."""
        return self._ends.get(base, (1 << 63) - 1)

    def _next_readable(self, base: int, missing: int) -> int:
        """Return the next offset to read if the segment at *base* has no frame for *missing*.

        Only offsets of frames that recovery cut may be missing. Then the next frame begins behind
        them, or they lie behind the segment's end, as the next header declares.
        """
        self._refresh()
        segment = self._segment_at(base) if base in self._bases else None
        if segment is None:
            # Removed while it was being read: the entries behind it may be gone too, or not.
            return missing
        if missing > self._last_of(base):
            return max(missing, self._bases[bisect_right(self._bases, base)])
        byte = self._start_byte(segment, missing)
        for frame in segment.frames(byte):
            if frame.last >= missing:
                # It holds *missing* if a recovery has replaced the file that was open.
                return max(missing, frame.first)
            byte = frame.end
        raise _missing_frame(segment, byte, missing)

    def _refresh(self) -> None:
        self._segments.sweep()
        # Segments may be removed between being listed and being opened: list them again.
        if not any(self._list_segments() for _ in range(MAX_LISTINGS)):
            raise EnvironmentFault(
                f"{self.directory}: its segments are listed, but cannot be opened; check the "
                "file names and the file system of this directory"
            )
        # All readers ignore bytes behind this end (Invariant 13).
        self._ends = {one: self._gaps[other].first - 1 for one, other in pairwise(self._bases)}
        self._lost = [gap for gap in map(self._gaps.__getitem__, self._bases) if gap.lost]

    def _list_segments(self) -> bool:
        """List the segments. Return false if one of them no longer exists."""
        gaps = {}
        try:
            for base in segment_bases(self.files, self.directory):
                gap = self._gaps.get(base) or self._gap_before(base)
                if gap is not None:
                    gaps[base] = gap
        except FileNotFoundError:
            return False
        self._bases, self._gaps = list(gaps), gaps
        self._paths.clear()
        return True

    def _gap_before(self, base: int) -> Gap | None:
        """Return the gap that the segment at *base* declares, or ``None`` if it is misplaced."""
        try:
            with closing(Segment(self.files, self._path(base))) as segment:
                header = segment.header
        except MisplacedSegment:
            # The engine names it at its next start.
            return None
        return Gap(header.previous + 1, base - 1, lost=header.lost)

    def _path(self, base: int) -> Path:
        """Return a segment's path, cached because making it costs as much as a look-up by it."""
        if (path := self._paths.get(base)) is None:
            path = self._paths[base] = self.directory / segment_name(base)
        return path


def _block_frames(
    segment: Segment, start: int, end: int | None, last: int
) -> Iterator[LocatedFrame]:
    byte, covered = start, -1
    for frame in segment.frames(start):
        if frame.first > last or (end is not None and frame.byte >= end):
            return
        yield LocatedFrame(segment, frame)
        byte, covered = frame.end, frame.last
    if covered < last and byte != end and segment.stop_at(byte).end is SegmentEnd.BAD:
        raise _missing_frame(segment, byte, max(covered + 1, segment.header.base))


def _missing_frame(segment: Segment, byte: int, offset: int) -> Corrupt:
    return Corrupt("no valid frame where one was written", str(segment.path), byte, offset)

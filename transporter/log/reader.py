"""Reading the log by offsets: slices for routes and workers, views for operators.

Takes no lock and changes nothing, so it works beside a running engine and from
other processes: it never looks beyond the durable offset it is given.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from transporter.errors import Corrupt, OffsetRefused
from transporter.log.filesystem import RealFileSystem, faults_of
from transporter.log.index import blocks, nearest
from transporter.log.segment import End, Segment, segment_bases, segment_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.filesystem import FileSystem
    from transporter.log.format import FrameHeader, Source

OPEN_SEGMENTS: Final = 16
"""Segments a reader keeps open: those it read last."""


class Located(NamedTuple):
    """A frame and the segment that holds it, for as long as its reader keeps that open."""

    segment: Segment
    frame: FrameHeader

    def entries(self) -> pa.RecordBatch:
        """Return the frame's entries, verified."""
        with faults_of(self.segment.path):
            return self.segment.entries(self.frame)

    def within(self, first: int, last: int) -> pa.RecordBatch:
        """Return those of the frame's entries that lie from *first* to *last*, verified."""
        entries = self.entries()
        if self.frame.first >= first and self.frame.last <= last:
            return entries
        offsets = entries.column("offset").to_pylist()
        start = bisect_left(offsets, first)
        return entries.slice(start, bisect_right(offsets, last) - start)

    def source(self) -> Source | None:
        """Return which reader the frame came from."""
        with faults_of(self.segment.path):
            return self.segment.source(self.frame)


class Gap(NamedTuple):
    """The offsets before a segment that the log does not hold, as its header declares."""

    first: int
    last: int
    lost: bool


@dataclass(slots=True)
class _Cursor:
    """Where the frame that begins at or behind ``offset`` was last found.

    In the segment of this id only: another file of its base has other places.
    """

    segment_id: int
    byte: int
    offset: int


class LogReader:
    """Reads entries of one log directory. Not thread-safe: one reader a thread."""

    def __init__(self, directory: Path, files: FileSystem | None = None) -> None:
        """Open nothing yet; segments are opened when they are needed."""
        self.directory = directory
        self.files = files or RealFileSystem()
        self._bases: list[int] = []
        self._open: dict[int, Segment] = {}
        self._gaps: dict[int, Gap] = {}
        self._ends: dict[int, int] = {}
        self._lost: list[Gap] = []
        self._cursor: _Cursor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every segment."""
        with ExitStack() as stack:
            for segment in self._open.values():
                stack.callback(segment.close)
        self._open.clear()

    def forget(self) -> None:
        """Close every segment and look at the directory anew: its files may have been replaced."""
        self.close()
        self._bases, self._lost, self._cursor = [], [], None
        self._gaps.clear()
        self._ends.clear()

    def first_offset(self) -> int:
        """Return the oldest offset that the log still holds."""
        with faults_of(self.directory):
            self._refresh()
        return self._bases[0] if self._bases else 0

    def lost(self, first: int, last: int) -> Gap | None:
        """Return the first gap in *first* to *last* whose entries a repair could not save."""
        if not self._bases:
            with faults_of(self.directory):
                self._refresh()
        overlapping = (gap for gap in self._lost if gap.first <= last and gap.last >= first)
        return next(overlapping, None)

    def frames(self, first: int, last: int) -> Iterator[Located]:
        """Yield the frames that hold the offsets *first* to *last*, in order.

        *last* must be durable: nothing beyond it is looked at.

        Raises:
            OffsetRefused: the log does not hold *first* any more.
            Corrupt: a frame is damaged or missing.
            EnvironmentFault: the disk cannot be read.

        """
        with faults_of(self.directory):
            wanted = first
            while wanted <= last:
                base = self._base_of(wanted)
                if self._gone(base):
                    continue
                for found in self._frames_of(base, wanted, min(last, self._last_of(base))):
                    yield found
                    wanted = found.frame.last + 1
                if wanted <= last:
                    wanted = self._beyond(base, wanted)

    def read(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Yield the entries from *first* to *last*, one batch a frame; see :meth:`frames`."""
        for found in self.frames(first, last):
            yield found.within(first, last)

    def bound(self, first: int, last: int, rows: int, size: int) -> int:
        """Return the last offset of a slice from *first* of at most *rows* and about *size* bytes.

        Bytes in memory, not on the disk (Invariant 17). At least one frame, or the
        *rows* of it that are allowed; never beyond *last*.
        """
        reached = first - 1
        total = count = 0
        for _, frame in self.frames(first, last):
            begin, end = max(frame.first, first), min(frame.last, last)
            # A frame that compaction has thinned out covers more offsets than it holds entries.
            held = min(frame.count, end - begin + 1)
            total += frame.entries_bytes
            if total > size and reached >= first:
                return reached
            if count + held > rows:
                return begin + rows - count - 1
            reached, count = end, count + held
        return last

    def backwards(self, last: int) -> Iterator[Located]:
        """Yield the frames up to *last*, newest first.

        Raises:
            Corrupt: a frame is damaged or missing.
            EnvironmentFault: the disk cannot be read.

        """
        with faults_of(self.directory):
            yield from self._backwards(last)

    def _backwards(self, last: int) -> Iterator[Located]:
        self._refresh()
        for base in reversed([base for base in self._bases if base <= last]):
            if self._gone(base):
                # Removed are always the oldest.
                return
            segment = self._segment(base)
            starts = blocks(self.files, segment)
            ends: list[int | None] = [*starts[1:], None]
            limit = min(last, self._last_of(base))
            for start, end in zip(reversed(starts), reversed(ends), strict=True):
                yield from reversed(list(_block(segment, start, end, limit)))

    def _frames_of(self, base: int, first: int, last: int) -> Iterator[Located]:
        segment = self._segment(base)
        for frame in segment.frames(self._start(segment, first)):
            if frame.first > last:
                return
            if frame.last >= first:
                yield Located(segment, frame)
            self._cursor = _Cursor(segment.header.segment_id, frame.end, frame.last + 1)
            if frame.last >= last:
                return

    def _start(self, segment: Segment, offset: int) -> int:
        cursor = self._cursor
        if cursor and (cursor.segment_id, cursor.offset) == (segment.header.segment_id, offset):
            return cursor.byte
        return nearest(self.files, segment, offset)

    def _base_of(self, offset: int) -> int:
        if not self._bases or offset > self._last_of(self._bases[-1]):
            self._refresh()
        at = bisect_right(self._bases, offset) - 1
        if at < 0:
            oldest = self._bases[0] if self._bases else "no offset"
            raise OffsetRefused(
                f"{self.directory}: offset {offset} is no longer in the log; "
                f"it is retained from {oldest}"
            )
        return self._bases[at]

    def _gone(self, base: int) -> bool:
        """Tell whether the segment at *base* was removed; if so, look anew what there is."""
        try:
            self._segment(base)
        except FileNotFoundError:
            self._refresh()
            return True
        return False

    def _last_of(self, base: int) -> int:
        """Return the last offset that this segment covers, so far as is known."""
        return self._ends.get(base, (1 << 63) - 1)

    def _beyond(self, base: int, missing: int) -> int:
        """Return where to go on when the segment at *base* has no frame for *missing*.

        Only offsets of frames that recovery cut may be missing: then the next frame begins
        behind them, or they lie behind the segment's end, as the next header declares.
        """
        self._refresh()
        if base not in self._bases:
            # Removed while it was being read: what follows may be gone too, or not.
            return missing
        if missing > self._last_of(base):
            return max(missing, self._bases[bisect_right(self._bases, base)])
        segment = self._segment(base)
        byte = self._start(segment, missing)
        for frame in segment.frames(byte):
            if frame.first > missing:
                return frame.first
            byte = frame.end
        raise _missing(segment, byte, missing)

    def _refresh(self) -> None:
        while not self._listed():
            # Segments were removed between being listed and being looked at: list them again.
            pass
        # Whatever lies behind this end is ignored by all (Invariant 13).
        self._ends = {one: self._gaps[other].first - 1 for one, other in pairwise(self._bases)}
        self._lost = [gap for gap in map(self._gaps.__getitem__, self._bases) if gap.lost]

    def _listed(self) -> bool:
        """List the segments; false when one of them is not there any more."""
        self._bases = segment_bases(self.files, self.directory)
        try:
            for base in self._bases:
                if base not in self._gaps:
                    with closing(self._opened(base)) as segment:
                        header = segment.header
                    self._gaps[base] = Gap(header.previous + 1, base - 1, lost=header.lost)
        except FileNotFoundError:
            return False
        self._gaps = {base: self._gaps[base] for base in self._bases}
        return True

    def _segment(self, base: int) -> Segment:
        """Return the segment at *base*, closing the one that was not used for longest."""
        segment = self._open.pop(base, None) or self._opened(base)
        self._open[base] = segment
        if len(self._open) > OPEN_SEGMENTS:
            self._open.pop(next(iter(self._open))).close()
        return segment

    def _opened(self, base: int) -> Segment:
        return Segment(self.files, self.directory / segment_name(base))


def _block(segment: Segment, start: int, end: int | None, last: int) -> Iterator[Located]:
    byte, covered = start, -1
    for frame in segment.frames(start):
        if frame.first > last or (end is not None and frame.byte >= end):
            return
        yield Located(segment, frame)
        byte, covered = frame.end, frame.last
    if covered < last and byte != end and segment.stop_at(byte).end is End.BAD:
        raise _missing(segment, byte, max(covered + 1, segment.header.base))


def _missing(segment: Segment, byte: int, offset: int) -> Corrupt:
    return Corrupt("no valid frame where one was written", str(segment.path), byte, offset)

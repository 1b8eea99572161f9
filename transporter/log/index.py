"""The sparse index beside a segment: from an offset to a place near it.

The index is only a hint. It is never synced, and an entry counts only if the segment
confirms that its frame begins there. A lost or damaged index costs a longer walk, nothing
else. Each power cut may cost the one that was being written, so those of sealed segments are
silently restored.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from transporter.errors import Corrupt
from transporter.log.filesystem import open_file
from transporter.log.retention_gate import RetentionGate
from transporter.log.segment import Segment, segment_bases, segment_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from transporter.log.filesystem import File, FileSystem
    from transporter.log.format import FrameHeader

STRIDE: Final = 1 << 20
"""Bytes of frames between two index entries."""
_ENTRY: Final = struct.Struct("<QQQI")
_BODY: Final = _ENTRY.size - 4
_MAX_BYTES: Final = 16 << 20
_END: Final = (1 << 63) - 1
_PAGE: Final = 4096
_STEP: Final = 64 * _PAGE


class IndexEntry(NamedTuple):
    """Index entry: the frame holding ``first`` begins at ``byte`` of the segment with this id."""

    first: int
    byte: int
    segment_id: int


def index_path(segment: Path) -> Path:
    """Return the path of the index of the segment file *segment*."""
    return segment.with_suffix(".index")


def make_index(files: FileSystem, segment: Path) -> None:
    """Make the index of the segment file *segment*, empty, if there is none."""
    with open_file(files, index_path(segment), write=True, create=True):
        pass


class IndexWriter:
    """Writer of an entry for the first frame of every :data:`STRIDE` bytes. Owned by the log."""

    def __init__(self, files: FileSystem, segment: Segment) -> None:
        """Continue behind the entries that *segment* confirms."""
        self._file: File = files.open(index_path(segment.path), write=True, create=True)
        try:
            known = _read_entries(self._file)
            while known and not _is_confirmed(segment, known[-1]):
                known.pop()
            self._end = len(known) * _ENTRY.size
            self._file.truncate(self._end)
        except BaseException:
            self._file.close()
            raise
        self.due_byte = known[-1].byte + STRIDE if known else 0
        """Byte from which on a frame is due: a stride behind the last one noted."""

    def add(self, frame: FrameHeader) -> None:
        """Add *frame*, for which an entry was due, to the index."""
        body = _ENTRY.pack(frame.first, frame.byte, frame.segment_id, 0)[:_BODY]
        # A missing hint must not fail the append. The next frame is due instead.
        with suppress(OSError):
            self._file.pwrite(body + struct.pack("<I", crc32c(body)), self._end)
            self._end += _ENTRY.size
            self.due_byte = frame.byte + STRIDE

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def confirmed_entries(files: FileSystem, segment: Segment) -> list[IndexEntry]:
    """Return the index entries that *segment* confirms, ascending."""
    try:
        with open_file(files, index_path(segment.path)) as file:
            return [mark for mark in _read_entries(file) if _is_confirmed(segment, mark)]
    except FileNotFoundError:
        return []


def block_starts(files: FileSystem, segment: Segment) -> list[int]:
    """Return the starts of blocks of about a stride, ascending: from the index, or by a walk."""
    starts = [segment.first_byte]
    for byte in [*(mark.byte for mark in confirmed_entries(files, segment)), segment.size()]:
        if byte - starts[-1] > 2 * STRIDE:
            starts += _walk_blocks(segment, starts[-1], byte)
        starts.append(byte)
    return sorted(set(starts[:-1]))


def _walk_blocks(segment: Segment, start: int, end: int) -> Iterator[int]:
    due = start + STRIDE
    for frame in segment.frames(start):
        if frame.byte >= end:
            return
        if frame.byte >= due:
            yield frame.byte
            due = frame.byte + STRIDE


def nearest_byte(files: FileSystem, segment: Segment, offset: int) -> int:
    """Return the byte of the nearest known frame of *segment* at or before *offset*."""
    try:
        with open_file(files, index_path(segment.path)) as file:
            known = _read_entries(file)
    except FileNotFoundError:
        return segment.first_byte
    for at in range(bisect_right(known, offset, key=lambda mark: mark.first) - 1, -1, -1):
        if _is_confirmed(segment, known[at]):
            return known[at].byte
    return segment.first_byte


def _read_entries(file: File) -> list[IndexEntry]:
    data = file.pread(min(file.size(), _MAX_BYTES), 0)
    known = []
    for start in range(0, len(data) - _ENTRY.size + 1, _ENTRY.size):
        *fields, checksum = _ENTRY.unpack_from(data, start)
        if crc32c(data[start : start + _BODY]) != checksum:
            break
        known.append(IndexEntry(*fields))
    return known


def _is_confirmed(segment: Segment, mark: IndexEntry) -> bool:
    if mark.segment_id != segment.header.segment_id:
        return False
    frame = segment.frame_at(mark.byte)
    return frame is not None and frame.first == mark.first


def reindex(
    files: FileSystem,
    directory: Path,
    progress: Callable[[int], None] = lambda _: None,
    gate: RetentionGate | None = None,
) -> int:
    """Complete the index of every sealed segment in *directory* and return the entries added.

    For the process that owns the log. A whole index costs a walk over its last stride, a
    missing one a walk over the segment's frame headers: seconds for each GiB. *progress* is
    therefore called with the number of further bytes read, and ends the work by raising.
    Retention may remove segments meanwhile. An index that cannot be written is not an error:
    it stays as it is.
    """
    entries, gate = 0, gate or RetentionGate()
    for base in segment_bases(files, directory)[:-1]:
        path = directory / segment_name(base)
        with suppress(OSError, Corrupt):
            try:
                entries += _complete_index(files, path, progress)
            finally:
                _remove_orphan(files, path, base, gate)
    return entries


def _complete_index(files: FileSystem, path: Path, progress: Callable[[int], None]) -> int:
    entries = 0
    walked = _PAGE
    with (
        closing(Segment(files, path)) as segment,
        closing(IndexWriter(files, segment)) as index,
    ):
        for frame in segment.frames(nearest_byte(files, segment, _END)):
            walked += min(frame.end - frame.byte, _PAGE)
            if walked >= _STEP:
                progress(walked)
                walked = 0
            if frame.byte >= index.due_byte and _has_checkpoint(segment, frame):
                index.add(frame)
                entries += 1
    progress(walked)
    return entries


def _remove_orphan(files: FileSystem, path: Path, base: int, gate: RetentionGate) -> None:
    """Remove the index of a segment that retention has removed during the walk."""
    with gate:
        if base <= gate.removed_through:
            files.remove(index_path(path))


def _has_checkpoint(segment: Segment, frame: FrameHeader) -> bool:
    """Return whether a walk from *frame* finds all positions. Only such frames are entered."""
    source = segment.source(frame)
    return source is not None and source.checkpoint is not None

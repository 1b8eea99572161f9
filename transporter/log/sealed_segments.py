"""Sealed segments: those followed by a later one, which are not written any more.

Compaction and retention choose from them. Compaction reads them in chunks of frames, each
verified.
"""

from __future__ import annotations

import errno
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from transporter.errors import Corrupt
from transporter.log.format import decode_entries
from transporter.log.index import STRIDE, nearest_byte
from transporter.log.recovery import walk_tail
from transporter.log.segment import Segment, segment_bases, segment_name
from transporter.message import ENTRY_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from transporter.log.filesystem import FileSystem
    from transporter.log.format import FrameHeader

CHUNK_BYTES: Final = 16 << 20
"""Bytes of entries, in memory, that are processed together: one append at least."""
CHUNK_FRAMES: Final = 8192
_PAGE: Final = 4096
_LAST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """A sealed segment.

    Attributes:
        end: the last offset that it covers, by the next header.
        size: its file's bytes.
        newest: the log time (µs UTC) of its newest entry.

    """

    path: Path
    base: int
    end: int
    size: int
    newest: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive frames of a segment: the bytes ``first`` to ``end``, and their counts."""

    first: int
    end: int
    frames: int
    rows: int

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.end - self.first

    @property
    def walked_bytes(self) -> int:
        """Bytes that a walk over the frame headers reads from the disk."""
        return min(self.size, self.frames * _PAGE)


class StoredFrame(NamedTuple):
    """A frame and its payload."""

    frame: FrameHeader
    payload: bytes


def sealed_segments(files: FileSystem, directory: Path) -> list[SealedSegment]:
    """Return the sealed segments in *directory*, oldest first. See :func:`iter_sealed`."""
    return list(iter_sealed(files, directory))


def iter_sealed(
    files: FileSystem, directory: Path, cached: Mapping[int, SealedSegment] = MappingProxyType({})
) -> Iterator[SealedSegment]:
    """Yield the sealed segments in *directory*, oldest first, opening one after the other.

    Segments in *cached*, by their base, are not opened. A segment that is removed meanwhile
    is left out.

    Raises:
        Corrupt: a segment's header is damaged.

    """
    for base, following in pairwise(segment_bases(files, directory)):
        with suppress(FileNotFoundError):
            yield (
                cached[base] if base in cached else _read_sealed(files, directory, base, following)
            )


def _read_sealed(files: FileSystem, directory: Path, base: int, following: int) -> SealedSegment:
    with closing(Segment(files, directory / segment_name(following))) as after:
        header = after.header
    with closing(Segment(files, directory / segment_name(base))) as segment:
        newest = newest_time(files, segment, header.created_at)
        return SealedSegment(segment.path, base, header.previous, segment.size(), newest)


def newest_time(files: FileSystem, segment: Segment, following: int | None = None) -> int:
    """Return the log time (µs UTC) of the newest entry of a sealed *segment*.

    *following* is the time when the next segment was begun. It is an upper bound, returned
    instead where finding the exact time takes a long walk. Only a segment that an unclean
    stop has left has no trailer, and its walk is short once its index is complete.
    """
    trailer = segment.trailer()
    if trailer is not None:
        return trailer.newest
    if following is not None and segment.size() - nearest_byte(files, segment, _LAST) > 2 * STRIDE:
        return max(following, segment.header.created_at)
    frames = walk_tail(files, segment).frames
    return frames[-1].logged_at if frames else segment.header.created_at


def chunks_of(segment: Segment, end: int) -> Iterator[Chunk]:
    """Yield the chunks of a sealed *segment* that covers the offsets up to *end*.

    Raises:
        Corrupt: its frames do not reach that far.

    """
    first = byte = segment.first_byte
    covered = segment.header.base - 1
    frames = rows = size = 0
    for frame in segment.frames():
        if frame.first > end:
            break
        byte, covered = frame.end, frame.last
        frames, rows, size = frames + 1, rows + frame.count, size + frame.entries_bytes
        if size >= CHUNK_BYTES or frames >= CHUNK_FRAMES:
            yield Chunk(first, byte, frames, rows)
            first, frames, rows, size = byte, 0, 0, 0
    if frames:
        yield Chunk(first, byte, frames, rows)
    if covered < end:
        raise Corrupt(
            "no valid frame where one was written", str(segment.path), byte, max(covered + 1, 0)
        )


@contextmanager
def unreadable_as_damage(segment: Segment) -> Iterator[None]:
    """Raise ``Corrupt`` for what a disk cannot read of *segment* any more, as for other damage."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        problem = f"the disk cannot read a part of it ({error.strerror})"
        raise Corrupt(problem, str(segment.path), segment.first_byte) from error


def read_frames(segment: Segment, chunk: Chunk) -> list[StoredFrame]:
    """Return the frames of *chunk* with their payloads, which :func:`entries_of` verifies."""
    found = []
    for frame in segment.frames(chunk.first):
        if frame.byte >= chunk.end:
            break
        _, payload = segment.read_raw(frame)
        found.append(StoredFrame(frame, payload))
    return found


def entries_of(segment: Segment, stored: Iterable[StoredFrame]) -> pa.Table:
    """Return the entries of the frames *stored* in *segment*, each frame a batch.

    Raises:
        Corrupt: one of them is damaged.

    """
    file = str(segment.path)
    batches = (decode_entries(each.payload, each.frame, file) for each in stored)
    return pa.Table.from_batches(batches, ENTRY_SCHEMA)

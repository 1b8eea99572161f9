"""Read access to one segment file: its header, its frames in order, and their end.

Handles one file and its format only: other segments, floors, and the offsets that a
caller may read are not its concern.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from crc32c import crc32c

from transporter.errors import Corrupt
from transporter.log import format as layout
from transporter.log.filesystem import TEMPORARY, replace_durably

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from transporter.log.filesystem import File, FileSystem

SUFFIX: Final = ".log"
SCAN_BYTES: Final = 1 << 20
"""Bytes read at once in a byte-by-byte search of a file."""
_LARGEST: Final = (1 << 63) - 1
_LIKE_A_SEGMENT: Final = re.compile(r"[0-9]+\.log|[0-9]{20}\.log\b.*", re.DOTALL)
"""Names of segments, and usual names for copies of segments."""


class MisplacedSegment(Corrupt):
    """A segment under the name of another one."""


@dataclass(frozen=True, slots=True)
class StrayFile:
    """A file or folder whose ``name`` looks like a segment's but that is not one of the log's."""

    name: str
    problem: str


def segment_name(base: int) -> str:
    """Return the file name of the segment that begins at offset *base*."""
    return f"{base:020d}{SUFFIX}"


def base_of(name: str) -> int | None:
    """Return the base offset in a segment's file *name*, or ``None`` for any other name."""
    stem = name.removesuffix(SUFFIX)
    if not (stem.isascii() and stem.isdecimal()):
        return None
    base = int(stem)
    return base if base <= _LARGEST and name == segment_name(base) else None


def segment_bases(files: FileSystem, directory: Path) -> list[int]:
    """Return the base offsets of the segments in *directory*, ascending.

    Only regular files whose name is exactly a segment's count. See :func:`stray_files`.
    """
    named = ((base_of(name), name) for name in files.names(directory) if name.endswith(SUFFIX))
    return sorted(
        base for base, name in named if base is not None and files.is_file(directory / name)
    )


def stray_files(files: FileSystem, directory: Path) -> list[StrayFile]:
    """Return the files in *directory* whose names look like a segment's but that are ignored."""
    return [
        StrayFile(name, problem)
        for name in files.names(directory)
        if _LIKE_A_SEGMENT.fullmatch(name)
        and not name.endswith(TEMPORARY)
        and (problem := _ignore_reason(files, directory / name))
    ]


def _ignore_reason(files: FileSystem, path: Path) -> str:
    base = base_of(path.name)
    if base is None:
        return "a segment's name is 20 digits, its first offset, and '.log'; this file is ignored"
    return "" if files.is_file(path) else "not a regular file; it is ignored"


class SegmentEnd(Enum):
    """Kind of the bytes at the end of a segment's frames."""

    CLEAN = "the file ends, or only zeros follow"
    SEALED = "a trailer"
    BAD = "bytes that are neither a frame nor a trailer of this segment"


@dataclass(frozen=True, slots=True)
class Stop:
    """The place where a walk over the frames ended, and the reason."""

    byte: int
    end: SegmentEnd


class Segment:
    """An open segment file. Thread-safe, because it keeps no file position of its own."""

    def __init__(
        self, files: FileSystem, path: Path, makeshift: layout.SegmentHeader | None = None
    ) -> None:
        """Open *path* and read its header.

        With *makeshift*, the file's own header is damaged and this one takes its place, with the
        segment id of the first intact frame (Corrupt if there is none).

        Raises:
            MisplacedSegment: the file has the name of another segment.
            Corrupt: the header is damaged.

        """
        self.path = path
        self._file = files.open(path)
        try:
            if makeshift is None:
                self.header, self.first_byte = _read_header(self._file, str(path))
                self._check_name()
            else:
                self.header, self.first_byte = self._salvage(makeshift)
        except BaseException:
            self._file.close()
            raise

    def _check_name(self) -> None:
        if base_of(self.path.name) not in (None, self.header.base):
            raise MisplacedSegment(
                f"this file is a copy of {segment_name(self.header.base)} by its header, or was "
                "renamed; move it out of the log directory, or rename it back",
                str(self.path),
                0,
            )

    @property
    def is_in_place(self) -> bool:
        """Whether its path still names this file, which may be removed or replaced while open."""
        return self._file.is_at(self.path)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def size(self) -> int:
        """Return the file's length in bytes, including preallocated zeros."""
        return self._file.size()

    def frame_at(self, byte: int) -> layout.FrameHeader | None:
        """Return the header of the frame at *byte*, or ``None`` if there is no valid one."""
        data = self._file.pread(layout.FRAME_HEADER_BYTES, byte)
        frame = layout.FrameHeader.decode(data, self.header.segment_id, byte)
        return frame if frame is not None and frame.end <= self._file.size() else None

    def frames(self, byte: int | None = None) -> Iterator[layout.FrameHeader]:
        """Yield frame headers from *byte* (default: the first) up to the first invalid one."""
        place = self.first_byte if byte is None else byte
        while (frame := self.frame_at(place)) is not None:
            yield frame
            place = frame.end

    def stop_at(self, byte: int) -> Stop:
        """Return the kind of end at *byte*, where a walk over the frames ended."""
        data = self._file.pread(layout.TRAILER_BYTES, byte)
        if layout.Trailer.decode(data, self.header.segment_id, byte) is not None:
            return Stop(byte, SegmentEnd.SEALED)
        return Stop(byte, SegmentEnd.CLEAN if self._is_zero_from(byte) else SegmentEnd.BAD)

    def trailer(self) -> layout.Trailer | None:
        """Return the trailer of a segment that was sealed."""
        byte = self._file.size() - layout.TRAILER_BYTES
        data = self._file.pread(layout.TRAILER_BYTES, max(0, byte))
        return layout.Trailer.decode(data, self.header.segment_id, byte)

    def later_frames(self, byte: int) -> Iterator[layout.FrameHeader]:
        """Yield every valid header behind damage at *byte*, searching place by place.

        Recovery needs them as proofs of durability and for the offsets that they used up
        (Invariants 3 and 4), never for their entries.
        """
        for place in self._frame_places(byte):
            frame = self.frame_at(place)
            if frame is not None:
                yield frame

    def _salvage(self, header: layout.SegmentHeader) -> tuple[layout.SegmentHeader, int]:
        for place in self._frame_places(0):
            data = self._file.pread(layout.FRAME_HEADER_BYTES, place)
            frame = layout.FrameHeader.decode(data, None, place)
            if frame is not None:
                return replace(header, segment_id=frame.segment_id), place
        raise Corrupt("neither a header nor a frame of this segment is intact", str(self.path), 0)

    def _frame_places(self, byte: int) -> Iterator[int]:
        """Yield the places from *byte* on at which a frame might begin."""
        for start in range(byte, self._file.size(), SCAN_BYTES):
            block = self._file.pread(SCAN_BYTES, start)
            found = block.find(layout.FRAME_MAGIC)
            while found >= 0:
                if (start + found) % layout.ALIGNMENT == 0:
                    yield start + found
                found = block.find(layout.FRAME_MAGIC, found + 1)

    def entries(self, frame: layout.FrameHeader, *, trusted: bool = False) -> pa.RecordBatch:
        """Return the frame's entries, verified: by its checksum only if it is *trusted*.

        Raises:
            Corrupt: the payload is damaged (Invariant 2).

        """
        # Into Arrow's memory, because the entries lie in it. Python would map new pages each time.
        payload = pa.allocate_buffer(frame.payload_length)
        got = self._file.pread_into(memoryview(payload).cast("B"), frame.payload_byte)
        return layout.decode_entries(payload.slice(0, got), frame, str(self.path), trusted=trusted)

    def source(self, frame: layout.FrameHeader) -> layout.Source | None:
        """Return the source of the frame, if it has one, verified like the entries."""
        if not frame.extension_length:
            return None
        data = self._file.pread(frame.extension_length, frame.extension_byte)
        if len(data) != frame.extension_length or crc32c(data) != frame.extension_crc:
            raise Corrupt(
                "the reader's position does not match its checksum",
                str(self.path),
                frame.extension_byte,
                frame.first,
            )
        try:
            return layout.Source.decode(data)
        except ValueError as error:
            raise Corrupt(
                f"the reader's position cannot be read: {error}",
                str(self.path),
                frame.extension_byte,
                frame.first,
            ) from error

    def is_intact(self, frame: layout.FrameHeader) -> bool:
        """Return whether everything in the frame matches its checksums."""
        extension, payload = self.read_raw(frame)
        return crc32c(extension) == frame.extension_crc and crc32c(payload) == frame.payload_crc

    def read_raw(self, frame: layout.FrameHeader) -> tuple[bytes, bytes]:
        """Return the extension block and the payload unverified."""
        payload = self._file.pread(frame.payload_length, frame.payload_byte)
        return self._file.pread(frame.extension_length, frame.extension_byte), payload

    def _is_zero_from(self, byte: int) -> bool:
        blocks = (
            self._file.pread(SCAN_BYTES, start)
            for start in range(byte, self._file.size(), SCAN_BYTES)
        )
        return all(block == bytes(len(block)) for block in blocks)


def _read_header(file: File, name: str) -> tuple[layout.SegmentHeader, int]:
    prefix = file.pread(layout.SEGMENT_PREFIX_BYTES, 0)
    length = layout.header_length(prefix, name)
    return layout.SegmentHeader.decode(file.pread(length, 0), name), length


def write_segment(
    files: FileSystem,
    directory: Path,
    header: layout.SegmentHeader,
    frames: Iterable[bytes] = (),
) -> Path:
    """Create the segment that *header* describes, holding *frames* already, durably on return.

    A segment appears whole or not at all, so a bad segment header is never a torn one. An
    existing segment of this base is replaced.
    """
    path = directory / segment_name(header.base)
    replace_durably(files, path, chain([header.encode()], frames))
    return path

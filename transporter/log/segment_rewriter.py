"""The replacement of a sealed segment: the same offsets, fewer entries.

Each of its frames covers all offsets from the end of the frame before to its own last
entry. Covered offsets without an entry are therefore the dropped ones. Offsets that never
held an entry, because a recovery has cut them, stay a hole. Readers' positions survive,
even if the frames that carried them do not.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from crc32c import crc32c

from transporter.errors import LogFull
from transporter.log import format as layout
from transporter.log.filesystem import TEMPORARY, sync, sync_directory
from transporter.log.index import STRIDE, IndexWriter
from transporter.log.open_segments import drop_open_segment
from transporter.log.segment import Segment
from transporter.message import microseconds

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.log.filesystem import FileSystem
    from transporter.log.sealed_segments import StoredFrame

FRAME_BYTES: Final = 1 << 20
"""Bytes of entries, in memory, up to which frames are joined."""
SYNC_BYTES: Final = 4 << 20
"""Bytes written between two syncs, for which the log's own syncs may have to wait."""
ROOM: Final = 64 << 20
"""Bytes of disk space that a replacement leaves to appends and recovery."""


def refuse_without_room(files: FileSystem, directory: Path, size: int) -> None:
    """Raise ``LogFull`` if *size* more bytes would leave the disk less than :data:`ROOM`."""
    free = files.free_bytes(directory)
    if free < size + ROOM:
        raise LogFull(
            f"{directory}: compaction needs {size + ROOM:,} free bytes on the disk to replace a "
            f"segment, but there are {free:,}; free disk space, or lower log.retention"
        )


class Replacement:
    """A replacement written frame by frame, in order of offsets.

    Every frame of the old segment is passed to :meth:`keep`, :meth:`add` or :meth:`drop`.
    Nothing is replaced before :meth:`switch`.
    """

    def __init__(
        self,
        files: FileSystem,
        path: Path,
        old_header: layout.SegmentHeader,
        compression: str | None,
    ) -> None:
        """Begin the file that will replace *path*, the segment with the header *old_header*."""
        self._files, self._path, self._compression = files, path, compression
        self._temporary = path.with_name(path.name + TEMPORARY)
        # Another id, so that neither old index entries nor old bytes are taken for its own.
        self._header = replace(old_header, segment_id=secrets.randbits(63))
        self._covered_through = self._passed_through = old_header.base - 1
        self._hole_size = 0
        self._written_positions, self._positions = (
            dict(old_header.positions),
            dict(old_header.positions),
        )
        self._reader = ""
        self._term: int | None = None
        self._epoch = old_header.epoch
        self._rows: list[pa.RecordBatch] = []
        self._size = self._checkpoint_byte = 0
        self._frames: list[layout.FrameHeader] = []
        self._resources = ExitStack()
        self._file = files.open(self._temporary, write=True, create=True)
        self._resources.callback(self._file.close)
        try:
            self._file.truncate(0)
            self._byte = self._synced_bytes = 0
            self._append(self._header.encode())
        except BaseException:
            self.abandon()
            raise

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._byte

    @property
    def frames(self) -> int:
        """Frames written so far."""
        return len(self._frames)

    def keep(self, stored: StoredFrame, source: layout.Source) -> None:
        """Take over unchanged a frame that lost nothing."""
        self._flush()
        self._advance_to(stored.frame)
        self._record_source(stored.frame, source)
        self._write(
            stored.payload,
            last=stored.frame.last,
            count=stored.frame.count,
            size=stored.frame.entries_bytes,
            logged_at=stored.frame.logged_at,
            whole=True,
        )

    def add(self, frame: layout.FrameHeader, rows: pa.RecordBatch, source: layout.Source) -> None:
        """Take over *rows*, the rest of *frame*. They may share a frame with others."""
        if (source.reader, source.term) != (self._reader, self._term):
            # A frame names one reader and one term.
            self._flush()
        self._advance_to(frame)
        self._record_source(frame, source)
        self._rows.append(rows)
        self._size += rows.nbytes
        if self._size >= FRAME_BYTES:
            self._flush()

    def drop(self, frame: layout.FrameHeader, source: layout.Source) -> None:
        """Skip *frame*. Only its reader's position is kept."""
        self._advance_to(frame)
        if source.position is not None:
            self._positions[source.reader] = source.position
        self._epoch = frame.epoch

    def finish(self, end: int, oldest: int) -> None:
        """Complete the file, durably. The old segment covered offsets up to *end*."""
        self._flush()
        if self._covered_through != end:
            raise ValueError(f"{self._path}: covers {self._covered_through}, not {end}")
        # The last entry of a segment always stays.
        newest = self._frames[-1].logged_at
        trailer = layout.Trailer(self._header.segment_id, self._byte, end, oldest, newest)
        self._append(trailer.encode())
        sync(self._file)
        self._resources.close()

    def switch(self) -> None:
        """Take the old segment's place, durably on return. Call it only in the gate."""
        self._files.rename(self._temporary, self._path)
        drop_open_segment(self._path)
        sync_directory(self._files, self._path.parent)
        self._write_index()

    def abandon(self) -> None:
        """Leave the old segment as it is."""
        self._resources.close()
        self._files.remove(self._temporary)

    def _advance_to(self, frame: layout.FrameHeader) -> None:
        """Advance to *frame* of the old segment. Offsets before it without a frame stay a hole."""
        if frame.first > self._passed_through + 1:
            self._flush()
            self._hole_size += frame.first - self._passed_through - 1
        self._passed_through = frame.last

    def _record_source(self, frame: layout.FrameHeader, source: layout.Source) -> None:
        self._reader, self._term, self._epoch = source.reader, source.term, frame.epoch
        if source.position is not None:
            self._positions[source.reader] = source.position

    def _flush(self) -> None:
        """Write the rows gathered by :meth:`add`, in frames of about :data:`FRAME_BYTES`."""
        if not self._rows:
            return
        joined = pa.Table.from_batches(self._rows).combine_chunks().to_batches()[0]
        pieces = max(1, self._size // FRAME_BYTES)
        step = -(-joined.num_rows // pieces)
        self._rows, self._size = [], 0
        for start in range(0, joined.num_rows, step):
            piece = joined.slice(start, step)
            self._write(
                layout.encode_payload(piece, self._compression),
                last=piece.column("offset")[-1].as_py(),
                count=piece.num_rows,
                size=piece.nbytes,
                # Log time never goes back, so the last one is the newest.
                logged_at=microseconds(piece.column("logged_at").slice(piece.num_rows - 1))[0],
                whole=start + step >= joined.num_rows,
            )

    def _write(
        self,
        payload: pa.Buffer | bytes,
        *,
        last: int,
        count: int,
        size: int,
        logged_at: int,
        whole: bool,
    ) -> None:
        """Write a frame. *whole*: all rows noted so far are in it or before it."""
        extension = self._next_source(whole=whole).encode()
        frame = layout.FrameHeader(
            extension_length=len(extension),
            payload_length=len(payload),
            entries_bytes=size,
            segment_id=self._header.segment_id,
            byte=self._byte,
            # Behind the hole, although dropped entries may lie before it: the count is right.
            first=self._covered_through + 1 + self._hole_size,
            last=last,
            count=count,
            extension_crc=crc32c(extension),
            logged_at=logged_at,
            epoch=self._epoch,
            # The segment was sealed, so all before it was durable long ago.
            durable=self._header.previous,
            payload_crc=crc32c(payload),
        )
        self._append(layout.encode_frame(frame, extension, payload))
        self._frames.append(frame)
        self._covered_through, self._hole_size = last, 0

    def _next_source(self, *, whole: bool) -> layout.Source:
        """Return the source block of the next frame, and note its positions as written."""
        position = self._positions.get(self._reader) if whole else None
        if position == self._written_positions.get(self._reader):
            position = None
        known = self._positions if whole else self._written_positions
        others = {name: at for name, at in known.items() if name != self._reader}
        owed = any(self._written_positions.get(name) != at for name, at in others.items())
        checkpoint = None
        if owed or self._byte >= self._checkpoint_byte:
            checkpoint = {**self._written_positions, **others}
        if self._byte >= self._checkpoint_byte:
            self._checkpoint_byte = self._byte + STRIDE
        self._written_positions.update(others)
        if position is not None:
            self._written_positions[self._reader] = position
        return layout.Source(self._reader, position, checkpoint, self._term)

    def _append(self, data: bytes) -> None:
        self._file.pwrite(data, self._byte)
        self._byte += len(data)
        if self._byte - self._synced_bytes >= SYNC_BYTES:
            sync(self._file)
            self._synced_bytes = self._byte
            refuse_without_room(self._files, self._path.parent, 0)

    def _write_index(self) -> None:
        # Only a hint: without it the segment is walked from its beginning.
        with (
            suppress(OSError),
            closing(Segment(self._files, self._path)) as segment,
            closing(IndexWriter(self._files, segment)) as index,
        ):
            for frame in self._frames:
                if frame.byte >= index.due_byte:
                    index.add(frame)

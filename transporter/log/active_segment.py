"""The active segment: the one file of a log that is being written.

Handles the file and its format only: locks, waiting for a sync and the next segment
are the log's. Not thread-safe, except for :meth:`ActiveSegment.sync`.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from crc32c import crc32c

from transporter.errors import EnvironmentFault, LogFull, MessageTooLarge
from transporter.log import format as layout
from transporter.log.filesystem import NO_SPACE, SyncFailed, sync
from transporter.log.index import IndexWriter
from transporter.log.recovery import walk_tail
from transporter.log.segment import Segment
from transporter.message import batch_bytes, with_offsets

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.filesystem import File, FileSystem
    from transporter.log.format import FrameHeader


_MOST_FRAMES: Final = 64
_MOST_BYTES: Final = 16 << 10
"""Bytes of the largest frame that is kept. All of them take a MiB at most (Invariant 17)."""


class RecentFrame(NamedTuple):
    """A frame's header, and all its bytes."""

    header: FrameHeader
    data: bytes


class RecentFrames:
    """Memory of the last frames written. Add from one thread at a time; any may look."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._frames: dict[int, RecentFrame] = {}

    def add(self, header: FrameHeader, data: bytes) -> None:
        """Keep the frame of *header*, unless it is large, and drop the oldest one for it."""
        if len(data) > _MOST_BYTES:
            return
        if len(self._frames) == _MOST_FRAMES:
            del self._frames[next(iter(self._frames))]
        self._frames[header.first] = RecentFrame(header, data)

    def covering(self, first: int, last: int) -> list[RecentFrame]:
        """Return the frames with exactly the offsets *first* to *last*, or none."""
        found: list[RecentFrame] = []
        while first <= last:
            if (frame := self._frames.get(first)) is None:
                return []
            found.append(frame)
            first = frame.header.last + 1
        return found if first == last + 1 else []


PREALLOCATION: Final = 16 << 20
"""Largest preallocation step in bytes, so that most syncs find no new blocks to record."""
_FIRST: Final = 256 << 10
"""Smallest preallocation step. A step is as large as the segment so far: small logs stay small."""


class ActiveSegment:
    """Appender of frames to the segment file at *path*.

    Attributes:
        last: the last offset written.
        next: the next offset to assign.
        byte: the place of the next frame.
        positions: the newest position of every reader.
        oldest: the log time of the first frame.
        logged_at: the log time of the last frame.
        is_sealed: whether it has a trailer, so that no frame may follow.

    """

    def __init__(
        self,
        files: FileSystem,
        path: Path,
        epoch: int,
        compression: str | None,
        recent: RecentFrames,
    ) -> None:
        """Continue behind the last frame. Recovery has ensured that this is allowed."""
        self._epoch, self._compression, self._recent = epoch, compression, recent
        with ExitStack() as opened:
            self._segment = Segment(files, path)
            opened.callback(self._segment.close)
            self._file: File = files.open(path, write=True)
            opened.callback(self._file.close)
            self._index = IndexWriter(files, self._segment)
            opened.callback(self._index.close)
            walk = walk_tail(files, self._segment)
            oldest = self._segment.frame_at(self._segment.first_byte)
            self._resources = opened.pop_all()
        self.path, self.header = path, self._segment.header
        self.byte = self._allocated = walk.stop.byte
        self.positions = walk.positions
        self.last = walk.last_offset(self._segment)
        self.next = max(self.last + 1, self.header.next_offset)
        self.logged_at = walk.frames[-1].logged_at if walk.frames else self.header.created_at
        self.oldest = oldest.logged_at if oldest else self.header.created_at
        self.is_sealed = False

    @property
    def is_empty(self) -> bool:
        """Whether the segment has no frames yet."""
        return self.byte == self._segment.first_byte

    def size(self) -> int:
        """Return the file's length, including preallocated bytes."""
        return self._segment.size()

    def write(
        self, messages: pa.RecordBatch, source: layout.Source, time: int, durable: int
    ) -> tuple[int, int]:
        """Write *messages* as one frame and return its first and last offset.

        The frame is not durable before a sync.

        Args:
            messages: at least one row of ``MESSAGE_SCHEMA``.
            source: the reader of the messages, and its position behind them.
            time: the wall time, µs UTC. The log time never goes back behind it.
            durable: the highest durable offset, which this frame will prove.

        Raises:
            LogFull: there is no room, and the partial frame was rolled back (Invariant 14).
            SyncFailed: the partial frame could not be rolled back, so the file is undefined.

        """
        self.logged_at = max(self.logged_at, time)
        indexed = self.byte >= self._index.due_byte
        if indexed:
            source = replace(source, checkpoint=self.positions)
        frame, data = self._encode(messages, source, durable)
        self._write_at_end(data)
        self._recent.add(frame, data)
        if self.is_empty:
            self.oldest = frame.logged_at
        if indexed:
            self._index.add(frame)
        self.byte, self.last, self.next = frame.end, frame.last, frame.last + 1
        if source.position is not None:
            self.positions[source.reader] = source.position
        return frame.first, frame.last

    def sync(self) -> None:
        """Make everything written so far durable. Thread-safe beside :meth:`write`."""
        sync(self._file)

    def seal(self) -> None:
        """Write the trailer behind the last frame and make the whole file durable."""
        trailer = layout.Trailer(
            segment_id=self.header.segment_id,
            byte=self.byte,
            last=self.last,
            oldest=self.oldest,
            newest=self.logged_at,
        )
        try:
            self._file.truncate(self.byte)
            self._allocated = self.byte
            self._file.pwrite(trailer.encode(), self.byte)
        except OSError as error:
            self._roll_back(error)
        self.sync()
        self.is_sealed = True

    def trim(self) -> None:
        """Cut unused preallocated bytes and make the file durable."""
        try:
            self._file.truncate(self.byte)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error
        self._allocated = self.byte
        self.sync()

    def close(self) -> None:
        """Close the files without a sync."""
        self._resources.close()

    def _encode(
        self, messages: pa.RecordBatch, source: layout.Source, durable: int
    ) -> tuple[layout.FrameHeader, bytes]:
        extension = source.encode()
        if len(extension) > layout.MAX_EXTENSION:
            raise MessageTooLarge(
                f"reader {source.reader}: its position takes {len(extension)} bytes; "
                f"a frame has room for {layout.MAX_EXTENSION} bytes"
            )
        entries = with_offsets(messages, self.next, self.logged_at)
        payload = layout.encode_payload(entries, self._compression)
        header = layout.FrameHeader(
            extension_length=len(extension),
            payload_length=len(payload),
            entries_bytes=batch_bytes(entries),
            segment_id=self.header.segment_id,
            byte=self.byte,
            first=self.next,
            last=self.next + messages.num_rows - 1,
            count=messages.num_rows,
            extension_crc=crc32c(extension),
            logged_at=self.logged_at,
            epoch=self._epoch,
            durable=durable,
            payload_crc=crc32c(payload),
        )
        return header, layout.encode_frame(header, extension, payload)

    def _write_at_end(self, data: bytes) -> None:
        try:
            self._preallocate(len(data))
            self._file.pwrite(data, self.byte)
        except OSError as error:
            self._roll_back(error)

    def _preallocate(self, size: int) -> None:
        try:
            while self.byte + size > self._allocated:
                step = min(PREALLOCATION, max(_FIRST, self._allocated))
                self._file.allocate(self._allocated, step)
                self._allocated += step
        except OSError as error:
            # There is no room for the whole step, but there may be room for this frame.
            if error.errno not in NO_SPACE:
                raise

    def _roll_back(self, error: OSError) -> NoReturn:
        """Roll back a partial write (Invariant 14), leaving durable bytes untouched."""
        try:
            self._file.truncate(self.byte)
        except OSError as failure:
            raise SyncFailed(failure.errno, failure.strerror) from failure
        self._allocated = self.byte
        if error.errno in NO_SPACE:
            raise LogFull(f"{self.path}: no space left on the device") from error
        raise EnvironmentFault(f"{self.path}: {error.strerror}") from error

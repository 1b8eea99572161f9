"""The active segment: the one file of a log that is being written.

Knows the file and the format; knows nothing of locks, of who waits for which
sync, or of the next segment. Not thread-safe, but for :meth:`sync`.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

from crc32c import crc32c

from transporter.errors import EnvironmentFault, LogFull, MessageTooLarge
from transporter.log import format as layout
from transporter.log.filesystem import NO_SPACE, SyncFailed, sync
from transporter.log.index import IndexWriter
from transporter.log.recovery import walk_tail
from transporter.log.segment import Segment
from transporter.message import size_of, with_offsets

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.filesystem import File, FileSystem

PREALLOCATION: Final = 16 << 20
"""Bytes set aside at a time, at most, so that most syncs find no new blocks to record."""
_FIRST: Final = 256 << 10
"""The least of them: as much as a segment holds already is set aside, so a small one is small."""


class ActiveSegment:
    """Appends frames behind those that the file at *path* holds.

    ``last`` is the last offset written, ``next`` the next to give, ``byte`` where
    the next frame goes, ``positions`` every reader's newest position, ``oldest`` and
    ``logged_at`` the log times of the first and of the last frame.
    """

    def __init__(self, files: FileSystem, path: Path, epoch: int, compression: str | None) -> None:
        """Go on behind the last frame; recovery has made sure that this is allowed."""
        self._epoch, self._compression = epoch, compression
        with ExitStack() as opened:
            self._segment = Segment(files, path)
            opened.callback(self._segment.close)
            self._file: File = files.open(path, write=True)
            opened.callback(self._file.close)
            self._index = IndexWriter(files, self._segment)
            opened.callback(self._index.close)
            walk = walk_tail(files, self._segment)
            oldest = self._segment.frame_at(self._segment.first_byte)
            self._opened = opened.pop_all()
        self.path, self.header = path, self._segment.header
        self.byte = self._allocated = walk.stop.byte
        self.positions = walk.positions
        self.last = walk.last(self._segment)
        self.next = max(self.last + 1, self.header.next_offset)
        self.logged_at = walk.frames[-1].logged_at if walk.frames else self.header.created_at
        self.oldest = oldest.logged_at if oldest else self.header.created_at

    @property
    def empty(self) -> bool:
        """Whether the segment holds no frame yet."""
        return self.byte == self._segment.first_byte

    def size(self) -> int:
        """Return the file's length, with what is only set aside."""
        return self._segment.size()

    def write(
        self, messages: pa.RecordBatch, source: layout.Source, time: int, durable: int
    ) -> tuple[int, int]:
        """Write *messages* as one frame and return their offsets; not durable before a sync.

        Args:
            messages: at least one row of ``MESSAGE_SCHEMA``.
            source: who read them, and its position behind them.
            time: the wall time, µs UTC; the log time never goes back behind it.
            durable: the highest durable offset, which this frame will prove.

        Raises:
            LogFull: there is no room; the partial frame was taken back (Invariant 14).
            SyncFailed: it could not be taken back, so what the file holds is unknown.

        """
        self.logged_at = max(self.logged_at, time)
        indexed = self._index.due(self.byte)
        if indexed:
            source = replace(source, checkpoint=self.positions)
        frame, data = self._encode(messages, source, durable)
        self._put(data)
        if self.empty:
            self.oldest = frame.logged_at
        if indexed:
            self._index.note(frame)
        self.byte, self.last, self.next = frame.end, frame.last, frame.last + 1
        if source.position is not None:
            self.positions[source.reader] = source.position
        return frame.first, frame.last

    def sync(self) -> None:
        """Make what was written durable. Thread-safe beside :meth:`write`."""
        sync(self._file)

    def seal(self) -> None:
        """Put the trailer behind the last frame and make the whole file durable."""
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
            self._take_back(error)
        self.sync()

    def trim(self) -> None:
        """Cut what was reserved and not used, and make the file durable."""
        try:
            self._file.truncate(self.byte)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error
        self._allocated = self.byte
        self.sync()

    def close(self) -> None:
        """Close the files; syncs nothing."""
        self._opened.close()

    def _encode(
        self, messages: pa.RecordBatch, source: layout.Source, durable: int
    ) -> tuple[layout.FrameHeader, bytes]:
        extension = source.encode()
        if len(extension) > layout.MAX_EXTENSION:
            raise MessageTooLarge(
                f"reader {source.reader}: its position takes {len(extension)} bytes; "
                f"a frame has room for {layout.MAX_EXTENSION}"
            )
        entries = with_offsets(messages, self.next, self.logged_at)
        payload = layout.encode_payload(entries, self._compression)
        header = layout.FrameHeader(
            extension_length=len(extension),
            payload_length=len(payload),
            entries_bytes=size_of(entries),
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

    def _put(self, data: bytes) -> None:
        try:
            self._reserve(len(data))
            self._file.pwrite(data, self.byte)
        except OSError as error:
            self._take_back(error)

    def _reserve(self, size: int) -> None:
        try:
            while self.byte + size > self._allocated:
                step = min(PREALLOCATION, max(_FIRST, self._allocated))
                self._file.allocate(self._allocated, step)
                self._allocated += step
        except OSError as error:
            # No room for all that we would reserve: there may be for this frame.
            if error.errno not in NO_SPACE:
                raise

    def _take_back(self, error: OSError) -> NoReturn:
        """Roll a partial write back (Invariant 14): what is durable stays untouched."""
        try:
            self._file.truncate(self.byte)
        except OSError as failure:
            raise SyncFailed(failure.errno, failure.strerror) from failure
        self._allocated = self.byte
        if error.errno in NO_SPACE:
            raise LogFull(f"{self.path}: no space left on the device") from error
        raise EnvironmentFault(f"{self.path}: {error.strerror}") from error

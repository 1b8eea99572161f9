"""The commit log, as the engine that owns it sees it: open, append, roll, close."""

from __future__ import annotations

import errno
import secrets
import threading
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn, Self

from crc32c import crc32c

from transporter.errors import Corrupt, EnvironmentFault, LogFull, LogPoisoned, MessageTooLarge
from transporter.log import format as layout
from transporter.log.filesystem import RealFileSystem
from transporter.log.index import IndexWriter, index_path
from transporter.log.lock import DirectoryLock
from transporter.log.meta import CleanMark, DurableMark, Meta, read_meta, write_meta
from transporter.log.recovery import copy_tail, survey, walk_tail
from transporter.log.segment import Segment, segment_bases, segment_name, write_segment
from transporter.message import MESSAGE_SCHEMA, with_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import TracebackType

    import pyarrow as pa

    from transporter.log.filesystem import File, FileSystem

SEGMENT_BYTES: Final = 1 << 30
MAX_APPEND: Final = 8 << 20
"""Bytes of messages in one frame: what recovery may have to copy (Invariant 13)."""
PREALLOCATION: Final = 16 << 20
"""Bytes reserved at a time, so that most syncs find no new blocks to record."""


_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


def wall_clock() -> int:
    """Return the wall time in µs UTC; it informs, and measures nothing (Invariant 16)."""
    return time.time_ns() // 1000


class CommitLog:
    """A segmented, checksummed log whose every acknowledged append survives a crash.

    ``append`` may be called from several threads: writes are serialised, and
    one sync serves everybody who wrote before it began (group commit).
    """

    def __init__(  # noqa: PLR0913 - use CommitLog.open
        self,
        directory: Path,
        files: FileSystem,
        lock: DirectoryLock | None,
        meta: Meta,
        *,
        segment_bytes: int,
        compression: str | None,
        clock: Callable[[], int],
    ) -> None:
        self.directory = directory
        self.log_id = meta.log_id
        self.epoch = meta.epoch
        self._files = files
        self._lock = lock
        self._segment_bytes = segment_bytes
        self._compression = compression
        self._clock = clock
        self._state = threading.Condition()
        self._syncing = False
        self._failure: OSError | None = None
        self._closed = False
        self._published = DurableMark(files, directory)
        self._take_up(directory / segment_name(segment_bases(files, directory)[-1]))
        self._durable = self._last
        self._published.publish(self.epoch, self._durable)

    @classmethod
    def open(  # noqa: PLR0913 - everything but the directory has a default
        cls,
        directory: Path,
        *,
        proved: int = -1,
        segment_bytes: int = SEGMENT_BYTES,
        compression: str | None = "lz4",
        files: FileSystem | None = None,
        clock: Callable[[], int] = wall_clock,
    ) -> Self:
        """Open the log in *directory*, making it if it is new and recovering it if it must be.

        Args:
            directory: holds the segments; locked until ``close``.
            proved: the highest offset in any offset log: it proves that much durable.
            segment_bytes: where a segment is sealed and the next begun.
            compression: of the entries, ``"lz4"`` or ``None``.
            files: the file system, the real one by default.
            clock: gives the log time in µs UTC.

        Raises:
            LogLocked: another process owns the directory.
            Corrupt: durable bytes are damaged; nothing was changed.
            UnknownFormat: another version wrote it; nothing was changed.

        """
        files = files or RealFileSystem()
        _make_directory(files, directory)
        # A simulated disk has one user; locks are the real system's.
        lock = DirectoryLock(directory) if isinstance(files, RealFileSystem) else None
        try:
            meta = _prepare(files, directory, proved, clock())
            return cls(
                directory,
                files,
                lock,
                meta,
                segment_bytes=segment_bytes,
                compression=compression,
                clock=clock,
            )
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def durable(self) -> int:
        """The last offset that is durable; −1 in an empty log."""
        return self._durable

    @property
    def positions(self) -> dict[str, str]:
        """Every reader's newest position."""
        with self._state:
            return dict(self._positions)

    def append(
        self, messages: pa.RecordBatch, reader: str, position: str | None = None
    ) -> tuple[int, int]:
        """Append *messages* and return their first and last offset, once they are durable.

        A batch larger than :data:`MAX_APPEND` takes several frames; *position*
        goes with the last of them, so a crash in between repeats, never loses.

        Raises:
            LogFull: the disk is full; of the last frame nothing was written.
            LogPoisoned: a sync failed, now or earlier (Invariant 13).
            MessageTooLarge: one message alone exceeds :data:`MAX_APPEND`.

        """
        first = last = -1
        parts = list(_parts(messages))
        for at, part in enumerate(parts):
            source = layout.Source(reader, position if at == len(parts) - 1 else None)
            with self._state:
                start, last = self._write(part, source)
                first = start if first < 0 else first
            # Invariant 1: nobody hears of these offsets before they are durable.
            self._sync_through(last)
        return first, last

    def wait_beyond(self, offset: int, timeout: float) -> int:
        """Wait up to *timeout* seconds for durable entries beyond *offset*; return the last."""
        with self._state:
            self._state.wait_for(lambda: self._durable > offset or self._closed, timeout)
            return self._durable

    def close(self) -> None:
        """Leave the log so that the next open need not recover it (Invariant 18)."""
        with self._state:
            if self._closed:
                return
            self._closed = True
            self._state.notify_all()
        try:
            if self._failure is None:
                self._file.truncate(self._byte)
                self._file.sync()
                mark = CleanMark(self._segment.path.name, self._byte)
                meta = Meta(self.log_id, self.epoch, self._durable, mark)
                write_meta(self._files, self.directory, meta)
        finally:
            self._release()

    def _release(self) -> None:
        self._leave_segment()
        self._published.close()
        if self._lock is not None:
            self._lock.release()

    def _take_up(self, path: Path) -> None:
        """Make the segment at *path* the active one, going on behind its frames."""
        self._segment = Segment(self._files, path)
        walk = walk_tail(self._files, self._segment)
        header = self._segment.header
        self._file: File = self._files.open(path, write=True)
        self._index = IndexWriter(self._files, self._segment)
        self._byte = self._allocated = walk.stop.byte
        self._positions = walk.positions
        self._last = walk.last(self._segment)
        self._next = max(self._last + 1, header.next_offset)
        self._frames = len(walk.frames)
        self._oldest = walk.frames[0].logged_at if walk.frames else header.created_at
        self._logged_at = walk.frames[-1].logged_at if walk.frames else header.created_at

    def _leave_segment(self) -> None:
        self._index.close()
        self._file.close()
        self._segment.close()

    def _write(self, messages: pa.RecordBatch, source: layout.Source) -> tuple[int, int]:
        self._refuse_if_unusable()
        self._roll_if_full()
        # Log time never goes back, whatever the wall clock does.
        self._logged_at = max(self._logged_at, self._clock())
        frame, data = self._frame(messages, source)
        self._put(data)
        if self._index.due(frame.byte):
            self._index.note(frame)
        self._byte, self._last, self._next = frame.end, frame.last, frame.last + 1
        self._frames += 1
        if source.position is not None:
            self._positions[source.reader] = source.position
        return frame.first, frame.last

    def _refuse_if_unusable(self) -> None:
        if self._failure is not None:
            self._poison(self._failure)
        if self._closed:
            raise LogPoisoned(f"{self.directory}: the log is closed")

    def _frame(
        self, messages: pa.RecordBatch, source: layout.Source
    ) -> tuple[layout.FrameHeader, bytes]:
        if self._index.due(self._byte):
            source = replace(source, checkpoint=self._positions)
        extension = source.encode()
        if len(extension) > layout.MAX_EXTENSION:
            raise MessageTooLarge(
                f"reader {source.reader}: its position takes {len(extension)} bytes; "
                f"a frame has room for {layout.MAX_EXTENSION}"
            )
        entries = with_offsets(messages, self._next, self._logged_at)
        payload = layout.encode_payload(entries, self._compression)
        header = layout.FrameHeader(
            extension_length=len(extension),
            payload_length=len(payload),
            segment_id=self._segment.header.segment_id,
            byte=self._byte,
            first=self._next,
            last=self._next + messages.num_rows - 1,
            count=messages.num_rows,
            extension_crc=crc32c(extension),
            logged_at=self._logged_at,
            epoch=self.epoch,
            durable=self._durable,
            payload_crc=crc32c(payload),
        )
        return header, layout.encode_frame(header, extension, payload)

    def _put(self, data: bytes) -> None:
        try:
            self._reserve(len(data))
            self._file.pwrite(data, self._byte)
        except OSError as error:
            self._take_back(error)

    def _reserve(self, size: int) -> None:
        try:
            while self._byte + size > self._allocated:
                self._file.allocate(self._allocated, PREALLOCATION)
                self._allocated += PREALLOCATION
        except OSError as error:
            # No room for all that we would reserve: there may be for this frame.
            if error.errno not in _NO_SPACE:
                raise

    def _take_back(self, error: OSError) -> NoReturn:
        """Roll a partial write back (Invariant 14): what is durable stays untouched."""
        try:
            self._file.truncate(self._byte)
        except OSError as failure:
            self._poison(failure)
        self._allocated = self._byte
        if error.errno in _NO_SPACE:
            raise LogFull(f"{self._segment.path}: no space left on the device") from error
        raise EnvironmentFault(f"{self._segment.path}: {error.strerror}") from error

    def _poison(self, failure: OSError) -> NoReturn:
        # Invariant 13: the kernel may have dropped the pages; a second sync proves nothing.
        self._failure = failure
        self._state.notify_all()
        raise LogPoisoned(
            f"{self.directory}: a sync failed ({failure.strerror}); "
            "restart the engine: the log recovers what is on the disk"
        ) from failure

    def _sync_through(self, offset: int) -> None:
        """Return when *offset* is durable: by our own sync or by one that began after our write."""
        with self._state:
            while self._durable < offset:
                if self._failure is not None:
                    self._poison(self._failure)
                if self._syncing:
                    self._state.wait()
                else:
                    self._sync_now()

    def _sync_now(self) -> None:
        """Sync what is written so far, letting others write meanwhile."""
        self._syncing = True
        file, covered = self._file, self._last
        self._state.release()
        failure: OSError | None = None
        try:
            file.sync()
        except OSError as error:
            failure = error
        finally:
            self._state.acquire()
            self._syncing = False
        if failure is not None:
            self._poison(failure)
        self._publish(covered)

    def _publish(self, covered: int) -> None:
        self._durable = max(self._durable, covered)
        self._published.publish(self.epoch, self._durable)
        self._state.notify_all()

    def _roll_if_full(self) -> None:
        while self._byte >= self._segment_bytes and self._byte > self._segment.first_byte:
            if self._syncing:
                self._state.wait()
                self._refuse_if_unusable()
            else:
                self._roll()

    def _roll(self) -> None:
        """Seal the active segment and begin the next one (the order is Invariant 2's)."""
        self._seal()
        header = layout.SegmentHeader(
            log_id=self._segment.header.log_id,
            segment_id=secrets.randbits(63),
            base=self._next,
            previous=self._last,
            next_offset=self._next,
            epoch=self.epoch,
            created_at=self._logged_at,
            positions=self._positions,
        )
        try:
            path = write_segment(self._files, self.directory, header)
        except OSError as error:
            if error.errno in _NO_SPACE:
                raise LogFull(f"{self.directory}: no space left for the next segment") from error
            self._poison(error)
        self._leave_segment()
        self._take_up(path)

    def _seal(self) -> None:
        trailer = layout.Trailer(
            segment_id=self._segment.header.segment_id,
            byte=self._byte,
            last=self._last,
            frames=self._frames,
            oldest=self._oldest,
            newest=self._logged_at,
        )
        try:
            self._file.truncate(self._byte)
            self._allocated = self._byte
            self._file.pwrite(trailer.encode(), self._byte)
        except OSError as error:
            self._take_back(error)
        try:
            self._file.sync()
        except OSError as error:
            self._poison(error)
        self._publish(self._last)


def _make_directory(files: FileSystem, directory: Path) -> None:
    try:
        files.make_directory(directory)
    except OSError as error:
        raise EnvironmentFault(
            f"{directory}: cannot create the log directory: {error.strerror}"
        ) from error


def _prepare(files: FileSystem, directory: Path, proved: int, now: int) -> Meta:
    """Recover what is there, or begin a log; afterwards the last segment may be extended."""
    meta = read_meta(files, directory)
    bases = segment_bases(files, directory)
    if meta is None:
        _refuse_without_meta(files, directory, bases)
        return _begin(files, directory, now)
    if not bases:
        raise Corrupt("the log has a meta file but no segment", str(directory))
    _check_chain(files, directory, bases, meta)
    meta = replace(meta, epoch=meta.epoch + 1)
    segment = Segment(files, directory / segment_name(bases[-1]))
    try:
        found = survey(files, segment, max(proved, meta.proved), meta.clean)
        if not found.clean:
            copy_tail(
                files,
                segment,
                found,
                segment_id=secrets.randbits(63),
                epoch=meta.epoch,
                created_at=now,
            )
    finally:
        segment.close()
    # Cleared before the first append; the proof itself stays (Invariant 3).
    meta = replace(meta, clean=None, proved=found.last)
    write_meta(files, directory, meta)
    return meta


def _refuse_without_meta(files: FileSystem, directory: Path, bases: list[int]) -> None:
    """A crash while a log was begun leaves one empty segment; anything more is a lost file."""
    if not bases:
        return
    segment = Segment(files, directory / segment_name(bases[0]))
    try:
        if bases != [0] or next(segment.frames(), None) is not None:
            raise Corrupt("this log's meta file is missing; restore it", str(directory))
    finally:
        segment.close()


def _begin(files: FileSystem, directory: Path, now: int) -> Meta:
    log_id = uuid.uuid4()
    header = layout.SegmentHeader(
        log_id=log_id.bytes,
        segment_id=secrets.randbits(63),
        base=0,
        previous=-1,
        next_offset=0,
        epoch=1,
        created_at=now,
    )
    # Segment first: a log without meta that holds only an empty segment 0 is simply begun anew.
    path = write_segment(files, directory, header)
    files.remove(index_path(path))
    meta = Meta(log_id=str(log_id), epoch=1, proved=-1)
    write_meta(files, directory, meta)
    return meta


def _check_chain(files: FileSystem, directory: Path, bases: list[int], meta: Meta) -> None:
    """Refuse a log whose segments do not join, or do not belong together."""
    covered = None
    for base in bases:
        path = directory / segment_name(base)
        segment = Segment(files, path)
        segment.close()
        if str(uuid.UUID(bytes=segment.header.log_id)) != meta.log_id:
            raise Corrupt("this segment belongs to another log", str(path), 16)
        if covered is not None and not covered <= segment.header.previous < base:
            raise Corrupt("a segment before this one is missing", str(path), 0, covered + 1)
        covered = base - 1


def _parts(messages: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut *messages* into batches of at most :data:`MAX_APPEND` bytes each."""
    if messages.schema != MESSAGE_SCHEMA:
        messages = messages.cast(MESSAGE_SCHEMA)
    if messages.nbytes <= MAX_APPEND:
        yield messages
        return
    if messages.num_rows == 1:
        raise MessageTooLarge(
            f"a message of {messages.nbytes} bytes (namespace {messages['namespace'][0]}) exceeds "
            f"the {MAX_APPEND} bytes that one append may take"
        )
    half = messages.num_rows // 2
    yield from _parts(messages.slice(0, half))
    yield from _parts(messages.slice(half))

"""The commit log, as the engine that owns it sees it: open, append, roll, close."""

from __future__ import annotations

import secrets
import threading
import time
from typing import TYPE_CHECKING, Final, NoReturn, Self

from transporter.errors import (
    BudgetSpent,
    EnvironmentFault,
    LogFull,
    LogPoisoned,
    MessageTooLarge,
)
from transporter.log import format as layout
from transporter.log.active import ActiveSegment
from transporter.log.filesystem import (
    NO_SPACE,
    RealFileSystem,
    SyncFailed,
    faults_of,
    make_directory,
)
from transporter.log.group import GROUP_BYTES, SyncGroup
from transporter.log.inspect import segments_size
from transporter.log.lock import DirectoryLock
from transporter.log.meta import CleanMark, DurableMark, Meta, write_meta
from transporter.log.opening import prepare
from transporter.log.segment import segment_bases, segment_name, write_segment
from transporter.message import MESSAGE_SCHEMA, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.filesystem import FileSystem

SEGMENT_BYTES: Final = 1 << 30
MAX_APPEND: Final = GROUP_BYTES
"""Bytes of entries in one frame."""
_ADDED: Final = 16
"""Bytes that an entry has beyond its message: offset and log time."""


def wall_clock() -> int:
    """Return the wall time in µs UTC; it informs, and measures nothing (Invariant 16)."""
    return time.time_ns() // 1000


class CommitLog:
    """A segmented, checksummed log whose every acknowledged append survives a crash.

    ``append`` may be called from several threads: writes are serialised, and
    one sync serves everybody who wrote before it began (group commit). Of a log with
    a budget, ``pressed`` is set at each roll and each refusal, for whoever can make
    room; ``over_budget`` tells whether the last append was refused.
    """

    def __init__(
        self,
        directory: Path,
        files: FileSystem,
        meta: Meta,
        lock: DirectoryLock | None,
        *,
        segment_bytes: int,
        compression: str | None,
        clock: Callable[[], int],
    ) -> None:
        """Take up a log that is ready to be appended to; use :meth:`open`."""
        self.directory = directory
        self.log_id = meta.log_id
        self.epoch = meta.epoch
        self._files, self._lock, self._clock = files, lock, clock
        self._segment_bytes, self._compression = segment_bytes, compression
        self.pressed, self.over_budget = threading.Event(), False
        self._max_bytes: int | None = None
        self._sealed = 0
        self._state = threading.Condition()
        self._group = SyncGroup(self._state)
        self._closed = False
        self._failure: OSError | None = None
        self._published = DurableMark(files, directory)
        self._active = self._take_up(directory / segment_name(segment_bases(files, directory)[-1]))
        self._durable = self._active.last
        self._published.publish(self.epoch, self._durable)

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        proved: Callable[[], int] = lambda: -1,
        segment_bytes: int = SEGMENT_BYTES,
        compression: str | None = "lz4",
        max_bytes: int | None = None,
        files: FileSystem | None = None,
        clock: Callable[[], int] = wall_clock,
    ) -> Self:
        """Open the log in *directory*, making it if it is new and recovering it if it must be.

        Args:
            directory: holds the segments; locked until ``close``.
            proved: gives the highest offset in any offset log, which proves that much durable;
                asked under the lock.
            segment_bytes: where a segment is sealed and the next begun.
            compression: of the entries, ``"lz4"`` or ``None``.
            max_bytes: what the segments may take in all; ``None`` for no limit.
            files: the file system, the real one by default.
            clock: gives the log time in µs UTC.

        Raises:
            LogLocked: another process owns the directory.
            EnvironmentFault: the directory cannot be used, or is out of space.
            Corrupt: durable bytes are damaged; nothing was changed.
            UnknownFormat: another version wrote it; nothing was changed.

        """
        files = files or RealFileSystem()
        _make(files, directory)
        # A simulated disk has one user; locks are the real system's.
        lock = DirectoryLock(directory) if isinstance(files, RealFileSystem) else None
        try:
            log = cls(
                directory,
                files,
                prepare(files, directory, proved(), clock()),
                lock,
                segment_bytes=segment_bytes,
                compression=compression,
                clock=clock,
            )
        except BaseException as error:
            if lock is not None:
                lock.release()
            if isinstance(error, OSError):
                problem = f"{directory}: the log cannot be opened: {error.strerror}"
                raise EnvironmentFault(problem) from error
            raise
        log.limit(max_bytes)
        return log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def durable(self) -> int:
        """The last offset that is durable; -1 in an empty log."""
        return self._durable

    def limit(self, max_bytes: int | None) -> None:
        """Let the segments take *max_bytes* in all from now on; ``None`` for no limit."""
        self._max_bytes = max_bytes

    @property
    def used(self) -> int:
        """The bytes that count against the budget, without what is only set aside."""
        with self._state:
            self._sealed = self._sealed_bytes()
            return self._sealed + self._active.byte

    @property
    def positions(self) -> dict[str, str]:
        """Every reader's newest position."""
        with self._state:
            return dict(self._active.positions)

    def append(
        self,
        messages: pa.RecordBatch,
        reader: str,
        position: str | None = None,
        term: int | None = None,
    ) -> tuple[int, int]:
        """Append *messages* as one frame; return its offsets, first and last, once durable.

        Args:
            messages: at least one row of ``MESSAGE_SCHEMA``, at most :data:`MAX_APPEND`
                bytes; :func:`appendable` cuts what is larger.
            reader: who read them.
            position: the reader's position behind them, kept in the same frame.
            term: the number of the term under which they were read, if there is one.

        Raises:
            LogFull: the disk is full, or the budget is spent; nothing was written.
            LogPoisoned: a sync failed, now or earlier (Invariant 13).
            MessageTooLarge: *position* is longer than a frame allows.

        """
        with self._state:
            self._refuse_if_unusable()
            self._refuse_over_budget(_size(messages))
            self._bound_group(_size(messages))
            try:
                self._roll_if_full()
                first, last = self._write(messages, layout.Source(reader, position, term=term))
            except SyncFailed as failure:
                self._poison(failure)
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
                    self._leave_cleanly()
            finally:
                self._active.close()
                self._published.close()
                if self._lock is not None:
                    self._lock.release()

    def _leave_cleanly(self) -> None:
        try:
            self._active.trim()
        except SyncFailed as failure:
            self._poison(failure)
        # That has made durable what others had written whose own sync did not come any more.
        self._publish(self._active.last)
        mark = CleanMark(self._active.path.name, self._active.byte)
        meta = Meta(self.log_id, self.epoch, self._durable, mark)
        try:
            write_meta(self._files, self.directory, meta)
        except OSError as error:
            # Without the mark the next open recovers, which loses nothing either.
            if isinstance(error, SyncFailed) or error.errno not in NO_SPACE:
                self._poison(error)

    def _take_up(self, path: Path) -> ActiveSegment:
        return ActiveSegment(self._files, path, self.epoch, self._compression)

    def _refuse_if_unusable(self) -> None:
        if self._failure is not None:
            self._poison(self._failure)
        if self._closed:
            raise LogPoisoned(f"{self.directory}: the log is closed")

    def _refuse_over_budget(self, size: int) -> None:
        """Refuse what the budget has no room for; a log of one segment always takes one more."""
        most = self._max_bytes
        if most is None:
            return
        if not self._sealed or self._sealed + self._active.byte + size > most:
            self._sealed = self._sealed_bytes()
        used = self._sealed + self._active.byte
        self.over_budget = bool(self._sealed) and used + size > most
        if self.over_budget:
            self.pressed.set()
            raise BudgetSpent(
                f"{self.directory}: log.max_bytes is reached ({used} of {most}); readers wait"
            )

    def _sealed_bytes(self) -> int:
        with faults_of(self.directory):
            return segments_size(self.directory, self._files) - self._active.size()

    def _poison(self, failure: OSError) -> NoReturn:
        # Invariant 13: the kernel may have dropped the pages; a second sync proves nothing.
        self._failure = failure
        self._state.notify_all()
        raise LogPoisoned(
            f"{self.directory}: a sync failed ({failure.strerror}); "
            "restart the engine: the log recovers what is on the disk"
        ) from failure

    def _write(self, messages: pa.RecordBatch, source: layout.Source) -> tuple[int, int]:
        begun = self._active.byte
        offsets = self._active.write(messages, source, self._clock(), self._durable)
        self._group.joined(self._active.byte - begun)
        return offsets

    def _bound_group(self, size: int) -> None:
        """Wait until *size* bytes may join those that the next sync will cover (Invariant 13)."""
        while not self._group.has_room(size):
            if self._group.syncing:
                self._state.wait()
                self._refuse_if_unusable()
            else:
                self._sync_now()

    def _sync_through(self, offset: int) -> None:
        """Return when *offset* is durable: by our own sync or by one that began after our write."""
        while self._durable < offset:
            if self._failure is not None:
                self._poison(self._failure)
            if self._group.syncing:
                self._state.wait()
                continue
            self._group.gather()
            if self._failure is None:
                self._sync_now()

    def _sync_now(self) -> None:
        """Sync what is written so far, letting others write meanwhile."""
        active, covered = self._active, self._active.last
        try:
            with self._group.sync():
                active.sync()
        except SyncFailed as failure:
            self._poison(failure)
        self._publish(covered)

    def _publish(self, covered: int) -> None:
        self._durable = max(self._durable, covered)
        self._published.publish(self.epoch, self._durable)
        self._state.notify_all()

    def _roll_if_full(self) -> None:
        while self._active.byte >= self._segment_bytes and not self._active.empty:
            if self._group.syncing:
                self._state.wait()
                self._refuse_if_unusable()
            else:
                self._roll()

    def _roll(self) -> None:
        """Seal the active segment and begin the next one (the order is Invariant 2's)."""
        sealed = self._active
        sealed.seal()
        self._group.covered()
        self._publish(sealed.last)
        header = layout.SegmentHeader(
            log_id=sealed.header.log_id,
            segment_id=secrets.randbits(63),
            base=sealed.next,
            previous=sealed.last,
            next_offset=sealed.next,
            epoch=self.epoch,
            created_at=sealed.logged_at,
            positions=sealed.positions,
        )
        try:
            path = write_segment(self._files, self.directory, header)
            self._active = self._take_up(path)
        except SyncFailed:
            raise
        except OSError as error:
            # The sealed segment is still ours: the next append rolls again, over this base.
            if error.errno in NO_SPACE:
                raise LogFull(f"{self.directory}: no space left for the next segment") from error
            raise SyncFailed(error.errno, error.strerror) from error
        self._sealed += sealed.byte + layout.TRAILER_BYTES
        self.pressed.set()
        sealed.close()


def _make(files: FileSystem, directory: Path) -> None:
    try:
        make_directory(files, directory)
    except OSError as error:
        raise EnvironmentFault(
            f"{directory}: cannot create the log directory: {error.strerror}"
        ) from error


def appendable(messages: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut *messages* into batches that :meth:`CommitLog.append` takes.

    Raises:
        MessageTooLarge: one message alone exceeds :data:`MAX_APPEND`.

    """
    if messages.schema != MESSAGE_SCHEMA:
        messages = messages.cast(MESSAGE_SCHEMA)
    if _size(messages) <= MAX_APPEND:
        yield messages
        return
    if messages.num_rows == 1:
        raise MessageTooLarge(
            f"a message of {_size(messages)} bytes (namespace {messages['namespace'][0]}) exceeds "
            f"the {MAX_APPEND} bytes that one append may take"
        )
    half = messages.num_rows // 2
    yield from appendable(messages.slice(0, half))
    yield from appendable(messages.slice(half))


def _size(messages: pa.RecordBatch) -> int:
    """Return the bytes that *messages* take as entries."""
    return size_of(messages) + _ADDED * int(messages.num_rows)

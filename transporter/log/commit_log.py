"""The commit log of the owning engine: open, append, roll, close."""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final, NoReturn, Self

from transporter.errors import (
    BudgetSpent,
    EnvironmentFault,
    LockLost,
    LogFull,
    LogPoisoned,
    MessageTooLarge,
)
from transporter.log import format as layout
from transporter.log.active_segment import ActiveSegment, RecentFrames
from transporter.log.clocks import JumpDetector, uptime
from transporter.log.filesystem import (
    BACK_PRESSURE,
    FULL_TABLE,
    RealFileSystem,
    SyncFailed,
    make_directory,
    no_room_error,
    translate_os_errors,
)
from transporter.log.group_commit import GROUP_BYTES, SyncGroup
from transporter.log.inspection import segments_size
from transporter.log.lock import DirectoryLock
from transporter.log.meta import CleanMark, DurableMark, Meta, write_meta
from transporter.log.opening import prepare_log
from transporter.log.reserve import Reserve
from transporter.log.retention_gate import RetentionGate
from transporter.log.sealed_segments import newest_time
from transporter.log.segment import Segment, segment_bases, segment_name, write_segment
from transporter.message import MESSAGE_SCHEMA, batch_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.active_segment import RecentFrame
    from transporter.log.filesystem import FileSystem

SEGMENT_BYTES: Final = 1 << 30
MAX_APPEND: Final = GROUP_BYTES
"""Bytes of entries in one frame."""
_SECOND: Final = 1_000_000
_ADDED: Final = 16
"""Bytes of an entry beyond its message: offset and log time."""


def wall_clock() -> int:
    """Return the wall time in µs UTC. It only informs (Invariant 16)."""
    return time.time_ns() // 1000


class CommitLog:
    """A segmented, checksummed log whose every acknowledged append survives a crash.

    Several threads may call ``append``. Writes are serialised, and one sync serves every
    writer that wrote before it began (group commit). Code that removes entries, or begins
    to need old ones, passes the ``gate``.

    Attributes:
        room_wanted: set at each roll and each refusal by the budget, for code that makes room.
        over_budget: whether the last append was refused.

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
        """Start on a log that is ready for appends. Use :meth:`open`."""
        self.directory = directory
        self.log_id = meta.log_id
        self.epoch, self.runs = meta.epoch, meta.runs
        self.files, self._lock, self._clock = files, lock, clock
        self._segment_bytes, self._compression = segment_bytes, compression
        self.room_wanted, self.over_budget = threading.Event(), False
        self._refused_bytes = 0
        self.gate = RetentionGate()
        self._max_bytes: int | None = None
        self._segment_age: float | None = None
        self._sealed_bytes = 0
        self._condition = threading.Condition()
        self._group, self._reserve = SyncGroup(self._condition), Reserve(files, directory)
        self._closed = False
        self._failure: LogPoisoned | None = None
        self._jump_detector = JumpDetector()
        self._durable_mark = DurableMark(files, directory)
        self._recent = RecentFrames()
        self._active = self._open_last_segment()
        self._begun_at: float | None = None
        self._durable = self._active.last
        self._durable_mark.publish(self.epoch, self._durable)

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
        """Open the log in *directory*, creating or recovering it if necessary.

        Args:
            directory: holds the segments. Locked until ``close``.
            proved: returns the highest offset in any offset log, which proves that much durable.
                Called under the lock.
            segment_bytes: the size at which a segment is sealed and the next one begun.
            compression: of the entries, ``"lz4"`` or ``None``.
            max_bytes: the limit of all segments together, ``None`` for no limit.
            files: the file system, the real one by default.
            clock: returns the log time in µs UTC.

        Raises:
            LogLocked: another process owns the directory.
            EnvironmentFault: the directory cannot be used, or is out of space.
            Corrupt: durable bytes are damaged. Nothing was changed.
            UnknownFormat: another version wrote it. Nothing was changed.

        """
        files = files or RealFileSystem()
        _create_directory(files, directory)
        # A simulated disk has one user, and locks belong to the real system.
        lock = DirectoryLock(directory) if isinstance(files, RealFileSystem) else None
        try:
            now = clock()
            log = cls(
                directory,
                files,
                prepare_log(files, directory, proved(), now),
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
        log.set_max_bytes(max_bytes)
        if not log._active.is_empty:
            log._begun_at = uptime() - _active_age(log._active, now)
        return log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def durable(self) -> int:
        """The last offset that is durable, or -1 in an empty log."""
        return self._durable

    def set_max_bytes(self, max_bytes: int | None) -> None:
        """Limit all segments together to *max_bytes* from now on. ``None``: no limit."""
        self._max_bytes = max_bytes

    def set_segment_age(self, segment_age: float | None) -> None:
        """Seal a segment *segment_age* seconds after its first entry. ``None``: by size only."""
        self._segment_age = segment_age

    def roll_if_old(self) -> bool:
        """Begin the next segment if the active one is old, and return whether one was begun.

        For regular calls: an append does the same, but an idle log has no appends.

        Raises:
            LogFull: there is no room for the next segment now.
            LogPoisoned: a sync failed (Invariant 13).

        """
        with self._condition:
            unusable = self._closed or self._failure is not None or self._group.syncing
            if unusable or self._active.is_empty or not self._must_roll():
                return False
            try:
                self._roll(self._clock())
            except SyncFailed as failure:
                self._poison(failure)
            return True

    def check_lock(self) -> None:
        """Raise :class:`LockLost` if another engine can have locked the directory by now.

        Invariant 12: called before anything beside the log is changed. The log itself checks
        after each of its syncs. Does not wait for an append.
        """
        if self._failure is None and (self._lock is None or self._lock.is_held()):
            return
        with self._condition:
            if not self._closed:
                self._refuse_without_lock()

    @property
    def seconds_ahead(self) -> float:
        """The seconds by which log time, which never goes back, is ahead of the wall clock."""
        return max(0.0, (self._active.logged_at - self._clock()) / _SECOND)

    def take_clock_jump(self) -> float:
        """Return the seconds by which the wall clock has jumped ahead since the last call."""
        with self._condition:
            return self._jump_detector.take_greatest()

    def take_refused_bytes(self) -> int:
        """Return the bytes of the largest append that was refused since the last call, or 0."""
        with self._condition:
            wanted, self._refused_bytes = self._refused_bytes, 0
            return wanted

    @property
    def used_bytes(self) -> int:
        """The bytes that count against the budget, without preallocated ones."""
        with self._condition:
            if not self._closed:
                # Without a free descriptor, fall back to the last known size.
                with suppress(LogFull):
                    self._sealed_bytes = self._measure_sealed()
            return self._sealed_bytes + self._active.byte

    @property
    def positions(self) -> dict[str, str]:
        """Every reader's newest position."""
        with self._condition:
            return dict(self._active.positions)

    def append(
        self,
        messages: pa.RecordBatch,
        reader: str,
        position: str | None = None,
        term: int | None = None,
    ) -> tuple[int, int]:
        """Append *messages* as one frame and return its first and last offset, once durable.

        Args:
            messages: at least one row of ``MESSAGE_SCHEMA``, at most :data:`MAX_APPEND` bytes.
                :func:`split_for_append` splits larger batches.
            reader: the reader of the messages.
            position: the reader's position behind them, kept in the same frame.
            term: the number of the term under which they were read, if there is one.

        Raises:
            LogFull: the disk is full, or the budget is spent. Nothing was written.
            LogPoisoned: a sync failed, now or earlier (Invariant 13).
            LockLost: another engine can own the log by now (Invariant 12).
            MessageTooLarge: *messages* or *position* are longer than a frame allows.
                Nothing was written.

        """
        with self._condition:
            try:
                now = self._clock()
                kept = self._active.positions.values()
                beside = sum(map(len, kept)) + len(position or "")
                self._wait_for_turn(_entries_size(messages), beside, now)
                source = layout.Source(reader, position, term=term)
                first, last = self._write(messages, source, now)
            except SyncFailed as failure:
                self._poison(failure)
            # Invariant 1: these offsets are not returned before they are durable.
            self._sync_through(last)
            return first, last

    def wait_beyond(self, offset: int, timeout: float) -> int:
        """Wait up to *timeout* seconds for durable entries beyond *offset* and return the last."""
        with self._condition:
            self._condition.wait_for(lambda: self._durable > offset or self._closed, timeout)
            return self._durable

    def recent_frames(self, first: int, last: int) -> list[RecentFrame]:
        """Return the frames with exactly these offsets, which are durable, if memory has them."""
        return self._recent.covering(first, last)

    def close(self) -> None:
        """Close the log so that the next open need not recover it (Invariant 18)."""
        with self._condition:
            if self._closed:
                return
            self._closed = True
            self._condition.notify_all()
            # A thread that is syncing uses the files until it is done and notifies this one.
            while self._group.syncing:
                self._condition.wait(0.1)
            try:
                if self._failure is None:
                    self._close_cleanly()
            finally:
                self._active.close()
                self._durable_mark.close()
                if self._lock is not None:
                    self._lock.release()

    def _close_cleanly(self) -> None:
        self._refuse_without_lock()
        try:
            self._active.trim()
        except SyncFailed as failure:
            self._poison(failure)
        # This has also made writes of other threads durable whose own sync did not start.
        self._publish(self._active.last)
        mark = CleanMark(self._active.path.name, self._active.byte)
        meta = Meta(self.log_id, self.epoch, self._durable, mark, self.runs)
        try:
            write_meta(self.files, self.directory, meta)
        except OSError as error:
            # Without the mark the next open recovers the log, which loses nothing either.
            if isinstance(error, SyncFailed) or error.errno not in BACK_PRESSURE:
                self._poison(error)

    def _open_last_segment(self) -> ActiveSegment:
        bases = segment_bases(self.files, self.directory)
        active = self._open_segment(self.directory / segment_name(bases[-1]))
        if active.is_empty and len(bases) > 1:
            # Invariant 16: its header states the wall time, and log time may be ahead of that.
            path = self.directory / segment_name(bases[-2])
            with closing(Segment(self.files, path)) as segment:
                active.logged_at = max(active.logged_at, newest_time(self.files, segment))
        return active

    def _open_segment(self, path: Path) -> ActiveSegment:
        return ActiveSegment(self.files, path, self.epoch, self._compression, self._recent)

    def _refuse_if_failed(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args) from self._failure.__cause__

    def _refuse_if_unusable(self) -> None:
        self._refuse_if_failed()
        if self._closed:
            raise LogPoisoned(f"{self.directory}: the log is closed")

    def _refuse_without_lock(self) -> None:
        self._refuse_if_failed()
        if self._lock is not None and not self._lock.is_held():
            self._fail(
                LockLost(
                    f"{self.directory}: the file 'lock' was removed or replaced while this engine "
                    "runs, so another engine may be running on this log; nothing more is appended. "
                    "Make sure that only one is running, then start that one again"
                )
            )

    def _refuse_over_budget(self, size: int) -> None:
        """Refuse an append beyond the budget. A log of one segment always accepts one more."""
        most = self._max_bytes
        if most is None:
            return
        if not self._sealed_bytes or self._sealed_bytes + self._active.byte + size > most:
            self._sealed_bytes = self._measure_sealed()
        used = self._sealed_bytes + self._active.byte
        self.over_budget = bool(self._sealed_bytes) and used + size > most
        if self.over_budget:
            self._refused_bytes = max(self._refused_bytes, size)
            self.room_wanted.set()
            raise BudgetSpent(
                f"{self.directory}: log.max_bytes is reached ({used} of {most} bytes); readers wait"
            )

    def _measure_sealed(self) -> int:
        with translate_os_errors(self.directory):
            try:
                return segments_size(self.directory, self.files) - self._active.size()
            except OSError as error:
                if error.errno in FULL_TABLE:
                    raise no_room_error(self.directory, error) from error
                raise

    def _poison(self, failure: OSError) -> NoReturn:
        # Invariant 13: the kernel may have dropped the pages, so a second sync proves nothing.
        error = LogPoisoned(
            f"{self.directory}: a sync failed ({failure.strerror}); "
            "restart the engine, which recovers the log from the disk"
        )
        error.__cause__ = failure
        self._fail(error)

    def _fail(self, error: LogPoisoned) -> NoReturn:
        self._failure = error
        self._condition.notify_all()
        raise error

    def _write(self, messages: pa.RecordBatch, source: layout.Source, now: int) -> tuple[int, int]:
        begun = self._active.byte
        self._jump_detector.record(now)
        offsets = self._active.write(messages, source, now, self._durable)
        if self._begun_at is None:
            self._begun_at = uptime()
        self._group.add_write(self._active.byte - begun)
        return offsets

    def _wait_for_turn(self, size: int, positions_size: int, now: int) -> None:
        """Wait until *size* bytes, with *positions_size* of positions, may be written.

        The active segment may be full or old, and the group of the next sync may be large
        (Invariant 13). Each wait releases the lock, so all conditions are checked again.
        """
        self._refuse_if_unusable()
        self._refuse_over_budget(size)
        self._grow_reserve(size + positions_size)
        while (full := self._is_full()) or not self._group.has_room(
            size, self._reserve.covered_bytes
        ):
            if self._group.syncing:
                self._condition.wait()
            elif full:
                self._roll(now)
            else:
                self._sync_now()
            self._refuse_if_unusable()

    def _grow_reserve(self, size: int) -> None:
        """Grow the reserve for *size* bytes and their group, or for them alone (Invariant 13)."""
        group = self._group.size_with(size)
        if self._reserve.covered_bytes >= min(group, GROUP_BYTES):
            return
        try:
            self._reserve.grow(group)
        except OSError as error:
            if self._reserve.covered_bytes < min(size, GROUP_BYTES):
                if error.errno in BACK_PRESSURE:
                    raise no_room_error(self.directory, error) from error
                raise EnvironmentFault(f"{self.directory}: {error.strerror}") from error

    def _sync_through(self, offset: int) -> None:
        """Wait until *offset* is durable, by this thread's sync or one begun after its write."""
        while self._durable < offset:
            self._refuse_if_failed()
            if self._group.syncing:
                self._condition.wait()
                continue
            self._group.gather_writes()
            if self._failure is None:
                self._sync_now()

    def _sync_now(self) -> None:
        """Sync everything written so far, letting other threads write meanwhile."""
        active, covered = self._active, self._active.last
        try:
            with self._group.sync():
                active.sync()
        except SyncFailed as failure:
            self._poison(failure)
        self._publish(covered)

    def _publish(self, covered: int) -> None:
        # Invariant 12: checked after the sync, so an engine that takes the log over from here on
        # finds everything that was written.
        self._refuse_without_lock()
        self._durable = max(self._durable, covered)
        self._durable_mark.publish(self.epoch, self._durable)
        self._condition.notify_all()

    def _is_full(self) -> bool:
        full = self._active.byte >= self._segment_bytes or self._must_roll()
        return full and not self._active.is_empty

    def _must_roll(self) -> bool:
        """Return whether the active segment is old, or a roll has failed behind its seal.

        The next segment may then exist already, and readers end the sealed one where that begins
        (Invariant 2).
        """
        if self._active.is_sealed:
            return True
        if self._segment_age is None or self._begun_at is None:
            return False
        return uptime() - self._begun_at >= self._segment_age

    def _roll(self, now: int) -> None:
        """Seal the active segment and begin the next one, in the order of Invariant 2.

        Its header states the wall time *now*. Log time may be ahead of that.
        """
        self._refuse_without_lock()
        sealed = self._active
        sealed.seal()
        self._group.clear()
        self._publish(sealed.last)
        header = layout.SegmentHeader(
            log_id=sealed.header.log_id,
            segment_id=secrets.randbits(63),
            base=sealed.next,
            previous=sealed.last,
            next_offset=sealed.next,
            epoch=self.epoch,
            created_at=now,
            positions=sealed.positions,
        )
        try:
            path = write_segment(self.files, self.directory, header)
            self._active = self._open_segment(path)
        except SyncFailed:
            raise
        except OSError as error:
            # The sealed segment is still in use: the next append rolls again, over this base.
            if error.errno in BACK_PRESSURE:
                raise no_room_error(self.directory, error) from error
            raise SyncFailed(error.errno, error.strerror) from error
        # Invariant 16: log time continues from its last value, whatever the wall clock shows.
        self._active.logged_at = max(self._active.logged_at, sealed.logged_at)
        self._begun_at = None
        self._sealed_bytes += sealed.byte + layout.TRAILER_BYTES
        self.room_wanted.set()
        sealed.close()


def _active_age(active: ActiveSegment, now: int) -> float:
    """Return the least number of seconds that *active* has held entries at the wall time *now*."""
    begun = (time for time in (active.oldest, active.header.created_at) if time <= now)
    return (now - next(begun, now)) / _SECOND


def _create_directory(files: FileSystem, directory: Path) -> None:
    try:
        make_directory(files, directory)
    except OSError as error:
        raise EnvironmentFault(
            f"{directory}: cannot create the log directory: {error.strerror}"
        ) from error


def split_for_append(messages: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split *messages* into batches that :meth:`CommitLog.append` accepts.

    Raises:
        MessageTooLarge: one message alone exceeds :data:`MAX_APPEND`.

    """
    if messages.schema != MESSAGE_SCHEMA:
        messages = messages.cast(MESSAGE_SCHEMA)
    if _entries_size(messages) <= MAX_APPEND:
        yield messages
        return
    if messages.num_rows == 1:
        raise MessageTooLarge(
            f"a message of {_entries_size(messages)} bytes (namespace {messages['namespace'][0]}) "
            f"exceeds the {MAX_APPEND} bytes that one append may take"
        )
    half = messages.num_rows // 2
    yield from split_for_append(messages.slice(0, half))
    yield from split_for_append(messages.slice(half))


def _entries_size(messages: pa.RecordBatch) -> int:
    """Return the bytes that *messages* take as entries."""
    return batch_bytes(messages) + _ADDED * int(messages.num_rows)

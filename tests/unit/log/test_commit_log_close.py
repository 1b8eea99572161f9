"""The end of a commit log: a close beside an append, a lost lock, no free descriptors."""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
from typing import TYPE_CHECKING

import pytest
from engine_tools import PATIENCE, until
from log_tools import Disk, crash, offsets_of

from transporter.errors import LockLost, LogFull, LogPoisoned
from transporter.log.commit_log import MAX_APPEND, CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.lock import LOCK
from transporter.log.segment import segment_bases

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.filesystem import File

    Make = Callable[..., pa.RecordBatch]


class _FirstSyncHeld(RealFileSystem):
    """The real disk, whose first sync lasts until ``go`` is set, and ends with ``error`` if any."""

    def __init__(self) -> None:
        self.go, self.begun = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        file = super().open(path, write=write, create=create)
        if path.suffix == ".log" and write:
            sync = file.sync

            def held() -> None:
                if not self.begun.is_set():
                    self.begun.set()
                    assert self.go.wait(2 * PATIENCE)
                    if self.error is not None:
                        raise self.error
                sync()

            file.sync = held  # type: ignore[method-assign]
        return file


def _open_all(folder: Path, count: int) -> list[int]:
    """Open *count* new files, which take the numbers of all free descriptors."""
    folder.mkdir()
    return [os.open(folder / str(number), os.O_RDWR | os.O_CREAT) for number in range(count)]


def test_an_error_of_any_kind_in_a_sync_leaves_nobody_waiting(tmp_path: Path, batch: Make) -> None:
    """An append that waits for a sync which raises an unexpected error does not wait for ever."""
    disk, ended = _FirstSyncHeld(), queue.Queue[object]()
    with CommitLog.open(tmp_path, files=disk) as log:

        def append(reader: str) -> None:
            try:
                ended.put(log.append(batch(3), reader))
            except TypeError as error:
                ended.put(str(error))

        threads = [threading.Thread(target=append, args=(name,), daemon=True) for name in "ab"]
        threads[0].start()
        until(disk.begun.is_set)
        threads[1].start()
        until(lambda: log._group._writes)
        disk.error = TypeError("a bug")
        disk.go.set()
        assert {ended.get(timeout=PATIENCE), ended.get(timeout=PATIENCE)} == {"a bug", (3, 5)}
    assert offsets_of(tmp_path) == list(range(6))


def test_close_waits_for_an_append_that_syncs(tmp_path: Path, batch: Make) -> None:
    """An append that is syncing when the log is closed writes to no other file."""
    disk = _FirstSyncHeld()
    log = CommitLog.open(tmp_path / "log", files=disk)
    appended: list[tuple[int, int]] = []
    append = threading.Thread(target=lambda: appended.append(log.append(batch(3), "r")))
    append.start()
    assert disk.begun.wait(30)
    close = threading.Thread(target=log.close)
    close.start()
    close.join(0.5)
    others = _open_all(tmp_path / "others", 40)
    disk.go.set()
    append.join()
    close.join()
    assert [os.fstat(each).st_size for each in others] == [0] * 40
    for each in others:
        os.close(each)
    assert appended == [(0, 2)]
    assert offsets_of(tmp_path / "log") == [0, 1, 2]


def test_a_closed_log_writes_nothing_more(tmp_path: Path, batch: Make) -> None:
    """Calls on a closed log write to, sync and measure no file."""
    log = CommitLog.open(tmp_path / "log")
    log.append(batch(1), "r")
    used = log.used_bytes
    log.close()
    log.close()
    others = _open_all(tmp_path / "others", 40)
    with pytest.raises(LogPoisoned, match="the log is closed"):
        log.append(batch(1), "r")
    log.check_lock()
    assert not log.roll_if_old()
    assert log.used_bytes == used
    assert log.positions == {}
    assert [os.fstat(each).st_size for each in others] == [0] * 40
    for each in others:
        os.close(each)


class _Counting(RealFileSystem):
    """The real disk, which counts the unsynced bytes of segments. Syncs wait for ``go``."""

    def __init__(self) -> None:
        self.unsynced = self.most = 0
        self.go = threading.Event()
        self.go.set()

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        file = super().open(path, write=write, create=create)
        if path.suffix == ".log" and write:
            pwrite, sync = file.pwrite, file.sync

            def counted(data: bytes, byte: int) -> None:
                self.unsynced += len(data)
                self.most = max(self.most, self.unsynced)
                pwrite(data, byte)

            def slow() -> None:
                before = self.unsynced
                assert self.go.wait(2 * PATIENCE)
                time.sleep(0.02)
                sync()
                self.unsynced -= before

            file.pwrite, file.sync = counted, slow  # type: ignore[method-assign]
        return file


def test_what_no_sync_covers_is_bounded_at_rolls(tmp_path: Path, batch: Make) -> None:
    """Appends that wait for a roll write at most two groups (Invariant 13)."""
    disk, large = _Counting(), batch(4, size=1 << 20)
    with CommitLog.open(tmp_path, files=disk, compression=None, segment_bytes=30 << 20) as log:
        for _ in range(7):
            log.append(large, "r")
        disk.go.clear()
        threads = [threading.Thread(target=log.append, args=(large, "r")) for _ in range(8)]
        for thread in threads:
            thread.start()
        # One of them fills the segment and syncs, and the others wait for that and for a roll.
        time.sleep(0.5)
        disk.go.set()
        for thread in threads:
            thread.join()
        assert len(segment_bases(Disk(), tmp_path)) == 2
    assert disk.most <= 2 * MAX_APPEND + (1 << 16)
    assert offsets_of(tmp_path) == list(range(60))


def test_an_engine_whose_lock_was_removed_acks_nothing_more(tmp_path: Path, batch: Make) -> None:
    """Once another engine can own the log, no append of this one succeeds (Invariant 12)."""
    log = CommitLog.open(tmp_path)
    assert log.append(batch(1), "r") == (0, 0)
    (tmp_path / LOCK).unlink()
    with CommitLog.open(tmp_path) as other:
        assert other.append(batch(1), "r") == (1, 1)
        with pytest.raises(LockLost, match="another engine"):
            log.append(batch(1), "r")
        with pytest.raises(LockLost):
            log.append(batch(1), "r")
        assert log.durable == 0
        log.close()
        assert other.append(batch(1), "r") == (2, 2)
    assert offsets_of(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("how", ["removed", "replaced", "gone with the log"])
def test_a_lost_lock_is_noticed_without_an_append(tmp_path: Path, batch: Make, how: str) -> None:
    """A check of the lock reports its loss before settled entries are synced."""
    directory = tmp_path / "log"
    log = CommitLog.open(directory)
    log.append(batch(1), "r")
    log.check_lock()
    if how == "removed":
        (directory / LOCK).unlink()
    elif how == "replaced":
        (directory / "other").touch()
        (directory / "other").rename(directory / LOCK)
    else:
        directory.rename(tmp_path / "moved")
    with pytest.raises(LockLost, match="lock"):
        log.check_lock()
    with pytest.raises(LockLost):
        log.append(batch(1), "r")
    log.close()


def test_a_lost_lock_stops_a_roll(tmp_path: Path, batch: Make) -> None:
    """An engine that has lost its lock begins no segment that another one may have begun."""
    log = CommitLog.open(tmp_path, segment_bytes=1)
    log.append(batch(1), "r")
    (tmp_path / LOCK).unlink()
    with pytest.raises(LockLost):
        log.append(batch(1), "r")
    assert segment_bases(Disk(), tmp_path) == [0]
    log.close()


def test_without_descriptors_a_roll_is_back_pressure(tmp_path: Path, batch: Make) -> None:
    """A roll without a free descriptor loses nothing and is retried (Invariant 14)."""
    for call in ("open", "sync_directory"):
        directory = tmp_path / call
        disk = _Tableless(call)
        log = CommitLog.open(directory, files=disk, segment_bytes=1)
        log.append(batch(2), "r")
        disk.full = True
        for _ in range(2):
            with pytest.raises(LogFull, match="descriptor"):
                log.append(batch(2), "r")
        disk.full = False
        assert log.append(batch(2), "r") == (2, 3)
        disk.full = True
        log.close()
        assert offsets_of(directory) == [0, 1, 2, 3]


@pytest.mark.parametrize("call", ["open", "sync_directory"])
def test_a_failed_roll_is_repeated_whatever_the_settings_are_by_then(
    tmp_path: Path, batch: Make, call: str
) -> None:
    """Nothing is appended behind a seal, though a reload has made segments last (Invariant 2)."""
    disk = _Tableless(call)
    log = CommitLog.open(tmp_path, files=disk)
    log.append(batch(2), "r")
    log.set_segment_age(0.0)
    disk.full = True
    with pytest.raises(LogFull):
        log.append(batch(2), "r")
    log.set_segment_age(None)
    with pytest.raises(LogFull):
        log.roll_if_old()
    disk.full = False
    assert log.append(batch(2), "r") == (2, 3)
    assert offsets_of(tmp_path) == [0, 1, 2, 3]
    assert segment_bases(Disk(), tmp_path) == [0, 2]
    crash(log)
    with CommitLog.open(tmp_path) as again:
        assert again.append(batch(1), "r") == (4, 4)


def test_without_descriptors_a_budget_is_back_pressure(tmp_path: Path, batch: Make) -> None:
    """A budget's measurement waits for a free descriptor (Invariant 14)."""
    disk = _Tableless("open")
    with CommitLog.open(tmp_path, files=disk, max_bytes=4 << 20) as log:
        disk.full = True
        with pytest.raises(LogFull, match="descriptor"):
            log.append(batch(2), "r")
        disk.full = False
        assert log.append(batch(2), "r") == (0, 1)


def test_a_crash_between_two_tries_to_roll_loses_nothing(tmp_path: Path, batch: Make) -> None:
    """A roll that a full table cut short is repeated or recovered from, and loses nothing."""
    disk = _Tableless("sync_directory")
    log = CommitLog.open(tmp_path, files=disk, segment_bytes=1)
    log.append(batch(2), "r")
    disk.full = True
    with pytest.raises(LogFull):
        log.append(batch(2), "r")
    crash(log)
    with CommitLog.open(tmp_path) as again:
        assert again.append(batch(1), "r") == (2, 2)
    assert offsets_of(tmp_path) == [0, 1, 2]


class _Tableless(RealFileSystem):
    """The real disk, where a call finds no free descriptor while ``full`` is set."""

    def __init__(self, call: str) -> None:
        self._call, self.full = call, False

    def _check(self, call: str) -> None:
        if self.full and call == self._call:
            raise OSError(errno.EMFILE, "Too many open files")

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        self._check("open")
        return super().open(path, write=write, create=create)

    def sync_directory(self, directory: Path) -> None:
        self._check("sync_directory")
        super().sync_directory(directory)

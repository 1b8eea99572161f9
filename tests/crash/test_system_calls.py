"""Below the seam: system calls that do a part of their work, or that a file system lacks."""

from __future__ import annotations

import errno
import os
import random
import threading
from typing import TYPE_CHECKING, NoReturn

import pytest
from crash.workload import Ledger, Life, check_restart, live, small_files
from disks.faulty import Fault, FaultyDisk
from log_tools import held

from transporter.errors import EnvironmentFault, LogFull, LogPoisoned, TransporterError
from transporter.log import active_segment
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.reader import LogReader
from transporter.message import Message, messages_to_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    """Make files small."""
    with small_files():
        yield


def live_and_restart(folder: Path) -> None:
    """Live a whole life, which must go well, and start again."""
    disk, ledger = FaultyDisk(RealFileSystem()), Ledger()
    try:
        live(folder / "log", disk, ledger)
    finally:
        disk.kill()
    check_restart(folder / "log", RealFileSystem(), ledger)


def short_writes(seed: int) -> Callable[[int, memoryview, int], int]:
    """Return a ``pwrite`` that writes a part, at least one byte, of its data."""
    pwrite, chance = os.pwrite, random.Random(seed)

    def short(descriptor: int, data: memoryview, byte: int) -> int:
        return pwrite(descriptor, data[: chance.randint(1, len(data))], byte)

    return short


@pytest.mark.parametrize("seed", range(3))
def test_short_writes_are_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A ``pwrite`` that writes a part of its data, each time, costs only more calls."""
    monkeypatch.setattr("os.pwrite", short_writes(seed))
    live_and_restart(tmp_path)


def test_short_writes_that_are_not_finished_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: where the result of ``pwrite`` is ignored, the same life does not hold together."""
    monkeypatch.setattr("os.pwrite", short_writes(0))
    monkeypatch.setattr(
        "transporter.log.filesystem._RealFile.pwrite",
        lambda file, data, byte: os.pwrite(file._fd, data, byte),
    )
    with pytest.raises((TransporterError, AssertionError, ValueError)):
        live_and_restart(tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_short_reads_are_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A ``pread`` that reads a part of its range, each time, costs only more calls."""
    pread, chance = os.pread, random.Random(seed)
    monkeypatch.setattr(
        "os.pread", lambda fd, size, byte: pread(fd, chance.randint(1, size) if size else 0, byte)
    )
    live_and_restart(tmp_path)


def test_short_reads_that_are_not_finished_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: where one short ``pread`` is taken as complete, the same life does not hold."""
    pread = os.pread
    monkeypatch.setattr(
        "transporter.log.filesystem._RealFile.pread",
        lambda file, size, byte: pread(file._fd, max(1, size // 2) if size else 0, byte),
    )
    with pytest.raises((TransporterError, AssertionError, ValueError)):
        live_and_restart(tmp_path)


class NearlyFull:
    """A disk with little room: a write does as much as it can, and the next one gets ENOSPC."""

    def __init__(self) -> None:
        self.room = 1 << 30
        self.short = 0
        self._pwrite = os.pwrite

    def pwrite(self, descriptor: int, data: memoryview, byte: int) -> int:
        """Write as much as there is room for. Bytes within the file take none."""
        end = os.fstat(descriptor).st_size
        lacking = max(0, byte + len(data) - max(byte, end) - self.room)
        if lacking and lacking == len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.short += lacking > 0
        written = self._pwrite(descriptor, data[: len(data) - lacking], byte)
        self.room -= max(0, byte + written - max(byte, end))
        return written


def test_a_disk_that_fills_up_in_the_middle_of_a_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 14: after a short write and ENOSPC the frame is taken back, and can be repeated."""
    disk, ledger, system = FaultyDisk(RealFileSystem()), Ledger(), NearlyFull()
    monkeypatch.setattr("os.posix_fallocate", refusing(errno.EOPNOTSUPP))
    monkeypatch.setattr("os.pwrite", system.pwrite)
    life = Life(tmp_path / "log", disk, ledger)
    for room in range(900, 5000, 97):
        system.room = room
        with pytest.raises(LogFull):
            append_for_ever(life)
        system.room = 1 << 30
        life.append("a", 1)
        life.settle(sync=True)
    life.read()
    disk.kill()
    assert system.short > 20
    check_restart(tmp_path / "log", RealFileSystem(), ledger)


def append_for_ever(life: Life) -> NoReturn:
    """Append until the log refuses."""
    while True:
        life.append("a", 1)


def refusing(error: int, size: int | None = None) -> Callable[[int, int, int], None]:
    """Return a ``posix_fallocate`` that fails, for *size* bytes or always."""
    fallocate = os.posix_fallocate

    def refuse(descriptor: int, byte: int, wanted: int) -> None:
        if size in (None, wanted):
            raise OSError(error, os.strerror(error))
        fallocate(descriptor, byte, wanted)

    return refuse


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.EINVAL], ids=errno.errorcode.get)
def test_a_file_system_that_cannot_reserve_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Without ``posix_fallocate`` files grow by being written."""
    monkeypatch.setattr("os.posix_fallocate", refusing(error))
    live_and_restart(tmp_path)


def test_no_room_to_reserve_is_no_lack_of_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames are written where there is room for them, though none for the next reserve."""
    monkeypatch.setattr("os.posix_fallocate", refusing(errno.ENOSPC, active_segment.PREALLOCATION))
    live_and_restart(tmp_path)


def test_an_error_in_reserving_is_the_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another error of ``posix_fallocate`` fails the append, and the next one succeeds."""
    with CommitLog.open(tmp_path / "log") as log:
        with monkeypatch.context() as patch:
            patch.setattr("os.posix_fallocate", refusing(errno.EIO))
            with pytest.raises(EnvironmentFault):
                log.append(rows(b"refused"), "r")
        assert log.append(rows(b"0"), "r") == (0, 0)


def rows(*data: bytes) -> pa.RecordBatch:
    """Return a batch of messages with *data*."""
    return messages_to_batch([Message("n", each, b"k") for each in data])


class Appender(threading.Thread):
    """Appends until it is refused."""

    def __init__(self, log: CommitLog, name: str) -> None:
        super().__init__(name=name)
        self.acked: dict[int, bytes] = {}
        self.ended: Exception | None = None
        self._log = log

    def run(self) -> None:
        """Append and record the acks until the log itself ends it."""
        number = 0
        try:
            while True:
                data = b"%s/%d" % (self.name.encode(), number)
                offset, _ = self._log.append(rows(data), self.name, str(number))
                self.acked[offset] = data
                number += 1
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.ended = error


@pytest.mark.parametrize("at", [5, 37, 90])
def test_whoever_waits_for_a_sync_that_fails_is_refused(tmp_path: Path, at: int) -> None:
    """Invariants 1 and 13: of eight readers none is acked over the failed sync, none waits on."""
    disk = FaultyDisk(RealFileSystem(), Fault(at, errno.EIO, frozenset({"sync"})))
    log = CommitLog.open(tmp_path / "log", segment_bytes=20_000, files=disk)
    readers = [Appender(log, f"r{number}") for number in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(30)
    assert [type(reader.ended) for reader in readers] == [LogPoisoned] * 8
    acked = {offset: data for reader in readers for offset, data in reader.acked.items()}
    assert len(acked) == sum(len(reader.acked) for reader in readers)
    assert max(acked, default=-1) <= log.durable
    disk.kill()
    with CommitLog.open(tmp_path / "log") as again, LogReader(tmp_path / "log") as reader:
        found = held(reader, again.durable)
    assert found | acked == found

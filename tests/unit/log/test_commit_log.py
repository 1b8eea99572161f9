"""The commit log on the real file system: append, roll, close and reopen."""

from __future__ import annotations

import errno
import threading
import time
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c
from engine_tools import PATIENCE, until
from log_tools import Disk, crash, offsets_of

from transporter.errors import (
    Corrupt,
    LogFull,
    LogLocked,
    LogPoisoned,
    MessageTooLarge,
    UnknownFormat,
)
from transporter.log.commit_log import MAX_APPEND, CommitLog, split_for_append
from transporter.log.filesystem import RealFileSystem
from transporter.log.format import header_length
from transporter.log.meta import read_meta
from transporter.log.segment import segment_bases

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.filesystem import File

    Make = Callable[..., pa.RecordBatch]


def test_offsets_are_dense_and_go_on_after_a_clean_stop(tmp_path: Path, batch: Make) -> None:
    """Offsets count up from 0 and a clean stop and start repeats and loses none."""
    with CommitLog.open(tmp_path) as log:
        assert log.append(batch(3), "r") == (0, 2)
    with CommitLog.open(tmp_path) as log:
        assert log.durable == 2
        assert log.append(batch(2), "r") == (3, 4)
    assert offsets_of(tmp_path) == [0, 1, 2, 3, 4]


def test_epochs_grow_with_every_open(tmp_path: Path) -> None:
    """Each open takes the next epoch, which distinguishes its writers from earlier ones."""
    epochs = []
    for _ in range(3):
        with CommitLog.open(tmp_path) as log:
            epochs.append(log.epoch)
    assert epochs == [1, 2, 3]


def test_append_returns_only_after_its_frame_was_synced(tmp_path: Path, batch: Make) -> None:
    """An append returns only after a sync of its frame (Invariant 1)."""
    disk = Disk()
    with CommitLog.open(tmp_path, files=disk) as log:
        disk.calls.clear()
        log.append(batch(1), "r")
    written = max(at for at, call in enumerate(disk.calls) if call == ("pwrite", "0" * 20 + ".log"))
    assert ("sync", "0" * 20 + ".log") in disk.calls[written:]


def test_nothing_is_published_before_it_is_durable(tmp_path: Path, batch: Make) -> None:
    """Routes and other processes see an offset only after its sync (Invariant 1)."""
    disk = Disk()
    log = CommitLog.open(tmp_path, files=disk)
    disk.failing["sync"] = OSError(errno.EIO, "Input/output error")
    with pytest.raises(LogPoisoned):
        log.append(batch(1), "r")
    assert log.durable == -1
    assert log.wait_beyond(-1, timeout=0) == -1


def test_a_failed_sync_poisons_the_log(tmp_path: Path, batch: Make) -> None:
    """After a failed sync no append succeeds, even if the disk works again (Invariant 13)."""
    disk = Disk()
    log = CommitLog.open(tmp_path, files=disk)
    disk.failing["sync"] = OSError(errno.EIO, "Input/output error")
    with pytest.raises(LogPoisoned):
        log.append(batch(1), "r")
    disk.failing.clear()
    with pytest.raises(LogPoisoned):
        log.append(batch(1), "r")
    log.close()
    assert read_meta(disk, tmp_path).clean is None


def test_a_full_disk_takes_the_frame_back_and_later_appends_succeed(
    tmp_path: Path, batch: Make
) -> None:
    """A full disk leaves no partial frame, and later appends succeed (Invariant 14)."""
    disk = Disk()
    log = CommitLog.open(tmp_path, files=disk)
    log.append(batch(2), "r")
    disk.failing["pwrite"] = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(LogFull):
        log.append(batch(2), "r")
    disk.failing.clear()
    assert log.append(batch(2), "r") == (2, 3)
    log.close()
    assert offsets_of(tmp_path) == [0, 1, 2, 3]


def test_segments_roll_and_join_without_hole(tmp_path: Path, batch: Make) -> None:
    """A full segment is sealed, the next one begins behind it, and reading crosses the seam."""
    with CommitLog.open(tmp_path, segment_bytes=4096) as log:
        for _ in range(20):
            log.append(batch(10), "r")
        bases = segment_bases(Disk(), tmp_path)
        assert len(bases) > 3
        assert offsets_of(tmp_path) == list(range(200))


def test_concurrent_appends_share_syncs_and_lose_nothing(tmp_path: Path, batch: Make) -> None:
    """Appends from many threads each get their own offsets, all of them readable."""
    got: list[tuple[int, int]] = []
    with CommitLog.open(tmp_path, segment_bytes=1 << 16) as log:
        threads = [
            threading.Thread(
                target=lambda: got.extend(log.append(batch(5), "r") for _ in range(40))
            )
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(got) == [(n, n + 4) for n in range(0, 1200, 5)]
        assert log.durable == 1199
    assert offsets_of(tmp_path) == list(range(1200))


class _HeldSync(RealFileSystem):
    """The real disk, whose segments sync only while ``go`` is set. ``begun`` marks a sync."""

    def __init__(self) -> None:
        self.go, self.begun = threading.Event(), threading.Event()
        self.go.set()

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        file = super().open(path, write=write, create=create)
        if path.suffix == ".log":
            sync = file.sync

            def held() -> None:
                self.begun.set()
                assert self.go.wait(2 * PATIENCE)
                sync()

            file.sync = held  # type: ignore[method-assign]
        return file


def test_what_no_sync_covers_is_bounded(tmp_path: Path, batch: Make) -> None:
    """While a sync runs at most one group of 8 MiB is written behind it (Invariant 13)."""
    disk = _HeldSync()
    large = batch(3, size=1 << 20)
    with CommitLog.open(tmp_path, files=disk, compression=None) as log:
        disk.go.clear()
        disk.begun.clear()
        threads = [threading.Thread(target=log.append, args=(large, f"r{n}")) for n in range(9)]
        for thread in threads:
            thread.start()
        # All appends that fit join the group, and none is notified while a sync runs.
        until(lambda: disk.begun.is_set() and log._group._bytes > MAX_APPEND // 2)
        time.sleep(0.1)
        written = log._active.byte
        disk.go.set()
        for thread in threads:
            thread.join()
    assert written <= 2 * MAX_APPEND + (1 << 16)
    assert offsets_of(tmp_path) == list(range(27))


def test_the_newest_position_of_every_reader_survives(tmp_path: Path, batch: Make) -> None:
    """Positions are kept in the frames and headers, across rolls, clean stops and crashes."""
    log = CommitLog.open(tmp_path, segment_bytes=4096)
    log.append(batch(1), "idle", "first")
    for number in range(30):
        log.append(batch(10), "busy", str(number))
    crash(log)
    with CommitLog.open(tmp_path, segment_bytes=4096) as log:
        assert log.positions == {"idle": "first", "busy": "29"}
    with CommitLog.open(tmp_path) as log:
        assert log.positions == {"idle": "first", "busy": "29"}


def test_a_second_engine_is_refused_and_told_the_owner(tmp_path: Path) -> None:
    """A second engine is refused with the process id of the lock's holder (Invariant 12)."""
    import os  # noqa: PLC0415

    with CommitLog.open(tmp_path), pytest.raises(LogLocked, match=f"pid {os.getpid()}"):
        CommitLog.open(tmp_path)
    CommitLog.open(tmp_path).close()


def test_an_unclean_stop_never_extends_the_old_file(tmp_path: Path, batch: Make) -> None:
    """After a crash the log goes on in a new file (Invariant 13)."""
    log = CommitLog.open(tmp_path)
    log.append(batch(4), "r", "p")
    log.append(batch(4), "r", "q")
    crash(log)
    before = (tmp_path / f"{0:020d}.log").read_bytes()
    with CommitLog.open(tmp_path) as log:
        assert log.durable == 7
        assert log.append(batch(1), "r") == (8, 8)
    # Only cut: neither the copied frames nor the reserved space is needed here any more.
    after = (tmp_path / f"{0:020d}.log").read_bytes()
    assert len(after) < len(before)
    assert before.startswith(after)
    assert offsets_of(tmp_path) == list(range(9))


def test_offsets_of_a_cut_tail_are_never_given_again(tmp_path: Path, batch: Make) -> None:
    """A frame that recovery cuts keeps its offsets for good (Invariant 4)."""
    log = CommitLog.open(tmp_path)
    for _ in range(4):
        log.append(batch(1), "r")
    frames = list(_frames(tmp_path))
    crash(log)
    # Frame 3's header proves offsets 0..2, so damage to its payload tears it alone.
    _flip(tmp_path / f"{0:020d}.log", frames[3].payload_byte + 5)
    with CommitLog.open(tmp_path) as log:
        assert log.durable == 2
        assert log.append(batch(1), "r") == (4, 4)
    assert offsets_of(tmp_path) == [0, 1, 2, 4]


def test_damage_below_the_floor_is_refused_and_nothing_changed(tmp_path: Path, batch: Make) -> None:
    """A damaged header below the durable floor is corruption, named by place (Invariant 3)."""
    log = CommitLog.open(tmp_path)
    for _ in range(4):
        log.append(batch(1), "r")
    frames = list(_frames(tmp_path))
    crash(log)
    path = tmp_path / f"{0:020d}.log"
    _flip(path, frames[1].byte + 30)
    before = path.read_bytes()
    with pytest.raises(Corrupt, match=f"byte {frames[1].byte}, offset 1") as caught:
        CommitLog.open(tmp_path)
    assert caught.value.file == str(path)
    assert path.read_bytes() == before


def test_an_offset_log_proves_durability(tmp_path: Path, batch: Make) -> None:
    """The loss of entries that a route has settled is corruption, not a torn tail (Invariant 3)."""
    log = CommitLog.open(tmp_path)
    log.append(batch(1), "r")
    log.append(batch(1), "r")
    frames = list(_frames(tmp_path))
    crash(log)
    _flip(tmp_path / f"{0:020d}.log", frames[1].byte + 30)
    with pytest.raises(Corrupt):
        CommitLog.open(tmp_path, proved=lambda: 1)
    with CommitLog.open(tmp_path, proved=lambda: 0) as log:
        assert log.durable == 0


def test_a_segment_of_another_format_version_is_refused_as_such(
    tmp_path: Path, batch: Make
) -> None:
    """An unknown format version is named and not taken for damage (Invariant 19)."""
    with CommitLog.open(tmp_path) as log:
        log.append(batch(1), "r")
    path = tmp_path / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[8] = 9
    end = header_length(bytes(data), "")
    data[end - 4 : end] = crc32c(bytes(data[: end - 4])).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(UnknownFormat, match="version 9"):
        CommitLog.open(tmp_path)


def test_a_log_whose_meta_is_missing_is_not_begun_anew(tmp_path: Path, batch: Make) -> None:
    """A lost meta file is reported, and the existing segment is never overwritten."""
    with CommitLog.open(tmp_path) as log:
        log.append(batch(1), "r")
    (tmp_path / "meta").unlink()
    with pytest.raises(Corrupt, match="meta"):
        CommitLog.open(tmp_path)


def test_a_missing_segment_is_refused(tmp_path: Path, batch: Make) -> None:
    """A segment missing from the middle is corruption, because coverage must join."""
    with CommitLog.open(tmp_path, segment_bytes=2048) as log:
        for _ in range(20):
            log.append(batch(10), "r")
    bases = segment_bases(Disk(), tmp_path)
    (tmp_path / f"{bases[1]:020d}.log").unlink()
    with pytest.raises(Corrupt, match=f"offset {bases[1]}"):
        CommitLog.open(tmp_path)


def test_large_batches_are_cut_and_one_giant_message_is_refused(batch: Make) -> None:
    """Every append stays within the size that recovery may have to copy."""
    parts = list(split_for_append(batch(20, size=1 << 20)))
    assert sum(part.num_rows for part in parts) == 20
    assert all(part.nbytes <= MAX_APPEND for part in parts)
    with pytest.raises(MessageTooLarge, match=r"orders\.placed"):
        list(split_for_append(batch(1, size=MAX_APPEND)))


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_a_frame_that_no_reader_would_take_is_never_written(
    tmp_path: Path, batch: Make, compression: str | None
) -> None:
    """An oversized append without cutting is refused, however small its compressed size."""
    with CommitLog.open(tmp_path, compression=compression) as log:
        with pytest.raises(MessageTooLarge, match="in parts"):
            log.append(batch(20, size=1 << 20), "r")
        assert log.append(batch(1), "r") == (0, 0)


def test_log_time_never_goes_back(tmp_path: Path, batch: Make) -> None:
    """A wall clock that is set back does not set entries back (Invariant 16)."""
    times = iter([50, 100, 40, 120])
    with CommitLog.open(tmp_path, clock=lambda: next(times)) as log:
        for _ in range(3):
            log.append(batch(1), "r")
    assert [frame.logged_at for frame in _frames(tmp_path)] == [100, 100, 120]


def _frames(directory: Path) -> list:
    from transporter.log.reader import LogReader  # noqa: PLC0415

    with LogReader(directory) as reader:
        return [found.frame for found in reversed(list(reader.frames_backwards(1 << 40)))]


def _flip(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 0x40
    path.write_bytes(data)

"""Recovery of frames that several appends wrote before one sync, after a power cut."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from log_tools import Disk, crash, damage, leave_moved_frame, offsets_of, unsynced

from transporter.errors import Corrupt, EnvironmentFault, LogFull, LogPoisoned
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import TEMPORARY, RealFileSystem
from transporter.log.group_commit import GROUP_BYTES
from transporter.log.meta import read_meta
from transporter.log.reader import LogReader
from transporter.log.recovery import last_covered_offset
from transporter.log.reserve import RESERVE, RESERVE_BYTES, Reserve, ensure_reserve
from transporter.log.segment import Segment, segment_bases, segment_name
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import OffsetLog

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.filesystem import File
    from transporter.log.format import FrameHeader
    from transporter.log.reader import LocatedFrame

    Make = Callable[..., pa.RecordBatch]

LEAST = RESERVE_BYTES >> 4
"""The size of the reserve of a log whose appends are small."""
LARGE = 120_000
"""Bytes of a message of which ten make a frame that gets an index entry of its own."""


def plain(directory: Path) -> CommitLog:
    """Open a log without compression, so that frames are as large as their messages."""
    return CommitLog.open(directory, compression=None)


def test_the_last_frame_of_a_killed_engine_is_kept(tmp_path: Path, batch: Make) -> None:
    """Whole frames above the floor are part of the log (Invariant 2)."""
    log = CommitLog.open(tmp_path)
    log.append(batch(3), "r", "3")
    for number in (6, 9):
        unsynced(log, batch(3), position=str(number))
    crash(log)
    with CommitLog.open(tmp_path) as log:
        assert (log.durable, log.positions) == (8, {"r": "9"})


def test_recovery_is_the_same_when_it_is_repeated(tmp_path: Path, batch: Make) -> None:
    """A crash right after recovery changes nothing, however often it happens."""
    log = CommitLog.open(tmp_path)
    log.append(batch(3), "r", "a")
    unsynced(log, batch(3), position="b")
    torn = unsynced(log, batch(3), position="c")
    crash(log)
    damage(tmp_path, torn.payload_byte)
    for _ in range(3):
        log = CommitLog.open(tmp_path)
        assert (log.durable, log.positions) == (5, {"r": "b"})
        crash(log)
    with CommitLog.open(tmp_path) as log:
        assert log.append(batch(1), "r") == (9, 9)
    assert offsets_of(tmp_path) == [*range(6), 9]


@pytest.mark.parametrize("place", ["header", "payload", "extension"])
def test_nothing_behind_a_torn_frame_is_kept(tmp_path: Path, batch: Make, place: str) -> None:
    """A torn tail is cut with everything behind it, valid frames included (Invariant 3)."""
    log = CommitLog.open(tmp_path)
    log.append(batch(3), "r", "kept")
    torn = unsynced(log, batch(3), position="torn")
    unsynced(log, batch(3), "other", "lost")
    crash(log)
    at = {"header": torn.byte + 9, "payload": torn.payload_byte, "extension": torn.extension_byte}
    damage(tmp_path, at[place])
    with CommitLog.open(tmp_path) as log:
        assert (log.durable, log.positions) == (2, {"r": "kept"})
        # Invariant 4: the offsets of the cut frames are used up.
        assert log.append(batch(1), "r") == (9, 9)


@pytest.mark.parametrize("place", ["header", "payload"])
def test_offsets_of_cut_frames_stay_used_when_the_index_is_ahead(
    tmp_path: Path, batch: Make, place: str
) -> None:
    """An index entry behind the torn frame hides none of the offsets used there (Invariant 4)."""
    log = plain(tmp_path)
    log.append(batch(1), "r")
    frames = [unsynced(log, batch(10, size=LARGE)) for _ in range(4)]
    crash(log)
    damage(tmp_path, frames[0].byte + 9 if place == "header" else frames[0].payload_byte)
    with plain(tmp_path) as log:
        assert log.durable == 0
        assert log.append(batch(1), "r") == (41, 41)


def test_positions_of_cut_frames_are_forgotten(tmp_path: Path, batch: Make) -> None:
    """A position in a checkpoint behind a torn frame is not trusted by recovery.

    Otherwise the reader would go on behind messages that the log has lost.
    """
    log = plain(tmp_path)
    log.append(batch(1, size=2_000_000), "a", "durable")
    torn = unsynced(log, batch(10, size=LARGE), "a", "lost")
    unsynced(log, batch(10, size=LARGE), "b", "lost too")
    crash(log)
    damage(tmp_path, torn.payload_byte)
    with plain(tmp_path) as log:
        assert (log.durable, log.positions) == (0, {"a": "durable"})


def test_a_bad_header_below_the_floor_is_refused_when_the_index_is_ahead(
    tmp_path: Path, batch: Make
) -> None:
    """A durable entry is not cut because of an index entry behind it (Invariant 3)."""
    log = plain(tmp_path)
    log.append(batch(1), "r")
    log.append(batch(1), "r")
    second = _frames(log)[1]
    for _ in range(3):
        unsynced(log, batch(10, size=LARGE))
    crash(log)
    damage(tmp_path, second.byte + 9)
    with pytest.raises(Corrupt, match=f"byte {second.byte}, offset 1"):
        plain(tmp_path)


def _frames(log: CommitLog) -> list[FrameHeader]:
    with LogReader(log.directory) as reader:
        return [found.frame for found in reader.frames(0, log.durable)]


def test_a_tail_of_many_frames_is_moved_as_it_was(tmp_path: Path, batch: Make) -> None:
    """Frames above the floor keep offsets, times, entries and positions in the new file."""
    log = plain(tmp_path)
    log.append(batch(1), "r", "0")
    for number in range(1, 6):
        unsynced(log, batch(10, size=LARGE), f"r{number % 2}", str(number))
    crash(log)
    with LogReader(tmp_path) as reader:
        before = [found.entries() for found in reader.frames(1, 50)]
    with plain(tmp_path) as log:
        assert (log.durable, log.positions) == (50, {"r": "0", "r1": "5", "r0": "4"})
    with LogReader(tmp_path) as reader:
        moved = list(reader.frames(1, 50))
        assert [found.segment.header.base for found in moved] == [1] * 5
        assert all(found.entries().equals(old) for found, old in zip(moved, before, strict=True))


def test_a_torn_first_frame_leaves_an_empty_log(tmp_path: Path, batch: Make) -> None:
    """A segment without a whole frame is replaced by one that begins at the same offset."""
    log = CommitLog.open(tmp_path)
    torn = unsynced(log, batch(5), position="p")
    crash(log)
    damage(tmp_path, torn.payload_byte)
    with CommitLog.open(tmp_path) as log:
        assert (log.durable, log.positions) == (-1, {})
        assert log.append(batch(1), "r") == (5, 5)
    assert segment_bases(Disk(), tmp_path) == [0]
    assert offsets_of(tmp_path) == [5]


def test_what_meta_has_proved_survives_the_loss_of_every_frame(tmp_path: Path, batch: Make) -> None:
    """``meta`` proves the entries of the last open, so their loss is corruption (Invariant 3)."""
    with CommitLog.open(tmp_path) as log:
        log.append(batch(3), "r")
    log = CommitLog.open(tmp_path)
    frame = _frames(log)[0]
    crash(log)
    assert read_meta(Disk(), tmp_path).proved == 2
    damage(tmp_path, frame.byte + 9)
    with pytest.raises(Corrupt, match="offset 2 was proved durable"):
        CommitLog.open(tmp_path)


def test_a_seal_that_was_cut_short_is_recovered(tmp_path: Path, batch: Make) -> None:
    """A trailer without a next segment, as a kill between the two leaves it, loses nothing."""
    log = CommitLog.open(tmp_path)
    log.append(batch(3), "r", "p")
    log._active.seal()
    crash(log)
    with CommitLog.open(tmp_path) as log:
        assert (log.durable, log.positions) == (2, {"r": "p"})
        assert log.append(batch(1), "r") == (3, 3)
    assert offsets_of(tmp_path) == [0, 1, 2, 3]


def test_what_recovery_copied_is_cut_from_the_old_file(tmp_path: Path, batch: Make) -> None:
    """A kill leaves neither reserved zeros nor a second copy of the moved frames behind."""
    log = CommitLog.open(tmp_path)
    log.append(batch(2), "r")
    end = log._active.byte
    log.append(batch(2), "r")
    crash(log)
    with CommitLog.open(tmp_path):
        assert (tmp_path / segment_name(0)).stat().st_size == end
        assert segment_bases(RealFileSystem(), tmp_path) == [0, 2]
    assert offsets_of(tmp_path) == [0, 1, 2, 3]


def test_a_leftover_temporary_file_is_no_segment(tmp_path: Path, batch: Make) -> None:
    """A temporary file left by an interrupted roll is replaced by the next roll."""
    with CommitLog.open(tmp_path, segment_bytes=1) as log:
        log.append(batch(3), "r")
        (tmp_path / (segment_name(3) + ".tmp")).write_bytes(b"half a header")
        log.append(batch(3), "r")
    assert segment_bases(Disk(), tmp_path) == [0, 3]
    assert offsets_of(tmp_path) == list(range(6))


def test_a_segment_of_another_log_is_refused(tmp_path: Path, batch: Make) -> None:
    """A file copied from another log is named and not read."""
    for name in ("a", "b"):
        with CommitLog.open(tmp_path / name) as log:
            log.append(batch(3), "r")
    (tmp_path / "a" / segment_name(0)).write_bytes((tmp_path / "b" / segment_name(0)).read_bytes())
    with pytest.raises(Corrupt, match="another log"):
        CommitLog.open(tmp_path / "a")


def test_a_position_of_any_text_survives_a_roll(tmp_path: Path, batch: Make) -> None:
    """A position may hold any file name, including undecodable bytes."""
    position = os.fsdecode(b"caf\xe9 \xe2\x98\x83") + ' "\\ \n\0'
    with CommitLog.open(tmp_path, segment_bytes=1) as log:
        log.append(batch(1), "r", position)
        log.append(batch(1), "other")
    log = CommitLog.open(tmp_path, segment_bytes=1)
    assert log.positions == {"r": position}
    crash(log)
    with CommitLog.open(tmp_path) as log:
        assert log.positions == {"r": position}


def test_a_trailer_tells_what_its_segment_holds(tmp_path: Path, batch: Make) -> None:
    """A sealed segment's trailer names its last offset and time range, also after a restart."""
    times = iter(range(100, 1000, 100))
    for _ in range(3):
        with CommitLog.open(tmp_path, compression=None, clock=lambda: next(times)) as log:
            log.append(batch(10, size=LARGE), "r")
    with CommitLog.open(tmp_path, segment_bytes=1) as log:
        log.append(batch(1), "r")
    segment = Segment(Disk(), tmp_path / segment_name(0))
    try:
        trailer = segment.trailer()
        frames = list(segment.frames())
        assert trailer is not None
        assert (trailer.last, trailer.oldest) == (29, frames[0].logged_at)
        assert trailer.newest == frames[-1].logged_at
        assert last_covered_offset(Disk(), segment) == 29
    finally:
        segment.close()


def test_a_full_disk_at_a_roll_is_back_pressure(tmp_path: Path, batch: Make) -> None:
    """A roll without room refuses the append, which later succeeds (Invariant 14)."""
    disk = Disk()
    with CommitLog.open(tmp_path, files=disk, segment_bytes=1) as log:
        log.append(batch(2), "r")
        disk.failing["rename"] = OSError(errno.ENOSPC, "No space left on device")
        with pytest.raises(LogFull):
            log.append(batch(2), "r")
        disk.failing.clear()
        assert log.append(batch(2), "r") == (2, 3)
    assert offsets_of(tmp_path) == [0, 1, 2, 3]


def test_a_failed_directory_sync_at_a_roll_is_final(tmp_path: Path, batch: Make) -> None:
    """A failed sync poisons the log, even when the disk reports no space (Invariant 13)."""
    disk = Disk()
    with CommitLog.open(tmp_path, files=disk, segment_bytes=1) as log:
        log.append(batch(2), "r")
        disk.failing["sync_directory"] = OSError(errno.ENOSPC, "No space left on device")
        with pytest.raises(LogPoisoned):
            log.append(batch(2), "r")
        disk.failing.clear()


def test_a_full_disk_at_the_start_is_said_in_one_line(tmp_path: Path, batch: Make) -> None:
    """A log that cannot be opened without room names the directory and the reason."""
    with CommitLog.open(tmp_path) as log:
        log.append(batch(2), "r")
    disk = Disk()
    disk.failing["rename"] = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(EnvironmentFault, match="No space left on device") as caught:
        CommitLog.open(tmp_path, files=disk)
    assert str(tmp_path) in str(caught.value)
    assert offsets_of(tmp_path) == [0, 1]


class _OnlyTheReserve(Disk):
    """A disk without room for new data while the reserve of *directory* exists."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._reserve = directory / RESERVE

    def called(self, name: str, file: str) -> None:
        super().called(name, file)
        if name == "pwrite" and file.endswith(TEMPORARY) and self._reserve.exists():
            raise OSError(errno.ENOSPC, "No space left on device")


class _NoNewFile(Disk):
    """A disk without room for a new file while the reserve of *directory* exists."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._reserve = directory / RESERVE

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        if create and not path.exists() and self._reserve.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().open(path, write=write, create=create)


def large(size: int) -> pa.RecordBatch:
    """Return one message of *size* bytes that cannot be compressed."""
    return messages_to_batch([Message("a", os.urandom(size))])


def test_the_reserve_covers_two_of_the_largest_groups_that_were_written(
    tmp_path: Path, batch: Make
) -> None:
    """The reserve grows before a larger group is written, and stays that large (Invariant 13)."""
    reserve = tmp_path / RESERVE
    with CommitLog.open(tmp_path) as log:
        log.append(batch(100), "r")
        sizes = [reserve.stat().st_size]
        for size in (500 << 10, 1 << 20, 3 << 20, 7 << 20):
            log.append(large(size), "r")
            assert reserve.stat().st_blocks * 512 >= 2 * size
            sizes.append(reserve.stat().st_size)
        log.append(batch(1), "r")
    assert sizes == [LEAST, LEAST, 4 * LEAST, RESERVE_BYTES, RESERVE_BYTES]
    with CommitLog.open(tmp_path):
        assert reserve.stat().st_size == RESERVE_BYTES


def test_positions_count_as_what_a_recovery_writes(tmp_path: Path, batch: Make) -> None:
    """The reserve has room for all positions in the header of a copy (Invariant 13)."""
    with CommitLog.open(tmp_path) as log:
        for reader in "abc":
            log.append(batch(1), reader, "p" * (200 << 10))
    assert (tmp_path / RESERVE).stat().st_size > LEAST


def test_a_disk_without_room_for_a_larger_reserve_takes_small_appends_only(
    tmp_path: Path, batch: Make
) -> None:
    """A group waits until recovery would have room for it (Invariants 13, 14)."""
    disk = Disk()
    with CommitLog.open(tmp_path, files=disk) as log:
        log.append(batch(2), "r")
        disk.failing_at = ("allocate", RESERVE, OSError(errno.ENOSPC, "No space left on device"))
        with pytest.raises(LogFull, match="no space left"):
            log.append(large(1 << 20), "r")
        assert log.append(batch(1), "r") == (2, 2)
        assert (tmp_path / RESERVE).stat().st_size == LEAST
        disk.failing_at = None
        assert log.append(large(1 << 20), "r") == (3, 3)
    assert offsets_of(tmp_path) == [0, 1, 2, 3]


def test_an_error_of_the_disk_below_the_reserve_is_told(tmp_path: Path) -> None:
    """A disk error that is not a lack of room is raised at once."""
    disk = Disk()
    with CommitLog.open(tmp_path, files=disk) as log:
        disk.failing_at = ("allocate", RESERVE, OSError(errno.EIO, "Input/output error"))
        with pytest.raises(EnvironmentFault, match="Input/output error"):
            log.append(large(1 << 20), "r")


@pytest.mark.parametrize("group", [1, 1 << 18, 1 << 19, 1 << 20, 5 << 20, 8 << 20, 1 << 40])
def test_what_is_set_aside_is_enough_for_each_size_of_a_group(tmp_path: Path, group: int) -> None:
    """The reserve is two groups and a quarter more for positions and header, up to its cap."""
    ensure_reserve(RealFileSystem(), tmp_path)
    reserve = Reserve(RealFileSystem(), tmp_path)
    reserve.grow(group)
    most = min(group, GROUP_BYTES)
    assert reserve.covered_bytes >= most
    assert 2.5 * most <= (tmp_path / RESERVE).stat().st_size <= RESERVE_BYTES


def test_a_small_pipelines_log_is_small(tmp_path: Path, batch: Make) -> None:
    """The log of a few messages and a route takes at most 2 MB of the disk."""
    with CommitLog.open(tmp_path) as log, OffsetLog(tmp_path, "out"):
        log.append(batch(500), "r")
        files = (each for each in tmp_path.rglob("*") if each.is_file())
        assert sum(each.stat().st_blocks * 512 for each in files) <= 2_000_000


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_on_a_full_disk_finds_room_in_the_reserve(
    tmp_path: Path, batch: Make, clean: bool
) -> None:
    """A start on a full disk writes within the reserve, which is made again (Invariant 13)."""
    log = CommitLog.open(tmp_path)
    log.append(batch(2), "r")
    assert (tmp_path / RESERVE).stat().st_blocks * 512 >= LEAST
    if clean:
        log.close()
    else:
        crash(log)
    with CommitLog.open(tmp_path, files=_OnlyTheReserve(tmp_path)) as log:
        assert log.durable == 1
    assert (tmp_path / RESERVE).stat().st_size == LEAST
    assert offsets_of(tmp_path) == [0, 1]


def test_a_start_on_a_full_disk_has_room_for_every_file_that_it_makes(
    tmp_path: Path, batch: Make
) -> None:
    """The reserve has a block for each new file name, also for an empty file (Invariant 13)."""
    log = CommitLog.open(tmp_path)
    log.append(batch(2), "r")
    log.append(batch(2), "r")
    crash(log)
    with CommitLog.open(tmp_path, files=_NoNewFile(tmp_path)) as log:
        assert log.durable == 3
    assert (tmp_path / RESERVE).stat().st_size == LEAST
    assert offsets_of(tmp_path) == [0, 1, 2, 3]


def test_a_start_without_room_for_the_reserve_goes_without_it(tmp_path: Path, batch: Make) -> None:
    """A log is usable without room for its reserve, which a later start makes."""
    disk = Disk()
    with CommitLog.open(tmp_path, files=disk) as log:
        log.append(batch(2), "r")
    (tmp_path / RESERVE).unlink()
    disk.failing_at = ("allocate", RESERVE, OSError(errno.ENOSPC, "No space left on device"))
    with CommitLog.open(tmp_path, files=disk) as log:
        assert log.append(batch(1), "r") == (2, 2)
        assert not (tmp_path / RESERVE).exists()
    disk.failing_at = None
    CommitLog.open(tmp_path, files=disk).close()
    assert (tmp_path / RESERVE).exists()


def test_a_full_disk_at_a_stop_leaves_no_clean_mark_and_loses_nothing(
    tmp_path: Path, batch: Make
) -> None:
    """A log that cannot write its clean mark is closed, and the next open recovers it."""
    disk = Disk()
    log = CommitLog.open(tmp_path, files=disk)
    log.append(batch(2), "r")
    disk.failing["rename"] = OSError(errno.ENOSPC, "No space left on device")
    log.close()
    disk.failing.clear()
    assert read_meta(disk, tmp_path).clean is None
    with CommitLog.open(tmp_path) as log:
        assert log.append(batch(1), "r") == (2, 2)
    assert offsets_of(tmp_path) == [0, 1, 2]


def test_a_failed_sync_at_a_stop_is_told(tmp_path: Path, batch: Make) -> None:
    """A stop whose last sync fails raises the error and releases the lock (Invariant 13)."""
    disk = Disk()
    log = CommitLog.open(tmp_path, files=disk)
    log.append(batch(2), "r")
    disk.failing["sync_directory"] = OSError(errno.EIO, "Input/output error")
    with pytest.raises(LogPoisoned):
        log.close()
    with CommitLog.open(tmp_path) as log:
        assert log.durable == 1


def test_no_room_for_an_index_entry_hurts_nobody(
    tmp_path: Path, batch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append succeeds although its index entry, which is only a hint, cannot be written."""
    from transporter.log.index import IndexWriter  # noqa: PLC0415

    with CommitLog.open(tmp_path) as log:

        class Full:
            def pwrite(self, data: bytes, byte: int) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            close = log._active._index._file.close

        assert isinstance(log._active._index, IndexWriter)
        monkeypatch.setattr(log._active._index, "_file", Full())
        assert log.append(batch(2), "r") == (0, 1)
        assert log.append(batch(2), "r") == (2, 3)
    assert offsets_of(tmp_path) == [0, 1, 2, 3]


def test_a_walk_back_passes_what_a_recovery_has_moved(tmp_path: Path, batch: Make) -> None:
    """A power cut after a recovery brings parts of the moved frame back, at the end of its file.

    It may begin a block there, whose position nobody may ask for.
    """
    leave_moved_frame(tmp_path, batch(10, size=LARGE))
    asked: list[str | None] = []

    def look(first: LocatedFrame) -> bool:
        source = first.source()
        assert source is not None
        asked.append(source.position)
        return False

    with plain(tmp_path) as log, LogReader(tmp_path) as reader:
        assert log.positions == {"r": "moved"}
        found = [each.source() for each in reader.frames_backwards(log.durable, look)]
    assert [each.position for each in found if each] == asked == ["moved", "kept"]

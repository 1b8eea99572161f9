"""The index as a hint: without it the log reads and recovers the same, and it is made again."""

from __future__ import annotations

import errno
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from log_tools import Disk, crash, offsets_of

from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.index import block_starts, confirmed_entries, index_path, nearest_byte, reindex
from transporter.log.reader import LogReader
from transporter.log.segment import Segment, segment_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.filesystem import File

    Make = Callable[..., pa.RecordBatch]

STRIDE = 1 << 15
FRAMES = 30
LAST = FRAMES * 10 - 1


@pytest.fixture(autouse=True)
def _short_stride(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enter a frame for each 32 KiB, so that small logs have an index of several entries."""
    monkeypatch.setattr("transporter.log.index.STRIDE", STRIDE)


def fill(directory: Path, batch: Make, frames: int = FRAMES) -> CommitLog:
    """Return a log of frames of which every other one gets an index entry."""
    log = CommitLog.open(directory, compression=None)
    for number in range(frames):
        log.append(batch(10, size=STRIDE // 17), "r", str(number))
    return log


@pytest.fixture
def segment(tmp_path: Path, batch: Make) -> Iterator[Segment]:
    """Return the only segment of a log."""
    fill(tmp_path, batch).close()
    segment = Segment(Disk(), tmp_path / segment_name(0))
    yield segment
    segment.close()


def test_a_stride_of_bytes_lies_between_two_entries(segment: Segment) -> None:
    """Entries are one stride apart, begin at the first frame, and name real frames."""
    known = confirmed_entries(Disk(), segment)
    frames = {frame.byte: frame for frame in segment.frames()}
    assert known[0].byte == segment.first_byte
    assert FRAMES / 3 < len(known) < FRAMES
    gaps = [after.byte - before.byte for before, after in pairwise(known)]
    assert all(STRIDE <= gap < 2 * STRIDE for gap in gaps)
    assert all(frames[mark.byte].first == mark.first for mark in known)


def test_the_nearest_entry_at_or_before_an_offset_is_found(segment: Segment) -> None:
    """A walk never begins behind the offset that it searches."""
    known = confirmed_entries(Disk(), segment)
    for offset in range(0, LAST + 1, 7):
        before = [mark for mark in known if mark.first <= offset]
        assert nearest_byte(Disk(), segment, offset) == before[-1].byte


def lose(path: Path) -> None:
    """Remove the index."""
    path.unlink()


def empty(path: Path) -> None:
    """Write an empty index."""
    path.write_bytes(b"")


def cut(path: Path) -> None:
    """Cut the index in the middle of an entry."""
    path.write_bytes(path.read_bytes()[:-9])


def flip(path: Path) -> None:
    """Change a bit in the second entry."""
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)


def scribble(path: Path) -> None:
    """Fill the index with something else."""
    path.write_bytes(b"not an index at all" * 50)


def shift(path: Path) -> None:
    """Write valid entries that name places where no frame begins."""
    import struct  # noqa: PLC0415

    from crc32c import crc32c  # noqa: PLC0415

    data = path.read_bytes()
    moved = b""
    for at in range(0, len(data), 28):
        first, byte, identity, _ = struct.unpack_from("<QQQI", data, at)
        body = struct.pack("<QQQ", first, byte + 8, identity)
        moved += body + struct.pack("<I", crc32c(body))
    path.write_bytes(moved)


def stale(path: Path) -> None:
    """Write the index of another segment."""
    import struct  # noqa: PLC0415

    from crc32c import crc32c  # noqa: PLC0415

    body = struct.pack("<QQQ", 200, 4096, 12345)
    path.write_bytes(body + struct.pack("<I", crc32c(body)))


HURT = [lose, empty, cut, flip, scribble, shift, stale]


@pytest.mark.parametrize("hurt", HURT)
def test_a_hurt_index_changes_nothing_that_is_read(
    tmp_path: Path, batch: Make, hurt: Callable[[Path], None]
) -> None:
    """Slices, bounds and backwards reads are the same without a usable index."""
    fill(tmp_path, batch).close()
    with LogReader(tmp_path) as reader:
        before = [found.frame for found in reader.frames_backwards(LAST)]
    hurt(index_path(tmp_path / segment_name(0)))
    with LogReader(tmp_path) as reader:
        got = [offset for entries in reader.read(123, 277) for offset in entries["offset"]]
        assert [offset.as_py() for offset in got] == list(range(123, 278))
        assert [found.frame for found in reader.frames_backwards(LAST)] == before
        assert reader.slice_end(0, LAST, rows=95, size=1 << 40) == 94


@pytest.mark.parametrize("stop", ["clean", "crash"])
@pytest.mark.parametrize("hurt", HURT)
def test_a_hurt_index_changes_nothing_that_is_recovered(
    tmp_path: Path, batch: Make, hurt: Callable[[Path], None], stop: str
) -> None:
    """A log opens with the same entries and positions, and goes on, without a usable index."""
    log = fill(tmp_path, batch)
    log.append(batch(1), "early", "e")
    for number in range(4):
        log.append(batch(10, size=STRIDE // 17), "r", f"late {number}")
    if stop == "clean":
        log.close()
    else:
        crash(log)
    hurt(index_path(tmp_path / segment_name(0)))
    last = LAST + 41
    with CommitLog.open(tmp_path) as log:
        assert (log.durable, log.positions) == (last, {"r": "late 3", "early": "e"})
        assert log.append(batch(1), "r") == (last + 1, last + 1)
    assert offsets_of(tmp_path) == list(range(last + 2))


def test_an_index_goes_on_after_a_clean_restart(tmp_path: Path, batch: Make) -> None:
    """Entries are added behind the confirmed ones, a stride behind the last."""
    fill(tmp_path, batch).close()
    fill(tmp_path, batch).close()
    segment = Segment(Disk(), tmp_path / segment_name(0))
    known = confirmed_entries(Disk(), segment)
    segment.close()
    assert known == sorted(known)
    gaps = [after.byte - before.byte for before, after in pairwise(known)]
    assert all(STRIDE <= gap < 2 * STRIDE for gap in gaps)
    assert known[-1].first > LAST


def test_an_open_reads_only_the_end_of_a_long_segment(tmp_path: Path, batch: Make) -> None:
    """With an index, a clean open reads the frames of the last stride only."""
    fill(tmp_path, batch).close()
    disk = Disk()
    CommitLog.open(tmp_path, files=disk).close()
    with_index = disk.calls.count(("pread", segment_name(0)))
    index_path(tmp_path / segment_name(0)).unlink()
    disk = Disk()
    CommitLog.open(tmp_path, files=disk).close()
    assert with_index < disk.calls.count(("pread", segment_name(0))) / 2


def test_blocks_stay_short_without_an_index(segment: Segment) -> None:
    """A backward read holds the headers of one block, indexed or not (Invariant 17)."""
    frames = {frame.byte for frame in segment.frames()}
    indexed = block_starts(Disk(), segment)
    index_path(segment.path).unlink()
    walked = block_starts(Disk(), segment)
    for starts in (indexed, walked):
        assert starts[0] == segment.first_byte
        assert set(starts) <= frames
        assert all(after - before <= 3 * STRIDE for before, after in pairwise(starts))
    assert walked == indexed


@pytest.fixture
def indexed(tmp_path: Path, batch: Make, monkeypatch: pytest.MonkeyPatch) -> dict[Path, bytes]:
    """Write three segments with an index entry for every few frames, and return the indexes."""
    monkeypatch.setattr("transporter.log.index.STRIDE", 3000)
    with CommitLog.open(tmp_path, segment_bytes=30_000) as log:
        while len(list(tmp_path.glob("*.log"))) < 4:
            log.append(batch(3), "r", str(log.durable))
    *sealed, _ = sorted(tmp_path.glob("*.index"))
    return {path: path.read_bytes() for path in sealed}


def test_whole_indexes_are_left_as_they_are(tmp_path: Path, indexed: dict[Path, bytes]) -> None:
    """Whole indexes are left as they are."""
    assert min(map(len, indexed.values())) > 5 * 28
    assert reindex(Disk(), tmp_path) == 0
    assert {path: path.read_bytes() for path in indexed} == indexed


def test_missing_cut_and_damaged_indexes_are_as_before(
    tmp_path: Path, indexed: dict[Path, bytes]
) -> None:
    """A missing, cut or damaged index gets the same entries again."""
    gone, cut, damaged = indexed
    gone.unlink()
    cut.write_bytes(indexed[cut][:70])
    content = bytearray(indexed[damaged])
    content[60] ^= 1
    damaged.write_bytes(content)
    assert reindex(Disk(), tmp_path) > 0
    assert {path: path.read_bytes() for path in indexed} == indexed


def test_the_active_segment_is_its_writers(tmp_path: Path, indexed: dict[Path, bytes]) -> None:
    """The active segment's index is not touched."""
    *_, active = sorted(tmp_path.glob("*.index"))
    active.unlink()
    reindex(Disk(), tmp_path)
    assert not active.exists()


class _Full(RealFileSystem):
    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        if path.suffix == ".index" and write:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().open(path, write=write, create=create)


def test_a_full_disk_is_no_reason_to_fail(tmp_path: Path, indexed: dict[Path, bytes]) -> None:
    """An index that cannot be written, which is only a hint, raises no error."""
    for path in indexed:
        path.unlink()
    assert reindex(_Full(), tmp_path) == 0
    assert not any(path.exists() for path in indexed)

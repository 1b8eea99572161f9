"""Reads of the log: slices, bounds, backwards, beside an engine that appends, and damage."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from log_tools import crash, damage, offsets_of

from transporter.errors import Corrupt, OffsetRefused
from transporter.log.commit_log import CommitLog
from transporter.log.meta import published_offset
from transporter.log.reader import Append, LogReader
from transporter.log.segment import segment_bases

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from transporter.log.format import FrameHeader

    Make = Callable[..., pa.RecordBatch]


def fill(directory: Path, batch: Make, frames: int, rows: int = 10, **options: int) -> None:
    """Append *frames* frames of *rows* entries each, and close."""
    with CommitLog.open(directory, **options) as log:
        for _ in range(frames):
            log.append(batch(rows), "r")


def read(directory: Path, first: int, last: int) -> list[int]:
    """Return the offsets that a new reader reads from *first* to *last*."""
    with LogReader(directory) as reader:
        return [
            offset
            for entries in reader.read(first, last)
            for offset in entries.column("offset").to_pylist()
        ]


def frames_of(directory: Path, last: int) -> list[FrameHeader]:
    """Return the headers of all frames up to *last*."""
    with LogReader(directory) as reader:
        return [found.frame for found in reader.frames(reader.first_offset(), last)]


@pytest.mark.parametrize("segment_bytes", [1 << 20, 4096])
def test_a_slice_holds_exactly_its_offsets(tmp_path: Path, batch: Make, segment_bytes: int) -> None:
    """A slice is cut to the offset, whatever frames and segments it begins and ends in."""
    fill(tmp_path, batch, frames=20, segment_bytes=segment_bytes)
    for first, last in ((0, 199), (0, 0), (199, 199), (5, 14), (10, 19), (7, 123), (9, 10)):
        assert read(tmp_path, first, last) == list(range(first, last + 1))
    assert (len(segment_bases_of(tmp_path)) > 1) == (segment_bytes == 4096)


def segment_bases_of(directory: Path) -> list[int]:
    """Return the base offsets of the segments in *directory*."""
    from transporter.log.filesystem import RealFileSystem  # noqa: PLC0415

    return segment_bases(RealFileSystem(), directory)


def test_the_entries_are_those_that_were_appended(tmp_path: Path, batch: Make) -> None:
    """Every column comes back unchanged, with offset and log time in front (Invariant 2)."""
    messages = batch(25, size=300)
    with CommitLog.open(tmp_path, clock=lambda: 77) as log:
        log.append(messages, "r")
    with LogReader(tmp_path) as reader:
        entries = next(reader.read(0, 24))
    assert entries.select(messages.schema.names).equals(messages)
    assert entries.column("offset").to_pylist() == list(range(25))
    assert entries.column("logged_at").cast("int64").to_pylist() == [77] * 25


def test_reading_nothing_touches_nothing(tmp_path: Path, batch: Make) -> None:
    """A range that ends before it begins is empty, and no file is read."""
    fill(tmp_path, batch, frames=1)
    assert read(tmp_path, 5, 4) == []


def test_following_slices_do_not_start_from_the_index_again(tmp_path: Path, batch: Make) -> None:
    """A reader that goes on where it was reads each frame header once."""
    fill(tmp_path, batch, frames=50)
    with LogReader(tmp_path) as reader:
        for first in range(0, 500, 7):
            last = min(first + 6, 499)
            got = [offset for entries in reader.read(first, last) for offset in entries["offset"]]
            assert [offset.as_py() for offset in got] == list(range(first, last + 1))


def test_a_growing_log_is_followed_across_rolls(tmp_path: Path, batch: Make) -> None:
    """A reader reads on up to the durable mark while the log appends and begins new segments."""
    with (
        CommitLog.open(tmp_path, segment_bytes=3000) as log,
        LogReader(tmp_path) as reader,
        LogReader(tmp_path) as other,
    ):
        got: list[int] = []
        for _ in range(30):
            _, last = log.append(batch(10), "r")
            assert published_offset(log.files, tmp_path) == last
            got += [
                offset
                for entries in reader.read(len(got), last)
                for offset in entries.column("offset").to_pylist()
            ]
        assert got == list(range(300))
        assert other.first_offset() == 0
    assert len(segment_bases_of(tmp_path)) > 3


def test_a_roll_while_reading_changes_nothing(tmp_path: Path, batch: Make) -> None:
    """A read that is under way when segments are sealed goes on in the new ones."""
    with CommitLog.open(tmp_path, segment_bytes=3000) as log, LogReader(tmp_path) as reader:
        for _ in range(3):
            log.append(batch(10), "r")
        got = []
        frames = reader.frames(0, 299)
        for number in range(30):
            if number < 27:
                log.append(batch(10), "r")
            got.append(next(frames).frame.first)
        assert got == list(range(0, 300, 10))
        assert next(frames, None) is None


def test_offsets_before_the_oldest_segment_are_refused(tmp_path: Path, batch: Make) -> None:
    """Offsets removed by retention are refused, and the error names the first retained one."""
    fill(tmp_path, batch, frames=20, segment_bytes=4096)
    oldest, second, *_ = segment_bases_of(tmp_path)
    (tmp_path / f"{oldest:020d}.log").unlink()
    with pytest.raises(OffsetRefused, match=f"retained from {second}"):
        read(tmp_path, 0, 5)
    assert read(tmp_path, second, 199) == list(range(second, 200))


def test_an_empty_directory_holds_no_offset(tmp_path: Path) -> None:
    """Reading a directory without a log raises an error."""
    with LogReader(tmp_path) as reader:
        assert reader.first_offset() == 0
        with pytest.raises(OffsetRefused, match="which has no segments"):
            list(reader.read(0, 0))


def test_reading_beyond_the_last_frame_is_not_silent(tmp_path: Path, batch: Make) -> None:
    """Reading beyond the last frame raises an error with the missing offset."""
    fill(tmp_path, batch, frames=2)
    with pytest.raises(Corrupt, match="offset 20"):
        read(tmp_path, 15, 25)


def test_a_slice_is_bounded_by_rows(tmp_path: Path, batch: Make) -> None:
    """A slice never exceeds the requested rows, also in the middle of a frame."""
    fill(tmp_path, batch, frames=5)
    with LogReader(tmp_path) as reader:
        assert reader.slice_end(0, 49, rows=1, size=1 << 30) == 0
        assert reader.slice_end(3, 49, rows=15, size=1 << 30) == 17
        assert reader.slice_end(0, 49, rows=100, size=1 << 30) == 49
        assert reader.slice_end(48, 49, rows=2, size=1 << 30) == 49


def test_a_slice_tells_what_it_has_of_each_append(tmp_path: Path, batch: Make) -> None:
    """A slice counts its first and last frames with the part of them that it contains."""
    times = iter(range(100, 200))
    with CommitLog.open(tmp_path, clock=lambda: next(times)) as log:
        for _ in range(3):
            log.append(batch(10), "r")
    with LogReader(tmp_path) as reader:
        logged = [found.frame.logged_at for found in reader.frames(0, 29)]
        assert sorted(set(logged)) == logged
        for first, end, rows, expected in (
            (0, 29, 100, [(9, 10), (19, 10), (29, 10)]),
            (5, 24, 100, [(9, 5), (19, 10), (24, 5)]),
            (5, 29, 7, [(9, 5), (11, 2)]),
            (3, 29, 7, [(9, 7)]),
        ):
            appends: list[Append] = []
            last = reader.slice_end(first, end, rows, 1 << 30, appends)
            assert [(each.last, each.entries) for each in appends] == expected
            assert appends[-1].last == last
            assert [each.logged_at for each in appends] == [logged[o // 10] for o, _ in expected]


def test_a_slice_is_bounded_by_bytes(tmp_path: Path, batch: Make) -> None:
    """A slice ends before the frame that would exceed its bytes, but holds at least one."""
    fill(tmp_path, batch, frames=5)
    size = frames_of(tmp_path, 49)[0].entries_bytes
    with LogReader(tmp_path) as reader:
        assert reader.slice_end(0, 49, rows=1000, size=size) == 9
        assert reader.slice_end(0, 49, rows=1000, size=3 * size + 1) == 29
        assert reader.slice_end(0, 49, rows=1000, size=1) == 9
        assert reader.slice_end(4, 49, rows=1000, size=1) == 9
        assert reader.slice_end(4, 49, rows=3, size=1) == 6


@pytest.mark.parametrize("segment_bytes", [64 << 20, 2 << 20])
def test_the_log_reads_backwards(tmp_path: Path, batch: Make, segment_bytes: int) -> None:
    """A backward read returns each frame once, newest first, across index and segments."""
    with CommitLog.open(tmp_path, segment_bytes=segment_bytes, compression=None) as log:
        for number in range(40):
            log.append(batch(10, size=20_000), f"r{number % 3}", str(number))
    with LogReader(tmp_path) as reader:
        found = list(reader.frames_backwards(399))
        assert [one.frame.first for one in found] == list(range(390, -1, -10))
        sources = [one.source() for one in found]
        assert [source.position for source in sources if source] == [
            str(number) for number in range(39, -1, -1)
        ]
        assert [one.frame.last for one in reader.frames_backwards(205)][:2] == [209, 199]


def test_damaged_entries_are_named_and_never_returned(tmp_path: Path, batch: Make) -> None:
    """A payload that has changed is refused with file, byte and offset (Invariant 2)."""
    fill(tmp_path, batch, frames=5)
    frame = frames_of(tmp_path, 49)[2]
    damage(tmp_path, frame.payload_byte + 9)
    with pytest.raises(Corrupt, match=f"byte {frame.byte}, offset 20") as caught:
        read(tmp_path, 0, 49)
    assert caught.value.file == str(tmp_path / f"{0:020d}.log")
    assert read(tmp_path, 0, 19) == list(range(20))
    assert read(tmp_path, 30, 49) == list(range(30, 50))


def test_a_damaged_position_is_refused_but_its_entries_are_read(
    tmp_path: Path, batch: Make
) -> None:
    """A damaged position is refused and its entries are read, because checksums are separate."""
    fill(tmp_path, batch, frames=2)
    frame = frames_of(tmp_path, 19)[1]
    damage(tmp_path, frame.extension_byte + 2)
    assert read(tmp_path, 0, 19) == list(range(20))
    with LogReader(tmp_path) as reader, pytest.raises(Corrupt, match="position"):
        next(reader.frames_backwards(19)).source()


def test_a_frame_that_is_gone_is_named(tmp_path: Path, batch: Make) -> None:
    """A damaged header is refused with the first offset that is missing behind it."""
    fill(tmp_path, batch, frames=5)
    frame = frames_of(tmp_path, 49)[2]
    damage(tmp_path, frame.byte + 30)
    with pytest.raises(Corrupt, match=f"byte {frame.byte}, offset 20"):
        read(tmp_path, 0, 49)


def test_a_frame_that_is_gone_is_missed_backwards_too(tmp_path: Path, batch: Make) -> None:
    """A missing frame is an error in a backward read, too."""
    fill(tmp_path, batch, frames=5)
    frame = frames_of(tmp_path, 49)[2]
    damage(tmp_path, frame.byte + 30)
    with (
        LogReader(tmp_path) as reader,
        pytest.raises(Corrupt, match=f"byte {frame.byte}, offset 20"),
    ):
        list(reader.frames_backwards(49))


def test_a_frame_that_is_gone_from_a_sealed_segment_is_named(tmp_path: Path, batch: Make) -> None:
    """The named place is that of the damage, also after other segments were read."""
    fill(tmp_path, batch, frames=6, segment_bytes=1)
    path = tmp_path / f"{20:020d}.log"
    frame = frames_of(tmp_path, 59)[2]
    damage(tmp_path, frame.byte + 30, base=20)
    with LogReader(tmp_path) as reader:
        list(reader.read(0, 15))
        with pytest.raises(Corrupt, match=f"byte {frame.byte}, offset 20") as caught:
            list(reader.read(20, 25))
    assert caught.value.file == str(path)


def torn_log(directory: Path, batch: Make, lost: int = 10) -> None:
    """Write a log of the offsets 0 to 9 and, behind *lost* that were never durable, 10 more."""
    log = CommitLog.open(directory)
    log.append(batch(10), "r")
    log.append(batch(lost), "r")
    crash(log)
    damage(directory, frames_of(directory, 9 + lost)[1].payload_byte)
    with CommitLog.open(directory) as log:
        assert log.durable == 9
        assert log.append(batch(10), "r") == (10 + lost, 19 + lost)


def test_offsets_that_recovery_cut_are_passed(tmp_path: Path, batch: Make) -> None:
    """A slice passes a declared gap, wherever it begins and ends in it."""
    torn_log(tmp_path, batch)
    kept = [*range(10), *range(20, 30)]
    assert offsets_of(tmp_path) == kept
    for first in range(0, 30, 3):
        for last in range(first, 30, 4):
            assert read(tmp_path, first, last) == [n for n in kept if first <= n <= last]


def test_a_gap_is_passed_in_one_slice(tmp_path: Path, batch: Make) -> None:
    """The rows of a slice are its entries and not the offsets of a gap."""
    torn_log(tmp_path, batch, lost=100)
    with LogReader(tmp_path) as reader:
        assert reader.slice_end(10, 119, rows=5, size=1) == 114
        assert reader.slice_end(0, 119, rows=5, size=1 << 30) == 4
        assert reader.slice_end(0, 119, rows=50, size=1 << 30) == 119
        assert list(reader.read(10, 14)) == []


def test_a_slice_that_begins_in_a_gap_is_bounded_by_bytes(tmp_path: Path, batch: Make) -> None:
    """Behind a gap a slice takes its first frame, however large, and then its bytes count."""
    torn_log(tmp_path, batch)
    with CommitLog.open(tmp_path) as log:
        log.append(batch(10), "r")
    with LogReader(tmp_path) as reader:
        assert reader.slice_end(12, 39, rows=1000, size=1) == 29


def test_a_gap_at_the_end_of_a_segment_is_passed(tmp_path: Path, batch: Make) -> None:
    """A segment whose base lies behind the end of the one before declares the missing offsets."""
    torn_log(tmp_path, batch)
    fill(tmp_path, batch, frames=3, segment_bytes=1)
    assert read(tmp_path, 0, 59) == [*range(10), *range(20, 60)]
    with LogReader(tmp_path) as reader:
        assert [one.frame.first for one in reader.frames_backwards(59)] == [50, 40, 30, 20, 0]


def test_what_lies_behind_the_end_of_a_segment_is_ignored(tmp_path: Path, batch: Make) -> None:
    """Frames that recovery copied are read once, from their new place (Invariant 13)."""
    log = CommitLog.open(tmp_path)
    for _ in range(5):
        log.append(batch(10), "r")
    crash(log)
    CommitLog.open(tmp_path).close()
    assert segment_bases_of(tmp_path) == [0, 40]
    # Frame 40..49 now also lies, unused, behind the end of segment 0.
    assert offsets_of(tmp_path) == list(range(50))
    with LogReader(tmp_path) as reader:
        firsts = [one.frame.first for one in reader.frames_backwards(49)]
        assert firsts == [40, 30, 20, 10, 0]
        homes = [one.segment.header.base for one in reader.frames(0, 49)]
    assert homes == [0, 0, 0, 0, 40]


def test_a_reader_keeps_only_a_few_files_open(tmp_path: Path, batch: Make) -> None:
    """A log of very many segments needs no more descriptors than a small one (Invariant 17)."""
    fill(tmp_path, batch, frames=120, rows=1, segment_bytes=1)
    assert len(segment_bases_of(tmp_path)) == 120
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(open_file.name) for open_file in Path("/proc/self/fd").iterdir())
    with LogReader(tmp_path) as reader:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 40, hard))
        try:
            assert sum(len(entries) for entries in reader.read(0, 119)) == 120
            assert len([one.frame for one in reader.frames_backwards(119)]) == 120
            with CommitLog.open(tmp_path) as log:
                assert log.durable == 119
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

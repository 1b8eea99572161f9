"""Tests of a query's division: at frames, by bytes, in bounds, up to the confirmed offset."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from log_tools import crash, leave_moved_frame, small

from transporter.errors import EntriesLost, EnvironmentFault, OffsetRefused
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.reader import LogReader
from transporter.log.segment import Segment, segment_bases, segment_name, write_segment
from transporter.table.options import Options, read_options
from transporter.table.plan import (
    OffsetBounds,
    TablePart,
    bounds_of,
    first_present_offset,
    plan_parts,
    read_log_info,
    refuse_lost,
    split_offsets,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

FRAMES, ROWS = 40, 5
LAST = FRAMES * ROWS - 1


@pytest.fixture
def log(tmp_path: Path, batch: Callable[..., pa.RecordBatch]) -> Iterator[Path]:
    """Return a log of forty frames of five entries, a second apart, in several segments."""
    times = iter(range(10**6, 10**9, 10**6))
    with small():
        with CommitLog.open(
            tmp_path / "log", segment_bytes=9000, compression=None, clock=lambda: next(times)
        ) as opened:
            for _ in range(FRAMES):
                opened.append(batch(ROWS), "r")
        yield tmp_path / "log"


def frames_of(directory: Path) -> set[int]:
    """Return the first offset of each frame."""
    with LogReader(directory) as reader:
        return {found.frame.first for found in reader.frames(0, LAST)}


@pytest.mark.parametrize("size", [1, 3000, 12_000, 1 << 30])
def test_parts_cover_a_range_at_frames(log: Path, size: int) -> None:
    """Parts follow one another without a hole, and all but the first begin with a frame."""
    parts = split_offsets(log, 7, LAST - 3, size)
    assert [offset for part in parts for offset in range(part.first, part.last + 1)] == [
        *range(7, LAST - 2)
    ]
    assert {part.first for part in parts[1:]} <= frames_of(log)


def test_the_size_of_a_part_decides_how_many_there_are(log: Path) -> None:
    """Larger parts are fewer, and a part that can hold everything is the only one."""
    assert len(segment_bases_of(log)) > 3
    counts = [len(split_offsets(log, 0, LAST, size)) for size in (1, 5000, 20_000, 1 << 30)]
    assert counts == sorted(counts, reverse=True)
    assert (counts[0] > 10, counts[-1]) == (True, 1)


def segment_bases_of(directory: Path) -> list[int]:
    """Return the first offsets of the segments."""
    with LogReader(directory) as reader:
        return segment_bases(reader.files, directory)


def test_a_lost_index_changes_nothing(log: Path) -> None:
    """Without indexes, a walk over headers finds nearly the same parts."""
    for index in log.glob("*.index"):
        index.unlink()
    parts = split_offsets(log, 0, LAST, 1)
    assert (parts[0].first, parts[-1].last) == (0, LAST)
    assert {part.first for part in parts} <= frames_of(log)


def test_nothing_to_cut(log: Path) -> None:
    """An empty range has no parts."""
    assert split_offsets(log, 5, 4, 1) == []


def test_a_plan_keeps_to_bounds_and_to_what_is_confirmed(log: Path) -> None:
    """Offsets and log times bound a plan, and so does the last confirmed offset."""
    options = Options(log)
    assert plan_parts(options, OffsetBounds()) == [TablePart(0, LAST)]
    assert plan_parts(options, OffsetBounds(first=12, last=10**9)) == [TablePart(12, LAST)]
    since, until = 5 * 10**6, 7 * 10**6
    ((first, last),) = plan_parts(options, OffsetBounds(since=since, until=until))
    with LogReader(log) as reader:
        times = {found.frame.first: found.frame.logged_at for found in reader.frames(0, LAST)}
    inside = [offset for offset, time in times.items() if since <= time <= until]
    assert inside
    assert first <= inside[0] <= inside[-1] + ROWS - 1 <= last
    assert last - first < 6 * ROWS
    assert plan_parts(options, OffsetBounds(last=-1)) == []


def test_single_offsets_narrow_a_plan(log: Path) -> None:
    """Parts without any of the offsets are dropped, and the others are narrowed to them."""
    options = replace(Options(log), partition_bytes=1)
    offsets = (3, 4, LAST)
    parts = plan_parts(options, OffsetBounds(3, LAST, offsets=offsets))
    assert [part.first for part in parts] == [3, LAST]
    assert (parts[0].last in (3, 4), parts[-1].last) == (True, LAST)


def test_what_is_not_confirmed_is_not_planned(
    tmp_path: Path, batch: Callable[..., pa.RecordBatch]
) -> None:
    """After an unclean stop a plan ends at the last offset proved durable."""
    with small():
        log = CommitLog.open(tmp_path / "log")
        log.append(batch(3), "r")
        log.append(batch(3), "r")
        crash(log)
        assert plan_parts(Options(tmp_path / "log"), OffsetBounds()) == [TablePart(0, 2)]


def test_from_and_to() -> None:
    """Both offsets and times bound the log."""
    now = datetime(1970, 1, 1, 1, tzinfo=UTC)
    both = read_options({"path": "/l", "from": "3", "to": "9"}, now)
    assert bounds_of(both) == OffsetBounds(3, 9)
    times = read_options({"path": "/l", "from": "10s", "to": "1970-01-01T00:59:59+00:00"}, now)
    assert bounds_of(times) == OffsetBounds(since=3_590_000_000, until=3_599_000_000)
    assert bounds_of(Options(times.directory)) == OffsetBounds()


def test_entries_that_are_gone(log: Path) -> None:
    """A stream that missed entries fails with the retained offset, or continues there."""
    bases = segment_bases_of(log)
    for base in bases[:2]:
        (log / f"{base:020d}.log").unlink()
    with pytest.raises(OffsetRefused, match=rf"offsets 4\.\.{bases[2] - 1} were removed .* from"):
        first_present_offset(Options(log), 4)
    assert first_present_offset(Options(log, fail_on_loss=False), 4) == bases[2]
    assert first_present_offset(Options(log), bases[2] + 1) == bases[2] + 1


def test_entries_that_were_lost(tmp_path: Path, batch: Callable[..., pa.RecordBatch]) -> None:
    """Entries that a repair could not save are an error, unless the query allows the loss."""
    with CommitLog.open(tmp_path) as opened:
        opened.append(batch(3), "r")
    files = RealFileSystem()
    with closing(Segment(files, tmp_path / segment_name(0))) as old:
        header = old.header
    gap = replace(header, segment_id=7, base=10, previous=2, next_offset=10, lost=True)
    write_segment(files, tmp_path, gap)
    with CommitLog.open(tmp_path) as opened:
        opened.append(batch(2), "r")
    with pytest.raises(EntriesLost, match=r"offsets 3\.\.9 were lost: a repair"):
        plan_parts(Options(tmp_path), OffsetBounds())
    with pytest.raises(EntriesLost, match="failOnDataLoss to false"):
        refuse_lost(tmp_path, 5, 5)
    assert plan_parts(Options(tmp_path), OffsetBounds(last=2)) == [TablePart(0, 2)]
    assert plan_parts(Options(tmp_path, fail_on_loss=False), OffsetBounds()) == [TablePart(0, 11)]


def test_an_empty_log(tmp_path: Path) -> None:
    """A log without entries has nothing to plan."""
    with CommitLog.open(tmp_path):
        assert plan_parts(Options(tmp_path), OffsetBounds()) == []
    assert plan_parts(Options(tmp_path), OffsetBounds(since=5)) == []


def test_no_log(tmp_path: Path) -> None:
    """A directory without a log is reported, even if it does not exist."""
    for directory in (tmp_path, tmp_path / "none"):
        with pytest.raises(EnvironmentFault, match="no transporter log here"):
            read_log_info(directory)


def test_a_frame_that_recovery_moved_begins_one_part(
    tmp_path: Path, batch: Callable[..., pa.RecordBatch]
) -> None:
    """It may still stand in its old segment, too, after a power cut."""
    leave_moved_frame(tmp_path, batch(10, size=120_000))
    assert split_offsets(tmp_path, 0, 19, 1) == [TablePart(0, 9), TablePart(10, 19)]

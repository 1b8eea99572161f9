"""Retention, which removes whole segments, oldest first, that no route needs."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from compaction_tools import Frame, append_segments, everything, letters, write_log
from log_tools import Disk, crash

from transporter.errors import BudgetSpent, LogPoisoned, OffsetRefused
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.index import reindex
from transporter.log.inspection import segments_size
from transporter.log.reader import LogReader
from transporter.log.retention import RetentionSettings, apply_retention, last_excess_offset
from transporter.log.sealed_segments import sealed_segments
from transporter.log.segment import segment_bases
from transporter.message import Message, messages_to_batch

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

FIVE = [[Frame(letters("AB"))] for _ in range(5)]
NOTHING = RetentionSettings(bytes=0)


def bases(directory: Path) -> list[int]:
    """Return the base offsets of the segments that are left."""
    return segment_bases(RealFileSystem(), directory)


def removed(
    directory: Path, watermark: int, settings: RetentionSettings, now: int = 0
) -> list[int]:
    """Apply *settings*, and return the last offset of each removed segment."""
    found = apply_retention(directory, watermark=lambda: watermark, settings=settings, now=now)
    return [each.end for each in found]


def large(count: int = 1) -> pa.RecordBatch:
    """Return messages that take about 1 000 bytes each."""
    return messages_to_batch([Message("n", b"x" * 1000)] * count)


def test_the_last_segment_stays(tmp_path: Path) -> None:
    """The active segment is never removed, however little may be kept."""
    last = write_log(tmp_path, FIVE)
    assert removed(tmp_path, last, NOTHING) == [1, 3, 5, 7]
    assert bases(tmp_path) == [8]
    assert list(everything(tmp_path)) == [8, 9]


@pytest.mark.parametrize(("watermark", "left"), [(-1, 0), (0, 0), (1, 2), (4, 4), (9, 8)])
def test_what_a_route_needs_stays(tmp_path: Path, watermark: int, left: int) -> None:
    """A segment is removed only when the least watermark has passed it (Invariant 11)."""
    write_log(tmp_path, FIVE)
    removed(tmp_path, watermark, NOTHING)
    assert bases(tmp_path)[0] == left


def test_by_bytes(tmp_path: Path) -> None:
    """Segments are removed until the rest takes no more than the limit."""
    last = write_log(tmp_path, FIVE)
    whole = segments_size(tmp_path)
    each = (tmp_path / f"{0:020}.log").stat().st_size
    assert removed(tmp_path, last, RetentionSettings(bytes=whole)) == []
    assert removed(tmp_path, last, RetentionSettings(bytes=whole - each - 1)) == [1, 3]
    assert segments_size(tmp_path) < whole - each


def test_what_is_only_set_aside_does_not_count(tmp_path: Path) -> None:
    """The reserved space of the active file does not count against the limit."""
    with CommitLog.open(tmp_path, compression=None) as log:
        append_segments(log, FIVE)
        limit = RetentionSettings(bytes=log.used_bytes)
        assert segments_size(tmp_path) > log.used_bytes
        found = apply_retention(
            tmp_path, watermark=lambda: 9, settings=limit, now=0, size=log.used_bytes
        )
        assert list(found) == []


def test_by_age(tmp_path: Path) -> None:
    """A segment is removed when its newest entry is older than the limit."""
    times = iter(at * 1_000_000 for at in (0, 10, 20, 30, 40, 50, 60, 70, 80))
    last = write_log(tmp_path, FIVE, clock=lambda: next(times))
    newest = 20_000_000
    settings = RetentionSettings(age=5.0)
    assert removed(tmp_path, last, settings, now=newest + 5_000_000) == [1]
    assert removed(tmp_path, last, settings, now=newest + 5_000_001) == [3]


def test_without_limits_nothing_goes(tmp_path: Path) -> None:
    """Both limits are off unless they are set."""
    last = write_log(tmp_path, FIVE)
    assert removed(tmp_path, last, RetentionSettings(), now=1 << 60) == []


def test_indexes_go_with_their_segments(tmp_path: Path) -> None:
    """The index of a removed segment is removed, too."""
    last = write_log(tmp_path, FIVE)
    removed(tmp_path, last, NOTHING)
    assert {path.stem for path in tmp_path.glob("0*")} == {f"{8:020}"}


def test_the_log_opens_and_goes_on(tmp_path: Path) -> None:
    """A log after retention opens, continues its offsets, and misses no segment."""
    last = write_log(tmp_path, FIVE)
    removed(tmp_path, last, NOTHING)
    assert write_log(tmp_path, [[Frame(letters("C"))]]) == last + 1
    assert list(everything(tmp_path)) == [8, 9, 10]


def test_each_removal_is_durable_before_the_next(tmp_path: Path) -> None:
    """Each removal is durable before the next, so a crash cannot remove the second one only."""
    disk = Disk()
    last = write_log(tmp_path, FIVE)
    left: list[int] = []
    sync = disk.sync_directory

    def look(directory: Path) -> None:
        left.append(len(bases(tmp_path)))
        sync(directory)

    disk.sync_directory = look  # type: ignore[method-assign]
    list(apply_retention(tmp_path, disk, watermark=lambda: last, settings=NOTHING, now=0))
    assert left == [4, 3, 2, 1]


def test_a_failed_sync_is_final(tmp_path: Path) -> None:
    """A failed sync ends the removals, because its outcome is unknown (Invariant 13)."""
    disk = Disk()
    last = write_log(tmp_path, FIVE)
    disk.failing["sync_directory"] = OSError(errno.EIO, "Input/output error")
    with pytest.raises(LogPoisoned):
        list(apply_retention(tmp_path, disk, watermark=lambda: last, settings=NOTHING, now=0))
    assert len(bases(tmp_path)) == 4


def test_a_reader_is_told_what_is_retained(tmp_path: Path) -> None:
    """A late reader gets the first retained offset, and one with the file open reads on."""
    last = write_log(tmp_path, FIVE)
    with LogReader(tmp_path) as early, LogReader(tmp_path) as late:
        found = early.read(0, last)
        assert next(found).column("offset").to_pylist() == [0, 1]
        assert late.first_offset() == 0
        removed(tmp_path, 5, NOTHING)
        with pytest.raises(OffsetRefused, match="retained from 6"):
            list(late.read(0, last))
        assert late.first_offset() == 6
        assert [batch.num_rows for batch in late.read(6, last)] == [2, 2]
        with pytest.raises(OffsetRefused, match="retained from 6"):
            list(found)
        assert [each.frame.first for each in late.frames_backwards(last)] == [8, 6]


def test_excess_names_how_far_the_log_must_give_way(tmp_path: Path) -> None:
    """The excess lists the segments to remove for a given size, needed or not."""
    write_log(tmp_path, FIVE)
    whole = segments_size(tmp_path)
    assert last_excess_offset(tmp_path, whole, whole) is None
    assert last_excess_offset(tmp_path, whole, whole - 1) == 1
    assert last_excess_offset(tmp_path, whole, 0) == 7


def test_a_spent_budget_refuses_appends_until_there_is_room(tmp_path: Path) -> None:
    """Beyond ``max_bytes`` appends are refused until segments are removed."""
    with CommitLog.open(tmp_path, segment_bytes=4000, compression=None, max_bytes=16_000) as log:
        with pytest.raises(BudgetSpent, match="max_bytes"):  # noqa: PT012 - which of them is not known
            for _ in range(100):
                log.append(large(), "r")
        assert (log.over_budget, log.room_wanted.is_set()) == (True, True)
        held, last = log.used_bytes, log.durable
        assert held <= 16_000
        with pytest.raises(BudgetSpent):
            log.append(large(), "r")
        assert (log.used_bytes, log.durable) == (held, last)
        removed(tmp_path, 4, RetentionSettings(bytes=12_000))
        assert log.append(large(), "r") == (last + 1, last + 1)
        assert not log.over_budget


def test_a_log_of_one_segment_always_takes_one_more(tmp_path: Path) -> None:
    """A log of one segment never refuses an append, because no removal could make room."""
    with CommitLog.open(tmp_path, segment_bytes=4000, compression=None, max_bytes=16_000) as log:
        assert log.append(large(40), "r") == (0, 39)


def test_without_a_budget_the_log_grows(tmp_path: Path) -> None:
    """``max_bytes`` is off unless it is set."""
    with CommitLog.open(tmp_path, segment_bytes=4000, compression=None) as log:
        append_segments(log, [[Frame([Message("n", b"x" * 5000)])] for _ in range(10)])
        assert log.durable == 9


def test_a_lost_index_of_a_crashed_segment_costs_retention_no_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without trailer and index a segment's age is that of the next one."""
    monkeypatch.setattr("transporter.log.index.STRIDE", 1000)
    monkeypatch.setattr("transporter.log.sealed_segments.STRIDE", 1000)
    moments = iter(range(1000, 1 << 30))
    log = CommitLog.open(tmp_path, compression=None, clock=lambda: next(moments))
    for _ in range(50):
        log.append(messages_to_batch(letters("A")), "r")
    newest = log._active.logged_at
    crash(log)
    CommitLog.open(tmp_path, compression=None, clock=lambda: 9000).close()
    for path in tmp_path.glob("*.index"):
        path.unlink()
    (found,) = sealed_segments(RealFileSystem(), tmp_path)
    assert found.newest == 9000
    reindex(RealFileSystem(), tmp_path)
    (found,) = sealed_segments(RealFileSystem(), tmp_path)
    assert found.newest == newest - 1

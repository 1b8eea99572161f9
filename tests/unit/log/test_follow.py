"""The follower of a log that another process writes."""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from log_tools import Disk, crash, damage, unsynced

from transporter.errors import Corrupt
from transporter.log.commit_log import CommitLog
from transporter.log.follow import Follower, RemovedOffsets
from transporter.log.format import SegmentHeader
from transporter.log.inspection import inspect
from transporter.log.meta import read_meta
from transporter.log.reader import Gap
from transporter.log.segment import Segment, segment_name, write_segment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    Make = Callable[..., pa.RecordBatch]


def news(follower: Follower) -> list[object]:
    """Return the new offsets, and the reports of missing ones."""
    return [
        offset
        for each in follower.poll()
        for offset in ([each] if isinstance(each, tuple) else each.column("offset").to_pylist())
    ]


def test_each_entry_is_handed_out_once_when_it_is_durable(tmp_path: Path, batch: Make) -> None:
    """New entries are returned at the next poll, through rolls, and not before their sync."""
    with CommitLog.open(tmp_path, segment_bytes=1500) as log, Follower(tmp_path, 0) as follower:
        assert news(follower) == []
        seen: list[object] = []
        for _ in range(20):
            log.append(batch(3), "r")
            seen += news(follower)
        assert seen == list(range(60))
        unsynced(log, batch(3))
        assert news(follower) == []
        log.append(batch(1), "r")
        assert news(follower) == [60, 61, 62, 63]
    assert news(follower) == []


def test_it_can_begin_inside_a_frame(tmp_path: Path, batch: Make) -> None:
    """The first offset need not begin a frame."""
    with CommitLog.open(tmp_path) as log:
        log.append(batch(5), "r")
        with Follower(tmp_path, 3) as follower:
            assert news(follower) == [3, 4]


def test_what_nobody_confirmed_waits_for_the_next_engine(tmp_path: Path, batch: Make) -> None:
    """A crashed engine's tail is returned once, after another engine has taken it over."""
    log = CommitLog.open(tmp_path)
    log.append(batch(3), "r")
    with Follower(tmp_path, 0, inspect(tmp_path).confirmed) as follower:
        assert news(follower) == [0, 1, 2]
        torn = unsynced(log, batch(3))
        crash(log)
        assert news(follower) == []
        damage(tmp_path, torn.payload_byte)
        with CommitLog.open(tmp_path) as again:
            assert news(follower) == []
            again.append(batch(2), "r")
            # The cut frame's offsets are never used again.
            assert news(follower) == [6, 7]


def test_nothing_is_passed_over_when_a_crash_had_the_last_segment_replaced(
    tmp_path: Path, batch: Make
) -> None:
    """Frames written after a crash are found although recovery replaced the open segment."""
    log = CommitLog.open(tmp_path)
    log.append(batch(3), "r")
    with Follower(tmp_path, 0) as follower:
        assert news(follower) == [0, 1, 2]
        crash(log)
        with CommitLog.open(tmp_path) as again:
            for _ in range(3):
                again.append(batch(2), "r")
            assert news(follower) == list(range(3, 9))


def test_an_engine_that_came_and_went_unseen_is_not_missed(tmp_path: Path, batch: Make) -> None:
    """Entries appended and closed cleanly between two polls are returned at the second."""
    CommitLog.open(tmp_path).close()
    with Follower(tmp_path, 0) as follower:
        assert news(follower) == []
        with CommitLog.open(tmp_path) as log:
            log.append(batch(4), "r")
        assert news(follower) == [0, 1, 2, 3]


def test_a_log_that_is_not_there_yet_is_waited_for(tmp_path: Path, batch: Make) -> None:
    """Following may begin before the pipeline has ever run."""
    with Follower(tmp_path / "log", 0) as follower:
        assert news(follower) == []
        with CommitLog.open(tmp_path / "log") as log:
            log.append(batch(2), "r")
            assert news(follower) == [0, 1]


def test_removed_entries_are_told_once(tmp_path: Path, batch: Make) -> None:
    """Entries removed by retention are reported once, and the follower goes on behind them."""
    with CommitLog.open(tmp_path, segment_bytes=1) as log, Follower(tmp_path, 0) as follower:
        log.append(batch(2), "r")
        assert news(follower) == [0, 1]
        for _ in range(5):
            log.append(batch(2), "r")
        for base in (0, 2, 4):
            (tmp_path / segment_name(base)).unlink()
        assert news(follower) == [RemovedOffsets(2, 5), 6, 7, 8, 9, 10, 11]
        log.append(batch(2), "r")
        assert news(follower) == [12, 13]


def test_lost_entries_are_told_once(tmp_path: Path, batch: Make) -> None:
    """A gap declared as lost is reported in its place, and a torn one is not a loss."""
    with CommitLog.open(tmp_path) as log:
        log.append(batch(3), "r")
    previous = 2
    for base, lost in ((10, True), (20, False)):
        with closing(Segment(Disk(), tmp_path / segment_name(0))) as old:
            log_id = old.header.log_id
        header = SegmentHeader(
            log_id=log_id,
            segment_id=base,
            base=base,
            previous=previous,
            next_offset=base,
            epoch=1,
            created_at=0,
            lost=lost,
        )
        write_segment(Disk(), tmp_path, header)
        with CommitLog.open(tmp_path) as log:
            log.append(batch(2), "r")
            previous = log.durable
    with Follower(tmp_path, 0) as follower:
        assert news(follower) == [0, 1, 2, Gap(3, 9, lost=True), 10, 11, 20, 21]


def test_a_copied_mark_is_not_believed(tmp_path: Path, batch: Make) -> None:
    """A durable mark that may have been copied is not trusted."""
    with CommitLog.open(tmp_path / "a") as log:
        log.append(batch(2), "r")
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        log.append(batch(2), "r")
        shutil.copy(tmp_path / "a" / "durable", tmp_path / "b" / "durable")
    meta = read_meta(Disk(), tmp_path / "b")
    assert meta is not None
    with Follower(tmp_path / "b", 0, inspect(tmp_path / "b").confirmed) as follower:
        assert news(follower) == []
        with CommitLog.open(tmp_path / "b"):
            assert news(follower) == [0, 1]


def test_a_damaged_entry_ends_it(tmp_path: Path, batch: Make) -> None:
    """Damage raises an error instead of an endless search."""
    with CommitLog.open(tmp_path) as log:
        log.append(batch(2), "r")
        log.append(batch(2), "r")
        log.append(batch(2), "r")
        with closing(Segment(Disk(), log._active.path)) as segment:
            damage(tmp_path, list(segment.frames())[1].payload_byte)
        with Follower(tmp_path, 0) as follower, pytest.raises(Corrupt, match="offset 2"):
            news(follower)

"""The extent of each segment: offsets, times, gaps."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from log_tools import Disk, crash, damage, unsynced

from transporter.log.commit_log import CommitLog
from transporter.log.inspection import inspect
from transporter.log.overview import describe_segments
from transporter.log.reader import Gap
from transporter.log.segment import segment_bases, segment_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.overview import SegmentOverview

    Make = Callable[..., pa.RecordBatch]


def described(directory: Path) -> list[SegmentOverview]:
    """Return the overview of a whole log."""
    return describe_segments(directory, segment_bases(Disk(), directory), inspect(directory).last)


def test_offsets_times_and_seals(tmp_path: Path, batch: Make) -> None:
    """Each segment's offsets, the times of its first and last frame, and its seal are listed."""
    now = iter(range(1000))
    with CommitLog.open(tmp_path, segment_bytes=1500, clock=lambda: next(now) * 10) as log:
        for _ in range(8):
            log.append(batch(3), "r")
        running = described(tmp_path)
    found = described(tmp_path)
    assert [(s.base, s.last) for s in found] == [(s.base, s.last) for s in running]
    assert [s.sealed for s in found] == [True] * (len(found) - 1) + [False]
    assert found[0].base == 0
    assert found[-1].last == 23
    assert all(one.last + 1 == other.base for one, other in pairwise(found))
    times = [time for s in found for time in (s.oldest, s.newest)]
    assert times == sorted(times)
    assert (found[0].oldest, found[-1].newest) == (10, 80)
    assert [s.size for s in found] == [(tmp_path / s.name).stat().st_size for s in found]


def test_an_empty_segment_has_no_times(tmp_path: Path) -> None:
    """A log without entries covers nothing."""
    CommitLog.open(tmp_path).close()
    (only,) = described(tmp_path)
    assert (only.base, only.last, only.oldest, only.newest, only.sealed) == (
        0,
        -1,
        None,
        None,
        False,
    )


def test_torn_offsets_are_a_gap(tmp_path: Path, batch: Make) -> None:
    """Offsets that were cut are listed as a gap of the segment that recovery copied."""
    log = CommitLog.open(tmp_path)
    log.append(batch(3), "r")
    log.append(batch(3), "r")
    torn = unsynced(log, batch(4))
    crash(log)
    damage(tmp_path, torn.payload_byte)
    with CommitLog.open(tmp_path) as again:
        again.append(batch(2), "r")
    first, second = described(tmp_path)
    assert (first.gaps, first.epoch) == ((), 1)
    assert (second.gaps, second.epoch) == ((Gap(6, 9, lost=False),), 2)


def test_a_segment_that_went_is_left_out(tmp_path: Path, batch: Make) -> None:
    """A segment that retention removes during the overview is left out."""
    with CommitLog.open(tmp_path, segment_bytes=1) as log:
        for _ in range(3):
            log.append(batch(2), "r")
    (tmp_path / segment_name(0)).unlink()
    assert [s.base for s in describe_segments(tmp_path, [0, 2, 4], 5)] == [2, 4]


def test_damage_to_entries_only_hides_a_time(tmp_path: Path, batch: Make) -> None:
    """An unsealed segment whose frames are damaged is still listed."""
    with CommitLog.open(tmp_path) as log:
        log.append(batch(2), "r")
        log.append(batch(2), "r")
        log.append(batch(2), "r")
    data = (tmp_path / segment_name(0)).read_bytes()
    second = data.find(b"TFRM", data.find(b"TFRM") + 1)
    damage(tmp_path, second + 20)
    (only,) = describe_segments(tmp_path, [0], 5)
    assert (only.oldest is not None, only.newest) == (True, None)

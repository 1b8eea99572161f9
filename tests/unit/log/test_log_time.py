"""Log time with wrong clocks and with old segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from compaction_tools import Frame, compacted, everything, letters
from log_tools import Disk, crash, offsets_of

from transporter.engine.maintenance.committer import LogWarnings
from transporter.errors import LogFull
from transporter.log.commit_log import CommitLog, wall_clock
from transporter.log.compaction import CompactionSettings, compact
from transporter.log.filesystem import RealFileSystem
from transporter.log.reader import LogReader
from transporter.log.retention import RetentionSettings, apply_retention
from transporter.log.sealed_segments import sealed_segments
from transporter.log.search import first_offset_since, offsets_around
from transporter.log.segment import Segment, segment_bases, segment_name
from transporter.log.wall_times import WallTimes
from transporter.message import messages_to_batch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.filesystem import File

    Make = Callable[..., pa.RecordBatch]

SECOND = 1_000_000
DAY = 86400 * SECOND
TODAY = 20_000 * DAY
LATER = TODAY + 36_500 * DAY
"""A century ahead."""


class Uptime:
    """A machine's uptime that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def uptime(monkeypatch: pytest.MonkeyPatch) -> Uptime:
    """Replace the uptime that logs read, and return it."""
    up = Uptime()
    monkeypatch.setattr("transporter.log.commit_log.uptime", up)
    return up


class Clock:
    """A wall clock that a test sets."""

    def __init__(self, now: int = TODAY) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def write_days(directory: Path, clock: Clock, days: int, wrong: range = range(0)) -> int:
    """Append two entries of a namespace and a segment a day, on *wrong* days a century ahead."""
    with CommitLog.open(directory, segment_bytes=1, clock=clock, compression=None) as log:
        for day in range(days):
            clock.now = (LATER if day in wrong else TODAY) + day * DAY
            log.append(messages_to_batch(Frame(letters("AA")).messages), "r")
        clock.now = TODAY + days * DAY
        return log.durable


@pytest.mark.parametrize("wrong", [range(2, 3), range(1, 4), range(1)])
def test_retention_by_age_survives_a_clock_that_was_wrong(tmp_path: Path, wrong: range) -> None:
    """Old segments are removed, also those that a clock of the next century wrote."""
    clock = Clock()
    last = write_days(tmp_path, clock, 10, wrong)
    gone = list(
        apply_retention(
            tmp_path,
            watermark=lambda: last,
            settings=RetentionSettings(age=5 * 86400.0),
            now=clock(),
        )
    )
    # The time of an entry of a wrong day is as precise as the next segment's.
    assert len(gone) in range(4, 6)
    assert min(everything(tmp_path)) == 2 * len(gone)


def test_compaction_survives_a_clock_that_was_wrong(tmp_path: Path) -> None:
    """Old segments are compacted, also behind an append of the next century."""
    clock = Clock()
    last = write_days(tmp_path, clock, 10, range(2, 3))
    settings = CompactionSettings(after=5 * 86400.0, compression=None)
    report = compact(tmp_path, watermark=lambda: last, settings=settings, now=clock())
    assert len(report.segments) in range(4, 6)


def test_a_clock_that_is_behind_removes_nothing(tmp_path: Path) -> None:
    """A clock that starts in 1970 makes no segment old."""
    last = write_days(tmp_path, Clock(), 10)
    settings = RetentionSettings(age=5 * 86400.0)
    assert list(apply_retention(tmp_path, watermark=lambda: last, settings=settings, now=0)) == []


def test_a_right_clock_costs_no_headers(tmp_path: Path) -> None:
    """A segment's log time counts as it is while it is not ahead of the wall clock."""
    clock = Clock()
    write_days(tmp_path, clock, 4)
    times = WallTimes(RealFileSystem(), tmp_path, clock())
    sealed = sealed_segments(RealFileSystem(), tmp_path)
    assert [times.newest_time(each) for each in sealed] == [TODAY + day * DAY for day in range(3)]
    assert times._least_times is None


def test_a_header_that_a_repair_made_states_no_time(tmp_path: Path) -> None:
    """Without a time in any later header, log time counts."""
    clock = Clock()
    with CommitLog.open(tmp_path, segment_bytes=1, clock=clock) as log:
        clock.now = LATER
        log.append(messages_to_batch(Frame(letters("A")).messages), "r")
        clock.now = 0
        log.append(messages_to_batch(Frame(letters("A")).messages), "r")
    (sealed,) = sealed_segments(RealFileSystem(), tmp_path)
    assert (
        WallTimes(RealFileSystem(), tmp_path, TODAY).newest_time(sealed) == sealed.newest == LATER
    )


@pytest.mark.parametrize("end", ["clean", "crash"])
@pytest.mark.parametrize("empty", [False, True])
def test_log_time_goes_on_where_it_was(
    tmp_path: Path, batch: Make, uptime: Uptime, end: str, *, empty: bool
) -> None:
    """A restart, crash or roll never sets log time back (Invariant 16)."""
    clock = Clock(LATER)
    log = aging(0.01, tmp_path, clock=clock)
    log.append(batch(1), "r")
    clock.now = TODAY
    if empty:
        uptime.now += 0.02
        assert log.roll_if_old()
    if end == "clean":
        log.close()
    else:
        crash(log)
    with CommitLog.open(tmp_path, clock=clock) as log:
        log.append(batch(1), "r")
    with LogReader(tmp_path) as reader:
        assert [found.frame.logged_at for found in reader.frames(0, 1)] == [LATER, LATER]


def test_a_segment_states_when_it_was_begun(tmp_path: Path, batch: Make) -> None:
    """The header of a segment holds the wall time, whatever log time is."""
    clock = Clock(LATER)
    with CommitLog.open(tmp_path, clock=clock, segment_bytes=1) as log:
        log.append(batch(1), "r")
        clock.now = TODAY
        log.append(batch(1), "r")
    segment = Segment(Disk(), tmp_path / segment_name(1))
    assert segment.header.created_at == TODAY
    segment.close()


def test_times_are_found_when_the_last_segment_is_empty(
    tmp_path: Path, batch: Make, uptime: Uptime
) -> None:
    """A search does not end at a segment without entries, whatever its header states."""
    clock = Clock()
    log = aging(0.01, tmp_path, clock=clock, segment_bytes=1)
    for day in range(3):
        clock.now = LATER + day * DAY
        log.append(batch(1), "r")
    clock.now = TODAY
    uptime.now += 0.02
    assert log.roll_if_old()
    assert segment_bases(Disk(), tmp_path) == [0, 1, 2, 3]
    with LogReader(tmp_path) as reader:
        assert [first_offset_since(reader, LATER + day * DAY, 2) for day in range(3)] == [0, 1, 2]
        assert offsets_around(tmp_path, LATER + DAY)[0] <= 1
    log.close()


def test_log_time_that_is_ahead_is_told_at_the_start(tmp_path: Path, batch: Make) -> None:
    """A log of the next century is reported once, at the engine's start."""
    clock = Clock(LATER)
    with CommitLog.open(tmp_path, clock=clock) as log:
        log.append(batch(1), "r")
    clock.now = TODAY
    seen: list[tuple[str, dict]] = []
    with CommitLog.open(tmp_path, clock=clock) as log:
        watch = LogWarnings(log, lambda event, **details: seen.append((event, details)))
        watch.begin()
        watch.check()
        assert seen == [("log-time-ahead", {"seconds": (LATER - TODAY) // SECOND})]
        clock.now = LATER
        watch.check()
        clock.now = TODAY
        watch.check()
    assert [event for event, _ in seen] == ["log-time-ahead"] * 2


def test_a_clock_that_jumps_ahead_is_told_and_accepted(tmp_path: Path, batch: Make) -> None:
    """An append is never refused for its time, and a jump by more than an hour is an event."""
    clock = Clock()
    seen: list[tuple[str, dict]] = []
    with CommitLog.open(tmp_path, clock=clock) as log:
        watch = LogWarnings(log, lambda event, **details: seen.append((event, details)))
        watch.begin()
        for step in (0, 1800 * SECOND, -1800 * SECOND, 3590 * SECOND):
            clock.now += step
            log.append(batch(1), "r")
            watch.check()
        assert seen == []
        clock.now += 7200 * SECOND
        log.append(batch(1), "r")
        watch.check()
        watch.check()
    assert seen == [("clock-jumped", {"seconds": 7200})]
    assert offsets_of(tmp_path) == list(range(5))


def test_an_old_segment_is_sealed_by_an_append(tmp_path: Path, batch: Make, uptime: Uptime) -> None:
    """An append to a small, old segment begins the next one."""
    with aging(0.2, tmp_path) as log:
        log.append(batch(1), "r")
        log.append(batch(1), "r")
        assert segment_bases(Disk(), tmp_path) == [0]
        uptime.now += 0.25
        log.append(batch(1), "r")
        log.append(batch(1), "r")
        assert segment_bases(Disk(), tmp_path) == [0, 2]
        log.set_segment_age(None)
        uptime.now += 0.25
        log.append(batch(1), "r")
        assert segment_bases(Disk(), tmp_path) == [0, 2]
    assert offsets_of(tmp_path) == list(range(5))


def test_an_old_segment_of_an_idle_log_is_sealed_by_a_look(
    tmp_path: Path, batch: Make, uptime: Uptime
) -> None:
    """An idle log seals its segment, and begins no segment behind an empty one."""
    with aging(0.1, tmp_path) as log:
        assert not log.roll_if_old()
        uptime.now += 0.15
        assert not log.roll_if_old()
        log.append(batch(1), "r")
        assert not log.roll_if_old()
        uptime.now += 0.15
        assert log.roll_if_old()
        uptime.now += 0.15
        assert not log.roll_if_old()
        assert segment_bases(Disk(), tmp_path) == [0, 1]
        assert log.append(batch(1), "r") == (1, 1)
    assert offsets_of(tmp_path) == [0, 1]


def test_the_age_of_a_segment_counts_across_restarts(tmp_path: Path, batch: Make) -> None:
    """Hourly restarts do not keep a day-old segment from being sealed."""
    clock = Clock()
    for hour in range(5):
        clock.now = TODAY + hour * 3600 * SECOND
        with aging(3 * 3600.0, tmp_path, clock=clock) as log:
            log.append(batch(1), "r")
    assert segment_bases(Disk(), tmp_path) == [0, 3]


def test_an_idle_log_on_a_full_disk_rolls_later(
    tmp_path: Path, batch: Make, uptime: Uptime
) -> None:
    """A roll without room loses nothing, and the next look tries again (Invariant 14)."""
    disk = _FullForSegments()
    with aging(0.01, tmp_path, files=disk) as log:
        log.append(batch(1), "r")
        uptime.now += 0.02
        disk.full = True
        with pytest.raises(LogFull):
            log.roll_if_old()
        disk.full = False
        log.set_segment_age(None)
        assert log.append(batch(1), "r") == (1, 1)
        log.set_segment_age(0.01)
        uptime.now += 0.02
        assert log.roll_if_old()
        assert log.append(batch(1), "r") == (2, 2)
    assert offsets_of(tmp_path) == [0, 1, 2]


def test_what_a_look_has_sealed_is_compacted_and_removed(tmp_path: Path, uptime: Uptime) -> None:
    """Entries of a log of one small segment are compacted and removed in the end."""
    with aging(0.01, tmp_path, compression=None) as log:
        for _ in range(3):
            log.append(messages_to_batch(Frame(letters("AA")).messages), "r")
        uptime.now += 0.02
        assert log.roll_if_old()
        last = log.durable
        assert compacted(tmp_path, last).dropped_entries == 5
        settings = RetentionSettings(age=0.0)
        now = wall_clock() + SECOND
        assert (
            len(list(apply_retention(tmp_path, watermark=lambda: last, settings=settings, now=now)))
            == 1
        )


def aging(age: float, directory: Path, **how: Any) -> CommitLog:
    """Open a log whose segments are sealed after *age* seconds."""
    log = CommitLog.open(directory, **how)
    log.set_segment_age(age)
    return log


class _FullForSegments(RealFileSystem):
    """The real disk, which has no room for a new file while ``full`` is set."""

    full = False

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        if self.full and create:
            raise OSError(28, "No space left on device")
        return super().open(path, write=write, create=create)

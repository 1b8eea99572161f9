"""Operators' actions on a log without a running engine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from transporter.audit import Operator
from transporter.control import operator_actions, requests
from transporter.control.action_offsets import ReplayPlan, plan_replay
from transporter.control.stopped_log import StoppedLog
from transporter.errors import (
    ActionRefused,
    Corrupt,
    EngineUnreachable,
    EnvironmentFault,
    LogLocked,
    OffsetRefused,
    UnknownName,
)
from transporter.log import checksummed_file
from transporter.log.commit_log import CommitLog
from transporter.log.compaction import CompactionSettings, compact
from transporter.log.filesystem import RealFileSystem
from transporter.log.lock import DirectoryLock
from transporter.log.maintenance import MaintenanceRecord, write_maintenance
from transporter.log.operator_pauses import PAUSED, read_paused
from transporter.log.reader import LogReader
from transporter.log.retention import RetentionSettings, apply_retention
from transporter.offsets.offset_log import OffsetLog, declared_routes, read_state
from transporter.offsets.parked import ParkedEntry, ParkedStore, ParkReason, parked_path
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

ME = Operator("somebody", 7, 42)
SECOND = 1_000_000


@pytest.fixture
def log(tmp_path: Path, batch: Callable[..., pa.RecordBatch]) -> Path:
    """Return a log of eight frames of ten entries, one a second. ``r`` has delivered 0 to 69."""
    times = iter(range(100 * SECOND, 1000 * SECOND, SECOND))
    with (
        CommitLog.open(tmp_path / "log", segment_bytes=2048, clock=lambda: next(times)) as opened,
        OffsetLog(tmp_path / "log", "r") as offsets,
    ):
        for _ in range(8):
            opened.append(batch(10), "reader")
        offsets.settle(Range(0, 69), opened.durable)
        with LogReader(tmp_path / "log") as reader:
            (entry,) = reader.read(3, 3)
        ParkedStore(offsets.folder).park(ParkedEntry(3, entry, ParkReason("no", 1, 1)))
    return tmp_path / "log"


def does(log: Path, request: requests.Request) -> dict[str, Any]:
    """Execute *request*."""
    return StoppedLog(log).perform(request, ME)


def time_of(log: Path, offset: int) -> int:
    """Return the log time of an entry."""
    with LogReader(log) as reader:
        (entries,) = reader.read(offset, offset)
    return int(entries.column("logged_at")[0].value)


def test_every_action_is_durable(log: Path) -> None:
    """Each action is in the offset log when it returns."""
    does(log, requests.Pause("r"))
    assert read_state(log, "r").paused
    does(log, requests.Resume("r"))
    assert not read_state(log, "r").paused
    assert does(log, requests.Ack("r", 70, 75))["watermark"] == 75
    does(log, requests.Replay("r", first=5, last=20, namespace="^x"))
    replay = read_state(log, "r").replay
    assert replay is not None
    assert (replay.first, replay.last, replay.namespace) == (5, 20, "^x")
    does(log, requests.CancelReplay("r"))
    assert read_state(log, "r").replay is None
    does(log, requests.RetryParked("r"))
    assert read_state(log, "r").retries == (3,)
    does(log, requests.SkipParked("r", 3, 3))
    assert read_state(log, "r").retries == ()
    does(log, requests.Forget("r"))
    assert declared_routes(log) == []


@pytest.mark.parametrize(
    "request_", [requests.Reload(), requests.Step("r"), requests.RestartReader("in")], ids=str
)
def test_what_needs_an_engine_says_so(log: Path, request_: requests.Request) -> None:
    """A reload or a step without an engine is refused, with the remedy."""
    with pytest.raises(ActionRefused, match="'transporter run'"):
        does(log, request_)


@pytest.mark.parametrize("request_", [requests.Pause("none"), requests.Forget("none")], ids=str)
def test_a_route_that_never_ran_is_named(log: Path, request_: requests.Request) -> None:
    """An unknown route is an error that lists the known ones, and none is created."""
    with pytest.raises(UnknownName, match="known: r"):
        does(log, request_)
    assert declared_routes(log) == ["r"]


def test_a_running_engine_is_not_raced(log: Path) -> None:
    """Changes are refused while another process holds the lock."""
    with CommitLog.open(log):
        for request in (requests.Pause("r"), requests.Forget("r"), requests.SkipParked("r", 3, 3)):
            with pytest.raises(LogLocked):
                does(log, request)


def test_the_status_needs_no_lock(log: Path) -> None:
    """The routes' progress is reported while another process holds the lock."""
    with CommitLog.open(log):
        told = does(log, requests.Status())
    (route,) = told["routes"]
    assert (told["last"], route["lag"], route["parked"], route["state"]) == (
        79,
        10,
        1,
        "not running",
    )


def test_a_time_means_the_first_entry_logged_then_or_later(log: Path) -> None:
    """Times bound a replay exactly, both ends included, across frames."""
    since, until = time_of(log, 20), time_of(log, 49)
    told = does(log, requests.Replay("r", since=since, until=until, dry_run=True))
    assert (told["first"], told["last"], told["entries"]) == (20, 49, 30)
    assert (told["oldest"], told["newest"]) == (since, until)
    just_after = does(log, requests.Replay("r", since=since + 1, until=until + 1, dry_run=True))
    assert (just_after["first"], just_after["last"]) == (30, 49)
    with pytest.raises(OffsetRefused):
        does(log, requests.Replay("r", since=time_of(log, 79) + 1))
    assert read_state(log, "r").generation == 0


def test_a_replay_says_what_stays_parked(log: Path) -> None:
    """It passes parked entries, which the answer counts, in the preview as well."""
    told = does(log, requests.Replay("r", first=0, last=9, dry_run=True))
    assert (told["parked"], told["done"]) == (1, "0..9 would be replayed")
    told = does(log, requests.Replay("r", first=4, last=9, dry_run=True))
    assert told["parked"] == 0
    told = does(log, requests.Replay("r", first=0, last=9, namespace="^nothing$", dry_run=True))
    assert told["parked"] == 0
    told = does(log, requests.Replay("r", first=0, last=9))
    more = "but for 1 parked entry: see 'transporter parked retry'"
    assert (told["parked"], told["done"]) == (1, f"0..9 will be delivered again, {more}")


def test_what_retention_has_removed_is_refused_unless_partial(log: Path) -> None:
    """A range with a removed beginning is refused, and with partial its rest is replayed."""
    gone = list(
        apply_retention(
            log, watermark=lambda: 69, settings=RetentionSettings(5000, None), now=2000 * SECOND
        )
    )
    first = gone[-1].end + 1
    assert 0 < first < 60
    with pytest.raises(ActionRefused, match=rf"does not hold 5\.\.{first - 1} any more"):
        does(log, requests.Replay("r", first=5))
    told = does(log, requests.Replay("r", first=5, partial=True))
    assert (told["first"], told["missing"]) == (first, [[5, first - 1]])
    replay = read_state(log, "r").replay
    assert replay is not None
    assert replay.next == first


def test_a_compaction_between_plan_and_begin_is_seen(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range is checked again after the plan, because nothing holds it yet (Invariant 11)."""
    request, settings = requests.Replay("r", first=5), CompactionSettings(0.0)
    planned: list[ReplayPlan] = []

    def plan_first(*arguments: Any) -> ReplayPlan:
        planned.append(plan_replay(*arguments))
        if len(planned) == 1:
            compact(log, watermark=lambda: 69, settings=settings, now=1 << 50, gate=opened.gate)
        return planned[-1]

    monkeypatch.setattr(operator_actions, "plan_replay", plan_first)
    with CommitLog.open(log) as opened, OffsetLog(log, "r") as offsets:
        with pytest.raises(ActionRefused, match=r"of 5\.\.69 compaction has dropped \d+ entries"):
            operator_actions.begin_replay(opened, offsets, request, ME, upserts=None)
        assert offsets.state.replay is None
        again = operator_actions.begin_replay(
            opened, offsets, replace(request, partial=True), ME, upserts=None
        )
    assert again["dropped"] > 0
    assert planned[0].dropped == 0


def test_a_dry_run_does_not_take_the_lock(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine may start during an operator's dry run."""

    def look(*_: object) -> Iterator[pa.RecordBatch]:
        with CommitLog.open(log):
            yield from ()

    monkeypatch.setattr("transporter.control.action_offsets.matching_entries", look)
    told = does(log, requests.Replay("r", first=5, last=20, dry_run=True))
    assert (told["first"], told["last"], told["entries"]) == (5, 20, 0)
    assert read_state(log, "r").replay is None


def test_a_damaged_parked_entry_can_be_skipped(log: Path) -> None:
    """An unreadable parked entry can be skipped."""
    path = parked_path(log / "offsets" / "r", 3)
    path.write_bytes(b"nonsense")
    assert does(log, requests.SkipParked("r", 3, 3))["offsets"] == [3]
    assert not path.exists()


def test_a_reader_is_paused_without_an_engine(log: Path) -> None:
    """The next engine finds the reader paused, and an unknown reader is refused."""
    record = MaintenanceRecord(readers={"in": 3})
    write_maintenance(RealFileSystem(), log, record)
    assert does(log, requests.PauseReader("in", "upgrade"))["paused"]
    assert read_paused(log) == {"in"}
    (shown,) = does(log, requests.Status())["readers"]
    assert (shown["name"], shown["state"]) == ("in", "paused")
    assert not does(log, requests.ResumeReader("in"))["paused"]
    assert read_paused(log) == frozenset()
    with pytest.raises(ActionRefused, match=r"a reader 'inn' .*known: in"):
        does(log, requests.PauseReader("inn"))


@pytest.mark.parametrize(
    "content", [b"", b"[]\n00000000\n", checksummed_file.encode({"readers": [7]})]
)
def test_a_damaged_list_of_paused_readers_is_named(log: Path, content: bytes) -> None:
    """A damaged list is refused, so that no reader runs against a pause (Invariant 17)."""
    (log / PAUSED).write_bytes(content)
    with pytest.raises(Corrupt, match=r"paused readers .*remove the file"):
        does(log, requests.Status())


def test_readiness_needs_an_engine_and_leaves_the_lock_alone(log: Path) -> None:
    """Without an engine it is an error of the environment, also while one is starting."""
    with pytest.raises(EnvironmentFault, match="no engine runs on this log"):
        does(log, requests.Readiness())
    with DirectoryLock(log), pytest.raises(EngineUnreachable, match="does not answer"):
        does(log, requests.Readiness())

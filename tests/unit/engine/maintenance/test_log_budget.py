"""The housekeeper: the engine's maintenance of its log, beside its other work."""

from __future__ import annotations

import errno
import json
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from compaction_tools import Frame, append_segments, everything, letters
from engine_tools import Events, Holders, SparklessHost, make_pipeline, running, until

from transporter.adaptor import AdaptorConfig, Batch
from transporter.audit import AUDIT
from transporter.engine.events import State
from transporter.engine.maintenance.compactor import CompactionStopped, FailureReport, Throttle
from transporter.engine.maintenance.log_budget import Housekeeper
from transporter.engine.maintenance.retention_holds import RetentionHolds
from transporter.engine.reading.feed import Feed
from transporter.errors import (
    BudgetSpent,
    EnvironmentFault,
    LockLost,
    LogPoisoned,
    SourceUnavailable,
)
from transporter.log.commit_log import CommitLog, wall_clock
from transporter.log.filesystem import RealFileSystem
from transporter.log.maintenance import MAINTENANCE, CompactionRules, read_maintenance
from transporter.log.segment import segment_bases
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import OffsetLog, declared_routes, read_state
from transporter.offsets.retention_holds import Hold, release
from transporter.offsets.state import Range, Replay
from transporter.pipeline.config import LogConfig, ReaderConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.adaptor import Resume
    from transporter.pipeline.config import Pipeline

OLD = 1 << 60
SMALL = {"segment_bytes": 65536, "max_bytes": 4 * 65536}


def config(folder: Path, **keys: Any) -> LogConfig:
    """Return the settings of a log that compacts at once and keeps the rest."""
    keys = {"compaction": {"after": 0.0}, "retention": {"age": "off"}, **keys}
    return LogConfig.model_validate({"dir": folder, **keys})


class Kept:
    """The housekeeper of a log, with its recorded events, failures and releases."""

    def __init__(
        self, log: CommitLog, settings: LogConfig, through: int, told: int = 1 << 60
    ) -> None:
        self.log, self.hold = log, Hold(through, "slow")
        self.told = told
        self.failing: Exception | None = None
        self.starting = False
        self.released: list[int] = []
        self.failures: list[BaseException] = []
        self.events = Events()
        self.keeper = Housekeeper(log, settings, self, self.events, self.failures.append)
        self.keeper.begin()

    def keep(self, now: int) -> None:
        """Do everything that is due once."""
        self.keeper.run_once(now)
        self.keeper.compactor.run_once(now)

    def least_hold(self) -> Hold:
        """Return the hold that the test has set, or raise the failure that it has set."""
        if self.failing is not None:
            raise self.failing
        return self.hold

    def acknowledged_offsets(self) -> dict[str, int]:
        """Return the offset up to which the one reader's source is acknowledged."""
        return {"r": min(self.told, self.log.durable)}

    def waiting_offsets(self) -> dict[str, int]:
        """Return that no reader loses what is released."""
        return {}

    def release_limit(self) -> Hold | None:
        """Return the hold of the reader."""
        return Hold(self.told, "r", "reader")

    def awaits_spark(self, route: str) -> bool:
        """Return what the test has set."""
        assert route == self.hold.name
        return self.starting

    def release(self, route: str, through: int) -> None:
        """Record a release of *route* up to *through*."""
        assert route == self.hold.name
        self.released.append(through)
        self.hold = Hold(through, "slow")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    """Yield a log of five segments whose entries are all at least as old as the second one."""
    with CommitLog.open(tmp_path / "log", compression=None) as opened:
        append_segments(opened, [[Frame(letters("AAB"))] for _ in range(5)])
        yield opened


def fill(log: CommitLog) -> None:
    """Append until the budget is spent."""
    row = messages_to_batch([Message("n", b"x" * 10_000)])
    with suppress(BudgetSpent):
        while True:
            log.append(row, "r")


def bases(log: CommitLog) -> list[int]:
    """Return the base offsets of the segments that are left."""
    return segment_bases(RealFileSystem(), log.directory)


def test_what_is_due_is_compacted_once(log: CommitLog) -> None:
    """Sealed segments below the least watermark are compacted and reported once."""
    kept = Kept(log, config(log.directory), through=8)
    kept.keep(OLD)
    assert list(everything(log.directory)) == [2, 5, 7, 8, *range(9, 15)]
    (told,) = kept.events.named("log-compacted")
    assert (told["segments"], told["dropped"]) == (3, 5)
    kept.keep(OLD)
    assert len(kept.events.named("log-compacted")) == 1


def test_room_is_made_for_what_is_larger_than_what_the_budget_leaves(tmp_path: Path) -> None:
    """A batch of half the budget, or of more than all of it, finds room once all is delivered."""
    with CommitLog.open(tmp_path, compression=None, segment_bytes=65536) as log:
        log.set_max_bytes(SMALL["max_bytes"])
        kept = Kept(log, config(tmp_path, **SMALL), through=OLD)
        for size in (90_000, 90_000, 150_000, 400_000):
            large = messages_to_batch([Message("n", b"x" * size)])
            with suppress(BudgetSpent):
                log.append(large, "r")
                continue
            kept.keep(OLD)
            log.append(large, "r")
        assert len(bases(log)) == 2


@pytest.mark.parametrize("compaction", [{}, {"after": "off"}, {"rate": 65536}])
def test_nothing_is_compacted_that_no_file_asks_for(
    log: CommitLog, compaction: dict[str, Any]
) -> None:
    """The whole history stays unless the pipeline file sets a rule for compaction."""
    kept = Kept(log, config(log.directory, compaction=compaction), through=14)
    kept.keep(OLD)
    assert len(everything(log.directory)) == 15


def test_compaction_waits_until_enough_is_new(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction waits for a fraction of the compacted bytes, because it reads them again."""
    monkeypatch.setattr("transporter.engine.maintenance.compactor._DUE_FRACTION", 2)
    kept = Kept(log, config(log.directory), through=8)
    kept.keep(OLD)
    append_segments(log, [[Frame(letters("A"))]])
    kept.hold = Hold(11, "slow")
    kept.keep(OLD)
    assert len(kept.events.named("log-compacted")) == 1
    kept.hold = Hold(14, "slow")
    append_segments(log, [[Frame(letters("AAAAAAAAA" * 40))], [Frame(letters("A"))]])
    kept.hold = Hold(log.durable, "slow")
    kept.keep(OLD)
    assert len(kept.events.named("log-compacted")) == 2


def test_retention_by_bytes(log: CommitLog) -> None:
    """Segments that no route needs are removed, and each removal is reported."""
    kept = Kept(log, config(log.directory, retention={"bytes": 1}), through=6)
    kept.keep(OLD)
    assert bases(log)[0] == 6
    assert [each["through"] for each in kept.events.named("segment-removed")] == [2, 5]


def test_an_engine_that_lost_its_lock_removes_nothing(log: CommitLog) -> None:
    """An engine without its lock removes nothing, because the new owner's routes may need it."""
    settings = config(log.directory, retention={"bytes": 1})
    with OffsetLog(log.directory, "out") as out:
        out.settle(Range(0, log.durable), log.durable)
        holds = RetentionHolds(log, Holders({"out": out}), Events(), out._audit)
        keeper = Housekeeper(log, settings, holds, Events(), Events())
        (log.directory / "lock").unlink()
        before = bases(log)
        with pytest.raises(LockLost):
            keeper.run_once(OLD)
    assert bases(log) == before


def test_what_is_delivered_stays_a_week_by_default(log: CommitLog) -> None:
    """Without settings the log is bounded by age, and holds entries that a route still needs."""
    day = 86_400_000_000
    settings = LogConfig.model_validate({"dir": log.directory})
    kept = Kept(log, settings, through=5)
    written = wall_clock()
    kept.keep(written + 6 * day)
    assert bases(log) == [0, 3, 6, 9, 12]
    kept.keep(written + 8 * day)
    assert bases(log) == [6, 9, 12]
    kept.hold = Hold(14, "slow")
    kept.keep(written + 8 * day)
    assert bases(log) == [12]


def test_retention_by_age(log: CommitLog) -> None:
    """A segment is removed when its newest entry is older than the retention age."""
    kept = Kept(log, config(log.directory, retention={"age": 60.0}), through=100)
    kept.keep(int((time.time() + 30) * 1e6))
    assert bases(log)[0] == 0
    kept.keep(int((time.time() + 90) * 1e6))
    assert bases(log) == [12]


def test_a_budget_keeps_the_log_small_and_names_who_holds_it(tmp_path: Path) -> None:
    """From 80 % on segments are removed, or the route that holds them is named once."""
    budget = 4 * 65536
    settings = config(tmp_path / "log", segment_bytes=65536, max_bytes=budget)
    with CommitLog.open(
        settings.dir, segment_bytes=65536, max_bytes=budget, compression=None
    ) as log:
        kept = Kept(log, settings, through=-1)
        fill(log)
        for _ in range(2):
            kept.keep(0)
        (told,) = kept.events.named("log-nearly-full")
        assert (told["holder"], told["needs_from"], told["max_bytes"]) == ("route slow", 0, budget)
        assert kept.keeper.holder == "route slow"
        assert (bases(log)[0], kept.released) == (0, [])
        kept.hold = Hold(log.durable, "slow")
        kept.keep(0)
        assert kept.keeper.holder == ""
        assert len(kept.events.named("log-has-room")) == 1
        assert log.used_bytes < 0.8 * budget
        # Retention is not configured, so the log keeps its segments.
        assert log.used_bytes > 0.4 * budget
        log.append(messages_to_batch(letters("A")), "r")


def test_stop_route_releases_the_oldest_entries_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A route that stands still releases only the oldest entries, and a moving route none.

    The time in which a route waits for Spark does not count.
    """
    moment = 0.0
    monkeypatch.setattr("transporter.engine.maintenance.log_budget.time.monotonic", lambda: moment)
    budget = 4 * 65536
    settings = config(tmp_path / "log", segment_bytes=65536, max_bytes=budget, on_full="stop-route")
    with CommitLog.open(
        settings.dir, segment_bytes=65536, max_bytes=budget, compression=None
    ) as log:
        kept = Kept(log, settings, through=-1)
        kept.keep(0)
        assert kept.released == []
        fill(log)
        second = bases(log)[1]
        for at, through in ((0, -1), (4, 0), (8, 1), (12.9, 1)):
            moment, kept.hold = at, Hold(through, "slow")
            kept.keep(0)
            assert kept.released == []
        for at, kept.starting in ((13.0, True), (17.9, False)):
            moment = at
            kept.keep(0)
            assert kept.released == []
        moment = 18.0
        kept.keep(0)
        assert kept.released == [second - 1]
        assert bases(log)[0] == second
        log.append(messages_to_batch(letters("A")), "r")


def test_a_release_is_recorded_where_it_happens(tmp_path: Path) -> None:
    """State and audit file name the released range, and settled entries in it stay as they were."""
    with OffsetLog(tmp_path, "slow") as route:
        route.settle(Range(0, 2), 20)
        assert release(route, 2, 20, "why") is None
        assert release(route, 9, 20, "why") == Range(3, 9, "released")
        assert release(route, 12, 20, "why") == Range(10, 12, "released")
    state = read_state(tmp_path, "slow")
    assert (state.watermark, state.released) == (12, (Range(3, 12, "released"),))
    assert (tmp_path / AUDIT).read_text().count('"action": "release"') == 2


def test_a_release_ends_what_is_left_of_a_replay(tmp_path: Path) -> None:
    """A release ends the replay of the same offsets and leaves the route's own progress alone."""
    with OffsetLog(tmp_path, "slow") as route:
        ended = list[Replay]()
        route.on_replay_delivered = ended.append
        route.settle(Range(0, 9), 20)
        route.begin_replay(2, 8)
        assert release(route, 5, 20, "why") == Range(2, 5, "released")
        assert route.state.replay is not None
        assert (route.state.replay.next, route.state.watermark) == (6, 9)
        release(route, 12, 20, "why")
        assert (route.state.replay, route.state.watermark) == (None, 12)
        # It was not delivered.
        assert ended == []


def test_what_fails_is_told_once_and_tried_again(log: CommitLog) -> None:
    """A failing disk or a damaged segment is reported once and tried again, and ends nothing."""
    kept = Kept(log, config(log.directory), through=8)
    kept.failing = OSError(errno.EACCES, "Permission denied")
    report = FailureReport(kept.events)
    for _ in range(2):
        report.attempt(lambda: kept.keep(OLD))
    assert len(kept.events.named("housekeeping-failed")) == 1
    kept.failing = None
    report.attempt(lambda: kept.keep(OLD))
    assert len(kept.events.named("log-compacted")) == 1


def test_a_failed_sync_ends_the_engine(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync that fails during maintenance ends the engine like any other (Invariant 13)."""
    kept = Kept(log, config(log.directory), through=8)
    kept.failing = LogPoisoned("a sync failed")
    kept.keeper.start()
    until(lambda: kept.failures)
    kept.keeper.stop()
    assert isinstance(kept.failures[0], LogPoisoned)


def test_the_pace_is_kept_and_a_stop_ends_it() -> None:
    """The pace limits bytes per second, and a stop ends its wait at once."""
    stopping = threading.Event()
    pace = Throttle(1_000_000, stopping)
    began = time.monotonic()
    for _ in range(5):
        pace(20_000)
    assert time.monotonic() - began >= 0.08
    waiting = threading.Timer(0.05, stopping.set)
    waiting.start()
    with pytest.raises(CompactionStopped):
        pace(10**9)
    waiting.join()


def test_a_stop_ends_a_compaction_that_runs(log: CommitLog) -> None:
    """A stop ends a compaction of hours at once and leaves the log as it was."""
    settings = config(log.directory, compaction={"after": 0.0, "rate": 65536})
    big = messages_to_batch([Message("A", b"x" * 200_000)] * 20)
    for _ in range(2):
        log._segment_bytes = 1
        log.append(big, "r")
    kept = Kept(log, settings, through=log.durable)
    before = everything(log.directory)
    kept.keeper.start()
    time.sleep(0.2)
    began = time.monotonic()
    kept.keeper.stop()
    assert time.monotonic() - began < 5
    assert kept.failures == []
    assert set(everything(log.directory)) <= set(before)
    assert not list(log.directory.glob("*.tmp"))


def sizeable(log: CommitLog, count: int, rows: int = 20) -> None:
    """Append *count* segments of *rows* rows of 200 kB each, and one row to the active one."""
    big = messages_to_batch([Message("A", b"x" * 200_000)] * rows)
    for _ in range(count + 1):
        log._segment_bytes = 1
        log.append(big if _ < count else messages_to_batch(letters("A")), "r")
    log._segment_bytes = 1 << 30


def test_room_is_made_while_a_compaction_runs(log: CommitLog) -> None:
    """Retention and the budget make room within a second while a paced compaction runs."""
    settings = config(log.directory, compaction={"after": 0.0, "rate": 65536})
    sizeable(log, 4)
    kept = Kept(log, settings, through=log.durable)
    kept.keeper.start()
    try:
        until(lambda: not kept.keeper.compactor.idle)
        log.set_max_bytes(4 * 65536)
        kept.keeper.configure(
            config(log.directory, **SMALL, compaction={"after": 0.0, "rate": 65536})
        )
        # No append has been refused yet.
        began = time.monotonic()
        until(lambda: len(bases(log)) == 1)
        assert time.monotonic() - began < 1
    finally:
        kept.keeper.stop()
    assert kept.failures == []
    assert kept.events.named("housekeeping-failed") == []


def test_lost_indexes_hold_up_neither_room_nor_a_stop(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost indexes are rebuilt at the pace of compaction, and urgent work goes first."""
    sizeable(log, 4)
    for path in log.directory.glob("*.index"):
        path.unlink()
    slow = {"after": "off", "rate": 65536}
    kept = Kept(log, config(log.directory, **SMALL, compaction=slow), through=log.durable)
    # A page a frame: these are few, and are to take hours.
    monkeypatch.setattr("transporter.log.index._PAGE", 1 << 20)
    log.set_max_bytes(4 * 65536)
    kept.keeper.start()
    with pytest.raises(BudgetSpent):
        log.append(messages_to_batch(letters("A")), "r")
    until(lambda: len(bases(log)) == 1)
    assert not kept.keeper.compactor.idle
    began = time.monotonic()
    kept.keeper.stop()
    assert time.monotonic() - began < 1
    assert kept.failures == []
    # Those of removed segments did not come back.
    until(lambda: len(list(log.directory.glob("*.index"))) <= 1)


def test_compaction_waits_for_room_and_says_so_once(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction without room is reported once, retried ever later, and never fills the disk."""
    moment, free = 0.0, 0
    monkeypatch.setattr("transporter.engine.maintenance.compactor.time.monotonic", lambda: moment)
    monkeypatch.setattr(RealFileSystem, "free_bytes", lambda *_: free)
    kept = Kept(log, config(log.directory), through=8)
    tries = []
    for moment in range(0, 200, 5):
        before = kept.keeper.compactor._not_before
        kept.keep(OLD)
        if kept.keeper.compactor._not_before != before:
            tries.append(moment)
    assert tries == [0, 10, 30, 70, 150]
    assert len(kept.events.named("compaction-waiting")) == 1
    assert kept.events.named("compaction-resumed") == []
    moment, free = 1000.0, 1 << 40
    kept.keep(OLD)
    assert len(kept.events.named("compaction-resumed")) == 1
    assert len(kept.events.named("log-compacted")) == 1
    assert kept.events.named("housekeeping-failed") == []


def test_a_failing_compaction_is_retried_ever_later(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction that fails reads the segments again after a growing delay only."""
    tries, moment = list[float](), 0.0
    monkeypatch.setattr("transporter.engine.maintenance.compactor.time.monotonic", lambda: moment)

    def failing(*_: object, **__: object) -> None:
        tries.append(moment)
        raise EnvironmentFault("the disk is ill")

    monkeypatch.setattr("transporter.engine.maintenance.compactor.compact", failing)
    kept = Kept(log, config(log.directory), through=8)
    for moment in range(0, 200, 5):  # noqa: B007 - the clock
        with suppress(EnvironmentFault):
            kept.keep(OLD)
    assert tries == [0, 10, 30, 70, 150]


def test_a_route_that_was_forgotten_meanwhile_is_not_released(log: CommitLog) -> None:
    """A release that was decided before an operator forgot the route declares it no more."""
    OffsetLog(log.directory, "gone").close()
    with OffsetLog(log.directory, "out") as out:
        events = Events()
        holds = RetentionHolds(log, Holders({"out": out}), events, out._audit)
        assert holds.least_hold().name == "gone"
        holds.forget("gone")
        holds.release("gone", 1)
        assert declared_routes(log.directory) == ["out"]
        assert events.named("entries-released") == []


def test_the_record_never_promises_more_than_the_sources_were_told(log: CommitLog) -> None:
    """The recorded position of a reader is always a lower bound (Invariant 11)."""

    def recorded() -> dict[str, int]:
        record = read_maintenance(RealFileSystem(), log.directory)
        assert record is not None
        return record.readers

    kept = Kept(log, config(log.directory), through=-1, told=-1)
    # Nothing is known of the engine before.
    assert recorded() == {"r": -1}
    kept.told = 5
    kept.keep(0)
    assert recorded() == {"r": 5}
    again = Kept(log, config(log.directory), through=-1, told=-1)
    assert recorded() == {"r": 5}
    again.told = 9
    again.keep(0)
    assert recorded() == {"r": 9}


def test_a_damaged_record_is_begun_again(log: CommitLog) -> None:
    """A damaged record costs one more reading of the compacted segments, and no start fails."""
    Kept(log, config(log.directory), through=8)
    (log.directory / MAINTENANCE).write_bytes(b"no such thing")
    Kept(log, config(log.directory), through=8)
    assert read_maintenance(RealFileSystem(), log.directory) is not None


def test_a_restart_does_not_read_again_what_was_compacted(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compacted segments are recorded durably and read again only under another rule."""
    read: list[int] = []
    monkeypatch.setattr(Throttle, "__call__", lambda _, size: read.append(size))
    Kept(log, config(log.directory), through=8).keep(OLD)
    assert read
    read.clear()
    Kept(log, config(log.directory), through=8).keep(OLD)
    assert read == []
    other = config(log.directory, compaction={"after": 0.0, "keep": "key"})
    Kept(log, other, through=8).keep(OLD)
    assert read


class Forgetful:
    """A reader of two messages whose source fails at the acknowledgement of the second one."""

    Config = AdaptorConfig

    def __init__(self, _: AdaptorConfig) -> None:
        self._polls = 0

    def open(self, resume: Resume) -> None:
        pass

    def poll(self, timeout: float) -> Batch:
        self._polls += 1
        return Batch([Message("n", b"x")], str(self._polls))

    def commit(self, position: str) -> None:
        if position == "2":
            raise SourceUnavailable("gone")

    def close(self) -> None:
        pass


def test_what_a_source_was_not_told_of_is_held(log: CommitLog) -> None:
    """Entries that the source would redeliver after a crash are held, and so are earlier ones."""
    settings = ReaderConfig(
        name="in", adaptor="x", settings={}, cls=Forgetful, config=AdaptorConfig()
    )
    events = Events()
    feed = Feed(settings, log, events, lambda _: None)
    assert feed.hold() == Hold(-1, "in", "reader")
    feed.start()
    events.await_count("reader-unavailable")
    # 15 was acknowledged, 16 was not.
    assert feed.hold() == Hold(15, "in", "reader")
    feed.stop()
    feed.finish()
    assert feed.hold() == Hold(15, "in", "reader"), "they come again after a stop, too"


def test_everybody_who_is_declared_holds_the_log(tmp_path: Path) -> None:
    """A route that left the pipeline and a replay hold the log like a running route."""
    pipeline = make_pipeline(tmp_path, [f"n {number}" for number in range(9)], out={})
    with running(pipeline) as engine:
        until(lambda: got(tmp_path / "out.jsonl") == list(range(9)))
    with OffsetLog(pipeline.log.dir, "gone") as gone:
        gone.settle(Range(0, 3), 8)
    (tmp_path / "out.down").write_text("write")
    with OffsetLog(pipeline.log.dir, "out") as out:
        out.begin_replay(2, 5)
    with running(pipeline) as engine:
        until(lambda: engine._running.feeds[0].hold() is None)
        assert engine._holds.least_hold() == Hold(1, "out", "replay")
        (tmp_path / "out.down").unlink()
        until(lambda: engine._holds.least_hold() == Hold(3, "gone"))


def test_an_engine_records_how_far_its_sources_are(tmp_path: Path) -> None:
    """An engine records source positions for ``log compact`` from before the first append on."""
    pipeline = make_pipeline(tmp_path, [], out={}, end=False)
    files = RealFileSystem()
    with running(pipeline):
        record = read_maintenance(files, pipeline.log.dir)
        assert record is not None
        assert record.readers == {"in": -1}
        with (tmp_path / "source.txt").open("a") as source:
            source.writelines(f"n {number}\n" for number in range(9))
        assert record.rules == CompactionRules(None, "namespace", 86400.0, "lz4")
        until(lambda: got(tmp_path / "out.jsonl") == list(range(9)))
    record = read_maintenance(files, pipeline.log.dir)
    assert record is not None
    assert record.readers == {"in": 8}


def got(path: Path) -> list[int]:
    """Return the offsets delivered to *path*, whose last line may be incomplete."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line)["offset"] for line in lines]


def pipeline_of(folder: Path, count: int, on_full: str = "wait", **routes: Any) -> Pipeline:
    """Return a pipeline of *count* large lines whose log has a budget of four segments."""
    lines = [f"n {number} {'x' * 8000}" for number in range(count)]
    pipeline = make_pipeline(folder, lines, end=False, **routes)
    log = LogConfig(
        dir=pipeline.log.dir,
        segment_bytes=65536,
        compression="none",
        max_bytes=4 * 65536,
        on_full=on_full,
    )
    (reader,) = pipeline.readers
    config_of_reader = reader.config.model_copy(update={"rows": 2})
    reader = reader.model_copy(update={"config": config_of_reader})
    return pipeline.model_copy(update={"log": log, "readers": (reader,)})


def test_a_dead_route_holds_the_log_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers wait for a dead route, which is named, and go on when its sink is back."""
    monkeypatch.setattr("transporter.engine.maintenance.log_budget.PRESSED", 0.05)
    monkeypatch.setattr("transporter.engine.maintenance.log_budget.STUCK", 1.0)
    (tmp_path / "dead.down").write_text("write")
    pipeline, events = pipeline_of(tmp_path, 80, dead={}, well={}), Events()
    with running(pipeline, events=events) as engine:
        events.await_count("log-full")
        events.await_count("log-nearly-full")
        until(lambda: engine.status().readers[0].state is State.WAITING)
        dead, well = engine.status().routes
        assert "max_bytes" in dead.problem
        assert "max_bytes" not in well.problem
        assert engine.status().size <= 5 * 65536 + (16 << 20)
        (tmp_path / "dead.down").unlink()
        until(lambda: len(got(tmp_path / "dead.jsonl")) == 80)
        until(lambda: len(got(tmp_path / "well.jsonl")) == 80)
    assert got(tmp_path / "dead.jsonl") == list(range(80))
    assert events.named("entries-released") == []


def test_a_start_with_a_full_log_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that waits for room with its first batch does not hold the full log."""
    monkeypatch.setattr("transporter.engine.maintenance.log_budget.PRESSED", 0.05)
    (tmp_path / "dead.down").write_text("write")
    with running(pipeline_of(tmp_path, 80, dead={})) as engine:
        until(lambda: engine.status().readers[0].state is State.WAITING)
        engine.stop(0)
    with running(pipeline_of(tmp_path, 0, dead={})) as engine:
        until(lambda: engine.status().readers[0].state is State.WAITING)
        (tmp_path / "dead.down").unlink()
        until(lambda: len(got(tmp_path / "dead.jsonl")) == 80)


@pytest.mark.parametrize("spark", ["slow", "busy"])
def test_a_route_that_waits_for_spark_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: str
) -> None:
    """No route can move while Spark starts, or starts its worker, so none of them is stuck."""
    monkeypatch.setattr("transporter.engine.maintenance.log_budget.PRESSED", 0.05)
    monkeypatch.setattr("transporter.engine.maintenance.log_budget.STUCK", 0.2)
    pipeline, events = pipeline_of(tmp_path, 80, "stop-route", out={}), Events()
    with running(pipeline, SparklessHost([spark]), events) as engine:
        events.await_count("log-full", 3)
        time.sleep(1)  # Five times as long as a stuck route keeps its entries.
        engine.stop(0)
    assert events.named("entries-released") == []


@pytest.mark.exhaustive
def test_a_dead_route_that_may_be_stopped_loses_its_oldest_entries_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the dead route loses entries, which are reported, and it goes on behind them."""
    monkeypatch.setattr("transporter.engine.maintenance.log_budget.PRESSED", 0.05)
    monkeypatch.setattr("transporter.engine.maintenance.log_budget.STUCK", 1.0)
    (tmp_path / "dead.down").write_text("write")
    pipeline, events = pipeline_of(tmp_path, 80, "stop-route", dead={}, well={}), Events()
    with running(pipeline, events=events):
        until(lambda: len(got(tmp_path / "well.jsonl")) == 80)
        (tmp_path / "dead.down").unlink()
        lost = events.await_count("entries-released")
        until(lambda: got(tmp_path / "dead.jsonl")[-1:] == [79])
    delivered = got(tmp_path / "dead.jsonl")
    released = read_state(pipeline.log.dir, "dead").released
    assert lost["route"] == "dead"
    assert len(released) == 1
    assert released[0].first == 0
    # Nothing is skipped silently: each offset was delivered or is named.
    assert delivered == list(range(released[0].last + 1, 80))
    assert read_state(pipeline.log.dir, "well").released == ()

"""Readers whose source waits for delivery: the entries it redelivers, and those it never will."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from crc32c import crc32c
from engine_tools import PATIENCE, Events, delivered, offsets, running, until
from table_tools import RouteParts, TableReader, table, told

from transporter.adaptor import Batch
from transporter.engine.events import State
from transporter.engine.reading.delivery_progress import DeliveringRoute, DeliveryProgress
from transporter.engine.reading.reader_resume import LogResume
from transporter.engine.routing.superseding import supersede
from transporter.errors import EnvironmentFault, LogFull
from transporter.log.commit_log import CommitLog, wall_clock
from transporter.log.compaction import CompactionSettings, compact
from transporter.log.reader import LocatedFrame
from transporter.offsets.offset_log import OffsetLog, read_state
from transporter.offsets.parked import ParkedStore
from transporter.offsets.state import Range
from transporter.pipeline.config import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

GOING_ON = "table_tools:GoingOn"
LINES = [f"k{number} {number}" for number in range(5)]


class World(RouteParts):
    """A log and one route without a thread: requests to it wait for :meth:`run`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.deliveries = DeliveryProgress(lambda: self.log.durable)
        ask = self.offsets.begin_superseding
        self.deliveries.routes = [DeliveringRoute(self.offsets, self.parking, ask)]

    def resume(self) -> LogResume:
        """Return the log's resume state of the reader, whose feed starts now."""
        resume = LogResume(self.log, "in", Events(), self.deliveries)
        resume.begin()
        return resume

    def supersede(self, resume: LogResume) -> None:
        """Supersede the reader's entries, up to the last one that its feed has noted."""
        resume.last = self.log.durable
        resume.supersede()

    def run(self) -> None:
        """Do the work of the route's thread between two slices."""
        for reader, through in self.offsets.state.readers_to_supersede().items():
            supersede(reader, through, self.reader, self.offsets, self.parking)

    def roll(self) -> None:
        """Begin a segment, as an old one makes the log do."""
        self.log.set_segment_age(0)
        assert self.log.roll_if_old()
        self.log.set_segment_age(None)

    def deliver(self, through: int) -> None:
        """Settle everything up to *through*."""
        self.offsets.settle(Range(self.offsets.state.next_unsettled(), through), self.log.durable)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Yield a log without entries."""
    made = World(tmp_path)
    yield made
    made.close()


def known(resume: LogResume) -> list[int]:
    """Return the offsets that may be acknowledged to the source."""
    return sorted(entry.offset for _, entries in resume.recent() for entry in entries)


def test_what_was_not_passed_before_a_crash_is_passed_by_the_next_open(tmp_path: Path) -> None:
    """A supersession is durable before new entries of its reader are logged (Invariant 10)."""
    (tmp_path / "out.down").write_text("write")
    with running(table(tmp_path, LINES[:2], {"name": "out"}, end=False)) as engine:
        until(lambda: engine.log.durable == 1)
        engine.stop(0)
    (tmp_path / "out.down").unlink()
    with OffsetLog(tmp_path / "log", "out") as state:
        state.begin_superseding("in", 0)
    with running(table(tmp_path, [], {"name": "out"}, adaptor=GOING_ON, end=False)):
        until(lambda: sorted(told(tmp_path / "table.txt")) == [0, 1])
    assert [line["data"] for line in delivered(tmp_path / "out.jsonl")] == ["1", "0"]
    assert offsets(tmp_path / "out.jsonl") == [1, 2]


def test_copies_that_could_not_be_removed_are_removed_later(tmp_path: Path) -> None:
    """A route that cannot finish a supersession halts visibly, and the next open finishes it."""
    route = {"name": "out", "on_error": "park"}
    parked = tmp_path / "log/offsets/out/parked"

    def refused(self: ParkedStore, offsets: Sequence[int]) -> None:
        raise EnvironmentFault("no rights for the test")

    given = table(tmp_path, LINES[:3], route | {"writer": {"reject": [1]}}, end=False)
    with running(given):
        until(lambda: sorted(told(tmp_path / "table.txt")) == [0, 2])
    assert list(parked.glob("*.entry"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParkedStore, "remove_all", refused)
        with running(table(tmp_path, [], route, end=False)) as engine:
            until(lambda: engine.status().routes[0].problem == "no rights for the test")
            assert engine.status().routes[0].state is State.STOPPED
    with running(table(tmp_path, [], route, end=False)):
        until(lambda: set(told(tmp_path / "table.txt")) == {0, 1, 2})
    assert not list(parked.glob("*.entry"))
    assert [line["data"] for line in delivered(tmp_path / "out.jsonl")] == ["0", "2", "1"]


def test_a_supersession_waits_for_room(tmp_path: Path) -> None:
    """On a full disk a route delivers nothing before a supersession is done (Invariant 14)."""
    route = {"name": "out", "on_error": "park"}
    full, remove = threading.Event(), ParkedStore.remove_all
    full.set()

    def maybe(self: ParkedStore, offsets: Sequence[int]) -> None:
        if full.is_set():
            raise LogFull("no room for the test")
        remove(self, offsets)

    given = table(tmp_path, LINES[:3], route | {"writer": {"reject": [1]}}, end=False)
    with running(given):
        until(lambda: sorted(told(tmp_path / "table.txt")) == [0, 2])
    events = Events()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParkedStore, "remove_all", maybe)
        with running(table(tmp_path, [], route, end=False), events=events):
            events.await_count("route-retrying", 2)
            assert offsets(tmp_path / "out.jsonl") == [0, 2]
            full.clear()
            until(lambda: set(told(tmp_path / "table.txt")) == {0, 1, 2})
    assert offsets(tmp_path / "out.jsonl") == [0, 2, 3]


def test_a_slow_route_that_passes_entries_has_not_delivered_them(
    world: World, batch: Callable[..., pa.RecordBatch]
) -> None:
    """Entries that a route is to pass do not count as delivered (Invariant 5)."""
    resume = world.resume()
    world.log.append(batch(2), "in", "1")
    world.log.append(batch(1), "in", "2")
    world.deliver(0)
    world.supersede(resume)
    looked = resume.recent()
    assert next(looked)[1].offsets == []
    world.run()
    assert [entry.offset for _, entries in looked for entry in entries] == [0]


def test_a_source_may_hear_of_the_newest_position_that_is_delivered_whole(
    world: World, batch: Callable[..., pa.RecordBatch]
) -> None:
    """A batch of several frames is acknowledged to its source only with its last frame."""
    resume = world.resume()
    world.log.append(batch(2), "in", "1")
    world.log.append(batch(2), "in", None)
    world.log.append(batch(1), "in", "2")
    world.log.append(batch(1), "other", "x")
    found = [resume.committable]
    for through in range(6):
        world.deliver(through)
        found.append(world.resume().committable)

    assert found == [None, None, "1", "1", "1", "2", "2"]


def test_what_is_undelivered_is_told_oldest_first(
    world: World, batch: Callable[..., pa.RecordBatch]
) -> None:
    """Undelivered entries are listed oldest first, without superseded or foreign ones."""
    resume = world.resume()
    world.log.append(batch(2), "in", "1")
    world.parking.park(0, "refused", 2)
    world.parking.park(1, "refused", 2)
    world.supersede(resume)
    world.log.append(batch(3), "in", "2")
    world.log.append(batch(1), "other", "x")
    world.log.append(batch(2), "in", "3")
    world.parking.park(3, "refused", 2)
    world.deliver(4)
    found = [(position, entries.offsets) for position, entries in world.resume().undelivered()]
    assert found == [(None, [3]), ("3", [6, 7])]


def test_a_parked_entry_before_the_watermark_in_its_frame_comes_once(
    world: World, batch: Callable[..., pa.RecordBatch]
) -> None:
    """A parked entry before the watermark in its frame is opened and released once."""
    world.log.append(batch(4), "in", "1")
    world.parking.park(0, "refused", 2)
    world.deliver(1)
    found = [(position, entries.offsets) for position, entries in world.resume().undelivered()]
    assert found == [("1", [0, 2, 3])]


def test_a_parked_entry_that_compaction_has_removed_comes_in_its_place(
    world: World, batch: Callable[..., pa.RecordBatch]
) -> None:
    """A route that begins again needs the log below a parked entry that only the copy has.

    Without the copy its source would be told of it with the rest of its batch (Invariant 11).
    """
    entries = batch(4)
    world.log.append(entries, "in", "1")
    world.log.append(entries.slice(0, 1), "in", "2")
    world.log.append(entries.slice(1), "in", "3")
    for offset in (1, 4):
        world.parking.park(offset, "refused", 2)
    world.roll()
    world.log.append(entries.slice(0, 2), "in", "4")
    settings = CompactionSettings(after=0, keep="key")
    compact(world.log.directory, watermark=lambda: 7, settings=settings, now=wall_clock())
    world.log.append(entries.slice(3), "in", "5")
    found = [(position, entries.offsets) for position, entries in world.resume().undelivered()]
    assert found == [("3", [1, 4, 5, 6, 7]), ("4", [8, 9]), ("5", [10])]


def drop_the_end_of_a_frame(world: World, batch: Callable[..., pa.RecordBatch]) -> None:
    """Log a batch whose last two entries compaction drops, though a route has parked one."""
    entries = batch(3)
    world.log.append(entries, "in", "1")
    world.parking.park(1, "refused", 2)
    world.log.append(entries.slice(1), "other", "x")
    world.roll()
    world.log.append(batch(1), "in", "2")
    settings = CompactionSettings(after=0, keep="key")
    compact(world.log.directory, watermark=lambda: 4, settings=settings, now=wall_clock())


def test_a_parked_entry_dropped_from_the_end_of_its_frame_holds_its_position(
    world: World, batch: Callable[..., pa.RecordBatch]
) -> None:
    """Its source is not told of the batch, although the rest of it is delivered (Invariant 11)."""
    drop_the_end_of_a_frame(world, batch)
    world.deliver(5)
    assert world.resume().committable is None
    world.parking.park(4, "refused", 2)  # Another reader's, which holds nothing of this one.
    world.parking.skip([1])
    assert world.resume().committable == "1"


def test_a_parked_entry_dropped_from_the_end_of_its_frame_comes_before_its_position(
    world: World, batch: Callable[..., pa.RecordBatch]
) -> None:
    """A position stands behind everything that may belong to it."""
    drop_the_end_of_a_frame(world, batch)
    found = [(position, entries.offsets) for position, entries in world.resume().undelivered()]
    assert found == [(None, [0]), ("1", [1]), ("2", [5])]


def test_what_a_replay_parks_of_a_superseded_part_stays(
    world: World, batch: Callable[..., pa.RecordBatch]
) -> None:
    """A source gives a superseded entry again once, so a later end leaves a replay's copy alone."""
    resume = world.resume()
    world.log.append(batch(2), "in", "1")
    world.supersede(resume)
    world.run()
    world.parking.park(1, "refused in a replay", 2)
    world.log.append(batch(2), "in", "2")
    world.parking.park(2, "refused", 2)
    world.supersede(resume)
    world.run()
    assert world.parking.parked_offsets == {1}


def test_what_was_delivered_is_known_over_many_ends(
    world: World, batch: Callable[..., pa.RecordBatch]
) -> None:
    """Delivered entries stay known over many reopenings of their source."""
    resume = world.resume()
    for number in range(3):
        world.log.append(batch(2), "in", str(number))
        world.deliver(world.log.durable - 1)
        world.supersede(resume)
        world.run()
    assert known(resume) == [0, 2, 4]


def test_only_so_many_ends_are_remembered(
    world: World, batch: Callable[..., pa.RecordBatch]
) -> None:
    """Only a bounded number of reopenings is remembered (Invariant 17)."""
    resume = world.resume()
    for number in range(100):
        world.log.append(batch(1), "in", str(number))
        world.deliver(number)
        world.supersede(resume)
        world.run()
    assert known(resume)[-1] == 99
    assert 10 < len(known(resume)) < 90


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the frames whose reader was looked up, in a log with sparse index entries."""
    found, source = list[int](), LocatedFrame.source

    def noted(self: LocatedFrame) -> Any:
        found.append(self.frame.first)
        return source(self)

    monkeypatch.setattr("transporter.log.index.STRIDE", 4096)
    monkeypatch.setattr(LocatedFrame, "source", noted)
    return found


def test_a_reader_without_entries_does_not_walk_the_log(
    world: World, batch: Callable[..., pa.RecordBatch], looks: list[int]
) -> None:
    """For a reader without entries only the end of the log is searched."""
    resume = world.resume()
    counts = []
    for _ in range(2):
        for number in range(1_000):
            world.log.append(batch(1), "other", str(number))
        world.deliver(world.log.durable)
        looks.clear()
        assert (known(resume), resume.committable) == ([], None)
        counts.append(len(looks))
    assert max(counts) < 1_200
    assert counts[1] - counts[0] < 20


def test_a_reader_that_was_silent_for_long_finds_its_entries(
    world: World, batch: Callable[..., pa.RecordBatch], looks: list[int]
) -> None:
    """For a reader that was silent for long, one frame of each block is examined."""
    resume = world.resume()
    world.log.append(batch(2), "in", None)
    world.log.append(batch(1), "in", "1")
    for number in range(2_000):
        world.log.append(batch(1), "other", str(number))
    world.deliver(world.log.durable)
    looks.clear()
    assert known(resume) == [0, 1, 2]
    assert len(looks) < 1_200
    assert resume.committable == "1"


def test_what_a_run_without_deliveries_has_logged_is_not_passed(tmp_path: Path) -> None:
    """A change to ``release: delivered`` loses no row of an earlier run (Invariant 6)."""
    (tmp_path / "out.down").write_text("write")
    with running(changeable(tmp_path, "logged")) as engine:
        until(lambda: engine.log.durable == 2)
        engine.stop(0)
    (tmp_path / "out.down").unlink()
    with running(changeable(tmp_path, "delivered")) as engine:
        until(lambda: engine.wait(0.02))
    assert [line["data"] for line in delivered(tmp_path / "out.jsonl")] == ["a", "b", "c"]


def changeable(folder: Path, release: str) -> Any:
    """Return a pipeline of lines whose source is acknowledged at *release*."""
    (folder / "source.txt").write_text("n a\nn b\nn c\n")
    reader = {"adaptor": "table_tools:Passing", "path": "source.txt", "name": "in"}
    writer = {"adaptor": "engine_tools:LinesWriter", "path": "out.jsonl"}
    document = {
        "readers": [reader | {"release": release}],
        "routes": [{"name": "out", "writer": writer, "retry": {"backoff": "1ms..5ms"}}],
        "log": {"dir": "log"},
    }
    (folder / "pipeline.yaml").write_text(json.dumps(document))
    return load(folder / "pipeline.yaml", {})


def test_a_new_route_gets_what_the_log_has_of_others(tmp_path: Path) -> None:
    """A route with ``start: earliest`` gets rows that were acknowledged for other routes."""
    with running(table(tmp_path, LINES, {"name": "out"}, end=False)):
        until(lambda: told(tmp_path / "table.txt") == [0, 1, 2, 3, 4])
    routes = {"name": "out"}, {"name": "late"}
    with running(table(tmp_path, [], *routes, end=False)):
        until(lambda: offsets(tmp_path / "late.jsonl") == [0, 1, 2, 3, 4])
    assert offsets(tmp_path / "out.jsonl") == [0, 1, 2, 3, 4]


def test_what_was_passed_is_not_recognised_without_deliveries(tmp_path: Path) -> None:
    """A change to ``release: logged`` does not purge passed rows, which are in the table."""
    with CommitLog.open(tmp_path / "log") as log, OffsetLog(tmp_path / "log", "out") as state:
        from transporter.message import Message, messages_to_batch  # noqa: PLC0415

        log.append(messages_to_batch([Message("n", b"1"), Message("n", b"2")]), "in", "1")
        state.supersede("in", 1, [(0, 1)], 1)
        log.append(messages_to_batch([Message("n", b"3")]), "in", "2")
        resume = LogResume(log, "in", Events())
        resume.begin()
        assert known(resume) == [2]


def test_a_batch_whose_term_ends_while_the_log_is_full_is_not_logged(tmp_path: Path) -> None:
    """A batch whose term has ended is not logged once there is room again (Invariant 10)."""
    ended, append = threading.Event(), CommitLog.append

    def full(self: CommitLog, *values: Any) -> Any:
        if not ended.is_set():
            raise LogFull("no room for the test")
        return append(self, *values)

    def keep_alive(self: TableReader) -> None:
        if self._read and not ended.is_set():
            self._resume.supersede()
            ended.set()

    events = Events()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommitLog, "append", full)
        patch.setattr(TableReader, "keep_alive", keep_alive)
        with running(table(tmp_path, LINES, {"name": "out"}, end=False), events=events) as engine:
            events.await_count("log-full")
            assert ended.wait(PATIENCE)
            # The batch no longer waits for room, though nothing is appended either.
            until(lambda: engine.status().readers[0].state is not State.WAITING)
            with (tmp_path / "table.txt").open("a") as file:
                file.write("k5 5\n")
            until(lambda: told(tmp_path / "table.txt") == [5])
            assert engine.log.durable == 0


def test_rows_of_a_batch_that_a_stop_cut_short_are_told(tmp_path: Path) -> None:
    """The logged rows of a batch cut short by a stop are acknowledged (Invariant 9)."""
    append, events = CommitLog.append, Events()

    def full(self: CommitLog, messages: Any, *values: Any) -> Any:
        if self.durable >= 0:
            raise LogFull("no room for the test")
        return append(self, messages, *values)

    def poll(self: TableReader, timeout: float) -> Batch:
        found = original(self, timeout)
        if found.position is None:
            return found
        messages: Sequence[Any] = [
            each.__class__("rows", b"x" * 5_000_000, each.key, source_id=each.source_id)
            for each in found.messages
        ]
        return Batch(messages, found.position, found.term)

    original = TableReader.poll
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommitLog, "append", full)
        patch.setattr(TableReader, "poll", poll)
        pipeline = table(tmp_path, LINES[:3], {"name": "out"}, end=False)
        with running(pipeline, events=events):
            events.await_count("log-full")
    known = read_state(tmp_path / "log", "out").watermark
    assert told(tmp_path / "table.txt") == list(range(known + 1)) == [0]


def test_a_reader_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """A reader that hangs in a poll is left behind a few seconds after the stop."""
    hanging, held = threading.Event(), threading.Event()

    def poll(self: TableReader, timeout: float) -> Batch:
        hanging.set()
        held.wait(PATIENCE)
        return Batch([])

    events = Events()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableReader, "poll", poll)
        patch.setattr("transporter.engine.reading.feed.GRACE", 0.1)
        try:
            with running(table(tmp_path, [], {"name": "out"}, end=False), events=events):
                assert hanging.wait(PATIENCE)
            assert not held.is_set()
            assert "did not end" in events.named("reader-stopped")[0]["problem"]
        finally:
            held.set()


def test_a_shard_that_is_ahead_waits_until_the_source_knows(tmp_path: Path) -> None:
    """A shard that is ahead waits for the acknowledgement to the source (Invariant 9)."""
    names = [f"k{number}" for number in range(20)]
    one, other = (next(n for n in names if crc32c(n.encode()) % 2 == shard) for shard in (0, 1))
    calls = []

    def fenced_at_the_second(self: TableReader, position: str, rows: Sequence[int]) -> None:
        calls.append(list(rows))
        if len(calls) == 1:
            original(self, position, rows)
        else:
            self._resume.supersede()

    original = TableReader.delivered
    route = {"name": "out", "parallelism": 2, "max_in_flight_per_key": 1}
    lines = [f"{one} 0", f"{one} 1", f"{other} 2", f"{other} 3"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableReader, "delivered", fenced_at_the_second)
        with running(table(tmp_path, lines, route, end=False)) as engine:
            until(lambda: read_state(tmp_path / "log", "out").superseded == {"in": 3})
            until(lambda: engine.status().routes[0].lag == 0)
    assert calls[0] == [0]
    assert sorted(offsets(tmp_path / "out.jsonl")) == [0, 1, 2]

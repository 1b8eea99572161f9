"""Readers whose source waits for delivery: what it gives again, and what it never will."""

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
from transporter.engine.reading.delivery_progress import Deliveries, Delivering
from transporter.engine.reading.reader_resume import LogResume
from transporter.engine.reading.superseding import supersede
from transporter.errors import EnvironmentFault, LogFull
from transporter.log.commit_log import CommitLog
from transporter.log.reader import Located
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
    """A log with one route that has no thread: what it is asked for waits for :meth:`run`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.deliveries = Deliveries(lambda: self.log.durable)
        ask = self.offsets.begin_superseding
        self.deliveries.routes = [Delivering(self.offsets, self.parking, ask)]

    def resume(self) -> LogResume:
        """Return what the log remembers of the reader, whose feed starts now."""
        resume = LogResume(self.log, "in", Events(), self.deliveries)
        resume.begin()
        return resume

    def supersede(self, resume: LogResume) -> None:
        """Have the reader's entries superseded, of which its feed has noted the last one."""
        resume.last = self.log.durable
        resume.supersede()

    def run(self) -> None:
        """Do as the route's thread does between two slices."""
        for reader, through in self.offsets.state.to_supersede().items():
            supersede(reader, through, self.reader, self.offsets, self.parking)

    def deliver(self, through: int) -> None:
        """Settle all up to *through*."""
        self.offsets.settle(Range(self.offsets.state.next_live(), through), self.log.durable)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Give a log without entries."""
    made = World(tmp_path)
    yield made
    made.close()


def known(resume: LogResume) -> list[int]:
    """Return the offsets of which the source may be told."""
    return sorted(entry.offset for _, entries in resume.recent() for entry in entries)


def test_what_was_not_passed_before_a_crash_is_passed_by_the_next_open(tmp_path: Path) -> None:
    """Invariant 10: that it comes again is durable before anything new of its reader is logged."""
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
    """A route that cannot finish a supersession halts visibly; the next open finishes it."""
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
    """Invariant 14: on a full disk nothing is delivered before it is done, and then all is."""
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
    """Invariant 5: what it was asked to pass may be passed at any moment, also while we look."""
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
    """Of a batch that needed several frames only with the last of them."""
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
    """Parked entries come from their copies; what was superseded, or is another's, is not told."""
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
    """Opened twice it would be released once, and fill max_in_flight with the other for good."""
    world.log.append(batch(4), "in", "1")
    world.parking.park(0, "refused", 2)
    world.deliver(1)
    found = [(position, entries.offsets) for position, entries in world.resume().undelivered()]
    assert found == [(None, [0]), ("1", [2, 3])]


def test_what_was_delivered_is_known_over_many_ends(
    world: World, batch: Callable[..., pa.RecordBatch]
) -> None:
    """A source that goes away again and again is told at last of all that was delivered."""
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
    """Invariant 17: of what was delivered before them nothing is known any more."""
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
    """Give the frames whose reader was looked at, in a log with an index entry every few."""
    found, source = list[int](), Located.source

    def noted(self: Located) -> Any:
        found.append(self.frame.first)
        return source(self)

    monkeypatch.setattr("transporter.log.index.STRIDE", 4096)
    monkeypatch.setattr(Located, "source", noted)
    return found


def test_a_reader_without_entries_does_not_walk_the_log(
    world: World, batch: Callable[..., pa.RecordBatch], looks: list[int]
) -> None:
    """However long the log of others is, a little of its end tells that nothing is there."""
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
    """Where others alone have logged, a frame of each block is looked at, and no more."""
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
    """Invariant 6: its rows are gone. A change to ``release: delivered`` loses none of them."""
    (tmp_path / "out.down").write_text("write")
    with running(changeable(tmp_path, "logged")) as engine:
        until(lambda: engine.log.durable == 2)
        engine.stop(0)
    (tmp_path / "out.down").unlink()
    with running(changeable(tmp_path, "delivered")) as engine:
        until(lambda: engine.wait(0.02))
    assert [line["data"] for line in delivered(tmp_path / "out.jsonl")] == ["a", "b", "c"]


def changeable(folder: Path, release: str) -> Any:
    """Return a pipeline of lines whose source hears as *release* says."""
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
    """``start: earliest`` holds: rows that others were told of are passed by nobody."""
    with running(table(tmp_path, LINES, {"name": "out"}, end=False)):
        until(lambda: told(tmp_path / "table.txt") == [0, 1, 2, 3, 4])
    routes = {"name": "out"}, {"name": "late"}
    with running(table(tmp_path, [], *routes, end=False)):
        until(lambda: offsets(tmp_path / "late.jsonl") == [0, 1, 2, 3, 4])
    assert offsets(tmp_path / "out.jsonl") == [0, 1, 2, 3, 4]


def test_what_was_passed_is_not_recognised_without_deliveries(tmp_path: Path) -> None:
    """Passed rows are in the table: a change to ``release: logged`` does not purge them."""
    with CommitLog.open(tmp_path / "log") as log, OffsetLog(tmp_path / "log", "out") as state:
        from transporter.message import Message, messages_to_batch  # noqa: PLC0415

        log.append(messages_to_batch([Message("n", b"1"), Message("n", b"2")]), "in", "1")
        state.supersede("in", 1, [(0, 1)], 1)
        log.append(messages_to_batch([Message("n", b"3")]), "in", "2")
        resume = LogResume(log, "in", Events())
        resume.begin()
        assert known(resume) == [2]


def test_a_batch_whose_term_ends_while_the_log_is_full_is_not_logged(tmp_path: Path) -> None:
    """Invariant 10: logged later, nobody would pass it, and others may have delivered it."""
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
            # Nothing waits for room any more, though nothing is appended either.
            until(lambda: engine.status().readers[0].state is not State.WAITING)
            with (tmp_path / "table.txt").open("a") as file:
                file.write("k5 5\n")
            until(lambda: told(tmp_path / "table.txt") == [5])
            assert engine.log.durable == 0


def test_rows_of_a_batch_that_a_stop_cut_short_are_told(tmp_path: Path) -> None:
    """What of it was logged is delivered, so the source hears of that (Invariant 9)."""
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
    """A source that never answers is left behind a few seconds after the stop."""
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
    """Invariant 9 across leaders holds for each shard: what is passed over was not told yet."""
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

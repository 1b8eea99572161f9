"""``release: delivered``: a source is acknowledged when every route has delivered the entry."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import PATIENCE, Events, delivered, offsets, running, until
from table_tools import TableReader, table, told

from transporter.audit import Operator
from transporter.control.requests import Resume, SkipParked
from transporter.control.running_engine import RunningEngine
from transporter.engine.events import State
from transporter.errors import ConfigError
from transporter.log.filesystem import RealFileSystem
from transporter.log.maintenance import MAINTENANCE, read_maintenance
from transporter.log.operator_pauses import PausedReaders
from transporter.log.reader import LogReader
from transporter.offsets.offset_log import OffsetLog, delete_route, read_state, route_folder
from transporter.offsets.retention_holds import release
from transporter.pipeline.config import LogConfig, load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transporter.engine.engine import Engine
    from transporter.pipeline.config import Pipeline


def to_end(pipeline: Pipeline, events: Events | None = None) -> Engine:
    """Run *pipeline* until its sources have ended and each route has finished or halted."""
    with running(pipeline, events=events) as engine:
        until(lambda: engine.wait(0.02))
    return engine


def with_budget(pipeline: Pipeline) -> Pipeline:
    """Return *pipeline* with a log of four small segments that may release routes."""
    log = LogConfig(
        dir=pipeline.log.dir,
        segment_bytes=65536,
        compression="none",
        max_bytes=4 * 65536,
        on_full="stop-route",
    )
    return pipeline.model_copy(update={"log": log})


def rows_of(path: Path) -> set[int]:
    """Return the numbers of the rows delivered to *path*, whose last line may be incomplete."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return {int(json.loads(line)["data"].split()[0]) for line in lines}


LINES = [f"k{number} {number}" for number in range(5)]


def test_a_source_is_told_when_every_route_has_delivered(tmp_path: Path) -> None:
    """While one of two routes is blocked nothing is acknowledged to the source."""
    (tmp_path / "slow.down").write_text("write")
    pipeline = table(tmp_path, LINES, {"name": "fast"}, {"name": "slow"}, end=False)
    with running(pipeline):
        until(lambda: offsets(tmp_path / "fast.jsonl") == [0, 1, 2, 3, 4])
        time.sleep(0.1)
        assert told(tmp_path / "table.txt") == []
        (tmp_path / "slow.down").unlink()
        until(lambda: told(tmp_path / "table.txt") == [0, 1, 2, 3, 4])
    assert offsets(tmp_path / "slow.jsonl") == [0, 1, 2, 3, 4]


def test_a_clean_stop_tells_what_it_has_drained(tmp_path: Path) -> None:
    """Entries delivered during a stop are acknowledged before it ends (Invariant 18)."""
    (tmp_path / "out.down").write_text("write")
    events = Events()
    with running(table(tmp_path, LINES, {"name": "out"}, end=False), events=events):
        events.await_count("route-retrying")
        (tmp_path / "out.down").unlink()
    assert told(tmp_path / "table.txt") == [0, 1, 2, 3, 4]


def test_a_source_that_ended_is_told_of_all_the_same(tmp_path: Path) -> None:
    """A reader whose source has ended stays until the routes have delivered."""
    to_end(table(tmp_path, LINES, {"name": "out"}))
    assert told(tmp_path / "table.txt") == [0, 1, 2, 3, 4]


def test_a_parked_entry_is_not_told(tmp_path: Path) -> None:
    """A parked entry is not acknowledged to its source, and the others are."""
    route = {"name": "out", "on_error": "park", "writer": {"reject": [2]}}
    to_end(table(tmp_path, LINES, route))
    assert sorted(told(tmp_path / "table.txt")) == [0, 1, 3, 4]
    assert read_state(tmp_path / "log", "out").watermark == 4


def test_what_was_not_delivered_is_superseded_and_comes_again(tmp_path: Path) -> None:
    """After a start the routes pass undelivered entries, and the source redelivers them.

    The old entries, parked ones included, are not delivered, and nothing is lost.
    """
    route = {"name": "out", "on_error": "park", "writer": {"reject": [2]}}
    (tmp_path / "slow.down").write_text("write")
    first = table(tmp_path, LINES, route, {"name": "slow"}, end=False)
    with running(first) as engine:
        until(lambda: read_state(tmp_path / "log", "out").watermark == 4)
        engine.stop(0)
    (tmp_path / "slow.down").unlink()
    to_end(table(tmp_path, [], {"name": "out", "on_error": "park"}, {"name": "slow"}))
    assert offsets(tmp_path / "slow.jsonl") == [5, 6, 7, 8, 9]
    assert [line["data"] for line in delivered(tmp_path / "slow.jsonl")] == list("01234")
    assert offsets(tmp_path / "out.jsonl") == [0, 1, 3, 4, 5, 6, 7, 8, 9]
    assert not list((tmp_path / "log/offsets/out/parked").glob("*.entry"))
    assert sorted(told(tmp_path / "table.txt")) == [0, 1, 2, 3, 4]


def test_what_was_delivered_and_not_told_is_recognised(tmp_path: Path) -> None:
    """Rows that every route had delivered before a kill are acknowledged at the next start.

    Rows of superseded entries never are, although the watermark has passed those too.
    """
    (tmp_path / "out.down").write_text("write")
    with running(table(tmp_path, LINES[:2], {"name": "out"}, end=False)) as engine:
        until(lambda: engine.log.durable == 1)
        engine.stop(0)
    # As if a second start had superseded both, and logged nothing before it died.
    with OffsetLog(tmp_path / "log", "out") as log:
        log.supersede("in", 1, [(0, 1)], 1)
    (tmp_path / "out.down").unlink()
    to_end(table(tmp_path, [], {"name": "out"}))
    assert [line["data"] for line in delivered(tmp_path / "out.jsonl")] == ["0", "1"]
    (tmp_path / "table.told").unlink()
    to_end(table(tmp_path, LINES[2:], {"name": "out"}))
    assert [line["data"] for line in delivered(tmp_path / "out.jsonl")] == list("01234")
    assert sorted(told(tmp_path / "table.txt")) == [0, 1, 2, 3, 4]


def test_only_so_many_entries_wait_for_their_delivery(tmp_path: Path) -> None:
    """With ``max_in_flight`` entries logged and not delivered, nothing is read (Invariant 17)."""
    (tmp_path / "out.down").write_text("write")
    pipeline = table(tmp_path, LINES, {"name": "out"}, end=False, rows=1, max_in_flight=2)
    with running(pipeline) as engine:
        until(lambda: engine.log.durable == 1)
        time.sleep(0.1)
        assert engine.log.durable == 1
        (tmp_path / "out.down").unlink()
        until(lambda: told(tmp_path / "table.txt") == [0, 1, 2, 3, 4])


def test_a_reader_that_waits_for_delivery_says_for_whom(tmp_path: Path) -> None:
    """At ``max_in_flight`` a reader's status names the route that is furthest behind."""
    (tmp_path / "slow.down").write_text("write")
    routes = {"name": "fast"}, {"name": "slow"}
    with running(table(tmp_path, LINES, *routes, end=False, rows=1, max_in_flight=2)) as engine:
        until(lambda: "waits for route slow" in engine.status().readers[0].problem)
        (tmp_path / "slow.down").unlink()
        until(lambda: told(tmp_path / "table.txt") == [0, 1, 2, 3, 4])
        assert engine.status().readers[0].problem == ""


def test_parked_entries_leave_room_for_others(tmp_path: Path) -> None:
    """A reader goes on although as many entries are parked as may be in flight."""
    route = {"name": "out", "on_error": "park", "writer": {"reject": [0, 1]}}
    with running(table(tmp_path, LINES, route, end=False, rows=1, max_in_flight=2)) as engine:
        until(lambda: engine.log.durable == 4)
        until(lambda: told(tmp_path / "table.txt") == [2, 3, 4])
        assert engine.status().routes[0].parked == 2


def test_with_one_in_flight_the_next_of_a_key_waits_until_the_source_knows(
    tmp_path: Path,
) -> None:
    """R2 is not delivered while the source would redeliver R1 (Invariant 9 across leaders)."""
    (tmp_path / "slow.paused").touch()
    lines = ["k 0", "k 1", "other 2"]
    fast = {"name": "fast", "max_in_flight_per_key": 1}
    slow = {"name": "slow", "writer": {"pause_at": 0}}
    with running(table(tmp_path, lines, fast, slow, end=False)):
        until(lambda: offsets(tmp_path / "fast.jsonl") == [0])
        time.sleep(0.2)
        assert offsets(tmp_path / "fast.jsonl") == [0]
        (tmp_path / "slow.paused").unlink()
        until(lambda: offsets(tmp_path / "fast.jsonl") == [0, 1, 2])
        until(lambda: told(tmp_path / "table.txt") == [0, 1, 2])


def test_a_leader_that_is_fenced_as_it_tells_delivers_nothing_more(tmp_path: Path) -> None:
    """R2 is not delivered if the acknowledgement of R1 fails (Invariant 9)."""

    def fenced(self: TableReader, position: str, rows: Sequence[int]) -> None:
        self._resume.supersede()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableReader, "delivered", fenced)
        route = {"name": "out", "max_in_flight_per_key": 1}
        with running(table(tmp_path, ["k 0", "k 1"], route, end=False)) as engine:
            until(lambda: read_state(tmp_path / "log", "out").superseded == {"in": 1})
            until(lambda: engine.status().routes[0].lag == 0)
    assert offsets(tmp_path / "out.jsonl") == [0]


def test_a_reader_makes_sure_that_it_leads_before_a_new_writer_delivers(tmp_path: Path) -> None:
    """A new writer delivers only after the source confirms the leader (Invariant 10)."""
    held, asked = threading.Event(), threading.Event()
    original = TableReader.confirm

    def confirm(self: TableReader) -> None:
        asked.set()
        assert held.wait(PATIENCE)
        original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableReader, "confirm", confirm)
        with running(table(tmp_path, LINES, {"name": "out"}, end=False)):
            assert asked.wait(PATIENCE)
            time.sleep(0.1)
            assert offsets(tmp_path / "out.jsonl") == []
            held.set()
            until(lambda: told(tmp_path / "table.txt") == [0, 1, 2, 3, 4])


def test_any_reader_can_wait_for_delivery(tmp_path: Path) -> None:
    """A reader without rows is committed in order, when whole batches are delivered."""
    lines = tmp_path / "source.txt"
    lines.write_text("n a\nn b\nn c\n")
    (tmp_path / "out.down").write_text("write")
    keys = {"adaptor": "table_tools:Committed", "path": "source.txt", "rows": 2}
    pipeline = table(tmp_path, [], {"name": "out"}, release="delivered", end=False, **keys)
    with running(pipeline) as engine:
        until(lambda: engine.log.durable == 2)
        time.sleep(0.1)
        assert told(lines) == []
        (tmp_path / "out.down").unlink()
        until(lambda: told(lines)[-1:] == [3])
        assert engine.status().readers[0].state is State.RUNNING


@pytest.mark.parametrize(
    "stuck", ["a-route", pytest.param("z-route", marks=pytest.mark.exhaustive)]
)
def test_a_source_is_never_told_of_what_was_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: str
) -> None:
    """Rows released from a stuck route are not acknowledged, and the source redelivers them."""
    monkeypatch.setattr("transporter.engine.maintenance.log_budget.PRESSED", 0.05)
    monkeypatch.setattr("transporter.engine.maintenance.log_budget.STUCK", 60.0)
    (tmp_path / f"{stuck}.down").write_text("write")
    lines = [f"k {number} {'x' * 8000}" for number in range(80)]
    routes = ({"name": stuck}, {"name": "well"})
    pipeline, events = table(tmp_path, lines, *routes, end=False, rows=2), Events()
    with running(with_budget(pipeline), events=events):
        # The time in which a worker opens its writer counts, and is long on a busy machine.
        until(lambda: rows_of(tmp_path / "well.jsonl"))
        monkeypatch.setattr("transporter.engine.maintenance.log_budget.STUCK", 0.5)
        # The others go on.
        until(lambda: len(rows_of(tmp_path / "well.jsonl")) == 80)
        assert events.named("entries-released")[0]["route"] == stuck
        assert told(tmp_path / "table.txt") == []
        (tmp_path / f"{stuck}.down").unlink()
        until(lambda: set(told(tmp_path / "table.txt")) == set(range(80)))
        released = read_state(tmp_path / "log", stuck).released
    assert rows_of(tmp_path / f"{stuck}.jsonl") == set(range(80))
    assert released[0].first == 0


def test_what_was_released_comes_again_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A released entry is not taken for delivered after a restart, and comes again."""
    monkeypatch.setattr("transporter.engine.maintenance.log_budget.PRESSED", 0.05)
    monkeypatch.setattr("transporter.engine.maintenance.log_budget.STUCK", 0.5)
    (tmp_path / "slow.down").write_text("write")
    lines = [f"k {number} {'x' * 8000}" for number in range(80)]
    pipeline, events = table(tmp_path, lines, {"name": "slow"}, end=False, rows=2), Events()
    with running(with_budget(pipeline), events=events) as engine:
        events.await_count("entries-released")
        engine.stop(0)
    (tmp_path / "slow.down").unlink()
    with running(with_budget(pipeline)):
        until(lambda: set(told(tmp_path / "table.txt")) == set(range(80)))
    assert rows_of(tmp_path / "slow.jsonl") == set(range(80))


def test_what_was_released_and_is_still_in_the_log_is_not_recognised(tmp_path: Path) -> None:
    """A released entry that is still in the log is not acknowledged, and comes again."""
    (tmp_path / "out.down").write_text("write")
    with running(table(tmp_path, LINES[:2], {"name": "out"}, end=False)) as engine:
        until(lambda: engine.log.durable == 1)
        engine.stop(0)
    with OffsetLog(tmp_path / "log", "out") as log:
        assert release(log, 1, 1, "no room") is not None
    (tmp_path / "out.down").unlink()
    to_end(table(tmp_path, [], {"name": "out"}))
    assert [line["data"] for line in delivered(tmp_path / "out.jsonl")] == ["0", "1"]
    assert told(tmp_path / "table.txt") == [0, 1]


def test_what_a_source_takes_in_order_only_is_not_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader whose source is acknowledged in order waits, because release would block it."""
    monkeypatch.setattr("transporter.engine.maintenance.log_budget.PRESSED", 0.05)
    monkeypatch.setattr("transporter.engine.maintenance.log_budget.STUCK", 0.2)
    lines = tmp_path / "source.txt"
    lines.write_text("".join(f"n {number} {'x' * 8000}\n" for number in range(80)))
    (tmp_path / "a-route.down").write_text("write")
    keys = {"adaptor": "table_tools:Committed", "path": "source.txt", "rows": 2}
    pipeline = table(tmp_path, [], {"name": "a-route"}, release="delivered", end=False, **keys)
    events = Events()
    with running(with_budget(pipeline), events=events):
        events.await_count("log-full")
        assert events.await_count("log-nearly-full")["holder"] == "route a-route"
        until(lambda: events.named("release-refused") or events.named("entries-released"))
        assert events.named("entries-released") == []
        (tmp_path / "a-route.down").unlink()
        until(lambda: told(lines)[-1:] == [80])
    assert rows_of(tmp_path / "a-route.jsonl") == set(range(80))


def add_reader(folder: Path, pipeline: Pipeline, name: str, **keys: Any) -> Pipeline:
    """Return *pipeline* with one more reader of lines: of ``<name>.txt``, which is empty."""
    (folder / f"{name}.txt").touch()
    document = json.loads(pipeline.file.read_text())
    reader = {"name": name, "adaptor": "engine_tools:LinesReader", "path": f"{name}.txt"}
    document["readers"].append({**reader, "end": False, **keys})
    pipeline.file.write_text(json.dumps(document))
    return load(pipeline.file, {})


@pytest.mark.parametrize("how", ["reload", "restart", "restart-without-record"])
@pytest.mark.parametrize("came", ["at the start", "later"])
def test_what_a_removed_reader_waits_for_is_released_from_no_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, came: str
) -> None:
    """A reader of positions is back behind its entries, and its source is told of all of them.

    So a route that stands still gives none of them up meanwhile, whatever became of the reader.
    """
    monkeypatch.setattr("transporter.engine.maintenance.log_budget.PRESSED", 0.05)
    monkeypatch.setattr("transporter.engine.maintenance.log_budget.STUCK", 0.2)
    (tmp_path / "out.down").write_text("write")
    keys = {"adaptor": "engine_tools:LinesReader", "path": "filler.txt", "name": "filler"}
    without = with_budget(table(tmp_path, [], {"name": "out"}, end=False, rows=2, **keys))
    committed = {"adaptor": "table_tools:Committed", "release": "delivered"}
    whole = with_budget(add_reader(tmp_path, without, "waiting", **committed))
    filler, waiting, events = tmp_path / "filler.txt", tmp_path / "waiting.txt", Events()
    filler.touch()
    waiting.write_text("".join(f"n {number}\n" for number in range(8)))

    def fill(count: int) -> None:
        with filler.open("a") as file:
            file.writelines(f"n {number} {'x' * 8000}\n" for number in range(8, 80))
        assert events.await_count("release-refused", count) == {
            "route": "out",
            "reader": "waiting",
            "why": "the pipeline no longer has this reader, and its source would not give the "
            "entries again",
        }
        assert "because of removed reader waiting" in engine.status().routes[0].problem

    with running(whole if came == "at the start" else without, events=events) as engine:
        if came == "later":
            engine.reconfigure(whole)
            record = read_maintenance(RealFileSystem(), whole.log.dir)
            assert record is not None
            assert record.waiting == {"waiting": -1}
        until(lambda: engine.log.durable == 7)
        if how == "reload":
            engine.reconfigure(without)
            until(lambda: engine.release_ended() == [])
            fill(1)
        engine.stop(0)
    for start in (1, 2):  # what the second start knows, the first one has recorded
        if how == "restart-without-record":
            (whole.log.dir / MAINTENANCE).unlink()
        with running(without, events=events) as engine:
            if how != "reload":
                fill(start)
            engine.stop(0)
    assert events.named("entries-released") == []
    with running(whole, events=events):
        (tmp_path / "out.down").unlink()
        until(lambda: told(waiting)[-1:] == [8])
    assert rows_of(tmp_path / "out.jsonl") >= set(range(8))


def test_a_removed_reader_without_a_need_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader whose source was told, or gives its rows again, is removed: its route is released.

    So it is once all that a removed reader had logged is delivered.
    """
    monkeypatch.setattr("transporter.engine.maintenance.log_budget.PRESSED", 0.05)
    monkeypatch.setattr("transporter.engine.maintenance.log_budget.STUCK", 0.2)
    keys = {"adaptor": "engine_tools:LinesReader", "path": "filler.txt", "name": "filler"}
    without = with_budget(table(tmp_path, [], {"name": "out"}, end=False, rows=2, **keys))
    filler, events = tmp_path / "filler.txt", Events()
    filler.touch()
    whole = add_reader(tmp_path, without, "waiting", release="delivered")
    whole = add_reader(tmp_path, whole, "logged", release="logged")
    whole = with_budget(add_reader(tmp_path, whole, "rows", adaptor="table_tools:TableReader"))
    (tmp_path / "waiting.txt").write_text("n 0\n")
    with running(whole, events=events) as engine:
        until(lambda: offsets(tmp_path / "out.jsonl") == [0])
        (tmp_path / "out.down").write_text("write")
        (tmp_path / "logged.txt").write_text("n 1\n")
        until(lambda: engine.log.durable == 1)
        (tmp_path / "rows.txt").write_text("k 2\n")
        until(lambda: engine.log.durable == 2)
        engine.stop(0)
    with running(without, events=events) as engine:
        with filler.open("a") as file:
            file.writelines(f"n {number} {'x' * 8000}\n" for number in range(3, 80))
        assert events.await_count("entries-released")["route"] == "out"
        engine.stop(0)


def test_a_new_route_needs_what_was_released_from_another_before(tmp_path: Path) -> None:
    """A reader of positions is not opened again for a row that was released before.

    It would be for ever, because such a source gives no single row again.
    """
    lines = tmp_path / "source.txt"
    lines.write_text("n a\nn b\nn c\n")
    keys = {"adaptor": "table_tools:Committed", "path": "source.txt", "rows": 1}
    (tmp_path / "a.down").write_text("write")
    with running(table(tmp_path, [], {"name": "a"}, release="delivered", end=False, **keys)) as one:
        until(lambda: one.log.durable == 2)
        one.stop(0)
    with OffsetLog(tmp_path / "log", "a") as offsets_of_a:
        release(offsets_of_a, 1, 2, "for the test")
    (tmp_path / "a.down").unlink()
    with lines.open("a") as file:
        file.write("n d\n")
    events, routes = Events(), ({"name": "a"}, {"name": "b"})
    given = table(tmp_path, [], *routes, release="delivered", end=False, **keys)
    with running(given, events=events):
        until(lambda: offsets(tmp_path / "b.jsonl") == [0, 1, 2, 3])
        until(lambda: told(lines)[-1:] == [4])
    assert offsets(tmp_path / "a.jsonl") == [2, 3]
    assert [name for name, _ in events.all].count("reader-opened") == 1


def test_no_position_is_told_beyond_a_parked_entry_also_after_a_restart(tmp_path: Path) -> None:
    """No position behind a parked entry is acknowledged, also after a restart."""
    lines = tmp_path / "source.txt"
    lines.write_text("n a\nn b\nn c\n")
    keys = {"adaptor": "table_tools:Committed", "path": "source.txt", "rows": 1}
    route = {"name": "out", "on_error": "park", "writer": {"reject": [1]}}
    given = table(tmp_path, [], route, release="delivered", end=False, **keys)
    with running(given) as engine:
        until(lambda: engine.status().routes[0].parked == 1 and engine.log.durable == 2)
        until(lambda: told(lines) == [1])
    with lines.open("a") as file:
        file.write("n d\n")
    given = table(tmp_path, [], route | {"writer": {}}, release="delivered", end=False, **keys)
    with running(given) as engine:
        until(lambda: offsets(tmp_path / "out.jsonl") == [0, 2, 3])
        time.sleep(0.2)
        assert told(lines) == [1]
        found = engine.route("out")
        assert found is not None
        found[1].request_retries([1])
        found[0].submit(lambda: None)
        until(lambda: told(lines) == [1, 4])


def test_no_position_is_told_beyond_a_parked_entry_of_which_one_copy_is_damaged(
    tmp_path: Path,
) -> None:
    """A parked entry with one damaged copy still blocks the positions behind it."""
    lines = tmp_path / "source.txt"
    lines.write_text("n a\nn b\nn c\n")
    keys = {"adaptor": "table_tools:Committed", "path": "source.txt", "rows": 1}
    routes = [{"name": name, "on_error": "park", "writer": {"reject": [1]}} for name in "ab"]
    given = table(tmp_path, [], *routes, release="delivered", end=False, **keys)
    with running(given) as engine:
        until(lambda: all(each.parked == 1 for each in engine.status().routes))
        until(lambda: engine.log.durable == 2 and told(lines) == [1])
    (copy,) = (route_folder(tmp_path / "log", "a") / "parked").glob("*.entry")
    data = bytearray(copy.read_bytes())
    data[len(data) // 2] ^= 0xFF
    copy.write_bytes(data)
    with lines.open("a") as file:
        file.write("n d\n")
    with running(given) as engine:
        until(lambda: "cannot be read" in engine.status().routes[0].problem)
        operate = RunningEngine(engine, {}).perform
        operate(SkipParked("a", 1, 1), Operator("somebody", 0, 0))
        operate(Resume("a"), Operator("somebody", 0, 0))
        until(lambda: offsets(tmp_path / "a.jsonl")[-1:] == [3])
        until(lambda: offsets(tmp_path / "b.jsonl")[-1:] == [3])
        time.sleep(0.2)
        assert told(lines) == [1]


def test_positions_of_an_earlier_run_are_told_without_a_new_batch(tmp_path: Path) -> None:
    """Positions of an earlier run are acknowledged when delivered, without a new batch."""
    lines = tmp_path / "source.txt"
    lines.write_text("n a\nn b\nn c\n")
    (tmp_path / "out.down").write_text("write")
    keys = {"adaptor": "table_tools:Committed", "path": "source.txt", "rows": 2}
    given = table(tmp_path, [], {"name": "out"}, release="delivered", end=False, **keys)
    with running(given) as engine:
        until(lambda: engine.log.durable == 2)
        engine.stop(0)
    (tmp_path / "out.down").unlink()
    with running(given):
        until(lambda: told(lines)[-1:] == [3])


GOING_ON = "table_tools:GoingOn"


def test_a_restart_goes_on_where_nobody_else_has_led(tmp_path: Path) -> None:
    """After a restart routes go on where they were, and nothing is logged again."""
    (tmp_path / "slow.down").write_text("write")
    routes = {"name": "fast"}, {"name": "slow"}
    given = table(tmp_path, LINES, *routes, adaptor=GOING_ON, end=False, rows=2)
    for _ in range(3):
        with running(given) as engine:
            until(lambda: offsets(tmp_path / "fast.jsonl") == [0, 1, 2, 3, 4])
            until(lambda at=engine: at.status().readers[0].state is not State.STARTING)
            time.sleep(0.1)
            assert (engine.log.durable, told(tmp_path / "table.txt")) == (4, [])
            engine.stop(0)
    (tmp_path / "slow.down").unlink()
    with running(given):
        until(lambda: told(tmp_path / "table.txt") == [0, 1, 2, 3, 4])
    assert offsets(tmp_path / "fast.jsonl") == offsets(tmp_path / "slow.jsonl") == [0, 1, 2, 3, 4]


def test_a_parked_entry_is_parked_still_after_a_restart(tmp_path: Path) -> None:
    """A parked entry stays parked over a restart, and its retry is acknowledged."""
    route = {"name": "out", "on_error": "park"}
    reject = {"writer": {"reject": [2]}}
    with running(table(tmp_path, LINES, route | reject, adaptor=GOING_ON, end=False)):
        until(lambda: sorted(told(tmp_path / "table.txt")) == [0, 1, 3, 4])
    with running(table(tmp_path, [], route, adaptor=GOING_ON, end=False)) as engine:
        found = engine.route("out")
        assert found is not None
        assert found[0].parking.parked_offsets == {2}
        found[1].request_retries([2])
        found[0].submit(lambda: None)
        until(lambda: told(tmp_path / "table.txt")[4:] == [2])
        assert engine.log.durable == 4
    assert offsets(tmp_path / "out.jsonl") == [0, 1, 3, 4, 2]


def test_nothing_is_delivered_while_it_is_not_decided_who_delivers_it(tmp_path: Path) -> None:
    """Routes wait for a reader whose leadership is not decided (Invariant 10)."""
    (tmp_path / "out.down").write_text("write")
    given = table(tmp_path, LINES, {"name": "out"}, adaptor=GOING_ON, end=False)
    with running(given) as engine:
        until(lambda: engine.log.durable == 4)
        engine.stop(0)
    (tmp_path / "out.down").unlink()
    (tmp_path / "table.undecided").touch()
    with running(given):
        asked = tmp_path / "table.asked"
        until(lambda: asked.exists() and asked.read_text().count("0") > 4)
        assert offsets(tmp_path / "out.jsonl") == []
        (tmp_path / "table.undecided").unlink()
        until(lambda: offsets(tmp_path / "out.jsonl") == [0, 1, 2, 3, 4])


def test_a_paused_reader_of_positions_tells_its_source_at_the_resume(tmp_path: Path) -> None:
    """Deliveries during a pause are committed at the resume and not read again."""
    lines = tmp_path / "source.txt"
    lines.write_text("n a\nn b\nn c\n")
    (tmp_path / "out.down").write_text("write")
    keys = {"adaptor": "table_tools:Committed", "path": "source.txt", "rows": 2}
    pipeline = table(tmp_path, [], {"name": "out"}, release="delivered", end=False, **keys)
    with running(pipeline) as engine:
        until(lambda: engine.log.durable == 2)
        feed = engine.feed("in")
        assert feed is not None
        feed.pause()
        until(lambda: feed.settled)
        (tmp_path / "out.down").unlink()
        until(lambda: engine.status().routes[0].lag == 0)
        assert told(lines) == []
        assert feed.hold() is not None, "the log is held until the source was told"
        feed.resume()
        until(lambda: told(lines)[-1:] == [3])
    assert offsets(tmp_path / "out.jsonl") == [0, 1, 2]


def test_a_stop_beside_a_paused_reader_keeps_how_far_its_source_is(tmp_path: Path) -> None:
    """The record of the next start has what the source was told, not what the log has."""
    lines = tmp_path / "source.txt"
    lines.write_text("n a\nn b\nn c\n")
    keys = {"adaptor": "table_tools:Committed", "path": "source.txt", "rows": 1}
    given = table(tmp_path, [], {"name": "out"}, release="delivered", end=False, **keys)
    (tmp_path / "out.down").write_text("write")
    with running(given) as engine:
        until(lambda: engine.log.durable == 2)
        engine.stop(0)
    PausedReaders(tmp_path / "log").set_paused("in", paused=True)
    (tmp_path / "out.down").unlink()
    with running(given) as engine:
        until(lambda: engine.status().routes[0].lag == 0)
    record = read_maintenance(RealFileSystem(), tmp_path / "log")
    assert record is not None
    assert (record.readers, told(lines)) == ({"in": -1}, [])


def given_back(engine: Engine, folder: Path) -> None:
    """Check that a paused reader's entries are passed, and redelivered after a resume."""
    feed = engine.feed("in")
    assert feed is not None
    until(lambda: engine.status().routes[0].lag == 0)
    until(lambda: feed.status().state is State.PAUSED)
    (folder / "out.down").unlink()
    time.sleep(0.1)
    assert offsets(folder / "out.jsonl") == []
    feed.resume()
    until(lambda: sorted(told(folder / "table.txt")) == [0, 1, 2, 3, 4])
    assert offsets(folder / "out.jsonl") == [5, 6, 7, 8, 9]


def test_a_paused_leader_leaves_what_is_not_delivered_to_the_next(tmp_path: Path) -> None:
    """A paused leader leaves undelivered entries to the next leader (Invariant 10)."""
    (tmp_path / "out.down").write_text("write")
    given = table(tmp_path, LINES, {"name": "out"}, adaptor=GOING_ON, end=False)
    with running(given) as engine:
        until(lambda: engine.log.durable == 4)
        feed = engine.feed("in")
        assert feed is not None
        feed.pause()
        given_back(engine, tmp_path)


def test_an_engine_that_starts_with_a_paused_leader_waits_for_no_decision(tmp_path: Path) -> None:
    """With a paused leader the routes go on, and its logged entries are left to another leader."""
    (tmp_path / "out.down").write_text("write")
    given = table(tmp_path, LINES, {"name": "out"}, adaptor=GOING_ON, end=False)
    with running(given) as engine:
        until(lambda: engine.log.durable == 4)
        engine.stop(0)
    PausedReaders(tmp_path / "log").set_paused("in", paused=True)
    with running(given) as engine:
        given_back(engine, tmp_path)


def test_a_shared_source_cannot_be_told_earlier(tmp_path: Path) -> None:
    """``release: logged`` is refused for a source shared by engines with other logs."""
    with pytest.raises(ConfigError, match="release is not enough for this source"):
        table(tmp_path, LINES, {"name": "out"}, release="logged")


def test_no_source_is_told_without_a_route_that_may_come_back(tmp_path: Path) -> None:
    """A start is refused while a route missing from the file still has an offset log."""
    to_end(table(tmp_path, LINES, {"name": "out"}, {"name": "old"}))
    without = table(tmp_path, [], {"name": "out"})
    with pytest.raises(ConfigError, match="route old has an offset log"), running(without):
        pass
    delete_route(tmp_path / "log", "old")
    to_end(without)
    assert set(told(tmp_path / "table.txt")) == {0, 1, 2, 3, 4}


def test_frames_carry_the_term(tmp_path: Path) -> None:
    """The number of the term under which entries were read is in the log."""
    with running(table(tmp_path, LINES, {"name": "out"})) as engine:
        until(lambda: engine.wait(0.02))
        with LogReader(tmp_path / "log") as log:
            sources = [found.source() for found in log.frames(0, engine.log.durable)]
    assert [each and each.term for each in sources] == [7]

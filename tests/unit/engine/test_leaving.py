"""Readers and routes that are removed while other work is under way."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import offsets, until
from live_tools import (
    GOING_ON,
    Operated,
    lines,
    operated,
    operated_table,
    reader,
    reload,
    route,
    sink,
)
from table_tools import table, told

from transporter.control import requests
from transporter.engine.readiness import not_ready_reasons
from transporter.errors import ActionRefused, EngineUnreachable
from transporter.offsets.offset_log import OffsetLog, declared_routes, read_state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.protocol.messages import WorkerSpec


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer operators soon, and leave unresponsive readers behind soon."""
    monkeypatch.setattr("transporter.control.running_engine.NOTICE", 0.3)
    monkeypatch.setattr("transporter.engine.reading.feed.GRACE", 4.0)


def without(op: Operated, *routes: str) -> None:
    """Remove *routes* without a wait."""
    running = op.engine.pipeline
    staying = tuple(each for each in running.routes if each.name not in routes)
    op.engine.reconfigure(running.model_copy(update={"routes": staying}))


def all_gone(op: Operated) -> None:
    """Wait until everything that was removed has ended."""
    until(lambda: not op.engine.release_ended())


@contextmanager
def at_its_slice(folder: Path, **routes: Any) -> Iterator[Operated]:
    """Run a pipeline whose route ``slow`` stays in its slice as long as the block lasts."""
    keys = routes.pop("slow", {})
    (folder / "slow.paused").touch()
    slow = keys | {"writer": {"pause_at": 1}}
    with operated(folder, lines(3), out={}, **routes, slow=slow) as op:
        until((folder / "slow.waiting").exists)
        try:
            yield op
        finally:
            (folder / "slow.paused").unlink(missing_ok=True)


def hang(op: Operated, name: str) -> threading.Event:
    """Make the reader *name* hang in its next poll until the event is set."""
    feed = op.engine.feed(name)
    assert feed is not None
    entered, ended = threading.Event(), threading.Event()
    poll = feed._poll_until_ended

    def hanging(source: Any) -> None:
        entered.set()
        ended.wait()
        poll(source)

    feed._poll_until_ended = hanging  # type: ignore[method-assign]
    feed.restart()
    assert entered.wait(10)
    return ended


def test_a_stop_finds_an_end_when_what_a_route_comes_after_has_gone(tmp_path: Path) -> None:
    """A stop ends although the route that ``after`` names has already been removed."""
    with at_its_slice(tmp_path, first={}, slow={"after": "first"}) as op:
        without(op, "first", "slow")
        until(lambda: "first" not in op.engine._running.offsets)
        threading.Timer(0.2, (tmp_path / "slow.paused").unlink).start()
        op.engine.stop()
    assert read_state(tmp_path / "log", "slow").watermark == 2


def test_only_a_route_that_has_ended_is_forgotten(tmp_path: Path) -> None:
    """A removed route is forgotten, and its files removed, only after it has ended."""
    with at_its_slice(tmp_path) as op:
        without(op, "slow")
        with pytest.raises(ActionRefused, match="has not ended yet"):
            op(requests.Forget("slow"))
        with pytest.raises(ActionRefused, match="has not ended yet"):
            op.engine.forget("out")
        (tmp_path / "slow.paused").unlink()
        all_gone(op)
        op(requests.Forget("slow"))
        assert declared_routes(tmp_path / "log") == ["out"]


def test_who_leaves_makes_no_engine_unready_nor_halted(tmp_path: Path) -> None:
    """A leaving route is shown in the status, and the engine is neither unready nor halted."""
    with at_its_slice(tmp_path) as op:
        without(op, "slow")
        slow = op.route("slow")
        assert slow["leaving"]
        assert "slow" not in {
            each.name for each in not_ready_reasons(op.engine.status(), patience=0.0)
        }
        assert op.engine.halted == []


def test_a_closed_offset_log_takes_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    """A closed offset log refuses every write with the reason that its route has ended."""
    with operated(tmp_path, lines(2), out={}, old={}) as op:
        until(lambda: op.route("old")["watermark"] == 1)
        _, old = op.live._find_route("old")
        without(op, "old")
        all_gone(op)
        old._pending = True
        old.sync()
        with pytest.raises(EngineUnreachable, match="route old has ended"):
            old.pause()


def test_a_source_is_not_told_without_a_route_that_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No source is acknowledged without a new route, from its first durable mark on."""
    given = table(tmp_path, ["k 0", "k 1"], {"name": "out"}, adaptor=GOING_ON, end=False)
    spare = OffsetLog.skip_superseding

    def slow(log: OffsetLog, *asked: Any) -> Any:
        with (tmp_path / "table.txt").open("a") as file:
            file.write("k 2\n")
        until(lambda: op.route()["watermark"] == 2)
        time.sleep(0.2)
        return spare(log, *asked)

    with operated_table(given) as op:
        until(lambda: told(tmp_path / "table.txt") == [0, 1])
        (tmp_path / "late.down").write_text("write")
        with monkeypatch.context() as patch:
            patch.setattr(OffsetLog, "skip_superseding", slow)
            reload(op, routes=[route("out"), route("late", start="earliest")])
        assert 2 not in told(tmp_path / "table.txt")
        (tmp_path / "late.down").unlink()


def test_a_route_that_left_passes_what_its_reader_gives_elsewhere(tmp_path: Path) -> None:
    """A returning route passes the entries that its removed reader had logged (Invariant 10)."""
    (tmp_path / "old.down").write_text("write")
    (tmp_path / "source.txt").write_text("")
    rows = [f"k{n} {n}" for n in range(5)]
    given = table(tmp_path, rows, {"name": "out"}, {"name": "old"}, adaptor=GOING_ON, end=False)
    other = reader("other", "source.txt")
    with operated_table(given) as op:
        until(lambda: op.route()["watermark"] == 4)
        reload(op, readers=[other], routes=[route("out")])
        all_gone(op)
        assert told(tmp_path / "table.txt") == []
        (tmp_path / "old.down").unlink()
        op.feed("a 1")
        reload(op, readers=[other], routes=[route("out"), route("old")])
        until(lambda: offsets(sink(tmp_path, "old")) == [5])


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["stopped", "hanging"])
def test_a_leader_that_has_ended_otherwise_or_hangs_leaves_its_entries_to_the_next(
    tmp_path: Path, how: str
) -> None:
    """A leader that stopped or hangs leaves its entries to the next leader (Invariant 10)."""
    (tmp_path / "out.down").write_text("write")
    (tmp_path / "source.txt").write_text("")
    rows = [f"k{n} {n}" for n in range(5)]
    given = table(tmp_path, rows, {"name": "out"}, adaptor=GOING_ON, end=False)
    with operated_table(given) as op:
        until(lambda: op.engine.log.durable == 4)
        feed = op.engine.feed("in")
        assert feed is not None
        until(lambda: not feed._acknowledgement.is_undecided)
        ended = threading.Event()
        if how == "stopped":
            (tmp_path / "table.txt").rename(tmp_path / "away.txt")
            op.events.await_count("reader-stopped")
        else:
            ended = hang(op, "in")
        reload(op, readers=[reader("other", "source.txt")])
        all_gone(op)
        until(lambda: op.route()["lag"] == 0)
        (tmp_path / "out.down").unlink()
        op.feed("a 1")
        until(lambda: offsets(sink(tmp_path)) == [5])
        ended.set()


def test_a_reader_that_was_left_behind_logs_and_tells_nothing_more(tmp_path: Path) -> None:
    """A reader left behind by a removal logs and acknowledges nothing when it returns.

    Before it is left behind no removed route ends, and a route of its name is another one.
    """
    (tmp_path / "out.txt").write_text("b 1\n")
    keys = {"adaptor": "table_tools:Committed", "release": "delivered"}
    first, late = reader("in", "source.txt"), reader("out", "out.txt", **keys)
    with operated(tmp_path, lines(2), out={}, old={}) as op:
        reload(op, readers=[first, late])
        until(lambda: op.route("old")["watermark"] == 2)
        until(lambda: told(tmp_path / "out.txt") == [1])
        ended = hang(op, "out")
        answer = reload(op, readers=[first], routes=[route("out")])
        assert answer["leaving"] == ["reader out", "route old"]
        op(requests.Reload("the route of that name stays"))
        with pytest.raises(ActionRefused, match="reader out was removed and has not ended yet"):
            reload(op, readers=[first, late], routes=[route("out"), route("old")])
        op.change(lambda document: document.update(readers=[first], routes=[route("out")]))
        all_gone(op)
        assert "did not end" in op.events.named("reader-stopped")[-1]["problem"]
        (tmp_path / "out.txt").write_text("b 1\nb 2\n")
        ended.set()
        op.feed("a 3")
        until(lambda: op.route()["watermark"] == 3)
        assert op.engine.log.durable == 3
        assert told(tmp_path / "out.txt") == [1]


def test_a_reader_that_has_ended_begins_again_with_other_settings(tmp_path: Path) -> None:
    """A reader that has ended starts again with other settings behind its position."""
    (tmp_path / "one.txt").write_text("b x\n")
    (tmp_path / "two.txt").write_text("b x\nb y\n")
    first = reader("in", "source.txt")
    with operated(tmp_path, lines(1), out={}) as op:
        reload(op, readers=[first, reader("more", "one.txt", end=True)])
        until(lambda: op.route()["watermark"] == 1)
        feed = op.engine.feed("more")
        assert feed is not None
        until(lambda: feed.ended)
        answer = reload(op, readers=[first, reader("more", "two.txt", end=True)])
        assert answer["problems"] == {}
        until(lambda: op.route()["watermark"] == 2)


def test_a_paused_reader_that_leaves_and_is_back_holds_no_more_than_it_did(tmp_path: Path) -> None:
    """A paused reader that is removed and added again holds no earlier entries."""
    first, more = reader("in", "source.txt"), reader("more", "more.txt")
    (tmp_path / "more.txt").write_text("b 1\n")
    with operated(tmp_path, lines(5), out={}) as op:
        reload(op, readers=[first, more])
        until(lambda: op.route()["watermark"] == 5)
        op(requests.PauseReader("more"))
        reload(op, readers=[first])
        all_gone(op)
        reload(op, readers=[first, more])
        assert op.engine._holds.least_hold().through == 5


def test_no_two_workers_of_a_name_are_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A returning route requests its workers under numbers that were never used."""
    with operated(tmp_path, lines(2), out={}, late={}) as op:
        until(lambda: op.route("late")["watermark"] == 1)
        seen: list[WorkerSpec] = []
        carrier = op.engine._running._services.spark
        connect = carrier.connect

        def noted(spec: WorkerSpec, stopping: Any) -> Any:
            seen.append(spec)
            return connect(spec, stopping)

        monkeypatch.setattr(carrier, "connect", noted)
        for path in ("one.jsonl", "two.jsonl"):
            reload(op, routes=[route("out")])
            all_gone(op)
            reload(op, routes=[route("out"), route("late", writer={"path": path})])
            op.feed("a 1")
            until((tmp_path / path).exists)
        mine = [each.attempt for each in seen if each.route == "late"]
        assert len(set(mine)) == len(mine) > 1


def test_the_lock_of_a_route_that_was_forgotten_is_given_back(tmp_path: Path) -> None:
    """A forgotten route's lock is released, and a later one of its name locks an existing file."""
    with operated(tmp_path, lines(2), out={}, late={}) as op:
        until(lambda: op.route("late")["watermark"] == 1)
        reload(op, routes=[route("out")])
        all_gone(op)
        op(requests.Forget("late"))
        reload(op, routes=[route("out"), route("late", start="earliest")])
        until(lambda: op.route("late")["watermark"] == 1)
        fence = op.engine._running._services.spark._admission._leases["late", 0]
        assert os.fstat(fence._descriptor).st_nlink == 1


def test_what_fails_while_a_route_is_made_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed reload keeps the leaving routes, removes the new one, and allows the next reload."""

    def fails(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    wanted = [route("out"), route("new", start="earliest")]
    with operated(tmp_path, lines(2), out={}, old={}) as op:
        until(lambda: op.route("old")["watermark"] == 1)
        waited_for = op.engine._running._deliveries.routes
        with monkeypatch.context() as patch:
            patch.setattr("transporter.engine.reload.Route", fails)
            with pytest.raises(RuntimeError):
                reload(op, routes=wanted)
        assert declared_routes(tmp_path / "log") == ["old", "out"]
        assert op.engine._running._deliveries.routes == waited_for
        assert not op.route("old")["leaving"]
        reload(op, routes=wanted)
        until(lambda: op.route("new")["lag"] == 0)

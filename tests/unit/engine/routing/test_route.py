"""The next delivery of a route: errands and state changes come before any new slice."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import PATIENCE, Events, make_pipeline, offsets, running, until
from table_tools import TableReader, table

from transporter.engine.routing import parking, route
from transporter.engine.routing.slicer import Slicer
from transporter.errors import LogFull, LogPoisoned
from transporter.offsets.offset_log import read_state
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transporter.engine.engine import Engine
    from transporter.protocol.messages import Slice

LINES = [f"k{number} {number}" for number in range(5)]


def superseding(patch: pytest.MonkeyPatch) -> threading.Event:
    """Make a reader's term end when the returned event is set."""
    ended, done = threading.Event(), threading.Event()

    def keep_alive(self: TableReader) -> None:
        if ended.is_set() and not done.is_set():
            done.set()
            self._resume.supersede()

    patch.setattr(TableReader, "keep_alive", keep_alive)
    return ended


def lingers(engine: Engine) -> bool:
    """Return whether the only route has entries to deliver and a worker for them."""
    status = engine.status().routes[0]
    return engine.log.durable >= 4 and status.state.value == "running"


def test_what_lingers_when_its_source_takes_it_back_is_not_delivered(tmp_path: Path) -> None:
    """A lingering slice whose term ends is passed and not delivered early."""
    with pytest.MonkeyPatch.context() as patch:
        ended = superseding(patch)
        pipeline = table(tmp_path, LINES, {"name": "out", "linger": "60s"}, end=False)
        with running(pipeline) as engine:
            until(lambda: lingers(engine))
            time.sleep(0.1)
            ended.set()
            until(lambda: read_state(tmp_path / "log", "out").superseded == {"in": 4})
            until(lambda: engine.status().routes[0].lag == 0)
    assert offsets(tmp_path / "out.jsonl") == []


def out(engine: Engine) -> Any:
    """Return the route ``out`` and its offset log."""
    found = engine.route("out")
    assert found is not None
    return found


def replay(engine: Engine) -> None:
    """Begin a replay of the first entries delivered."""
    out(engine)[1].begin_replay(0, 1)


def ack(engine: Engine) -> None:
    """Ack an entry in the middle of the slice that is cut."""
    out(engine)[1].settle(Range(4, 4, "operator"), engine.log.durable)


def pause(engine: Engine) -> None:
    """Pause the route."""
    out(engine)[1].pause()


def supersede(engine: Engine) -> None:
    """Make the route pass the entries that its source redelivers."""
    out(engine)[0].supersede("in", engine.log.durable)


def begin_superseding(engine: Engine) -> None:
    """Record the supersession without a call of the route."""
    out(engine)[1].begin_superseding("in", engine.log.durable)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (replay, [0, 1, 2, 0, 1, 3, 4, 5]),
        (ack, [0, 1, 2, 3, 5]),
        (pause, [0, 1, 2]),
        (supersede, [0, 1, 2]),
        (begin_superseding, [0, 1, 2]),
    ],
)
def test_what_is_changed_after_a_slice_was_cut_holds_for_it(
    tmp_path: Path, change: Callable[[Engine], None], expected: list[int]
) -> None:
    """A slice that is out of date is cut again and not delivered."""
    pipeline = make_pipeline(tmp_path, [f"a {n}" for n in range(3)], end=False, out={})
    original, changed = Slicer.cut, threading.Event()
    with pytest.MonkeyPatch.context() as patch, running(pipeline) as engine:
        until(lambda: offsets(tmp_path / "out.jsonl") == [0, 1, 2])

        def cut(self: Slicer, plan: Any, most: int | None = None) -> Slice | None:
            asked = original(self, plan, most)
            if asked is not None and asked.last == 5 and not changed.is_set():
                change(engine)
                changed.set()
            return asked

        # All three in one slice: none is delivered before the last is logged.
        patch.setattr(Slicer, "wait", lambda *_: until(lambda: engine.log.durable in (2, 5)))
        patch.setattr(Slicer, "cut", cut)
        with (tmp_path / "source.txt").open("a") as file:
            file.write("a 3\na 4\na 5\n")
        assert changed.wait(PATIENCE)
        until(lambda: len(offsets(tmp_path / "out.jsonl")) >= len(expected))
        time.sleep(0.1)
        assert offsets(tmp_path / "out.jsonl") == expected
        engine.stop(0)


def test_an_errand_sends_nothing_out_that_lingers(tmp_path: Path) -> None:
    """An errand is done before a lingering slice and does not end its linger."""
    pipeline = make_pipeline(tmp_path, LINES, end=False, out={"linger": "60s"})
    with running(pipeline) as engine:
        until(lambda: lingers(engine))
        time.sleep(0.1)
        seen = out(engine)[0].submit(lambda: offsets(tmp_path / "out.jsonl")).result(PATIENCE)
        assert seen == []
        engine.stop(0)
    assert offsets(tmp_path / "out.jsonl") == []


def test_errands_do_not_prolong_a_linger(tmp_path: Path) -> None:
    """A route delivers when its linger is over, however many errands it gets."""
    pipeline = make_pipeline(tmp_path, [], end=False, out={"linger": "400ms"})
    with running(pipeline) as engine:
        until(lambda: engine.status().routes[0].state.value == "running")
        with (tmp_path / "source.txt").open("a") as file:
            file.write("a 0\n")
        until(lambda: engine.log.durable == 0)
        begun = time.monotonic()
        while not offsets(tmp_path / "out.jsonl"):
            assert time.monotonic() - begun < PATIENCE
            out(engine)[0].submit(lambda: None).result(PATIENCE)
            time.sleep(0.02)


def supersede_until_it_ends(engine: Engine, sink: Path) -> None:
    """Make a route that has delivered to *sink* pass its entries, and wait for the engine's end."""
    until(lambda: offsets(sink) == [0])
    supersede(engine)
    until(lambda: engine.wait(0.02))


def test_a_failed_sync_while_entries_are_superseded_ends_the_engine(tmp_path: Path) -> None:
    """A failed sync during a supersession ends the engine (Invariant 13)."""

    def poisoned(*_: object) -> None:
        raise LogPoisoned("a sync failed for the test")

    pipeline = make_pipeline(tmp_path, ["a 0"], end=False, out={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(route, "supersede", poisoned)
        with pytest.raises(LogPoisoned), running(pipeline) as engine:
            supersede_until_it_ends(engine, tmp_path / "out.jsonl")


def test_nothing_goes_out_before_what_its_source_takes_back_is_passed(tmp_path: Path) -> None:
    """A route delivers nothing before a supersession that found no room is done (Invariant 14)."""
    tries, original = [], route.supersede

    def full(*values: Any) -> None:
        tries.append(offsets(tmp_path / "out.jsonl"))
        if len(tries) < 4:
            raise LogFull("no room for the test")
        original(*values)

    pipeline = make_pipeline(tmp_path, ["a 0"], end=False, out={})
    with pytest.MonkeyPatch.context() as patch, running(pipeline) as engine:
        until(lambda: offsets(tmp_path / "out.jsonl") == [0])
        patch.setattr(route, "supersede", full)
        supersede(engine)
        until(lambda: tries)
        with (tmp_path / "source.txt").open("a") as file:
            file.write("a 1\n")
        until(lambda: offsets(tmp_path / "out.jsonl") == [0, 1])
    assert tries[:4] == [[0]] * 4


def test_a_stop_does_not_wait_until_thousands_are_parked(tmp_path: Path) -> None:
    """A stop interrupts the parking of thousands of entries after a few of them."""
    lines = [f"k {number}" for number in range(2000)]
    slow, synced = parking.ParkedStore.park_all, []

    def park(self: Any, parked: Any) -> None:
        synced.append(len(parked))
        time.sleep(0.001 * len(parked))
        slow(self, parked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parking.ParkedStore, "park_all", park)
        writer = {"reject": [0]}
        reader = {"rows": 2000, "max_in_flight": 10_000}
        events = Events()
        pipeline = table(
            tmp_path,
            lines,
            {"name": "out", "on_error": "park", "writer": writer},
            end=False,
            **reader,
        )
        with running(pipeline, events=events) as engine:
            events.await_count("entry-parked")
            until(lambda: len(synced) > 2)
            engine.stop(0)
    assert 0 < sum(synced) < 1500
    assert max(synced) <= 100

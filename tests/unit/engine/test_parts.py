"""A large slice settled part by part: repeats after a death, and operator actions meanwhile."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import Events, delivered, make_pipeline, offsets, run_to_end, running, until

from transporter.log.commit_log import CommitLog
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import read_state
from transporter.offsets.state import Range
from transporter.worker.delivery import PART_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.engine.engine import Engine
    from transporter.offsets.offset_log import OffsetLog
    from transporter.pipeline.config import Pipeline

ROWS = 3 * PART_ROWS
AT = 2 * PART_ROWS + PART_ROWS // 2
PARTS = AT - PART_ROWS
"""The least that is settled when a writer reaches :data:`AT`, and more on a slow machine."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Log everything before a route begins, so that it becomes one slice."""
    with CommitLog.open(tmp_path / "log") as log:
        for first in range(0, ROWS, PART_ROWS):
            rows = range(first, first + PART_ROWS)
            log.append(messages_to_batch([Message("orders", b"%d" % row) for row in rows]), "in")
    return tmp_path


def pipeline(folder: Path, **route: Any) -> Pipeline:
    """Return a pipeline whose writer waits in the middle of the slice."""
    writer = {"pause_at": AT, **route.pop("writer", {})}
    return make_pipeline(folder, [], out={**route, "writer": writer})


def await_parts(folder: Path, engine: Engine) -> OffsetLog:
    """Wait until the writer waits and its parts are settled, and return the route's offset log."""
    until((folder / "out.waiting").exists)
    found = engine.route("out")
    assert found is not None
    until(lambda: found[1].state.next_offset() >= PARTS)
    return found[1]


def test_a_slice_is_settled_while_it_is_delivered(folder: Path) -> None:
    """Watermark, lag and counts move before a slice ends, and a kill would repeat only the rest."""
    (folder / "out.paused").touch()
    with running(pipeline(folder)) as engine:
        settled = await_parts(folder, engine).state.watermark
        (status,) = engine.status().routes
        assert PARTS - 1 <= settled < AT
        assert (status.watermark, status.lag) == (settled, ROWS - 1 - settled)
        assert (status.delivered, sum(status.slices.counts)) == (settled + 1, 0)
        state = read_state(folder / "log", "out")
        assert (state.watermark, state.namespaces) == (settled, {"orders": settled})
        (folder / "out.paused").unlink()
    (status,) = engine.status().routes
    assert (status.watermark, status.delivered) == (ROWS - 1, ROWS)
    assert sum(status.slices.counts) == 1
    assert offsets(folder / "out.jsonl") == list(range(ROWS))


def test_a_worker_s_death_repeats_no_part_that_it_reported(folder: Path) -> None:
    """The next worker begins behind the last part, whose outcomes were counted."""
    events = Events()
    engine = run_to_end(pipeline(folder, writer={"die_at": AT}), events)
    found = offsets(folder / "out.jsonl")
    begins = found[AT]
    assert PARTS <= begins <= AT
    assert found == [*range(AT), *range(begins, ROWS)]
    assert len(events.named("worker-lost")) == 1
    assert engine.status().routes[0].delivered == ROWS


def test_a_worker_that_dies_again_is_suspected_behind_its_parts(folder: Path) -> None:
    """After a second death the entries behind the last part are delivered one at a time."""
    sink = {"adaptor": "deadly_sink:DeadlyWriter", "pause_at": -1, "die_at": AT}
    route = {"on_error": "skip", "retry": {"attempts": 1}, "writer": sink}
    events = Events()
    run_to_end(pipeline(folder, **route), events)
    (divided,) = events.named("slice-divided")
    assert PARTS <= divided["first"] <= AT
    assert divided["last"] == ROWS - 1
    assert [event["offset"] for event in events.named("entry-skipped")] == [AT]
    assert set(offsets(folder / "out.jsonl")) == {*range(ROWS)} - {AT}


def test_a_replay_that_begins_in_a_slice_is_not_settled_by_its_parts(folder: Path) -> None:
    """Parts of a slice from before a replay settle that slice, and nothing of the replay."""
    (folder / "out.paused").touch()
    with running(pipeline(folder)) as engine:
        log = await_parts(folder, engine)
        log.begin_replay(0, 9)
        (folder / "out.paused").unlink()
    lines = delivered(folder / "out.jsonl")
    assert [line["offset"] for line in lines] == [*range(ROWS), *range(10)]
    assert log.state.watermark == ROWS - 1


@contextmanager
def replaying(folder: Path) -> Iterator[OffsetLog]:
    """Replay everything, and block the sink within a slice of which parts are settled."""
    run_to_end(pipeline(folder))
    (folder / "out.paused").touch()
    with running(pipeline(folder)) as engine:
        found = engine.route("out")
        assert found is not None
        found[1].begin_replay(0, ROWS - 1)
        log = await_parts(folder, engine)
        yield log


def test_a_replay_moves_on_by_parts(folder: Path) -> None:
    """A kill in a replay repeats no more than one in a first delivery."""
    with replaying(folder) as log:
        assert log.state.replay is not None
        assert PARTS <= log.state.replay.next <= AT
        assert log.state.watermark == ROWS - 1
        (folder / "out.paused").unlink()
    assert len(offsets(folder / "out.jsonl")) == 2 * ROWS


def test_a_replay_that_is_cancelled_in_a_slice_stays_so(folder: Path) -> None:
    """Deliveries of a cancelled replay settle nothing."""
    with replaying(folder) as log:
        log.cancel_replay()
        (folder / "out.paused").unlink()
    assert (log.state.replay, log.state.watermark) == (None, ROWS - 1)


def test_what_an_operator_acks_in_a_slice_stays_acked(folder: Path) -> None:
    """Parts that reach a range that was acked meanwhile pass over it."""
    (folder / "out.paused").touch()
    with running(pipeline(folder)) as engine:
        log = await_parts(folder, engine)
        log.settle(Range(AT + 100, ROWS - 1, "operator"), ROWS - 1)
        assert PARTS - 1 <= log.state.watermark < AT
        (folder / "out.paused").unlink()
    assert (log.state.watermark, log.state.above) == (ROWS - 1, ())


def test_a_pause_in_a_slice_holds_what_comes_behind_it(folder: Path) -> None:
    """A slice under way goes on during a pause, and the next one waits for the resume."""
    (folder / "out.paused").touch()
    route = {"slice_rows": ROWS - 1}
    with running(pipeline(folder, **route)) as engine:
        log = await_parts(folder, engine)
        log.pause()
        (folder / "out.paused").unlink()
        until(lambda: log.state.watermark == ROWS - 2)
        assert engine.status().routes[0].state.value == "paused"
        log.resume()
        until(lambda: log.state.watermark == ROWS - 1)


def test_several_workers_settle_what_all_of_them_have_reported(folder: Path) -> None:
    """The watermark is no further than the slowest shard has reported."""
    (folder / "out.paused").touch()
    with running(pipeline(folder, parallelism=2)) as engine:
        until((folder / "out.waiting").exists)
        found = engine.route("out")
        assert found is not None
        # The waiting shard has acked every second entry before this one.
        until(lambda: found[1].state.watermark > 0)
        assert found[1].state.watermark < AT
        (folder / "out.paused").unlink()
    assert sorted(offsets(folder / "out.jsonl")) == list(range(ROWS))
    assert engine.status().routes[0].delivered == ROWS


def test_an_offset_that_a_sink_stores_takes_no_part_back(folder: Path) -> None:
    """The further of a sink's stored offset and the reported part counts."""
    sink = {"stores_offset": True, "die_at": AT}
    run_to_end(pipeline(folder, slice_rows=PARTS, writer=sink))
    found = offsets(folder / "out.jsonl")
    assert PARTS < found[AT] <= AT
    assert found == [*range(AT), *range(found[AT], ROWS)]

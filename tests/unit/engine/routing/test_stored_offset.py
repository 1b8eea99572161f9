"""Offsets stored by a sink, and the proof that they need."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from engine_tools import worker_spec

from transporter.adaptor import StoredOffset
from transporter.engine.routing.session import OffsetAdoption
from transporter.log.commit_log import CommitLog
from transporter.log.runs import Run, Runs
from transporter.offsets.offset_log import OffsetLog
from transporter.offsets.state import Range
from transporter.protocol.messages import Opened
from transporter.worker.writers import proven_offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa


class World:
    """A log of 20 entries, of which the route ``out`` has settled 5."""

    def __init__(self, log: CommitLog, offsets: OffsetLog) -> None:
        self.log, self.offsets = log, offsets
        self.adoption = OffsetAdoption(offsets, log)

    def stored(self, offset: int, **parts: object) -> StoredOffset:
        """Return an offset that a sink of this run has stored."""
        found = StoredOffset(
            self.log.log_id, "out", self.log.epoch, 0, 0, 1, offset, self.log.runs.current
        )
        return replace(found, **parts)  # type: ignore[arg-type]


@pytest.fixture
def world(tmp_path: Path, batch: Callable[..., pa.RecordBatch]) -> Iterator[World]:
    """Yield the second run of a log, which began at offset 10."""
    with CommitLog.open(tmp_path) as log:
        log.append(batch(10), "r")
    with CommitLog.open(tmp_path) as log, OffsetLog(tmp_path, "out") as offsets:
        log.append(batch(10), "r")
        offsets.settle(Range(0, 4), log.durable)
        yield World(log, offsets)


def test_what_this_run_has_stored_is_settled(world: World) -> None:
    """An offset stored by this run is settled, so a worker's death repeats nothing."""
    assert world.adoption.adopt(Opened(world.stored(15)), 1) is None
    assert world.offsets.state.watermark == 15


def test_an_unknown_run_is_refused_and_settles_nothing(world: World) -> None:
    """An offset of an unknown run is refused and settles nothing."""
    failure = world.adoption.adopt(Opened(world.stored(15, run="other")), 1)
    assert failure is not None
    assert "offset 15" in failure.text
    assert "another history" in failure.text
    assert world.offsets.state.watermark == 4


def test_an_earlier_run_proves_only_what_it_had(world: World) -> None:
    """An earlier run proves only the offsets that it had reached."""
    run = world.log.runs.history[0].run
    assert world.adoption.adopt(Opened(world.stored(10, run=run)), 1) is not None
    assert world.adoption.adopt(Opened(world.stored(9, run=run)), 1) is None
    assert world.offsets.state.watermark == 9


def test_what_is_settled_already_needs_no_proof(world: World) -> None:
    """An offset that is already settled needs no proof."""
    assert world.adoption.adopt(Opened(world.stored(4, run="other")), 1) is None


def test_each_shard_is_looked_at(world: World) -> None:
    """Each shard's offset is checked, not only the lowest one."""
    sound = world.stored(7, shards=2)
    foreign = world.stored(15, shard=1, shards=2, run="other")
    failure = world.adoption.adopt(Opened(sound, (sound, foreign)), 2)
    assert failure is not None
    assert "offset 15" in failure.text


def test_without_a_run_what_was_handed_out_is_believed(world: World) -> None:
    """An offset without a run is believed as far as this run has delivered entries."""
    stored = world.stored(12, run="")
    assert world.adoption.adopt(Opened(stored), 1) is not None
    world.adoption.record_handed(12)
    assert world.adoption.adopt(Opened(stored), 1) is None
    assert world.offsets.state.watermark == 12


def test_a_replay_is_not_moved_by_another_history(world: World) -> None:
    """A replay is not moved by an offset of another history."""
    world.offsets.begin_replay(0, 4)
    stored = world.stored(3, generation=1, run="other")
    assert world.adoption.adopt(Opened(stored), 1) is not None
    assert world.offsets.state.next_offset() == 0


def test_a_replay_is_not_moved_by_a_forgotten_route(tmp_path: Path, world: World) -> None:
    """A replay is not moved by the offsets of a forgotten route with the same generations."""
    earlier = world.log.runs.history[0]
    with OffsetLog(tmp_path, "again", epoch=world.log.epoch) as offsets:
        offsets.settle(Range(0, 9), world.log.durable)
        offsets.begin_replay(0, 9)
        parts = {"run": earlier.run, "epoch": earlier.epoch, "generation": 1}
        for each in (parts, parts | {"epoch": world.log.epoch}, parts | {"run": ""}):
            stored = world.stored(9, route="again", **each)
            assert OffsetAdoption(offsets, world.log).adopt(Opened(stored), 1) is None
            assert offsets.state.next_offset() == 0
            assert offsets.state.replay is not None


def test_a_route_remembers_when_it_was_declared(tmp_path: Path, world: World) -> None:
    """A route keeps the epoch of its declaration, whichever run opens it later."""
    with OffsetLog(tmp_path, "again", epoch=world.log.epoch):
        pass
    with OffsetLog(tmp_path, "again", epoch=world.log.epoch + 1) as offsets:
        assert offsets.state.declared == world.log.epoch
        stored = world.stored(15, route="again")
        assert OffsetAdoption(offsets, world.log).adopt(Opened(stored), 1) is None
        assert offsets.state.watermark == 15


def test_a_worker_passes_over_nothing_that_is_not_proved(tmp_path: Path) -> None:
    """A worker applies the same proof to its shard's stored offset."""
    spec = replace(worker_spec(tmp_path), runs=Runs((Run(1, "known", 0),)))
    stored = StoredOffset("log", "out", 1, 0, 0, 1, 15, "other")
    assert proven_offset(spec, stored, 0) == -1
    assert proven_offset(spec, replace(stored, run="known"), 0) == 15
    assert proven_offset(spec, replace(stored, run=""), 0, handed=15) == 15


def test_a_worker_passes_over_nothing_of_a_forgotten_route(tmp_path: Path) -> None:
    """A worker passes nothing that was stored before its route was declared."""
    runs = Runs((Run(1, "before", 0), Run(2, "since", 10)))
    spec = replace(worker_spec(tmp_path), runs=runs, declared=2)
    stored = StoredOffset("log", "out", 2, 1, 0, 1, 5, "before")
    assert proven_offset(spec, stored, 1) == -1
    assert proven_offset(spec, replace(stored, run="since"), 1) == 5
    assert proven_offset(spec, replace(stored, generation=0), 0) == 5

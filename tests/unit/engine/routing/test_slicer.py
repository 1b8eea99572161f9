"""Slices that carry their frames, where the engine still has them."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from transporter.engine.routing.failure_policy import RedeliveryPlan
from transporter.engine.routing.slicer import Slicer
from transporter.log.commit_log import CommitLog
from transporter.log.reader import LogReader
from transporter.offsets.offset_log import OffsetLog
from transporter.offsets.state import Range
from transporter.protocol.channel import EngineChannel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    Make = Callable[..., pa.RecordBatch]


class World:
    """A log, a route's offsets, and its slicer."""

    def __init__(self, folder: Path, rows: int, size: int, compression: str | None) -> None:
        self.log = CommitLog.open(folder, compression=compression)
        self.reader, self.offsets = LogReader(folder), OffsetLog(folder, "out")
        config: Any = SimpleNamespace(slice_rows=rows, slice_bytes=size, linger=0.0)
        self.slicer = Slicer(
            config, self.log, self.reader, self.offsets, None, is_interrupted=lambda: False
        )

    def close(self) -> None:
        """Close the files."""
        self.reader.close()
        self.offsets.close()
        self.log.close()


@pytest.fixture
def open_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Yield a maker of a world, with limits of a slice."""
    made: list[World] = []

    def make(rows: int = 1000, size: int = 1 << 20, compression: str | None = "lz4") -> World:
        made.append(World(tmp_path / "log", rows, size, compression))
        return made[-1]

    yield make
    for world in made:
        world.close()


def test_a_small_slice_carries_its_frames(open_world: Callable[..., World], batch: Make) -> None:
    """All frames of the slice come with it, and each counts as an append."""
    world = open_world()
    world.log.append(batch(2), "r")
    world.log.append(batch(1), "r")
    slice_ = world.slicer.cut(RedeliveryPlan())
    assert slice_ is not None
    assert slice_[:3] == (0, 2, 0)
    assert slice_.frames == tuple(each.data for each in world.log.recent_frames(0, 2))
    assert [(each.last, each.entries) for each in world.slicer.appends] == [(1, 2), (2, 1)]


@pytest.mark.parametrize("limits", [{"rows": 2}, {"size": 300}])
def test_a_slice_within_its_limits_only(
    open_world: Callable[..., World], batch: Make, limits: dict[str, int]
) -> None:
    """What exceeds the limits of a slice is cut as usual, and read by the worker."""
    world = open_world(**limits)
    world.log.append(batch(1, size=100), "r")
    world.log.append(batch(2, size=100), "r")
    slice_ = world.slicer.cut(RedeliveryPlan())
    assert slice_ is not None
    assert (slice_.last < 2, slice_.frames) == (True, ())


def test_a_replay_reads_the_log(open_world: Callable[..., World], batch: Make) -> None:
    """A replay gets what compaction has left, and not what was appended once."""
    world = open_world()
    world.log.append(batch(1), "r")
    world.offsets.settle(Range(0, 0), 0)
    world.offsets.begin_replay(0, 0)
    slice_ = world.slicer.cut(RedeliveryPlan())
    assert slice_ is not None
    assert (slice_.first, slice_.generation, slice_.frames) == (0, 1, ())


@pytest.mark.parametrize(("frames", "carried"), [(4, 4), (5, 0)])
def test_a_worker_that_does_not_read_blocks_no_route(
    open_world: Callable[..., World], batch: Make, frames: int, carried: int
) -> None:
    """The frames of a slice fit into the socket, so that its route still sees a stop."""
    world = open_world(compression=None)
    for _ in range(frames):
        world.log.append(batch(1, size=15_000), "r")
    slice_ = world.slicer.cut(RedeliveryPlan())
    assert slice_ is not None
    assert (slice_.last, len(slice_.frames)) == (frames - 1, carried)
    ours, theirs = socket.socketpair()
    with theirs, EngineChannel(ours) as channel:
        channel.set_timeout(1)
        channel.send(slice_)

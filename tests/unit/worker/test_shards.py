"""Tests of several workers of one route: their shares, and the outcome of a whole slice."""

from __future__ import annotations

from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import Events, delivered, make_pipeline, offsets, run_to_end

from transporter.adaptor import StoredOffset
from transporter.engine.workers.shard_group import ShardGroup, lowest_stored_offset, merge_outcomes
from transporter.engine.workers.worker_connection import WorkerConnection
from transporter.message import Message, messages_to_batch, with_offsets
from transporter.offsets.offset_log import OffsetLog
from transporter.protocol.messages import (
    Announcement,
    Failure,
    FailureKind,
    Opened,
    OpenFailed,
    Outcome,
    PartialOutcome,
    Proceed,
    Retry,
    Slice,
)
from transporter.worker.shards import ShardProgress, entries_of_shard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

    import pyarrow as pa


def _batch(keys: list[bytes | None], first: int = 0) -> pa.RecordBatch:
    return with_offsets(messages_to_batch([Message("n", b"", key) for key in keys]), first, 0)


def _numbers(count: int) -> list[str]:
    return [f"orders {number}" for number in range(count)]


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_each_entry_belongs_to_one_shard(shards: int) -> None:
    """Every entry is in exactly one shard, and all entries of a key are in the same one."""
    keys = [None if n % 5 == 0 else b"k%d" % (n % 11) for n in range(200)]
    batch = _batch(keys, 1000)
    parts = [entries_of_shard(batch, shard, shards) for shard in range(shards)]
    found = sorted(offset for part in parts for offset in part.column("offset").to_pylist())
    assert found == list(range(1000, 1200))
    for part in parts:
        assert part.column("offset").to_pylist() == sorted(part.column("offset").to_pylist())
    homes = {
        (key, shard) for shard, part in enumerate(parts) for key in part.column("key").to_pylist()
    }
    assert len([key for key, _ in homes if key is not None]) == 11
    # Entries without a key keep no order, and are spread.
    assert len([key for key, _ in homes if key is None]) == shards


def test_no_entry_at_all() -> None:
    """A slice without accepted entries has nothing for any shard."""
    assert entries_of_shard(_batch([]), 1, 2).num_rows == 0


def test_what_a_shard_has_delivered_is_passed_over() -> None:
    """Entries redelivered in the same generation are skipped, but those of a replay are not."""
    progress = ShardProgress(0, 4)
    batch = _batch([None] * 10)
    assert progress.undelivered(batch, Slice(0, 9, 0)).column("offset").to_pylist() == [
        5,
        6,
        7,
        8,
        9,
    ]
    progress.advance(Slice(0, 9, 0), 7)
    assert progress.undelivered(batch, Slice(5, 9, 0)).column("offset").to_pylist() == [8, 9]
    assert progress.undelivered(batch, Slice(0, 9, 1)).num_rows == 10
    progress.advance(Slice(0, 9, 1), 2)
    assert progress.undelivered(batch, Slice(0, 9, 1)).num_rows == 7


def test_a_route_with_several_workers_delivers_everything_once(tmp_path: Path) -> None:
    """Each of three workers delivers a part of each slice, in the order of the log."""
    route = {"parallelism": 3, "slice_rows": 7}
    pipeline = make_pipeline(tmp_path, _numbers(100), out=route)
    engine = run_to_end(pipeline)
    assert sorted(offsets(tmp_path / "out.jsonl")) == list(range(100))
    by_worker: dict[int, list[int]] = {}
    for line in delivered(tmp_path / "out.jsonl"):
        by_worker.setdefault(line["pid"], []).append(line["offset"])
    assert len(by_worker) == 3
    assert all(found == sorted(found) for found in by_worker.values())
    (status,) = engine.status().routes
    assert (status.delivered, status.skipped, status.watermark) == (100, 0, 99)


def test_an_entry_that_fails_holds_no_other_shard_up(tmp_path: Path) -> None:
    """Entries that other shards delivered behind a failure are not redelivered."""
    route = {"parallelism": 2, "on_error": "park", "writer": {"reject": [4]}}
    pipeline = make_pipeline(tmp_path, _numbers(30), out=route)
    engine = run_to_end(pipeline)
    assert sorted(offsets(tmp_path / "out.jsonl")) == [n for n in range(30) if n != 4]
    (status,) = engine.status().routes
    assert (status.parked, status.watermark, status.delivered) == (1, 29, 29)


def test_a_dead_worker_takes_no_entry_with_it(tmp_path: Path) -> None:
    """When one worker dies all are replaced, and the entries in flight are redelivered."""
    events = Events()
    route = {"parallelism": 3, "slice_rows": 10, "writer": {"die_at": 17}}
    run_to_end(make_pipeline(tmp_path, _numbers(60), out=route), events)
    assert sorted(set(offsets(tmp_path / "out.jsonl"))) == list(range(60))
    assert len(events.named("worker-connected")) == 6


def test_a_replay_goes_to_every_shard(tmp_path: Path) -> None:
    """A replay redelivers the entries of every shard."""
    run_to_end(make_pipeline(tmp_path, _numbers(20), out={"parallelism": 2}))
    with OffsetLog(tmp_path / "log", "out") as known:
        known.begin_replay(5, 9)
    run_to_end(make_pipeline(tmp_path, _numbers(3), out={"parallelism": 2}))
    assert len(offsets(tmp_path / "out.jsonl")) == 28
    again = [line["offset"] for line in delivered(tmp_path / "out.jsonl") if line["generation"]]
    assert sorted(again) == [5, 6, 7, 8, 9, 20, 21, 22]


def test_other_shards_than_before(tmp_path: Path) -> None:
    """A route continues at its watermark with another number of workers."""
    run_to_end(make_pipeline(tmp_path, _numbers(10), out={"parallelism": 3}))
    run_to_end(make_pipeline(tmp_path, _numbers(10), out={"parallelism": 2}))
    assert sorted(offsets(tmp_path / "out.jsonl")) == list(range(20))
    with OffsetLog(tmp_path / "log", "out") as log:
        assert log.state.watermark == 19


# --- the team itself


@pytest.fixture
def pipes() -> Iterator[tuple[ShardGroup, list[Connection]]]:
    """Yield a team of two and the workers' ends of its lines."""
    ends = [Pipe() for _ in range(2)]
    team = ShardGroup([WorkerConnection(ours) for ours, _ in ends])
    yield team, [theirs for _, theirs in ends]
    team.close()
    for _, theirs in ends:
        theirs.close()


def _outcome(through: int, failure: Failure | None = None, **more: Any) -> Outcome:
    return Outcome(through, 1, 2, 3, more.get("namespaces", {}), failure)


def test_a_team_opens_when_all_have(pipes: tuple[ShardGroup, list[Connection]]) -> None:
    """The team is open when each worker is, and its stored offset is the lowest one."""
    team, workers = pipes
    stored = [StoredOffset("log", "r", 1, 0, shard, 2, 7 + shard) for shard in range(2)]
    workers[1].send(Opened(stored[1]))
    assert not team.poll(0.01)
    workers[0].send(Opened(stored[0]))
    opened = team.recv()
    assert opened.stored == stored[0]
    assert set(opened.shards) == set(stored)


def test_a_team_fails_to_open_as_one(pipes: tuple[ShardGroup, list[Connection]]) -> None:
    """One worker that cannot open its writer fails the route."""
    team, workers = pipes
    failed = OpenFailed(Failure(FailureKind.FAULT, "no rights"))
    workers[1].send(failed)
    assert team.recv() == failed


def test_an_answer_goes_to_whoever_asked(pipes: tuple[ShardGroup, list[Connection]]) -> None:
    """The permission to deliver an entry goes to the worker that announced it."""
    team, workers = pipes
    team.send(Slice(0, 9, 0, single=True))
    assert [worker.recv().last for worker in workers] == [9, 9]
    workers[1].send(Announcement(3))
    assert team.recv() == Announcement(3)
    team.send(Proceed())
    assert isinstance(workers[1].recv(), Proceed)
    assert not workers[0].poll(0)


def test_the_announcement_of_the_dead_is_told_again(
    pipes: tuple[ShardGroup, list[Connection]],
) -> None:
    """When a worker dies, its own announcement is repeated last."""
    team, workers = pipes
    team.send(Slice(0, 9, 0, single=True))
    for shard, offset in ((0, 2), (1, 3)):
        workers[shard].send(Announcement(offset))
        assert team.recv() == Announcement(offset)
        team.send(Proceed())
    workers[0].close()
    assert team.recv() == Announcement(2)
    team.send(Proceed())
    with pytest.raises((EOFError, ConnectionError)):
        team.recv()
    assert team.shard == 0


def test_a_retry_is_one_workers(pipes: tuple[ShardGroup, list[Connection]]) -> None:
    """A parked entry is delivered by one worker, and its answer is the team's."""
    team, workers = pipes
    team.send(Retry(5))
    assert workers[0].recv() == Retry(5)
    assert not workers[1].poll(0)
    workers[0].send(_outcome(5))
    assert team.recv().through == 5


def test_a_slice_went_as_far_as_the_slowest() -> None:
    """The first of several failures counts, and nothing beyond it is settled."""
    late = Failure(FailureKind.REJECTED, "late", 8)
    early = Failure(FailureKind.REJECTED, "early", 5)
    found = merge_outcomes(
        [
            _outcome(7, late, namespaces={"a": 6, "b": 3}),
            _outcome(4, early, namespaces={"a": 4}),
            _outcome(9, namespaces={"c": 9}),
        ]
    )
    assert (found.through, found.failure) == (4, early)
    assert (found.delivered, found.skipped, found.size) == (3, 6, 9)
    assert found.namespaces == {"a": 4, "b": 3}


def test_a_failure_counts_before_a_pause_at_the_same_place() -> None:
    """A shard that stopped without a failure does not hide another shard's failure."""
    failure = Failure(FailureKind.REJECTED, "no", 5)
    assert merge_outcomes([_outcome(4), _outcome(4, failure)]).failure == failure


def test_what_is_stored_counts_when_all_tell_the_same_story() -> None:
    """A sink without a stored offset, or with another generation's, invalidates all of them."""
    one = StoredOffset("log", "r", 1, 0, 0, 2, 7)
    other = StoredOffset("log", "r", 1, 1, 1, 2, 9)
    assert lowest_stored_offset([one, None]) is None
    assert lowest_stored_offset([one, other]) is None
    assert lowest_stored_offset([one, one]) == one


def _part(through: int, **namespaces: int) -> PartialOutcome:
    return PartialOutcome(_outcome(through, namespaces=namespaces))


def test_a_slice_is_settled_as_far_as_all_shards_have_come(
    pipes: tuple[ShardGroup, list[Connection]],
) -> None:
    """A shard's lead is reported when the others have come as far, with the counts summed."""
    team, workers = pipes
    team.send(Slice(0, 99, 0))
    workers[0].send(_part(40, a=40, b=10))
    assert not team.poll(0.01)
    workers[1].send(_part(30, c=30))
    assert team.recv() == PartialOutcome(Outcome(30, 2, 4, 6, {"b": 10, "c": 30}))
    workers[1].send(_part(35, c=35))
    assert team.recv() == PartialOutcome(Outcome(35, 1, 2, 3, {"c": 35}))
    workers[1].send(_part(60, c=60))
    assert team.recv() == PartialOutcome(Outcome(40, 1, 2, 3, {"a": 40}))
    workers[0].send(_outcome(99, namespaces={"a": 99}))
    assert team.recv() == PartialOutcome(Outcome(60, 0, 0, 0, {"c": 60}))
    workers[1].send(_outcome(99, namespaces={"c": 98}))
    assert team.recv() == Outcome(99, 2, 4, 6, {"a": 99, "c": 98})


def test_a_shard_that_failed_holds_the_watermark_back(
    pipes: tuple[ShardGroup, list[Connection]],
) -> None:
    """Nothing behind another shard's failure is settled, in parts or at the end."""
    team, workers = pipes
    failure = Failure(FailureKind.REJECTED, "no", 20)
    team.send(Slice(0, 99, 0))
    workers[0].send(_outcome(19, failure, namespaces={"a": 19}))
    assert not team.poll(0.01)
    workers[1].send(_part(50, b=50))
    assert team.recv() == PartialOutcome(Outcome(19, 1, 2, 3, {}))
    workers[1].send(_part(70, b=70))
    assert not team.poll(0.01)
    workers[1].send(_outcome(99, namespaces={"b": 99}))
    assert team.recv() == Outcome(19, 3, 6, 9, {"a": 19}, failure)


def test_the_next_slice_begins_without_the_parts_of_the_last(
    pipes: tuple[ShardGroup, list[Connection]],
) -> None:
    """A shard's progress in one slice does not count in the next, which may be a replay."""
    team, workers = pipes
    team.send(Slice(0, 99, 0))
    for worker in workers:
        worker.send(_part(50))
    assert team.recv().outcome.through == 50
    team.send(Slice(0, 99, 1))
    workers[0].send(_part(5))
    assert not team.poll(0.01)
    workers[1].send(_part(7))
    assert team.recv().outcome.through == 5

"""Tests of a worker with the engine's side of its connection, without Spark."""

from __future__ import annotations

import fcntl
import os
import queue
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import PATIENCE, hello, offsets, worker_spec

from transporter.engine.workers.listener import Listener
from transporter.engine.workers.worker_spec import create_invitation
from transporter.log.commit_log import CommitLog
from transporter.message import with_offsets
from transporter.offsets.offset_log import route_folder
from transporter.offsets.parked import ParkedEntry, ParkedStore, ParkReason
from transporter.protocol.messages import (
    Announcement,
    Begin,
    FailureKind,
    Hello,
    Opened,
    OpenFailed,
    Outcome,
    Output,
    PartialOutcome,
    Proceed,
    Retry,
    Slice,
)
from transporter.worker import worker
from transporter.worker.delivery import PART_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from transporter.protocol.channel import EngineChannel
    from transporter.protocol.messages import WorkerSpec


class Side:
    """The engine's side: workers that connect, in order, and threads to run them in."""

    def __init__(
        self, listener: Listener, arrived: queue.Queue[tuple[Hello, EngineChannel]]
    ) -> None:
        self.listener = listener
        self._arrived = arrived
        self.ended: queue.Queue[BaseException | None] = queue.Queue()
        self._specs: queue.Queue[WorkerSpec] = queue.Queue()

    def run(self, spec: WorkerSpec) -> threading.Thread:
        """Run a worker in its own thread, and put its error or ``None`` into ``ended``."""

        def body() -> None:
            try:
                worker.run(create_invitation(spec, self.listener.ticket))
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                self.ended.put(error)
            else:
                self.ended.put(None)

        self._specs.put(spec)
        thread = threading.Thread(target=body, name="worker", daemon=True)
        thread.start()
        return thread

    def accept(self) -> tuple[Hello, EngineChannel]:
        """Return the next worker that connects, and send it its spec."""
        said, connection = self._arrived.get(timeout=PATIENCE)
        connection.send(Begin(self._specs.get_nowait()))
        return said, connection


@pytest.fixture
def side() -> Iterator[Side]:
    """Listen like an engine."""
    arrived: queue.Queue[Any] = queue.Queue()
    listener = Listener(lambda *_: None, lambda said, caller: arrived.put((said, caller)))
    listener.start()
    yield Side(listener, arrived)
    listener.close()


@pytest.fixture
def log(tmp_path: Path, batch: Callable[..., pa.RecordBatch]) -> CommitLog:
    """Return a log of ten entries in two frames."""
    with CommitLog.open(tmp_path / "log") as log:
        log.append(batch(6, "a"), "r")
        log.append(batch(4, "b"), "r")
    return log


def answer(connection: EngineChannel) -> Any:
    """Return the worker's next message."""
    assert connection.poll(PATIENCE), "the worker says nothing"
    return connection.recv()


@contextmanager
def opened(side: Side, spec: WorkerSpec) -> Iterator[EngineChannel]:
    """Yield the connection of a worker that has opened its writer."""
    thread = side.run(spec)
    _, connection = side.accept()
    with connection:
        assert answer(connection) == Opened(None)
        yield connection
    thread.join(PATIENCE)


def test_a_worker_says_who_it_is_and_serves_until_the_engine_hangs_up(
    tmp_path: Path, side: Side, log: CommitLog
) -> None:
    """A worker sends Hello, Opened, an Outcome for each Slice, and ends without an error."""
    spec = worker_spec(tmp_path)
    side.run(spec)
    said, connection = side.accept()
    assert said == hello(spec)
    with connection:
        assert answer(connection) == Opened(None)
        connection.send(Slice(0, 3, 0))
        assert answer(connection) == Outcome(3, 4, 0, 96, {"a": 3})
        connection.send(Slice(4, 9, 0))
        assert answer(connection).namespaces == {"a": 5, "b": 9}
    assert side.ended.get(timeout=PATIENCE) is None
    assert offsets(tmp_path / "out.jsonl") == list(range(10))


def test_a_worker_filters_by_its_route_s_namespace(
    tmp_path: Path, side: Side, log: CommitLog
) -> None:
    """Only entries that pass the route's filter reach the writer."""
    with opened(side, worker_spec(tmp_path, namespace="^b$")) as connection:
        connection.send(Slice(0, 9, 0))
        outcome = answer(connection)
    assert (outcome.delivered, outcome.skipped) == (4, 6)
    assert offsets(tmp_path / "out.jsonl") == [6, 7, 8, 9]


@pytest.fixture
def sent(tmp_path: Path, batch: Callable[..., pa.RecordBatch]) -> tuple[bytes, ...]:
    """Return the frames of four entries and of two, of a log whose file is gone."""
    with CommitLog.open(tmp_path / "log") as log:
        log.append(batch(4, "a"), "r")
        log.append(batch(2, "b"), "r")
        frames = tuple(each.data for each in log.recent_frames(0, 5))
    next((tmp_path / "log").glob("*.log")).unlink()
    return frames


def test_frames_that_come_with_a_slice_are_not_read(
    tmp_path: Path, side: Side, sent: tuple[bytes, ...]
) -> None:
    """The entries of the slice are taken from its frames, without those beyond its end."""
    with opened(side, worker_spec(tmp_path)) as connection:
        connection.send(Slice(0, 4, 0, without=(1,), frames=sent))
        assert answer(connection).namespaces == {"a": 3, "b": 4}
    assert offsets(tmp_path / "out.jsonl") == [0, 2, 3, 4]


@pytest.mark.parametrize("byte", [20, -20])
def test_a_frame_that_was_damaged_on_its_way_is_refused(
    tmp_path: Path, side: Side, sent: tuple[bytes, ...], byte: int
) -> None:
    """Header and entries are verified as if they had been read (Invariant 3)."""
    damaged = bytearray(sent[1])
    damaged[byte] ^= 1
    with opened(side, worker_spec(tmp_path)) as connection:
        connection.send(Slice(0, 5, 0, frames=(sent[0], bytes(damaged))))
        outcome = answer(connection)
    assert outcome.through == 3
    assert outcome.failure.kind is FailureKind.FAULT
    assert offsets(tmp_path / "out.jsonl") == [0, 1, 2, 3]


def test_what_a_writer_prints_comes_before_the_outcome(
    tmp_path: Path, side: Side, log: CommitLog
) -> None:
    """Standard output reaches the engine before the outcome of the slice."""
    with opened(side, worker_spec(tmp_path, show=True)) as connection:
        connection.send(Slice(0, 1, 0))
        said = answer(connection)
        assert said == Output("delivered 0\ndelivered 1\n")
        assert isinstance(answer(connection), Outcome)


def test_a_failed_delivery_is_an_outcome_and_the_worker_goes_on(
    tmp_path: Path, side: Side, log: CommitLog
) -> None:
    """A refused entry is named, and the worker and its writer stay for the next slice."""
    with opened(side, worker_spec(tmp_path, reject=[2])) as connection:
        connection.send(Slice(0, 5, 0))
        outcome = answer(connection)
        assert (outcome.through, outcome.failure.offset) == (1, 2)
        connection.send(Slice(3, 5, 0))
        assert answer(connection).through == 5


def test_a_slice_that_the_log_does_not_hold_is_a_failure(
    tmp_path: Path, side: Side, log: CommitLog
) -> None:
    """Entries that cannot be read yield an outcome with the reason, and the worker lives on."""
    with opened(side, worker_spec(tmp_path)) as connection:
        connection.send(Slice(8, 12, 0))
        outcome = answer(connection)
    assert outcome.through == 9
    assert outcome.failure.kind is FailureKind.FAULT
    assert "no valid frame" in outcome.failure.text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"writer": "no_such_module:Writer"}, "no_such_module"),
        ({"path": 7}, "path"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_writer_that_cannot_be_made_is_said_to_be_so(
    tmp_path: Path, side: Side, log: CommitLog, settings: dict[str, Any], text: str
) -> None:
    """OpenFailed names the problem, and the worker ends without an error."""
    side.run(worker_spec(tmp_path, **settings))
    _, connection = side.accept()
    with connection:
        said = answer(connection)
    assert isinstance(said, OpenFailed)
    assert text in said.failure.text
    assert side.ended.get(timeout=PATIENCE) is None


def test_a_sink_that_is_down_at_open_is_worth_another_try(
    tmp_path: Path, side: Side, log: CommitLog
) -> None:
    """An unavailable sink is reported as retriable."""
    (tmp_path / "out.down").write_text("open")
    side.run(worker_spec(tmp_path))
    _, connection = side.accept()
    with connection:
        assert answer(connection).failure.kind.retriable


def test_two_workers_of_a_shard_never_deliver_at_the_same_time(
    tmp_path: Path, side: Side, log: CommitLog
) -> None:
    """The second worker opens its writer only when the first has ended."""
    spec = worker_spec(tmp_path)
    side.run(spec)
    _, first = side.accept()
    assert answer(first) == Opened(None)
    side.run(spec)
    _, second = side.accept()
    with second:
        assert not second.poll(0.3)
        first.send(Slice(0, 0, 0))
        assert answer(first).through == 0
        first.close()
        assert answer(second) == Opened(None)


def test_workers_of_different_shards_do_not_wait_for_each_other(
    tmp_path: Path, side: Side, log: CommitLog
) -> None:
    """Each shard has its own lock."""
    spec = worker_spec(tmp_path)
    side.run(spec)
    _, first = side.accept()
    side.run(replace(spec, shard=1, shards=2))
    _, second = side.accept()
    with first, second:
        assert (answer(first), answer(second)) == (Opened(None), Opened(None))


def test_a_worker_that_is_turned_away_ends_quietly(
    tmp_path: Path, side: Side, log: CommitLog
) -> None:
    """A worker whose engine has closed the connection returns without failing its task."""
    folder = route_folder(tmp_path / "log", "out")
    folder.mkdir(parents=True, exist_ok=True)
    holder = os.open(folder / "0.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.flock(holder, fcntl.LOCK_EX)
    side.run(worker_spec(tmp_path))
    side.accept()[1].close()
    os.close(holder)
    assert side.ended.get(timeout=PATIENCE) is None


def test_an_engine_that_dies_during_a_slice_ends_its_worker_quietly(
    tmp_path: Path, side: Side, log: CommitLog
) -> None:
    """A worker without an engine for its answer closes its writer and returns."""
    (tmp_path / "out.paused").touch()
    with opened(side, worker_spec(tmp_path, pause_at=0)) as connection:
        connection.send(Slice(0, 9, 0))
        while not (tmp_path / "out.waiting").exists():
            assert side.ended.empty()
        connection.close()
        (tmp_path / "out.paused").unlink()
        assert side.ended.get(timeout=PATIENCE) is None
    assert offsets(tmp_path / "out.jsonl") == list(range(10))


def paused_in(side: Side, folder: Path, connection: EngineChannel, asked: Slice) -> None:
    """Deliver a slice up to the writer's pause, and wait for longer than the interval of parts."""
    (folder / "out.paused").touch()
    connection.send(asked)
    while not (folder / "out.waiting").exists():
        assert side.ended.empty()
    time.sleep(PART_SECONDS)


def test_what_is_acked_is_reported_while_the_rest_is_delivered(
    tmp_path: Path, side: Side, log: CommitLog
) -> None:
    """A report comes with the first ack after the interval, and printed output before it."""
    spec = worker_spec(tmp_path, pause_at=6, show=True)
    with opened(side, spec) as connection:
        paused_in(side, tmp_path, connection, Slice(4, 9, 0))
        assert not connection.poll(0)
        (tmp_path / "out.paused").unlink()
        assert answer(connection) == Output("delivered 4\ndelivered 5\ndelivered 6\n")
        assert answer(connection) == PartialOutcome(Outcome(6, 3, 0, 72, {"a": 5, "b": 6}))
        rest = [answer(connection)]
        while not isinstance(rest[-1], Outcome):
            rest.append(answer(connection))
    # A busy machine takes longer than the interval for the rest, and reports it in parts.
    parts = [each.outcome if isinstance(each, PartialOutcome) else each for each in rest]
    assert sum(each.delivered for each in parts if isinstance(each, Outcome)) == 3
    assert (parts[-1].through, parts[-1].failure) == (9, None)


def test_a_report_that_nobody_hears_is_no_failure_of_the_sink(
    tmp_path: Path, side: Side, log: CommitLog
) -> None:
    """A writer whose engine is gone still delivers its slice to the end."""
    with opened(side, worker_spec(tmp_path, pause_at=2)) as connection:
        paused_in(side, tmp_path, connection, Slice(0, 9, 0))
        connection.close()
        (tmp_path / "out.paused").unlink()
        assert side.ended.get(timeout=PATIENCE) is None
    assert offsets(tmp_path / "out.jsonl") == list(range(10))


def test_a_parked_entry_reports_nothing_before_its_outcome(
    tmp_path: Path, side: Side, log: CommitLog, batch: Callable[..., pa.RecordBatch]
) -> None:
    """A retry is not part of a slice, so it never moves the watermark."""
    store = ParkedStore(route_folder(tmp_path / "log", "out"))
    entry = with_offsets(batch(1, "a"), 3, 0)
    store.park(ParkedEntry(3, entry, ParkReason("no", 1, 0)))
    with opened(side, worker_spec(tmp_path, pause_at=3)) as connection:
        (tmp_path / "out.paused").touch()
        connection.send(Retry(3))
        assert answer(connection) == Announcement(3)
        connection.send(Proceed())
        time.sleep(PART_SECONDS)
        (tmp_path / "out.paused").unlink()
        assert isinstance(answer(connection), Outcome)

"""Workers that call over TCP and do not see the log: the payloads sent to them, and their start."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import (
    PATIENCE,
    Events,
    SparklessHost,
    delivered,
    make_pipeline,
    offsets,
    run_to_end,
    running,
    until,
    worker_spec,
)

from transporter.engine.workers import spark_supervisor as module
from transporter.engine.workers.spark_supervisor import SparkSupervisor
from transporter.log.commit_log import CommitLog
from transporter.log.reader import LogReader
from transporter.offsets.offset_log import route_folder
from transporter.offsets.parked import ParkedEntry, ParkedStore, ParkReason
from transporter.pipeline.config import SparkConfig
from transporter.pipeline.steps.step import StepConfig
from transporter.protocol.messages import (
    Announcement,
    Opened,
    OpenFailed,
    Outcome,
    PartialOutcome,
    Proceed,
    Retry,
    Slice,
)
from transporter.protocol.network import Network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from transporter.engine.workers.worker_connection import WorkerConnection
    from transporter.errors import HostFailed
    from transporter.pipeline.config import Pipeline
    from transporter.protocol.messages import WorkerSpec

LOOPBACK = Network("127.0.0.1", 0, "127.0.0.1")


@pytest.fixture
def log(tmp_path: Path, batch: Callable[..., pa.RecordBatch]) -> CommitLog:
    """Return a log of ten entries in two frames."""
    with CommitLog.open(tmp_path / "log") as log:
        log.append(batch(6, "a"), "r")
        log.append(batch(4, "b"), "r")
    return log


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every worker's log directory differ from the engine's."""
    monkeypatch.setattr(module, "place_of", lambda _: "another machine")


@contextmanager
def carrying(events: Events | None = None) -> Iterator[SparkSupervisor]:
    """Run a carrier whose workers call over TCP."""
    problems: list[HostFailed] = []
    carrier = SparkSupervisor(SparklessHost(), events or Events(), problems.append, LOOPBACK)
    carrier.start()
    try:
        yield carrier
    finally:
        carrier.stop()
    assert problems == []


def connect(carrier: SparkSupervisor, spec: WorkerSpec) -> WorkerConnection:
    """Request a worker and return its line."""
    line = carrier.connect(spec, lambda: False)
    assert line is not None
    return line


def answer(line: WorkerConnection) -> Any:
    """Return the worker's next message except partial outcomes, and serve its needs meanwhile."""
    deadline = time.monotonic() + PATIENCE
    while True:
        while not line.poll(0.05):
            assert time.monotonic() < deadline, "the worker says nothing"
        if not isinstance(said := line.recv(), PartialOutcome):
            return said


@contextmanager
def opened(tmp_path: Path, **settings: Any) -> Iterator[WorkerConnection]:
    """Run a worker that has opened its writer."""
    with (
        carrying() as carrier,
        connect(carrier, worker_spec(tmp_path, **settings)) as line,
    ):
        assert answer(line) == Opened(None)
        yield line


@pytest.mark.usefixtures("log", "unseen")
def test_a_worker_that_does_not_see_the_log_is_lent_its_slices(tmp_path: Path) -> None:
    """A worker that does not see the log delivers and reports like one beside the log."""
    with opened(tmp_path) as line:
        line.send(Slice(2, 7, 0))
        assert answer(line) == Outcome(7, 6, 0, 144, {"a": 5, "b": 7})
        line.send(Slice(8, 9, 0, single=True))
        assert _singly(line) == [8, 9]
    assert offsets(tmp_path / "out.jsonl") == [2, 3, 4, 5, 6, 7, 8, 9]


def _singly(line: WorkerConnection) -> list[int]:
    """Let a worker proceed after each announcement, and return the announced offsets."""
    announced = []
    while isinstance(said := answer(line), Announcement):
        announced.append(said.offset)
        line.send(Proceed())
    return announced


@pytest.mark.usefixtures("unseen")
def test_a_slice_of_many_frames_comes_in_parts(
    tmp_path: Path, batch: Callable[..., pa.RecordBatch]
) -> None:
    """No answer is much larger than its bound, and none is missing or out of order."""
    with CommitLog.open(tmp_path / "log", compression=None) as log:
        for _ in range(30):
            log.append(batch(10, "a", 10_000), "r")
    with opened(tmp_path) as line:
        line.send(Slice(0, 299, 0))
        assert answer(line).through == 299
    assert offsets(tmp_path / "out.jsonl") == list(range(300))


@pytest.mark.usefixtures("unseen")
def test_damage_is_found_where_the_entries_arrive(tmp_path: Path, log: CommitLog) -> None:
    """A payload that does not match its checksum ends the slice before it (Invariant 3)."""
    (path,) = (tmp_path / "log").glob("*.log")
    frames = list(_frames(tmp_path))
    data = bytearray(path.read_bytes())
    data[frames[1].payload_byte + 20] ^= 1
    path.write_bytes(data)
    with opened(tmp_path) as line:
        line.send(Slice(0, 9, 0))
        outcome = answer(line)
    assert outcome.through == 5
    assert "do not match their checksum" in outcome.failure.text
    assert f"{path}" in outcome.failure.text
    assert offsets(tmp_path / "out.jsonl") == [0, 1, 2, 3, 4, 5]


@pytest.mark.usefixtures("unseen")
def test_a_worker_goes_on_behind_damage_that_more_frames_follow(
    tmp_path: Path, batch: Callable[..., pa.RecordBatch]
) -> None:
    """Frames sent before a worker found damage are not taken for the next slice."""
    with CommitLog.open(tmp_path / "log", compression=None) as log:
        for _ in range(30):
            log.append(batch(10, "a", 10_000), "r")
    (path,) = (tmp_path / "log").glob("*.log")
    frames = list(_frames(tmp_path, 299))
    data = bytearray(path.read_bytes())
    data[frames[3].payload_byte + 5_000] ^= 1
    path.write_bytes(data)
    with opened(tmp_path) as line:
        line.send(Slice(0, 299, 0))
        assert answer(line).through == 29
        line.send(Slice(40, 299, 0))
        assert answer(line).through == 299
    assert offsets(tmp_path / "out.jsonl") == [*range(30), *range(40, 300)]


def _frames(tmp_path: Path, last: int = 9) -> Iterator[Any]:
    with LogReader(tmp_path / "log") as reader:
        for _, frame, _ in reader.frames(0, last):
            yield frame


@pytest.mark.usefixtures("log", "unseen")
def test_what_the_log_does_not_hold_is_a_failure_from_afar_too(tmp_path: Path) -> None:
    """A read error of the engine becomes an outcome with its reason."""
    with opened(tmp_path) as line:
        line.send(Slice(8, 12, 0))
        outcome = answer(line)
    assert outcome.through == 9
    assert "no valid frame" in outcome.failure.text


@pytest.mark.usefixtures("log", "unseen")
def test_a_parked_entry_is_lent(tmp_path: Path, batch: Callable[..., pa.RecordBatch]) -> None:
    """A retry delivers the parked file, also when the log no longer holds the entry."""
    folder = route_folder(tmp_path / "log", "out")
    folder.mkdir(parents=True)
    with LogReader(tmp_path / "log") as reader:
        entry = next(reader.read(3, 3))
    ParkedStore(folder).park(ParkedEntry(3, entry, ParkReason("no", 1, 0)))
    with opened(tmp_path) as line:
        line.send(Retry(3))
        assert _singly(line) == [3]
    assert offsets(tmp_path / "out.jsonl") == [3]


@pytest.mark.usefixtures("log", "unseen")
def test_the_user_s_modules_come_from_beside_the_pipeline_file(tmp_path: Path) -> None:
    """A user's writer and its imports are found beside the pipeline file on another host."""
    engine = tmp_path / "engine"
    (engine / "kinds").mkdir(parents=True)
    (engine / "kinds" / "__init__.py").write_text("")
    (engine / "kinds" / "lines.py").write_text("from engine_tools import LinesWriter\n")
    (engine / "mine.py").write_text("from kinds.lines import LinesWriter as Mine\n")
    with carrying() as carrier:
        spec = worker_spec(tmp_path, writer="mine:Mine", path=str(tmp_path / "out.jsonl"))
        hidden = replace(spec, folder=str(engine))
        with connect(carrier, hidden) as line:
            assert answer(line) == Opened(None)
            line.send(Slice(0, 1, 0))
            assert answer(line).through == 1


@pytest.mark.usefixtures("log", "unseen")
def test_a_script_of_a_step_needs_no_file(tmp_path: Path) -> None:
    """The content of a step's file is sent with the worker's settings."""
    script = tmp_path / "drop.star"
    script.write_text("def transform(message):\n  return None\n")
    with carrying() as carrier:
        step = StepConfig(name="starlark", settings={"file": "drop.star"})
        spec = replace(worker_spec(tmp_path), steps=(step,))
        real = carrier._request_worker
        carrier._request_worker = lambda spec: (script.unlink(), real(spec))[1]  # type: ignore[method-assign]
        with connect(carrier, spec) as line:
            assert answer(line) == Opened(None)
            line.send(Slice(0, 9, 0))
            assert answer(line).skipped == 10


@pytest.mark.usefixtures("log", "unseen")
def test_what_is_missing_on_another_host_is_said_with_its_name(tmp_path: Path) -> None:
    """A client library missing on another host is reported by name and host."""
    with carrying() as carrier:
        spec = worker_spec(tmp_path, writer="no_such_module:Writer")
        with connect(carrier, spec) as line:
            said = answer(line)
    assert isinstance(said, OpenFailed)
    assert said.failure.text.startswith(f"on {socket.gethostname()}: ")


@pytest.mark.usefixtures("log")
def test_a_worker_that_sees_the_log_reads_and_locks_it_itself(tmp_path: Path) -> None:
    """On the engine's own host nothing is sent, and the worker holds the lock itself."""
    with opened(tmp_path) as line:
        lock = os.open(route_folder(tmp_path / "log", "out") / "0.lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert os.pread(lock, 32, 0) == b""
        line.send(Slice(0, 9, 0))
        assert answer(line).through == 9
        os.close(lock)


@pytest.mark.usefixtures("log", "unseen")
def test_a_worker_waits_for_the_last_one_s_end(tmp_path: Path) -> None:
    """A worker opens nothing until the end of the previous worker is proved."""
    events = Events()
    lock = route_folder(tmp_path / "log", "out") / "0.lock"
    with carrying(events) as carrier:
        spec = worker_spec(tmp_path)
        lock.write_text("2.5\n")
        began = time.monotonic()
        with connect(carrier, spec) as line:
            assert time.monotonic() - began > 1
            assert answer(line) == Opened(None)
            assert lock.read_text() == f"{spec.slice_timeout + 1:.3f}\n"
    assert events.await_count("worker-held-back")["route"] == "out"
    assert lock.read_text() == "", "its end was told, so the next engine need not wait"


@pytest.mark.usefixtures("log", "unseen")
def test_a_wait_for_the_last_worker_can_be_called_off(tmp_path: Path) -> None:
    """A route that is to stop, or has other work, ends its wait for the previous worker."""
    events = Events()
    with carrying(events) as carrier:
        spec = worker_spec(tmp_path)
        (route_folder(tmp_path / "log", "out") / "0.lock").write_text("600\n")
        stopping = threading.Event()
        got: list[object] = []
        asking = threading.Thread(target=lambda: got.append(carrier.connect(spec, stopping.is_set)))
        asking.start()
        events.await_count("worker-held-back")
        stopping.set()
        carrier.wake()
        asking.join(PATIENCE)
        assert got == [None]


@pytest.mark.usefixtures("log", "unseen")
def test_a_worker_without_a_lock_is_not_replaced_while_it_may_deliver(tmp_path: Path) -> None:
    """A local master waits, too, for a worker left behind by an engine on a cluster."""
    events = Events()
    route_folder(tmp_path / "log", "out").mkdir(parents=True)
    (route_folder(tmp_path / "log", "out") / "0.lock").write_text("1.5\n")
    carrier = SparkSupervisor(SparklessHost(), events, lambda _: None)
    carrier.start()
    try:
        with connect(carrier, worker_spec(tmp_path)) as line:
            assert answer(line) == Opened(None)
    finally:
        carrier.stop()
    assert len(events.named("worker-held-back")) == 1


def far(pipeline: Pipeline) -> Pipeline:
    """Return *pipeline* as one of a cluster on this host."""
    spark = SparkConfig(master="spark://127.0.0.1:1", insecure=True)
    return pipeline.model_copy(update={"spark": spark})


LINES = [f"a {number}" for number in range(40)]


@pytest.mark.usefixtures("unseen")
def test_a_route_delivers_all_through_workers_far_away(tmp_path: Path) -> None:
    """A whole engine runs to its end, and the worker has sent its last outcome."""
    run_to_end(far(make_pipeline(tmp_path, LINES, out={"slice_rows": 7})))
    assert offsets(tmp_path / "out.jsonl") == list(range(40))


@pytest.mark.usefixtures("unseen")
def test_a_worker_that_dies_far_away_is_replaced_in_order(tmp_path: Path) -> None:
    """A worker's proven death lets the next one begin at once, and nothing is missing."""
    events = Events()
    began = time.monotonic()
    run_to_end(far(make_pipeline(tmp_path, LINES, out={"writer": {"die_at": 5}})), events)
    found = offsets(tmp_path / "out.jsonl")
    assert found == [0, 1, 2, 3, 4, *range(40)]
    assert len({line["pid"] for line in delivered(tmp_path / "out.jsonl")}) == 2
    assert time.monotonic() - began < 30, "nobody had to wait out slice_timeout"


@pytest.mark.usefixtures("unseen")
def test_an_entry_that_is_given_up_far_away_is_parked_and_retried(tmp_path: Path) -> None:
    """Parking, single deliveries and retries work over TCP as they do locally."""
    out = {"on_error": "park", "writer": {"reject": [3]}}
    run_to_end(far(make_pipeline(tmp_path, LINES, out=out)))
    assert offsets(tmp_path / "out.jsonl") == [n for n in range(40) if n != 3]
    with running(far(make_pipeline(tmp_path, [], out={"on_error": "park"}))) as engine:
        found = engine.route("out")
        assert found is not None
        found[1].request_retries([3])
        until(lambda: 3 in offsets(tmp_path / "out.jsonl"))

"""The engine as a whole, with workers in processes of their own, but without Spark."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import (
    Events,
    LinesReader,
    SparklessHost,
    delivered,
    make_pipeline,
    offsets,
    run_to_end,
    running,
    until,
)
from log_tools import offsets_of

from transporter.adaptor import Batch
from transporter.engine.engine import Engine
from transporter.engine.events import RouteStatus, State
from transporter.errors import Corrupt, EnvironmentFault, HostFailed, LogLocked, SourceUnavailable
from transporter.log.commit_log import CommitLog
from transporter.log.reader import LogReader
from transporter.message import Message
from transporter.offsets.offset_log import OffsetLog, read_state, route_folder
from transporter.pipeline.config import load

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.log.format import FrameHeader
    from transporter.pipeline.config import Pipeline

LINES = ["orders.placed a", "users.new b", "orders.paid c", "orders.placed d", "users.gone e"]
MORE = ["orders.placed f", "orders.placed g"]


def route_of(engine: Engine, name: str) -> RouteStatus:
    """Return the status of the route *name*."""
    return next(route for route in engine.status().routes if route.name == name)


def numbers(count: int) -> list[str]:
    """Return *count* lines of a source."""
    return [f"n {number}" for number in range(count)]


def test_every_route_takes_what_its_filter_accepts(tmp_path: Path) -> None:
    """Each route delivers its own part of the log in order, and skips the rest."""
    pipeline = make_pipeline(
        tmp_path, LINES, orders={"namespace": "^orders"}, users={"namespace": "^users"}, every={}
    )
    engine = run_to_end(pipeline)
    assert [line["data"] for line in delivered(tmp_path / "orders.jsonl")] == ["a", "c", "d"]
    assert offsets(tmp_path / "users.jsonl") == [1, 4]
    assert offsets(tmp_path / "every.jsonl") == [0, 1, 2, 3, 4]
    orders = route_of(engine, "orders")
    assert (orders.delivered, orders.skipped, orders.watermark, orders.lag) == (3, 2, 4, 0)
    assert orders.state is State.ENDED


def test_the_newest_offset_of_each_namespace_is_kept(tmp_path: Path) -> None:
    """A route's durable state names the last offset of each namespace that it has passed."""
    run_to_end(make_pipeline(tmp_path, LINES, every={}))
    assert read_state(tmp_path / "log", "every").namespaces == {
        "orders.placed": 3,
        "users.new": 1,
        "orders.paid": 2,
        "users.gone": 4,
    }


def test_slices_are_as_long_as_the_route_allows(tmp_path: Path) -> None:
    """A small slice_rows delivers less at once and changes nothing else."""
    engine = run_to_end(make_pipeline(tmp_path, numbers(7), out={"slice_rows": 2}))
    assert offsets(tmp_path / "out.jsonl") == list(range(7))
    assert route_of(engine, "out").delivered == 7


def test_a_rejected_entry_stops_its_route_and_no_other(tmp_path: Path) -> None:
    """A route halts before a refused entry, and the other routes deliver all (Invariant 15)."""
    events = Events()
    pipeline = make_pipeline(tmp_path, LINES, bad={"writer": {"reject": [2]}}, good={})
    engine = run_to_end(pipeline, events)
    assert offsets(tmp_path / "bad.jsonl") == [0, 1]
    assert offsets(tmp_path / "good.jsonl") == [0, 1, 2, 3, 4]
    assert engine.halted == ["bad"]
    status = route_of(engine, "bad")
    assert (status.state, status.watermark) == (State.STOPPED, 1)
    assert "offset 2" in status.problem
    stopped = events.named("route-stopped")
    assert [(one["route"], one["offset"]) for one in stopped] == [("bad", 2)]
    # Invariant 5: the refused entry was never passed, on the disk neither.
    assert read_state(tmp_path / "log", "bad").watermark == 1


def test_a_halted_route_goes_on_when_the_operator_has_acked(tmp_path: Path) -> None:
    """An entry acked by an operator is never delivered, and the entries behind it are."""
    pipeline = make_pipeline(tmp_path, LINES, bad={"writer": {"reject": [2]}})
    run_to_end(pipeline)
    with CommitLog.open(tmp_path / "log") as log, OffsetLog(tmp_path / "log", "bad") as known:
        from transporter.offsets.state import Range  # noqa: PLC0415

        known.settle(Range(2, 2, "operator"), log.durable)
    engine = run_to_end(pipeline)
    assert offsets(tmp_path / "bad.jsonl") == [0, 1, 3, 4]
    assert engine.halted == []


@pytest.mark.parametrize("step", ["open", "write"])
def test_an_unavailable_sink_is_tried_until_it_is_back(tmp_path: Path, step: str) -> None:
    """An unavailable sink halts its route visibly until it is back, and nothing arrives twice."""
    events = Events()
    (tmp_path / "out.down").write_text(step)
    with running(make_pipeline(tmp_path, LINES, out={}), events=events) as engine:
        events.await_count("route-retrying")
        assert route_of(engine, "out").state is State.RETRYING
        assert "down for the test" in route_of(engine, "out").problem
        (tmp_path / "out.down").unlink()
        until(lambda: route_of(engine, "out").problem == "")
    assert offsets(tmp_path / "out.jsonl") == [0, 1, 2, 3, 4]


def test_a_fault_at_open_halts_the_route(tmp_path: Path) -> None:
    """A writer that raises a fault at open halts its route with the text of the fault."""
    (tmp_path / "out.down").write_text("fault")
    engine = run_to_end(make_pipeline(tmp_path, LINES, out={}))
    assert engine.halted == ["out"]
    assert route_of(engine, "out").problem == "no rights"


def test_a_dead_worker_is_replaced_and_repeats_its_slice(tmp_path: Path) -> None:
    """Another worker takes over from a dead one, and only its slice repeats (Invariant 6)."""
    events = Events()
    out = {"slice_rows": 5, "writer": {"die_at": 7}}
    run_to_end(make_pipeline(tmp_path, numbers(12), out=out), events)
    assert offsets(tmp_path / "out.jsonl") == [*range(7), *range(5, 12)]
    pids = [line["pid"] for line in delivered(tmp_path / "out.jsonl")]
    assert len(set(pids)) == 2
    assert [each["route"] for each in events.named("worker-lost")] == ["out"]


def test_a_dead_host_is_replaced_while_the_engine_runs(tmp_path: Path) -> None:
    """The engine replaces a dead host, whose workers die too, and loses nothing."""
    events, host = Events(), SparklessHost()
    pipeline = make_pipeline(tmp_path, LINES, end=False, out={})
    with running(pipeline, host, events) as engine:
        until(lambda: route_of(engine, "out").delivered == 5)
        host.processes[0].kill()
        events.await_count("spark-host-lost")
        make_pipeline(tmp_path, MORE, end=False, out={})
        until(lambda: route_of(engine, "out").delivered == 7)
    assert offsets(tmp_path / "out.jsonl") == list(range(7))
    assert len(host.processes) == 2


def test_a_host_that_never_comes_up_fails_the_engine(tmp_path: Path) -> None:
    """An engine whose host ends before it is ready fails."""
    pipeline = make_pipeline(tmp_path, LINES, out={})
    with (
        pytest.raises(HostFailed, match="before Spark was up"),
        running(pipeline, SparklessHost(["dead"])) as engine,
    ):
        until(lambda: engine.wait(0.02))
    # The lines that were read meanwhile are not lost (Invariant 1).
    assert offsets_of(tmp_path / "log") == [0, 1, 2, 3, 4]


def test_a_restart_goes_on_where_the_last_run_ended(tmp_path: Path) -> None:
    """A clean stop and start reads and writes nothing twice (Invariant 18)."""
    run_to_end(make_pipeline(tmp_path, LINES, out={}))
    events = Events()
    run_to_end(make_pipeline(tmp_path, MORE, out={}), events)
    assert offsets(tmp_path / "out.jsonl") == list(range(7))
    assert events.named("reader-ended") == [{"reader": "in", "logged": 2}]


def test_a_stop_drains_what_is_in_the_log(tmp_path: Path) -> None:
    """A stop first delivers everything logged, however far behind a route was."""
    (tmp_path / "out.down").write_text("write")
    events = Events()
    with running(make_pipeline(tmp_path, numbers(40), out={}), events=events):
        events.await_count("route-retrying")
        (tmp_path / "out.down").unlink()
    assert offsets(tmp_path / "out.jsonl") == list(range(40))
    assert events.named("route-abandoned") == []


def test_a_stop_leaves_a_route_that_cannot_drain(tmp_path: Path) -> None:
    """After the patience a stop leaves a route where it is, and the next start delivers."""
    (tmp_path / "out.down").write_text("write")
    events = Events()
    engine = Engine(make_pipeline(tmp_path, LINES, out={}), SparklessHost(), events)
    engine.start()
    events.await_count("route-retrying")
    engine.stop(0.05)
    assert events.named("route-abandoned") == [{"route": "out", "lag": 5}]
    (tmp_path / "out.down").unlink()
    run_to_end(make_pipeline(tmp_path, [], out={}))
    assert offsets(tmp_path / "out.jsonl") == [0, 1, 2, 3, 4]


def test_no_route_sees_what_another_makes_of_an_entry(tmp_path: Path) -> None:
    """Each of eight routes changes entries in its own way and sees no other route's change."""
    document = {f"f{number}": number for number in range(8)}
    steps = {
        f"r{number}": [
            {"omit": {"fields": [f"f{number}"]}},
            {"rename": {"fields": {f"f{(number + 1) % 8}": "next"}}},
            {"remap": {"namespaces": {"n": f"n{number}"}}},
        ]
        for number in range(8)
    }
    lines = [f"n {json.dumps(document | {'entry': entry})}" for entry in range(200)]
    routes = {name: {"steps": each, "slice_rows": 50} for name, each in steps.items()}
    run_to_end(make_pipeline(tmp_path, lines, **routes))
    for number in range(8):
        kept = {name: value for name, value in document.items() if value != number}
        kept["next"] = kept.pop(f"f{(number + 1) % 8}")
        found = [json.loads(line["data"]) for line in delivered(tmp_path / f"r{number}.jsonl")]
        assert found == [kept | {"entry": entry} for entry in range(200)]


def test_a_replay_delivers_its_range_again_and_then_what_is_new(tmp_path: Path) -> None:
    """A replay comes first, in its own generation, and live entries follow it."""
    run_to_end(make_pipeline(tmp_path, LINES, out={"slice_rows": 2}))
    with OffsetLog(tmp_path / "log", "out") as known:
        known.begin_replay(1, 3)
    run_to_end(make_pipeline(tmp_path, MORE, out={"slice_rows": 2}))
    lines = [(line["offset"], line["generation"]) for line in delivered(tmp_path / "out.jsonl")][5:]
    assert lines == [(1, 1), (2, 1), (3, 1), (5, 1), (6, 1)]
    state = read_state(tmp_path / "log", "out")
    assert (state.replay, state.watermark, state.generation) == (None, 6, 1)


def test_a_replay_begun_during_a_slice_is_not_taken_for_done(tmp_path: Path) -> None:
    """A slice that was cut before a replay began settles its own offsets, never the replay."""
    (tmp_path / "out.paused").touch()
    pipeline = make_pipeline(tmp_path, LINES, out={"slice_rows": 4, "writer": {"pause_at": 4}})
    with running(pipeline) as engine:
        until((tmp_path / "out.waiting").exists)
        engine._running.offsets["out"].begin_replay(0, 3)
        (tmp_path / "out.paused").unlink()
    assert offsets(tmp_path / "out.jsonl") == [0, 1, 2, 3, 4, 0, 1, 2, 3]


def test_an_offset_that_the_sink_stores_is_adopted(tmp_path: Path) -> None:
    """Entries that the sink stored are not written again, even if the offset log is behind."""
    out = {"writer": {"stores_offset": True}}
    run_to_end(make_pipeline(tmp_path, LINES, out=out))
    # The worst that a power cut leaves of an offset log: nothing.
    shutil.rmtree(route_folder(tmp_path / "log", "out"))
    run_to_end(make_pipeline(tmp_path, MORE, out=out))
    assert offsets(tmp_path / "out.jsonl") == list(range(7))


@pytest.mark.parametrize(
    "other", [{"log_id": "another"}, {"route": "other"}, {"generation": 7}, {"shards": 2}]
)
def test_an_offset_stored_for_something_else_is_not_adopted(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    """Only an offset of this log, route, generation and shard count is adopted."""
    out = {"writer": {"stores_offset": True}}
    run_to_end(make_pipeline(tmp_path, LINES, out=out))
    shutil.rmtree(route_folder(tmp_path / "log", "out"))
    stored = tmp_path / "out.stored"
    stored.write_text(json.dumps(json.loads(stored.read_text()) | other))
    run_to_end(make_pipeline(tmp_path, [], out=out))
    assert offsets(tmp_path / "out.jsonl") == [0, 1, 2, 3, 4] * 2


def test_the_offset_of_a_retried_entry_is_not_adopted(tmp_path: Path) -> None:
    """The offset of an entry retried during a replay does not move the replay."""
    out = {"on_error": "park", "retry": {"attempts": 1, "backoff": "1ms..2ms"}}
    sink = {"stores_offset": True}
    run_to_end(make_pipeline(tmp_path, LINES, out=out | {"writer": {**sink, "reject": [3]}}))
    with OffsetLog(tmp_path / "log", "out") as known:
        known.request_retries([3])
        known.begin_replay(0, 4)
    run_to_end(make_pipeline(tmp_path, [], out=out | {"writer": {**sink, "die_at": 0}}))
    assert (tmp_path / "out.died").exists()
    assert offsets(tmp_path / "out.jsonl") == [0, 1, 2, 4, 3, 0, 1, 2, 3, 4]


def test_a_sink_ahead_of_the_log_halts_the_route(tmp_path: Path) -> None:
    """A stored offset beyond the log halts the route, because the log was replaced."""
    out = {"writer": {"stores_offset": True}}
    run_to_end(make_pipeline(tmp_path, LINES, out=out))
    stored = tmp_path / "out.stored"
    stored.write_text(json.dumps(json.loads(stored.read_text()) | {"offset": 99}))
    engine = run_to_end(make_pipeline(tmp_path, MORE, out=out))
    assert engine.halted == ["out"]
    assert "offset 99" in route_of(engine, "out").problem
    assert offsets(tmp_path / "out.jsonl") == [0, 1, 2, 3, 4]


def test_what_a_writer_prints_comes_out_of_the_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker's standard output appears on the engine's."""
    run_to_end(make_pipeline(tmp_path, LINES, out={"writer": {"show": True}}))
    assert capsys.readouterr().out == "".join(f"delivered {n}\n" for n in range(5))


def test_damage_in_the_log_halts_only_the_route_that_needs_it(tmp_path: Path) -> None:
    """Only a route that has yet to read damaged entries halts at them (Invariant 3)."""
    run_to_end(make_pipeline(tmp_path, LINES, old={}))
    frame = first_frame(tmp_path / "log")
    damage(tmp_path / "log", frame.payload_byte + 3)
    engine = run_to_end(make_pipeline(tmp_path, MORE, old={}, new={}))
    assert engine.halted == ["new"]
    assert "checksum" in route_of(engine, "new").problem
    assert offsets(tmp_path / "old.jsonl") == list(range(7))


def test_a_damaged_frame_header_halts_only_the_route_that_needs_it(tmp_path: Path) -> None:
    """A frame that cannot be located halts its route, not the engine (Invariant 15)."""
    run_to_end(many_segments(tmp_path, LINES, old={}))
    run_to_end(many_segments(tmp_path, MORE, old={}))
    damage(tmp_path / "log", first_frame(tmp_path / "log").byte + 20)
    engine = run_to_end(many_segments(tmp_path, ["n last"], old={}, new={}))
    assert engine.halted == ["new"]
    assert offsets(tmp_path / "old.jsonl") == list(range(8))


def many_segments(folder: Path, lines: list[str], **routes: Any) -> Pipeline:
    """Return a pipeline that begins a segment with every append."""
    pipeline = make_pipeline(folder, lines, **routes)
    log = pipeline.log.model_copy(update={"segment_bytes": 1})
    return pipeline.model_copy(update={"log": log})


def test_entries_before_damage_are_still_delivered(tmp_path: Path) -> None:
    """A route halts at the damaged entries, not at the start of its slice (Invariant 3)."""
    run_to_end(make_pipeline(tmp_path, LINES, old={}))
    run_to_end(make_pipeline(tmp_path, MORE, old={}))
    with LogReader(tmp_path / "log") as reader:
        second = list(reader.frames(0, 6))[1].frame
    damage(tmp_path / "log", second.payload_byte + 3)
    engine = run_to_end(make_pipeline(tmp_path, [], new={"start": "earliest"}))
    assert offsets(tmp_path / "new.jsonl") == [0, 1, 2, 3, 4]
    assert (route_of(engine, "new").watermark, engine.halted) == (4, ["new"])
    assert "offset 5" in route_of(engine, "new").problem


def first_frame(log: Path) -> FrameHeader:
    """Return the first frame of the *log*."""
    with LogReader(log) as reader:
        return next(reader.frames(0, 0)).frame


def damage(log: Path, byte: int) -> None:
    """Change one bit of the first segment of the *log*."""
    path = log / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[byte] ^= 0x40
    path.write_bytes(data)


@pytest.mark.parametrize("fail_fast", [True, False])
def test_a_source_that_cannot_be_opened_fails_an_engine_that_is_to_fail_fast(
    tmp_path: Path, fail_fast: bool
) -> None:
    """Without ``fail_fast`` the other readers are read and delivered during the outage."""

    class Closed:
        def __init__(self, config: object) -> None: ...

        def open(self, resume: object) -> None:
            raise SourceUnavailable("no such host")

        def close(self) -> None: ...

    pipeline = make_pipeline(tmp_path, LINES, end=False, out={})
    away = pipeline.readers[0].model_copy(update={"cls": Closed, "name": "away"})
    pipeline = pipeline.model_copy(update={"readers": (away, *pipeline.readers)})
    if fail_fast:
        with (
            pytest.raises(SourceUnavailable, match="no such host"),
            running(pipeline, fail_fast=True) as engine,
        ):
            until(lambda: engine.wait(0.02))
        assert engine.status().readers[0].state is State.STOPPED
        return
    with running(pipeline) as engine:
        until(lambda: route_of(engine, "out").delivered == 5)
        status = engine.status().readers[0]
        assert (status.state, status.problem) == (State.RETRYING, "no such host")


def test_one_engine_per_log(tmp_path: Path) -> None:
    """A second engine on the same log is refused, and the first goes on (Invariant 12)."""
    pipeline = make_pipeline(tmp_path, LINES, end=False, out={})
    with running(pipeline) as engine:
        with pytest.raises(LogLocked):
            Engine(pipeline, SparklessHost(), Events())
        until(lambda: route_of(engine, "out").delivered == 5)


def test_an_engine_that_was_never_started_can_be_stopped(tmp_path: Path) -> None:
    """Stopping an engine releases the log, whether or not it was started."""
    pipeline = make_pipeline(tmp_path, LINES, out={})
    Engine(pipeline, SparklessHost(), Events()).stop()
    run_to_end(pipeline)
    assert offsets(tmp_path / "out.jsonl") == [0, 1, 2, 3, 4]


def test_an_engine_that_cannot_be_made_gives_the_log_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start whose offset log cannot be opened ends without a lock left behind."""

    def refuse(directory: Path, route: str, **_: object) -> OffsetLog:
        raise EnvironmentFault(f"{directory}/{route}: no space")

    pipeline = make_pipeline(tmp_path, LINES, out={})
    monkeypatch.setattr("transporter.engine.reload.OffsetLog", refuse)
    with pytest.raises(EnvironmentFault, match="no space"):
        Engine(pipeline, SparklessHost(), Events())
    CommitLog.open(tmp_path / "log").close()


def test_a_request_to_stop_ends_the_wait(tmp_path: Path) -> None:
    """``wait`` returns as soon as any thread requests a stop."""
    with running(make_pipeline(tmp_path, LINES, end=False, out={})) as engine:
        assert not engine.wait(0.01)
        threading.Timer(0.05, engine.request_stop).start()
        assert engine.wait(30)


def test_a_signal_may_request_a_stop_at_any_moment(tmp_path: Path) -> None:
    """A handler that interrupts the wait itself finds no lock that its own thread holds."""
    engine = Engine(make_pipeline(tmp_path, LINES, out={}), SparklessHost(), Events())
    before = signal.signal(signal.SIGVTALRM, lambda *_: engine.request_stop())
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.0001, 0.0001)
    try:
        for _ in range(20_000):
            engine.wait(0)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        engine.stop()


def test_every_route_is_declared_before_the_first_append(tmp_path: Path) -> None:
    """An engine's routes have their folders before anything runs (Invariant 11)."""
    engine = Engine(make_pipeline(tmp_path, LINES, a={}, b={}), SparklessHost(), Events())
    try:
        assert sorted(path.name for path in (tmp_path / "log" / "offsets").iterdir()) == ["a", "b"]
        assert engine.status().last == -1
    finally:
        engine.stop()


def test_corruption_is_found_before_anything_runs(tmp_path: Path) -> None:
    """A log whose durable end is damaged refuses to open (Invariant 3)."""
    pipeline = make_pipeline(tmp_path, LINES, out={})
    run_to_end(pipeline)
    damage(tmp_path / "log", first_frame(tmp_path / "log").byte + 20)
    with pytest.raises(Corrupt, match="offset 0"):
        Engine(pipeline, SparklessHost(), Events())


def test_a_stop_with_nothing_to_deliver_waits_for_no_spark(tmp_path: Path) -> None:
    """A drain before Spark is up ends at once when the log holds nothing for the routes."""
    pipeline = make_pipeline(tmp_path, [], out={})
    engine = Engine(pipeline, SparklessHost(["slow"]), Events())
    engine.start()
    until(lambda: engine.wait(0.02))
    started = time.monotonic()
    engine.stop(timeout=20)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    "part",
    [
        *("engine.SparkSupervisor", "engine.DeliveryProgress", "engine.Housekeeper"),
        *("reload.refuse_changed_routes", "reload.Feed", "reload.Route"),
    ],
)
def test_an_engine_that_cannot_be_made_leaves_nothing_open(tmp_path: Path, part: str) -> None:
    """A failed start leaves the directory's lock free, also for the same process."""

    def fails(*_: object, **_more: object) -> None:
        raise EnvironmentFault("not today")

    pipeline = make_pipeline(tmp_path, ["a 1"], out={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"transporter.engine.{part}", fails)
        with pytest.raises(EnvironmentFault, match="not today"):
            Engine(pipeline, SparklessHost(), Events())
    assert not [each for each in threading.enumerate() if each.name == "listener"]
    run_to_end(pipeline)
    assert offsets(tmp_path / "out.jsonl") == [0]


class LateReader(LinesReader):
    """A reader whose second poll returns only when the log is closed."""

    closed = threading.Event()

    def poll(self, timeout: float) -> Batch:
        """Return lines, and block when there are none."""
        batch = super().poll(timeout)
        if batch.messages:
            return batch
        assert self.closed.wait(60)
        return Batch([Message("n", b"late")], "late")


def test_a_source_that_answers_after_the_stop_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that arrive after the stop are not logged, and the stop reports the reader."""
    monkeypatch.setattr("transporter.engine.reading.feed.GRACE", 0.1)
    monkeypatch.setattr(LateReader, "closed", threading.Event())
    pipeline = make_pipeline(tmp_path, numbers(3), end=False, out={})
    document = json.loads(pipeline.file.read_text())
    document["readers"][0]["adaptor"] = f"{__name__}:LateReader"
    pipeline.file.write_text(json.dumps(document))
    close = CommitLog.close

    def closing(log: CommitLog) -> None:
        close(log)
        LateReader.closed.set()
        for thread in threading.enumerate():
            if thread.name == "reader-in":
                thread.join(60)

    monkeypatch.setattr(CommitLog, "close", closing)
    events = Events()
    with running(load(pipeline.file, {}), events=events):
        until(lambda: offsets(tmp_path / "out.jsonl") == [0, 1, 2])
    assert "did not end" in events.named("reader-stopped")[0]["problem"]
    assert offsets_of(tmp_path / "log") == [0, 1, 2]


def test_an_engine_says_why_it_stops(tmp_path: Path) -> None:
    """An engine reports why it stops: its sources ended, a request, or a failure."""
    events = Events()
    run_to_end(make_pipeline(tmp_path, LINES, out={}), events=events)
    assert "sources have ended" in events.await_count("engine-stopping")["reason"]
    with running(make_pipeline(tmp_path, [], end=False, out={}), events=events) as engine:
        engine.request_stop("SIGTERM")
    assert events.await_count("engine-stopping", 2)["reason"] == "SIGTERM"
    failing = make_pipeline(tmp_path, [], end=False, out={})
    with (
        pytest.raises(HostFailed),
        running(failing, SparklessHost(["dead"]), events) as engine,
    ):
        until(lambda: engine.wait(0.02))
    assert "the engine has failed: " in events.await_count("engine-stopping", 3)["reason"]

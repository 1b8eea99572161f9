"""Failures, from the outcome to the operator's view, with worker processes and without Spark."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import Events, SparklessHost, make_pipeline, run_to_end, running, until
from failing_sink import written

from transporter.audit import Operator
from transporter.cli import app
from transporter.control.offline_status import read_status
from transporter.control.requests import RetryParked, SkipParked
from transporter.control.running_engine import RunningEngine
from transporter.engine.engine import Engine
from transporter.log.commit_log import CommitLog
from transporter.offsets.halt_reason import HALTED
from transporter.offsets.offset_log import OffsetLog, read_state, route_folder
from transporter.offsets.parked import ParkedStore, parked_path, skip_entries
from transporter.offsets.state import Range
from transporter.pipeline.config import load

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.pipeline.config import Pipeline

QUICK = {"attempts": 2, "backoff": "1ms..5ms"}


def make(folder: Path, rows: list[dict[str, Any]], how: str = "named", **route: Any) -> Pipeline:
    """Return a pipeline of a file of *rows*, keyed by ``k``, into a sink that fails by *how*."""
    with (folder / "in.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    writer = {"adaptor": "failing_sink:FailingWriter", "path": "out.jsonl", "how": how}
    document = {
        "log": {"dir": "log"},
        "readers": [{"name": "in", "adaptor": "file", "path": "in.jsonl", "key": "k"}],
        "routes": [{"name": "out", "writer": writer, "retry": QUICK, **route}],
    }
    path = folder / "pipeline.yaml"
    path.write_text(json.dumps(document))
    return load(path, {})


def rows(count: int, *bad: int, keys: int = 1_000_000) -> list[dict[str, Any]]:
    """Return *count* rows, of which the named ones are bad."""
    return [{"n": n, "k": f"k{n % keys}", "bad": n in bad} for n in range(count)]


def numbers(folder: Path) -> list[int]:
    """Return the numbers delivered, in order."""
    return [line["data"]["n"] for line in written(folder / "out.jsonl")]


def parked(folder: Path) -> ParkedStore:
    """Return the entries that the route has parked."""
    return ParkedStore(route_folder(folder / "log", "out"))


def operator_acks(folder: Path, first: int, last: int) -> None:
    """Ack as ``transporter ack`` does."""
    with CommitLog.open(folder / "log") as log, OffsetLog(folder / "log", "out") as offsets:
        offsets.settle(Range(first, last, "operator"), log.durable)


def retry_parked(folder: Path) -> None:
    """Request a retry of everything, as ``transporter parked retry`` does."""
    with OffsetLog(folder / "log", "out") as offsets:
        offsets.request_retries(parked(folder).offsets())


def test_the_table_of_the_ancestors_design(tmp_path: Path) -> None:
    """Of 9..15 failing unnamed, 9..13 are delivered singly, 14 halts, and an ack lets 15 follow."""
    run_to_end(make(tmp_path, rows(9)))
    assert read_state(tmp_path / "log", "out").watermark == 8
    more = [{"n": n, "k": "k", "bad": n == 14} for n in range(9, 16)]
    events = Events()
    engine = run_to_end(make(tmp_path, more, "unnamed"), events)
    assert numbers(tmp_path) == list(range(14))
    assert read_state(tmp_path / "log", "out").watermark == 13
    assert engine.halted == ["out"]
    assert events.named("route-stopped")[0]["offset"] == 14
    (divided,) = events.named("slice-divided")
    assert (divided["route"], divided["first"], divided["last"]) == ("out", 9, 15)
    assert divided["problem"] == "the bulk was refused as a whole"
    (route,) = read_status(tmp_path / "log")["routes"]
    assert (route["state"], route["problem"][:11]) == ("stopped", "offset 14: ")
    operator_acks(tmp_path, 14, 14)
    (route,) = read_status(tmp_path / "log")["routes"]
    assert (route["state"], route["problem"]) == ("not running", "")
    run_to_end(make(tmp_path, [], "unnamed"))
    assert numbers(tmp_path) == [*range(14), 15]
    assert not (tmp_path / "log" / "offsets" / "out" / HALTED).exists()


def test_what_fails_only_together_is_told(tmp_path: Path) -> None:
    """An error that no entry repeats alone loses nothing, and its text is in an event."""
    events = Events()
    run_to_end(make(tmp_path, rows(10, 4), "together"), events)
    assert numbers(tmp_path) == list(range(10))
    (divided,) = events.named("slice-divided")
    assert divided == {"route": "out", "first": 0, "last": 9, "problem": "ValueError: odd"}


def test_a_named_entry_divides_nothing(tmp_path: Path) -> None:
    """A failure whose entry the sink names reports no divided slice."""
    events = Events()
    run_to_end(make(tmp_path, rows(10, 4), on_error="skip"), events)
    assert events.named("entry-skipped")
    assert events.named("slice-divided") == []


@pytest.mark.parametrize("how", ["named", "unnamed"])
def test_skip_passes_a_failing_entry_and_says_so(tmp_path: Path, how: str) -> None:
    """With on_error: skip the entry is skipped after its attempts, and an event names it."""
    events = Events()
    run_to_end(make(tmp_path, rows(10, 4), how, on_error="skip"), events)
    assert numbers(tmp_path) == [n for n in range(10) if n != 4]
    skipped = events.named("entry-skipped")
    assert [(each["offset"], each["attempts"]) for each in skipped] == [(4, 2)]


@pytest.mark.parametrize("how", ["named", "unnamed"])
@pytest.mark.parametrize("bad", [(500,), tuple(range(0, 1000, 100)), tuple(range(60))])
def test_parking_loses_nothing_and_holds_no_other_key_back(
    tmp_path: Path, how: str, bad: tuple[int, ...]
) -> None:
    """Bad entries and later ones of their keys are parked with their errors, and no others."""
    count = 1000 if len(bad) < 60 else 60
    run_to_end(make(tmp_path, rows(count, *bad, keys=20), how, on_error="park"))
    keys = {n % 20 for n in bad}
    first = {key: min(n for n in bad if n % 20 == key) for key in keys}
    held = {n for n in range(count) if n % 20 in keys and n >= first[n % 20]}
    assert numbers(tmp_path) == [n for n in range(count) if n not in held]
    store = parked(tmp_path)
    assert set(store.offsets()) == held
    for offset in store.offsets():
        reason = store.load(offset).reason
        assert (reason.behind is None) == (offset == first[offset % 20])
        assert reason.error
    state = read_state(tmp_path / "log", "out")
    assert (state.watermark, state.above) == (count - 1, ())


def test_a_retry_after_a_fix_delivers_each_key_in_order(tmp_path: Path) -> None:
    """A retry delivers the parked entries, each key in its order, and later entries behind them."""
    pipeline = make(tmp_path, rows(60, 3, 7, 23, keys=5), on_error="park")
    run_to_end(pipeline)
    before = numbers(tmp_path)
    (tmp_path / "out.mended").touch()
    retry_parked(tmp_path)
    run_to_end(pipeline)
    assert sorted(numbers(tmp_path)) == list(range(60))
    assert numbers(tmp_path)[: len(before)] == before
    order: dict[int, list[int]] = defaultdict(list)
    for n in numbers(tmp_path):
        order[n % 5].append(n)
    assert all(sequence == sorted(sequence) for sequence in order.values())
    assert parked(tmp_path).offsets() == []
    assert read_state(tmp_path / "log", "out").retries == ()


def test_a_retry_without_a_fix_parks_again_and_keeps_the_order(tmp_path: Path) -> None:
    """An entry that fails again stays parked with one more attempt, like its key's later ones."""
    pipeline = make(tmp_path, rows(20, 3, keys=5), on_error="park")
    run_to_end(pipeline)
    held = parked(tmp_path).offsets()
    retry_parked(tmp_path)
    events = Events()
    run_to_end(pipeline, events)
    assert parked(tmp_path).offsets() == held == [3, 8, 13, 18]
    assert parked(tmp_path).load(3).reason.attempts == 3
    assert [each["offset"] for each in events.named("parked-failed")] == [3]


def replay(folder: Path, first: int, last: int) -> None:
    """Begin a replay, as ``transporter replay`` does."""
    with OffsetLog(folder / "log", "out") as offsets:
        offsets.begin_replay(first, last)


@pytest.mark.parametrize("park_order", ["key", "free"])
def test_a_replay_leaves_what_is_parked_as_it_is(tmp_path: Path, park_order: str) -> None:
    """A replay keeps parked entries as they are, and they do not block earlier ones of the key."""
    pipeline = make(tmp_path, rows(20, 8, keys=5), on_error="park", park_order=park_order)
    run_to_end(pipeline)
    held = [8, 13, 18] if park_order == "key" else [8]
    before = {offset: parked(tmp_path).load(offset) for offset in held}
    delivered_before = numbers(tmp_path)
    replay(tmp_path, 0, 19)
    events = Events()
    run_to_end(pipeline, events)
    store = parked(tmp_path)
    assert {offset: store.load(offset) for offset in store.offsets()} == before
    assert numbers(tmp_path)[len(delivered_before) :] == delivered_before
    assert events.named("entry-parked") == []
    assert read_state(tmp_path / "log", "out").replay is None


def test_a_retry_never_overtakes_an_earlier_parked_entry_of_its_key(tmp_path: Path) -> None:
    """A retry of a later entry first retries the key's earlier parked ones (Invariant 9)."""
    pipeline = make(tmp_path, rows(20, 3, 4, keys=5), on_error="park")
    run_to_end(pipeline)
    before = numbers(tmp_path)
    (tmp_path / "out.mended").touch()
    with OffsetLog(tmp_path / "log", "out") as offsets:
        offsets.request_retries([13], only=True)
    run_to_end(pipeline)
    assert numbers(tmp_path)[len(before) :] == [3, 8, 13]
    assert parked(tmp_path).offsets() == [4, 9, 14, 18, 19]


def test_a_retry_waits_behind_an_earlier_one_of_its_key_that_fails_again(tmp_path: Path) -> None:
    """A later entry stays parked if the retry of an earlier one is refused (Invariant 9)."""
    pipeline = make(tmp_path, rows(20, 3, keys=5), on_error="park")
    run_to_end(pipeline)
    before = numbers(tmp_path)
    with OffsetLog(tmp_path / "log", "out") as offsets:
        offsets.request_retries([13])
    run_to_end(pipeline)
    assert numbers(tmp_path) == before
    assert parked(tmp_path).offsets() == [3, 8, 13, 18]
    assert read_state(tmp_path / "log", "out").retries == ()


def test_what_is_parked_behind_a_delivered_entry_follows_it(tmp_path: Path) -> None:
    """A retry of a key's head delivers all entries behind it in order, later arrivals too."""
    pipeline = make(tmp_path, rows(20, 3, 4, keys=5), on_error="park")
    run_to_end(pipeline)
    before = numbers(tmp_path)
    (tmp_path / "out.mended").touch()
    with OffsetLog(tmp_path / "log", "out") as offsets:
        offsets.request_retries([3])
    run_to_end(make(tmp_path, [{"n": 23, "k": "k3"}, {"n": 24, "k": "k4"}], on_error="park"))
    assert numbers(tmp_path)[len(before) :] == [3, 8, 13, 18, 23]
    assert parked(tmp_path).offsets() == [4, 9, 14, 19, 21]
    assert read_state(tmp_path / "log", "out").retries == ()


@pytest.mark.parametrize("only", [True, False])
@pytest.mark.parametrize("kind", [RetryParked, SkipParked])
def test_a_running_route_lets_those_behind_follow_unless_only_one_is_meant(
    tmp_path: Path, kind: type[RetryParked | SkipParked], *, only: bool
) -> None:
    """An operator names a key's head, and the answer names the entries behind it."""
    pipeline = make(tmp_path, rows(20, 3, keys=5), on_error="park")
    with running(pipeline) as engine:
        until(lambda: read_state(tmp_path / "log", "out").watermark == 19)
        before = numbers(tmp_path)
        (tmp_path / "out.mended").touch()
        operate = partial(RunningEngine(engine, {}).perform, operator=Operator("me", 0, 0))
        done = operate(kind("out", 3, 3, only=only))
        named = (done["followers"], done["left"])
        assert named == (([], [8, 13, 18]) if only else ([8, 13, 18], []))
        until(lambda: engine.status().routes[0].parked == (3 if only else 0))
        until(lambda: not read_state(tmp_path / "log", "out").retries)
        head = [3] if kind is RetryParked else []
        assert numbers(tmp_path)[len(before) :] == head + ([] if only else [8, 13, 18])


def test_the_command_counts_those_that_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome of a retry has the entries behind it: delivered, or parked as before."""
    pipeline = make(tmp_path, rows(20, 3, 13, keys=5), on_error="park")
    with running(pipeline) as engine:
        until(lambda: read_state(tmp_path / "log", "out").watermark == 19)
        operate = partial(RunningEngine(engine, {}).perform, operator=Operator("me", 0, 0))
        monkeypatch.setattr(
            "transporter.cli.parked.perform_request",
            lambda _, request: {"live": True} | operate(request),
        )
        words = ["parked", "retry", str(tmp_path / "log"), "out", "3"]
        assert app.execute(words) == 0
        said = capsys.readouterr().out.splitlines()[1]
        assert said.startswith("outcome: 0 delivered, 1 parked again (offset 3: ")
        assert said.endswith(", 3 of those behind stay parked")
        (tmp_path / "out.mended").touch()
        assert app.execute(words) == 0
    assert capsys.readouterr().out.splitlines()[1] == "outcome: 4 delivered, 0 parked again"


def test_a_follower_that_fails_ends_the_run(tmp_path: Path) -> None:
    """A follower that fails becomes its key's head, and the entries behind it stay."""
    pipeline = make(tmp_path, rows(20, 3, 13, keys=5), on_error="park")
    run_to_end(pipeline)
    before = numbers(tmp_path)
    with OffsetLog(tmp_path / "log", "out") as offsets:
        skip_entries(parked(tmp_path), offsets, [3])
    run_to_end(pipeline)
    assert numbers(tmp_path)[len(before) :] == [8]
    assert parked(tmp_path).offsets() == [13, 18]
    assert read_state(tmp_path / "log", "out").retries == ()


def test_park_order_free_lets_later_entries_of_the_key_pass(tmp_path: Path) -> None:
    """With park_order: free only the failing entry itself is parked."""
    run_to_end(make(tmp_path, rows(20, 3, keys=5), on_error="park", park_order="free"))
    assert numbers(tmp_path) == [n for n in range(20) if n != 3]
    assert parked(tmp_path).offsets() == [3]


def test_park_limit_stops_the_route(tmp_path: Path) -> None:
    """A route at its park_limit halts before the next entry that must be parked."""
    limit = {"entries": 2}
    pipeline = make(tmp_path, rows(20, 3, keys=5), on_error="park", park_limit=limit)
    engine = run_to_end(pipeline)
    assert engine.halted == ["out"]
    assert parked(tmp_path).offsets() == [3, 8]
    assert numbers(tmp_path) == [n for n in range(13) if n not in (3, 8)]
    assert "park_limit" in engine.status().routes[0].problem


@pytest.mark.parametrize("done", ["skip", "mend"])
def test_a_damaged_parked_file_halts_its_route_only(tmp_path: Path, done: str) -> None:
    """A damaged parked file halts its route with a message until an operator has acted."""
    pipeline = two_routes(tmp_path, 0)
    document = json.loads(pipeline.file.read_text())
    document["routes"][0]["on_error"] = "park"
    document["routes"][1]["writer"]["how"] = "never"
    pipeline.file.write_text(json.dumps(document))
    pipeline = load(pipeline.file, {})
    with (tmp_path / "in.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows(10, 4))
    with running(pipeline) as engine:
        until(lambda: read_state(tmp_path / "log", "out").watermark == 9)
        engine.stop(0)
    path = parked_path(route_folder(tmp_path / "log", "out"), 4)
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"!!" + whole[102:])
    with (tmp_path / "in.jsonl").open("a") as file:
        file.writelines(json.dumps({"n": n, "k": "k4"}) + "\n" for n in (10, 11))
    events = Events()
    with running(pipeline, events=events) as engine:
        problem = events.await_count("route-stopped")["problem"]
        assert str(path) in problem
        assert "transporter parked skip" in problem
        until(lambda: read_state(tmp_path / "log", "other").watermark == 11)
        assert engine.halted == ["out"]
        if done == "skip":
            RunningEngine(engine, {}).perform(SkipParked("out", 4, 4), Operator("me", 0, 0))
            until(lambda: numbers(tmp_path)[-2:] == [10, 11])
        engine.stop(0)
    if done == "mend":
        path.write_bytes(whole)
        run_to_end(pipeline)
        assert parked(tmp_path).offsets() == [4, 10, 11]


def test_what_its_reader_could_not_read_is_parked_whatever_on_error_says(tmp_path: Path) -> None:
    """A line of invalid JSON is parked at once whatever on_error is, and the route goes on."""
    pipeline = make(tmp_path, rows(3))
    with (tmp_path / "in.jsonl").open("a") as file:
        file.write('{"n": broken\n{"n": 3, "k": "k3"}\n')
    run_to_end(pipeline)
    assert numbers(tmp_path) == [0, 1, 2, 3]
    assert parked(tmp_path).offsets() == [3]


@pytest.mark.parametrize("on_error", ["park", "stop"])
def test_an_entry_named_wrongly_is_found_as_if_unnamed(tmp_path: Path, on_error: str) -> None:
    """A writer that names a foreign offset does not make its route loop."""
    events = Events()
    engine = run_to_end(make(tmp_path, rows(10, 4), "elsewhere", on_error=on_error), events)
    expected = [n for n in range(10) if n != 4] if on_error == "park" else [0, 1, 2, 3]
    assert numbers(tmp_path) == expected
    (divided,) = events.named("slice-divided")
    assert "names offset 1000004, which is not in its batch" in divided["problem"]
    if on_error == "park":
        assert parked(tmp_path).load(4).reason.attempts == 2
    else:
        assert "offset 4" in engine.status().routes[0].problem


@pytest.mark.parametrize("how", ["exit", "hang", "allocate"])
def test_a_writer_that_takes_its_worker_down_is_found_and_parked(tmp_path: Path, how: str) -> None:
    """An entry that ends or hangs its worker is named and parked, and the rest is delivered."""
    events = Events()
    limits = {"slice_timeout": "500ms", "worker_memory": "600MiB"}
    pipeline = make(tmp_path, rows(10, 4), how, on_error="park", **limits)
    run_to_end(pipeline, events)
    assert parked(tmp_path).offsets() == [4]
    assert "died" in parked(tmp_path).load(4).reason.error
    assert sorted(set(numbers(tmp_path))) == [n for n in range(10) if n != 4]
    assert len(events.named("worker-lost")) == 4  # two in bulk, two alone
    (retrying,) = events.named("route-retrying")
    assert "while it delivered this entry" in retrying["problem"]


STEP = """
import json

from failing_sink import fail


def turn(message):
    if json.loads(message.data).get("bad"):
        fail({how!r})
        raise ValueError("no way to turn this")
    return message
"""


@pytest.mark.parametrize("how", ["raise", "exit", "hang", "allocate"])
@pytest.mark.parametrize("on_error", ["park", "stop"])
def test_a_python_step_that_goes_wrong_is_found(tmp_path: Path, how: str, on_error: str) -> None:
    """An entry that makes a step exit, loop or exhaust memory is named, and the rest delivered."""
    module = f"steps_{how}_{on_error}"
    (tmp_path / f"{module}.py").write_text(STEP.format(how=how))
    limits = {"slice_timeout": "500ms", "worker_memory": "600MiB", "on_error": on_error}
    steps = [{"python": {"function": f"{module}:turn"}}]
    engine = run_to_end(make(tmp_path, rows(10, 4), "never", steps=steps, **limits))
    if on_error == "park":
        assert parked(tmp_path).offsets() == [4]
        error = parked(tmp_path).load(4).reason.error
        assert ("no way to turn this" if how == "raise" else "died") in error
        assert sorted(set(numbers(tmp_path))) == [n for n in range(10) if n != 4]
    else:
        assert engine.halted == ["out"]
        assert "offset 4" in engine.status().routes[0].problem
        assert sorted(set(numbers(tmp_path))) == list(range(4))


def test_one_slice_never_holds_two_entries_of_a_key(tmp_path: Path) -> None:
    """max_in_flight_per_key: 1 ends a slice before a key's second entry, and loses none."""
    engine = run_to_end(make(tmp_path, rows(12, keys=4), max_in_flight_per_key=1))
    assert numbers(tmp_path) == list(range(12))
    assert slices_of(engine) == 3


def slices_of(engine: Engine) -> int:
    """Return the number of settled events in the offset log: one for each slice."""
    from transporter.offsets import record  # noqa: PLC0415

    folder = route_folder(engine._log.directory, "out")
    data = (folder / "0.offsets").read_bytes()
    return sum(each.event["type"] == "settled" for each in record.decode_records(data, "x"))


def two_routes(folder: Path, count: int, **second: Any) -> Pipeline:
    """Return a pipeline with the routes ``out`` and ``other``, the latter with these keys."""
    pipeline = make(folder, rows(count))
    document = json.loads(pipeline.file.read_text())
    writer = {"adaptor": "failing_sink:FailingWriter", "path": "other.jsonl"}
    document["routes"].append({"name": "other", "writer": writer, **second})
    pipeline.file.write_text(json.dumps(document))
    return load(pipeline.file, {})


def test_after_never_passes_the_route_that_it_follows(tmp_path: Path) -> None:
    """A route with `after` stays behind the other's watermark, and catches up with it."""
    pipeline = two_routes(tmp_path, 10, after="out")
    with (tmp_path / "in.jsonl").open("a") as file:
        file.write('{"n": 10, "k": "x", "bad": true}\n{"n": 11, "k": "y"}\n')
    engine = run_to_end_of(pipeline, "other", 9)
    assert engine.halted == ["out"]
    assert [line["data"]["n"] for line in written(tmp_path / "other.jsonl")] == list(range(10))


def run_to_end_of(pipeline: Pipeline, route: str, watermark: int) -> Engine:
    """Run until *route* has reached *watermark*, and a little longer."""
    with running(pipeline, SparklessHost(), Events()) as engine:
        until(lambda: read_state(pipeline.log.dir, route).watermark >= watermark)
        until(lambda: engine.halted)
        engine.stop(timeout=0.3)
    return engine


@pytest.mark.parametrize(
    ("start", "expected"), [("latest", [10, 11]), (4, [4, 5, 6, 7, 8, 9, 10, 11])]
)
def test_a_new_route_begins_where_start_says(
    tmp_path: Path, start: object, expected: list[int]
) -> None:
    """`start` counts for a route's first run only, and an event reports where it began."""
    run_to_end(make(tmp_path, rows(10)))
    events = Events()
    with (tmp_path / "in.jsonl").open("a") as file:
        file.write('{"n": 10, "k": "x"}\n{"n": 11, "k": "y"}\n')
    run_to_end(two_routes(tmp_path, 0, start=start), events)
    assert [line["data"]["n"] for line in written(tmp_path / "other.jsonl")] == expected
    assert {each["route"]: each["offset"] for each in events.named("route-begins")} == {
        "other": expected[0]
    }
    run_to_end(two_routes(tmp_path, 0, start="earliest"))
    assert [line["data"]["n"] for line in written(tmp_path / "other.jsonl")] == expected


def test_an_offset_log_without_a_route_is_named_at_the_start(tmp_path: Path) -> None:
    """A declared route that the pipeline no longer has still holds the log, and is reported."""
    run_to_end(two_routes(tmp_path, 3))
    events = Events()
    run_to_end(make(tmp_path, []), events)
    assert [each["route"] for each in events.named("offset-log-unused")] == ["other"]


def test_workers_that_cannot_be_started_are_not_asked_for_in_haste(tmp_path: Path) -> None:
    """Refused workers are requested at Spark's own back-off, and the cause is reported."""
    events = Events()
    pipeline = make_pipeline(tmp_path, ["orders a"], end=False, out={})
    engine = Engine(pipeline, SparklessHost(["refusing"]), events)
    engine.start()
    try:
        told = events.await_count("route-retrying", 3)
        assert told["problem"] == "no Python here"
        assert engine.status().routes[0].waiting is not None
    finally:
        engine.stop(0)
    delays = [each["retry_in"] for each in events.named("route-retrying")]
    assert delays[2] > delays[0] >= 0.1


def test_the_cause_of_a_lost_worker_is_in_its_event(tmp_path: Path) -> None:
    """Spark's reason for the end of a task is reported with the route's name."""
    events = Events()
    with running(
        make_pipeline(tmp_path, ["orders a"], out={"writer": {"die_at": 0}}), events=events
    ):
        assert events.await_count("worker-lost")["problem"] == "exit code 9"

"""A log that was replaced by an older copy, while its sinks have gone on."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from engine_tools import SparklessHost, running, until
from transporter_adaptors.lmdb.writer import PROGRESS
from transporter_adaptors.lmdb.writer import StoredProgress as LmdbProgress

from transporter.engine.engine import Engine
from transporter.engine.events import RouteStatus, State
from transporter.engine.workers.worker_spec import worker_specs
from transporter.log.runs import Runs
from transporter.offsets.offset_log import read_state
from transporter.pipeline.config import load

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.pipeline.config import Pipeline
    from transporter.protocol.messages import Ticket, WorkerSpec

SINKS: dict[str, dict[str, Any]] = {
    "file": {"adaptor": "file", "path": "sink/out.jsonl", "format": "data"},
    "file, two shards": {"adaptor": "file", "path": "sink/out.jsonl", "format": "data"},
    "lmdb": {"adaptor": "lmdb", "path": "sink", "layout": "offset"},
}


def pipeline_into(folder: Path, sink: str, *, end: bool) -> Pipeline:
    """Return a pipeline from ``source.txt`` into *sink*."""
    shards = {"parallelism": 2} if "shards" in sink else {}
    document = {
        "readers": [
            {
                "name": "in",
                "adaptor": "engine_tools:LinesReader",
                "path": "source.txt",
                "end": end,
            }
        ],
        "routes": [{"name": "out", "writer": SINKS[sink], **shards}],
        "log": {"dir": "log"},
        "commit_interval": "50ms",
    }
    path = folder / "pipeline.yaml"
    path.write_text(json.dumps(document))
    return load(path, {})


def add_lines(folder: Path, label: str, count: int) -> None:
    """Append *count* lines to the source."""
    with (folder / "source.txt").open("a") as source:
        source.writelines(f"{label} {label}-{number}\n" for number in range(count))


def deliver_all(folder: Path, sink: str) -> None:
    """Run the pipeline until its source has ended and all entries are delivered."""
    with running(pipeline_into(folder, sink, end=True)) as engine:
        until(lambda: engine.wait(0.02))
        assert status_of(engine).lag == 0


def status_of(engine: Engine) -> RouteStatus:
    """Return the status of the only route."""
    (route,) = engine.status().routes
    return route


def entries_written(folder: Path) -> int:
    """Return the number of deliveries that the LMDB sink counts, with repeats."""
    import lmdb  # noqa: PLC0415 - as the tests of its adaptor

    with lmdb.open(str(folder / "sink"), max_dbs=3, readonly=True, lock=False) as database:
        name = database.open_db(PROGRESS)
        with database.begin(db=name) as transaction:
            return LmdbProgress.decode(bytes(transaction.get(b"out/0"))).entries


def held(folder: Path, sink: str) -> str:
    """Return the whole content of *sink* as one text."""
    if sink == "lmdb":
        import lmdb  # noqa: PLC0415 - as the tests of its adaptor

        with lmdb.open(str(folder / "sink"), max_dbs=3, readonly=True, lock=False) as database:
            name = database.open_db(b"entries/out")
            with database.begin(db=name) as transaction:
                return "\n".join(value.decode() for _, value in transaction.cursor())
    paths = sorted((folder / "sink").glob("out*.jsonl"))
    return "\n".join(path.read_text() for path in paths)


class Late(SparklessHost):
    """A host launcher that waits for *wanted* entries, so that readers are always first."""

    wanted: ClassVar[int] = 20
    engine: Engine | None = None

    def __call__(self, ticket: Ticket) -> Any:
        until(lambda: self.engine is not None and self.engine.log.durable >= self.wanted - 1)
        return super().__call__(ticket)


def restored(folder: Path, sink: str) -> None:
    """Deliver 10 entries, copy the log, deliver 10 others, and put the copy back.

    The source then has ten lines that the sink has never seen.
    """
    add_lines(folder, "shared", 10)
    deliver_all(folder, sink)
    shutil.copytree(folder / "log", folder / "copy")
    add_lines(folder, "gone", 10)
    deliver_all(folder, sink)
    assert "gone-9" in held(folder, sink)
    shutil.rmtree(folder / "log")
    shutil.copytree(folder / "copy", folder / "log")
    lines = (folder / "source.txt").read_text().splitlines()[:10]
    (folder / "source.txt").write_text("".join(f"{line}\n" for line in lines))
    add_lines(folder, "new", 10)


@pytest.mark.parametrize("sink", SINKS)
def test_a_restored_log_halts_a_sink_that_is_further_on(tmp_path: Path, sink: str) -> None:
    """Entries stored in a history that the log has lost settle nothing, at any start."""
    restored(tmp_path, sink)
    for _ in range(2):  # a second start does not change it
        host = Late()
        engine = host.engine = Engine(pipeline_into(tmp_path, sink, end=False), host, ignore)
        engine.start()
        try:
            await_halt(engine)
            assert "another history" in status_of(engine).problem
            assert status_of(engine).watermark == 9
        finally:
            engine.stop(0)
    assert read_state(tmp_path / "log", "out").watermark == 9
    assert "new-" not in held(tmp_path, sink)


def await_halt(engine: Engine) -> None:
    """Wait until the only route waits for an operator."""
    until(lambda: status_of(engine).state is State.STOPPED)


def ignore(*_: object, **__: object) -> None:
    """Ignore an event."""


@pytest.mark.parametrize("sink", SINKS)
def test_what_was_restored_is_delivered_by_a_replay(tmp_path: Path, sink: str) -> None:
    """A replay delivers all entries of the restored log."""
    restored(tmp_path, sink)
    host = Late()
    engine = host.engine = Engine(pipeline_into(tmp_path, sink, end=False), host, ignore)
    engine.start()
    try:
        await_halt(engine)
        found = engine.route("out")
        assert found is not None
        route, offsets = found
        offsets.begin_replay(9, 9)
        route.submit(route.revive).result()
        until(lambda: status_of(engine).lag == 0)
    finally:
        engine.stop()
    text = held(tmp_path, sink)
    assert all(f"new-{number}" in text for number in range(10))


def without_runs(*arguments: Any) -> list[WorkerSpec]:
    """Return worker specs without runs, as in older versions."""
    return [replace(each, runs=Runs()) for each in worker_specs(*arguments)]


@pytest.mark.parametrize("sink", ["file", "lmdb"])
def test_a_sink_written_by_an_older_version_is_not_believed_either(
    tmp_path: Path, sink: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An offset without a run settles nothing beyond the durable end at the log's open."""
    with monkeypatch.context() as before:
        before.setattr("transporter.engine.routing.route.worker_specs", without_runs)
        restored(tmp_path, sink)
    for _ in range(2):
        host = Late()
        engine = host.engine = Engine(pipeline_into(tmp_path, sink, end=False), host, ignore)
        engine.start()
        try:
            await_halt(engine)
            assert "no run" in status_of(engine).problem
        finally:
            engine.stop(0)


@pytest.mark.parametrize("sink", SINKS)
def test_a_sink_that_is_ahead_of_its_offset_log_is_still_believed(
    tmp_path: Path, sink: str
) -> None:
    """After a power cut nothing is delivered twice, because the log has the run that wrote last."""
    add_lines(tmp_path, "one", 10)
    deliver_all(tmp_path, sink)
    shutil.rmtree(tmp_path / "log" / "offsets" / "out")
    add_lines(tmp_path, "two", 10)
    deliver_all(tmp_path, sink)
    text = held(tmp_path, sink)
    if sink == "lmdb":
        assert entries_written(tmp_path) == 20
    else:
        assert [text.count(f"one-{number}\n") for number in range(10)] == [1] * 10

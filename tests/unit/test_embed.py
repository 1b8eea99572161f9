"""Tests of pipelines inside another program: their life, their events, and their isolation."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import PATIENCE, SparklessHost, offsets, until

import transporter
from transporter import embed
from transporter.embed import Booted, Exited, MeterRead, Pipeline, Problem, RouteChanged
from transporter.errors import ConfigError, EnvironmentFault, LogLocked, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(transporter.__file__).parents[1]


@pytest.fixture(autouse=True)
def sparkless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork hosts without Spark."""
    monkeypatch.setattr(embed, "SparkLauncher", lambda *_, **__: SparklessHost())


def values(folder: Path, *, end: bool = False, **route: Any) -> dict[str, Any]:
    """Return a pipeline of three entries with files in *folder*."""
    (folder / "source.txt").write_text("a x\na y\na z\n")
    reader = {"name": "in", "adaptor": "engine_tools:LinesReader", "path": "source.txt", "end": end}
    writer = {"adaptor": "engine_tools:LinesWriter", "path": "out.jsonl", **route.pop("writer", {})}
    return {
        "name": folder.name.replace("_", "-")[:40],
        "log": {"dir": folder / "log"},
        "observe": {"listen": "off"},
        "readers": [reader],
        "routes": [{"name": "out", "writer": writer, **route}],
    }


class Heard:
    """A callback that keeps its events."""

    def __init__(self) -> None:
        self.all: list[embed.Event] = []
        self.threads: set[str] = set()

    def __call__(self, event: embed.Event) -> None:
        self.all.append(event)
        self.threads.add(threading.current_thread().name)

    def of(self, kind: type) -> list[Any]:
        """Return the events of *kind*."""
        return [event for event in self.all if isinstance(event, kind)]


def test_sources_that_end(tmp_path: Path) -> None:
    """A pipeline of finite sources ends by itself, with its events in order."""
    heard = Heard()
    pipeline = Pipeline(values(tmp_path, end=True), tmp_path, meter=0.05)
    pipeline.on_event(heard)
    pipeline.start()
    assert pipeline.wait(PATIENCE)
    pipeline.stop()
    assert offsets(tmp_path / "out.jsonl") == [0, 1, 2]
    assert isinstance(heard.all[0], Booted)
    assert heard.all[0].epoch == 1
    states = [event.state for event in heard.of(RouteChanged)]
    assert states[-1] == "ended"
    assert len(set(states)) == len(states)
    last = heard.of(MeterRead)[-1].status
    assert (last.routes[0].delivered, last.routes[0].lag) == (3, 0)
    assert heard.all[-1] == Exited((), None)
    assert heard.threads == {f"events-{pipeline.name}"}
    assert pipeline.error is None


def test_a_context_manager_starts_and_drains(tmp_path: Path) -> None:
    """A pipeline runs for the length of a block, and delivers all logged entries before its end."""
    with Pipeline(values(tmp_path), tmp_path) as pipeline:
        until(lambda: pipeline.status().readers[0].logged == 3)
        assert not pipeline.wait(0.01)
    assert offsets(tmp_path / "out.jsonl") == [0, 1, 2]
    assert pipeline.wait(0)
    assert not any(each.name.startswith(("pipeline-", "events-")) for each in threading.enumerate())


def test_a_file_with_variables_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``from_file`` takes variables from its mapping, or else from the environment."""
    file = tmp_path / "p.yaml"
    file.write_text(
        "log: {dir: log}\nobserve: {listen: off}\n"
        "readers: [{name: in, adaptor: demo}]\n"
        'routes: [{name: "${ROUTE}", writer: {adaptor: "engine_tools:LinesWriter", path: out}}]\n'
    )
    monkeypatch.setenv("ROUTE", "theirs")
    assert Pipeline.from_file(file)._settings.routes[0].name == "theirs"
    assert Pipeline.from_file(str(file), {"ROUTE": "mine"})._settings.routes[0].name == "mine"
    with pytest.raises(ConfigError, match=r"p\.yaml:4: environment variable ROUTE"):
        Pipeline.from_file(file, {})


WRONG: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda made: made.update(nmae="x"), "^unknown key 'nmae'; did you mean 'name'"),
    (lambda made: made["routes"][0].update(slice_rows=0), r"^routes\[0\]\.slice_rows must be"),
    (
        lambda made: made["readers"][0].update(path=object()),
        r"^readers\.0\.path is a object, which",
    ),
    (
        lambda made: made["routes"][0]["writer"].pop("path"),
        r"^routes\[0\]\.writer\.path is missing",
    ),
    (lambda made: made.update(log=made), "^the pipeline is nested more than 32 deep"),
]


@pytest.mark.parametrize(("spoil", "problem"), WRONG)
def test_what_is_wrong_with_a_mapping(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], object], problem: str
) -> None:
    """A mapping is checked like a file, but an error names only the key, and no line."""
    made = values(tmp_path)
    spoil(made)
    with pytest.raises(ConfigError, match=problem):
        Pipeline(made, tmp_path)


def test_a_mapping_is_taken_as_it_is(tmp_path: Path) -> None:
    """Variables in a mapping are not replaced, and later changes to it have no effect."""
    made = values(tmp_path, writer={"path": "${HOME}.jsonl"})
    pipeline = Pipeline(made, tmp_path)
    made["routes"].clear()
    assert pipeline._settings.routes[0].writer.config.path == tmp_path / "${HOME}.jsonl"


def test_a_callback_that_raises_hurts_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback's error is logged, and other callbacks and the delivery are unaffected."""
    heard = Heard()

    def broken(event: embed.Event) -> None:
        raise RuntimeError("hosts have bugs too")

    pipeline = Pipeline(values(tmp_path, end=True), tmp_path)
    pipeline.on_event(broken)
    pipeline.on_event(heard)
    pipeline.start()
    assert pipeline.wait(PATIENCE)
    pipeline.stop()
    assert offsets(tmp_path / "out.jsonl") == [0, 1, 2]
    assert isinstance(heard.all[-1], Exited)
    failed = [each for each in caplog.records if getattr(each, "event", "") == "callback-failed"]
    assert len(failed) == len(heard.all)
    assert "hosts have bugs too" in failed[0].getMessage()
    assert "hosts have bugs too" in failed[0].details["problem"]  # type: ignore[attr-defined]


def test_a_callback_may_stop_the_pipeline(tmp_path: Path) -> None:
    """``stop()`` from a callback only requests the stop, so that no thread waits for itself."""
    pipeline = Pipeline(values(tmp_path), tmp_path)
    pipeline.on_event(lambda event: pipeline.stop() if isinstance(event, Booted) else None)
    pipeline.start()
    assert pipeline.wait(PATIENCE)
    pipeline.stop()


def test_a_callback_that_hangs_does_not_hold_the_engine(tmp_path: Path) -> None:
    """Entries are delivered and the end is reached while a callback hangs at its first event."""
    go = threading.Event()
    pipeline = Pipeline(values(tmp_path, end=True), tmp_path, meter=0.01)
    pipeline.on_event(lambda _: go.wait(PATIENCE))
    pipeline.start()
    assert pipeline.wait(PATIENCE)
    assert offsets(tmp_path / "out.jsonl") == [0, 1, 2]
    go.set()
    pipeline.stop()


def test_problems_are_told(tmp_path: Path) -> None:
    """A halted route is reported as a problem and as a change of state, and named at the exit."""
    heard = Heard()
    pipeline = Pipeline(values(tmp_path, end=True, writer={"reject": [1]}), tmp_path)
    pipeline.on_event(heard)
    pipeline.start()
    assert pipeline.wait(PATIENCE)
    pipeline.stop()
    stopped = [event for event in heard.of(Problem) if event.about == "route-stopped"]
    assert stopped[0].details["offset"] == 1
    assert "no 1 here" in heard.of(RouteChanged)[-1].problem
    assert heard.all[-1] == Exited(("out",), None)


def test_a_start_that_fails(tmp_path: Path) -> None:
    """``start()`` raises the reason of a failed start, and nothing is left running."""
    first = Pipeline(values(tmp_path), tmp_path)
    second = Pipeline(values(tmp_path), tmp_path)
    with first:
        with pytest.raises(LogLocked):
            second.start()
        assert second.wait(0)
        with pytest.raises(LogLocked):
            second.stop()


def test_an_engine_that_fails(tmp_path: Path) -> None:
    """After a failure while running, ``wait()`` returns, and ``stop()`` raises the reason."""
    made = values(tmp_path)
    made["readers"][0]["adaptor"] = "broken_parts:Broken"
    (tmp_path / "broken_parts.py").write_text(BROKEN)
    pipeline = Pipeline(made, tmp_path)
    heard = Heard()
    pipeline.on_event(heard)
    pipeline.start()
    assert pipeline.wait(PATIENCE)
    with pytest.raises(SourceError, match="never to be opened"):
        pipeline.stop()
    assert isinstance(heard.all[-1].error, SourceError)


BROKEN = """
from engine_tools import LinesReader
from transporter.errors import SourceError


class Broken(LinesReader):
    def open(self, resume):
        raise SourceError("never to be opened")
"""


def test_it_is_used_once(tmp_path: Path) -> None:
    """A second start is refused, and a stop before the start, or a second one, has no effect."""
    pipeline = Pipeline(values(tmp_path, end=True), tmp_path)
    pipeline.stop()
    with pytest.raises(RuntimeError, match="has not started"):
        pipeline.status()
    with pipeline:
        pipeline.wait(PATIENCE)
    pipeline.stop()
    with pytest.raises(RuntimeError, match="was already started"):
        pipeline.start()


def test_two_pipelines_in_one_process(tmp_path: Path) -> None:
    """Each of two pipelines has its own log and endpoint, and stops alone."""
    folders = [tmp_path / "one", tmp_path / "two"]
    made = []
    for folder in folders:
        folder.mkdir()
        made.append(values(folder) | {"observe": {"listen": "127.0.0.1:0"}})
    with Pipeline(made[0], folders[0]) as first, Pipeline(made[1], folders[1]) as second:
        assert first.url
        assert first.url != second.url
        until(
            lambda: (
                offsets(folders[0] / "out.jsonl") == offsets(folders[1] / "out.jsonl") == [0, 1, 2]
            )
        )
        first.stop()
        assert not second.wait(0)
        assert second.status().routes[0].delivered == 3


def test_what_belongs_to_the_host_is_left_alone(tmp_path: Path) -> None:
    """Signal handlers, logging handlers and levels, and the streams stay unchanged."""

    def belongings() -> list[object]:
        root, ours = logging.getLogger(), logging.getLogger("transporter")
        numbers = set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}
        streams = [sys.stdin, sys.stdout, sys.stderr, sys.excepthook, threading.excepthook]
        handlers = [signal.getsignal(number) for number in sorted(numbers)]
        return [
            *handlers,
            *root.handlers,
            root.level,
            *ours.handlers,
            ours.level,
            *streams,
            Path.cwd(),
        ]

    before = belongings()
    with Pipeline(values(tmp_path), tmp_path) as pipeline:
        until(lambda: pipeline.status().routes[0].delivered == 3)
        assert belongings() == before
    assert belongings() == before


def test_events_go_to_the_hosts_logging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each event is one record of the logger ``transporter``, with its level and its fields."""
    caplog.set_level(logging.INFO, "transporter")
    with Pipeline(values(tmp_path, end=True, writer={"reject": [1]}), tmp_path) as pipeline:
        pipeline.wait(PATIENCE)
    by_name = {each.event: each for each in caplog.records}
    assert by_name["engine-started"].levelno == logging.INFO
    assert by_name["route-stopped"].levelno == logging.ERROR
    assert by_name["route-stopped"].details["offset"] == 1
    assert {each.name for each in caplog.records} == {"transporter"}


def test_importing_the_package_is_cheap() -> None:
    """``import transporter`` imports no submodule, and its names are imported on first use."""
    code = (
        "import sys, transporter\n"
        "heavy = {'pyarrow', 'pydantic', 'prometheus_client', 'transporter.embed'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "from transporter import Pipeline, MeterRead\n"
        "assert Pipeline.__module__ == 'transporter.embed'\n"
        "assert not {'pyspark', 'py4j'} & set(sys.modules)\n"
        "try: transporter.Pipelin\n"
        "except AttributeError: print('fine')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_an_endpoint_that_cannot_be_had(tmp_path: Path) -> None:
    """An unusable address is raised by ``start()``, before the log is touched."""
    made = values(tmp_path) | {"observe": {"listen": "192.0.2.1:0", "insecure": True}}
    with pytest.raises(EnvironmentFault, match="cannot listen on"):
        Pipeline(made, tmp_path).start()
    assert not (tmp_path / "log").exists()

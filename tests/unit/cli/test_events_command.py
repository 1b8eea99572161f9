"""Command ``transporter events`` on real engines without Spark."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from acceptance_tools import TRANSPORTER
from engine_tools import PATIENCE, Events, SparklessHost, make_pipeline, until
from operator_tools import ENVIRONMENT

from transporter.audit import Operator
from transporter.cli import app
from transporter.cli import events as module
from transporter.cli.events import event_line
from transporter.control import requests
from transporter.control.client import perform
from transporter.control.metadata import ReadOnly
from transporter.control.running_engine import RunningEngine
from transporter.control.server import attach_control
from transporter.engine.engine import Engine
from transporter.engine.event_ring import EventRing
from transporter.errors import ActionRefused, EngineUnreachable
from transporter.pipeline.config import load
from transporter.pipeline.secrets import Secrets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Host:
    """An engine with its control socket, which can be started again on its log."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "pipeline.yaml"
        make_pipeline(folder, [], end=False, out={})
        self.log = folder / "log"
        self.engine = self.start()

    def start(self) -> Engine:
        """Start an engine on the log."""
        self.engine = Engine(load(self.file, {}), SparklessHost(), Events())
        attach_control(self.engine, {})
        self.engine.start()
        return self.engine


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Run an engine that has started, so that no event of its own comes between those of a test."""
    made = Host(tmp_path)
    until(lambda: "worker-connected" in [each.event for each in made.engine.events._kept])
    yield made
    made.engine.stop(0)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return the exit code and the output of ``transporter events``."""
    code = app.execute(["events", *arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_events_are_shown_with_their_fields(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    """Each event is a line, and --json has the run, the numbers and all fields."""
    perform(host.log, requests.Pause("out", "it moves\x1b[2J"))
    code, out, err = shown(capsys, str(host.file), "--route", "out")
    assert (code, err) == (0, "")
    line = next(each for each in out.splitlines() if " operator-acted " in each)
    assert "route=out" in line
    assert 'reason="it moves\\x1b[2J"' in line
    assert "from=" not in line  # It is empty.
    said = {"timestamp": "now", "level": "error", "event": "e", "problem": 'no "t" retry_in=5'}
    assert event_line(said).endswith(' e problem="no \\"t\\" retry_in=5"')
    code, out, _ = shown(capsys, str(host.log), "--json", "--last", "0")
    found = json.loads(out)["result"]
    assert [each["number"] for each in found["events"]] == [*range(1, found["newest"] + 1)]
    assert "engine-started" in {each["event"] for each in found["events"]}
    assert found["run"] == host.engine.events.run


def test_more_events_than_one_answer_has_are_shown(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    """All kept events are read, in several answers, and the number of older ones is noted."""
    host.engine.events._kept = type(host.engine.events._kept)(maxlen=250)
    for number in range(300):
        host.engine.observe("parked-delivered", route="out", offset=number)
    code, out, err = shown(capsys, str(host.file), "--last", "0")
    assert code == 0
    lines = out.splitlines()
    assert len(lines) == 250
    offsets = [line for line in lines if " parked-delivered " in line]
    assert offsets[-1].endswith("parked-delivered route=out offset=299")
    assert "older events are not kept any more" in err
    assert len(shown(capsys, str(host.file))[1].splitlines()) == 50
    assert shown(capsys, str(host.file), "--level", "error", "--last", "0")[1] == ""


def test_without_an_engine_there_are_no_events(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log without an engine has no events, and the error says what to start."""
    Engine(make_pipeline(tmp_path, [], out={}), SparklessHost(), Events()).stop(0)
    code, _, err = shown(capsys, str(tmp_path / "log"))
    assert code == 1
    assert "no engine runs on this log, and this needs one" in err


def test_followed_events_survive_a_restart(host: Host) -> None:
    """A follower gets each event once, waits while no engine runs, and reports the next one."""
    process = subprocess.Popen(
        [*TRANSPORTER, "events", str(host.log), "-f", "--json", "--last", "1"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    found: list[dict[str, Any]] = []

    def await_line(name: str, value: object) -> dict[str, Any]:
        assert process.stdout is not None
        while True:
            found.append(json.loads(process.stdout.readline()))
            if found[-1].get(name) == value:
                return found[-1]

    try:
        assert "number" in await_line("level", "info")
        host.engine.observe("parked-delivered", route="out", offset=7)
        await_line("offset", 7)
        host.engine.stop(0)
        await_line("engine", None)
        host.start()
        assert "restarted" in await_line("engine", os.getpid())["remark"]
        await_line("event", "engine-started")
        host.engine.observe("parked-delivered", route="out", offset=8)
        assert await_line("offset", 8)["number"] > 1
        assert [each for each in found if each.get("offset") == 7] == [found[1]]
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


def test_a_follower_counts_what_it_has_missed(host: Host) -> None:
    """Events that made room for others between two polls are counted."""
    ring = host.engine.events
    ring._kept = type(ring._kept)(maxlen=5)
    follower = module._Follower(host.log, requests.Events(route="out"), as_json=True)
    assert [each for each in follower._poll() if "dropped" in each] == []
    before = ring._newest
    for number in range(20):
        host.engine.observe("parked-delivered", route="out", offset=number)
    remark, *rest = follower._poll()
    assert remark["dropped"] == ring._newest - before - 5
    assert [each["offset"] for each in rest if "offset" in each][-1] == 19


def test_secrets_are_redacted_in_kept_events(tmp_path: Path) -> None:
    """No kept event has a secret, not even one that an operator has typed (Invariant 20)."""
    engine = Engine(make_pipeline(tmp_path, [], end=False, out={}), SparklessHost(), Events())
    engine.start()
    try:
        engine._register_secrets(Secrets.of(["hunter2222"]))
        pause = requests.Pause("out", "password is hunter2222")
        RunningEngine(engine, {}).perform(pause, Operator("me", 0, 0))
        text = json.dumps(engine.events.read(0, "info", "", 100))
        assert "hunter2222" not in text
        assert "password is ***" in text
    finally:
        engine.stop(0)


def test_who_may_only_look_sees_no_texts_of_errors(tmp_path: Path) -> None:
    """Over the read-only socket an event has its name and numbers, and no problem or reason."""
    ring = EventRing(Events())
    ring("route-stopped", route="out", offset=3, problem="no card 4111", watermark=2, delivered=0)

    class Operations:
        def perform(self, request: requests.Events, *_: object) -> dict[str, Any]:
            return ring.read(0, "info", "", request.most)

    found = ReadOnly(Operations()).perform(requests.Events(), Operator("me", 0, 0))
    assert (found["events"][0]["offset"], found["events"][0]["route"]) == (3, "out")
    assert "4111" not in json.dumps(found)


@pytest.mark.parametrize("request_", [requests.Events(), requests.History(), requests.Reload()])
def test_an_engine_that_does_not_answer_is_not_called_absent(
    tmp_path: Path, request_: requests.Request
) -> None:
    """While the log is in use, its owner is named, instead of an engine to be started."""
    pipeline = make_pipeline(tmp_path, [], out={})
    engine = Engine(pipeline, SparklessHost(), Events())
    try:
        with pytest.raises(EngineUnreachable, match=f"the engine with pid {os.getpid()} does not"):
            perform(tmp_path / "log", request_, patience=0.2)
    finally:
        engine.stop(0)
    with pytest.raises(ActionRefused, match="no engine runs on this log"):
        perform(tmp_path / "log", request_, patience=0.2)


def test_a_user_without_rights_follows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another user gets the reason, and does not wait for an engine that may be running."""

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "log").mkdir()
    monkeypatch.setattr("transporter.control.client._connect", denied)
    assert app.execute(["events", str(tmp_path / "log"), "-f"]) == 3
    assert "this user may not reach an engine here" in capsys.readouterr().err

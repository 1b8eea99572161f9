"""The logs that the console shows: with a running engine, a silent one, a dead one, or none."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import Events, SparklessHost, make_pipeline, run_to_end

from transporter.console import sources
from transporter.console.login_socket import (
    NAME,
    LoginSocket,
    listening,
    refuse_second,
    request_link,
)
from transporter.console.readings import read_outline
from transporter.console.sources import (
    EVENTS_FRESH,
    HISTORY_FRESH,
    EngineMemory,
    LogSource,
    find_sources,
)
from transporter.control.requests import Events as EventsRequest
from transporter.control.requests import History, ReadRequest
from transporter.control.server import attach_control
from transporter.control.wire import SOCKET, JsonLines
from transporter.engine.engine import Engine
from transporter.errors import ConfigError, EnvironmentFault
from transporter.log.commit_log import CommitLog
from transporter.log.lock import DirectoryLock

if TYPE_CHECKING:
    from pathlib import Path


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_directory_without_a_log_is_absent(tmp_path: Path) -> None:
    """Neither a missing directory nor an empty one is an error, and neither is made."""
    assert LogSource("x", tmp_path / "none").look().state == "absent"
    assert LogSource("x", tmp_path).look().state == "absent"
    assert list(tmp_path.iterdir()) == []


def test_a_log_without_an_engine_is_the_disks(tmp_path: Path) -> None:
    """The picture has its routes with their progress."""
    run_to_end(make_pipeline(tmp_path, ["a 1", "a 2"], out={}))
    found = LogSource("x", tmp_path / "log").look()
    assert found.state == "stopped"
    assert found.status is not None
    assert [each["watermark"] for each in found.status["routes"]] == [1]


def test_a_live_engine_is_asked_and_its_end_is_noticed(tmp_path: Path) -> None:
    """The conversation is kept; when the engine ends, the next look is the disk's."""
    clock, pipeline = Clock(), make_pipeline(tmp_path, ["a 1"], end=False, out={})
    source = LogSource("x", tmp_path / "log", clock=clock)
    engine = Engine(pipeline, SparklessHost(), Events())
    attach_control(engine, os.environ)
    engine.start()
    try:
        found = source.look()
        assert found.state == "live"
        assert found.status is not None
        assert found.status["pid"] == os.getpid()
        clock.now += sources.FRESH / 2
        assert source.look() is found
        clock.now += sources.FRESH
        assert source.look() is not found
    finally:
        engine.stop()
    clock.now += 1
    assert source.look().state == "stopped"
    source.close()


def test_a_silent_owner_leaves_the_last_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that holds the log and does not answer in time is named; nothing is cleared."""
    monkeypatch.setattr(sources, "ANSWER", 0.1)
    clock, log = Clock(), tmp_path / "log"
    run_to_end(make_pipeline(tmp_path, ["a 1"], out={}))
    source = LogSource("x", log, clock=clock)
    before = source.look()
    with DirectoryLock(log), socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(log / "control.sock"))
        mute.listen()
        clock.now += 1
        found = source.look()
    assert (found.state, found.status, found.at) == ("silent", before.status, before.at)
    assert f"process {os.getpid()} holds the log" in found.problem


def test_a_damaged_log_is_shown_with_its_damage(tmp_path: Path) -> None:
    """A page is needed most when no engine starts."""
    with CommitLog.open(tmp_path):
        pass
    (tmp_path / "meta").write_bytes(b"not a meta file at all")
    found = LogSource("x", tmp_path).look()
    assert (found.state, found.status) == ("damaged", None)
    assert "meta" in found.problem


def test_targets_are_files_and_directories(tmp_path: Path) -> None:
    """Each log has a name of its own, and a target that is not there is refused."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        run_to_end(make_pipeline(tmp_path / name, ["a 1"], out={}))
    files = [tmp_path / name / "pipeline.yaml" for name in ("one", "two")]
    found = find_sources([*files, tmp_path / "one" / "log"], {})
    assert list(found) == ["pipeline", "pipeline-2", "pipeline-3"]
    assert [each.name for each in found.values()] == list(found)
    assert found["pipeline-3"].directory == found["pipeline"].directory
    with pytest.raises(EnvironmentFault, match="no such pipeline file"):
        find_sources([tmp_path / "none.yaml"], {})


@pytest.mark.parametrize("text", ["{", "plain", "[1, 2]", "log: ./log", "\xff", "a: *a"])
def test_a_file_that_is_no_pipeline_is_an_error_of_the_file(tmp_path: Path, text: str) -> None:
    """Whatever it holds instead, it is named."""
    file = tmp_path / "broken.yaml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"broken\.yaml"):
        find_sources([file], {})


def test_an_empty_file_is_a_pipeline_without_a_name(tmp_path: Path) -> None:
    """Its log is at the default place, and its name that of the file."""
    (tmp_path / "orders.yaml").write_text("---\n")
    assert list(find_sources([tmp_path / "orders.yaml"], {})) == ["orders"]


def test_an_outline_has_no_value_of_an_adaptor(tmp_path: Path) -> None:
    """Variables stay as they are written, and settings of adaptors are names only."""
    document = {
        "readers": [{"name": "in", "adaptor": "kafka", "servers": "s3cret", "release": "logged"}],
        "routes": [
            {
                "name": "out",
                "namespace": "^a",
                "on_error": "park",
                "steps": [{"omit": ["s3cret"]}, {"python": "s3cret.py"}],
                "writer": {"adaptor": "postgres", "dsn": "s3cret", "table": "${TABLE}"},
            },
            {"name": "other", "namespace": "${NS}", "writer": {"adaptor": "file"}},
        ],
    }
    path = tmp_path / "p.yaml"
    path.write_text(json.dumps(document, indent=1))
    found = read_outline(path)
    assert "s3cret" not in repr(found)
    reader, out, other = found.readers[0], *found.routes
    assert (reader.adaptor, reader.options, reader.hidden) == (
        "kafka",
        (("release", "logged"),),
        ("servers",),
    )
    assert (out.adaptor, out.hidden, out.steps) == (
        "postgres",
        ("dsn", "table"),
        ("omit", "python"),
    )
    assert [out.takes("ab"), out.takes("b"), other.takes("ab")] == [True, False, None]
    path.write_text("routes: [")
    with pytest.raises(ConfigError):
        read_outline(path)


def test_the_login_socket_is_for_its_owner(tmp_path: Path) -> None:
    """It has the rights of control.sock, gives links, and is gone afterwards."""
    with listening(tmp_path) as listener, LoginSocket(listener, "http://console/{}".format):
        assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600
        assert request_link(tmp_path).startswith("http://console/")
        with pytest.raises(EnvironmentFault, match="a console already serves"):
            refuse_second(tmp_path)
    assert not (tmp_path / NAME).exists()
    with pytest.raises(EnvironmentFault, match="no console runs on"):
        request_link(tmp_path)


def test_a_socket_that_is_left_over_is_replaced(tmp_path: Path) -> None:
    """A console that was killed does not keep the next one from listening."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / NAME))
    with listening(tmp_path) as listener, LoginSocket(listener, str):
        assert request_link(tmp_path)


def test_an_older_engine_lacks_a_page_and_no_more(tmp_path: Path) -> None:
    """A request that it does not know has no answer, and the conversation goes on."""
    run_to_end(make_pipeline(tmp_path, ["a 1"], out={}))
    refusal = {"type": "ActionRefused", "message": "no such operation: 'history'", "exit_code": 1}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "log" / SOCKET))
        listener.listen()

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                lines = JsonLines(peer, 1 << 20)
                lines.send({"pid": 1, "accepts": []})
                while lines.receive() is not None:
                    lines.send({"ok": False, "error": refusal})

        thread = threading.Thread(target=serve)
        thread.start()
        source = LogSource("x", tmp_path / "log")
        assert source.ask(History()) is None
        assert source.ask(History()) is None
        source.close()
        thread.join()


class Asked:
    """An engine that has events, and counts requests."""

    def __init__(self) -> None:
        self.run, self.events, self.requests, self.now = "one", 3, [], 0.0

    def __call__(self, request: ReadRequest) -> dict[str, Any] | None:
        self.requests.append(request)
        if not isinstance(request, EventsRequest):
            return {"series": [], "times": [], "left_out": []}
        numbers = range(request.after + 1, min(self.events, request.after + 2) + 1)
        levels = ("info", "warning", "error")
        found = [
            {"number": each, "level": levels[each % 3], "route": f"r{each}"} for each in numbers
        ]
        reached = max(numbers, default=self.events)
        page = {"newest": self.events, "next": reached, "dropped": 0}
        return {"run": self.run, "events": found, **page}


def numbers(memory: EngineMemory, *arguments: str) -> list[int]:
    """Return the numbers of the events that *memory* has."""
    return [each["number"] for each in memory.events(*arguments)]


def test_only_new_events_are_fetched() -> None:
    """Each once, in as many answers as they take; a look within half a second costs nothing."""
    engine = Asked()
    memory = EngineMemory(engine, lambda: engine.now)
    assert numbers(memory) == [1, 2, 3]
    assert numbers(memory, "warning") == [1, 2]
    assert numbers(memory, "info", "r2") == [2]
    assert [each.after for each in engine.requests] == [0, 2]
    engine.now, engine.events = EVENTS_FRESH, 4
    assert numbers(memory) == [1, 2, 3, 4]
    assert engine.requests[-1].after == 3


def test_another_run_begins_anew() -> None:
    """Its numbers are its own, and those of the run before are gone."""
    engine = Asked()
    memory = EngineMemory(engine, lambda: engine.now)
    assert numbers(memory) == [1, 2, 3]
    engine.now, engine.run, engine.events = EVENTS_FRESH, "two", 2
    assert numbers(memory) == [1, 2]


def test_history_is_fetched_with_each_point() -> None:
    """Not more often than the engine takes points."""
    engine = Asked()
    memory = EngineMemory(engine, lambda: engine.now)
    assert memory.history() is memory.history()
    assert len(engine.requests) == 1
    engine.now = HISTORY_FRESH
    memory.history()
    assert len(engine.requests) == 2

"""Requests of a front end on behalf of a person, in the audit file and in events."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import Events, SparklessHost, make_pipeline

from transporter.audit import AUDIT, OnBehalfOf, read_audit
from transporter.control import requests
from transporter.control.client import EngineClient, perform
from transporter.control.server import attach_control
from transporter.control.wire import MAX_REQUEST, JsonLines
from transporter.engine.engine import Engine
from transporter.errors import ActionRefused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ANN = OnBehalfOf("ann@example.org", "console", "10.1.2.3")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, Events]]:
    """Run an engine with its control sockets, and yield its log directory and events."""
    events = Events()
    engine = Engine(make_pipeline(tmp_path, [], end=False, out={}), SparklessHost(), events)
    attach_control(engine, {})
    engine.start()
    yield tmp_path / "log", events
    engine.stop(0)


def audited(log: Path) -> list[dict[str, Any]]:
    """Return the changes in the audit file, or none without one."""
    if not (log / AUDIT).exists():
        return []
    with (log / AUDIT).open("rb") as lines:
        return list(read_audit(lines))


def sent(log: Path, name: str, **message: Any) -> dict[str, Any]:
    """Return the answer to a message as it is, over the socket *name*."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(log / name))
        lines = JsonLines(peer, 1 << 20)
        lines.receive()
        lines.send(message)
        answer = lines.receive()
    assert answer is not None
    return answer


def test_the_person_is_recorded_beside_the_process(served: tuple[Path, Events]) -> None:
    """Audit line and event name the person, and the user and process of the front end."""
    log, events = served
    assert perform(log, requests.Pause("out", "why"), on_behalf_of=ANN)["live"]
    (line,) = audited(log)
    person = {"who": "ann@example.org", "via": "console", "from": "10.1.2.3"}
    peer = {"uid": os.getuid(), "pid": os.getpid()}
    assert line.items() >= ({"known_by": "for", "outcome": "done"} | person | peer).items()
    assert line["by"]
    ((_, details),) = [each for each in events.all if each[0] == "operator-acted"]
    acted = {"route": "out", "reader": "", "action": "pause", "reason": "why"}
    assert details == acted | person | peer


def test_the_person_is_recorded_without_an_engine(served: tuple[Path, Events]) -> None:
    """A log without an engine gets the same line from the process of the front end."""
    log, _ = served
    stopped = log.parent / "other"
    stopped.mkdir()
    other = Engine(make_pipeline(stopped, [], out={}), SparklessHost(), Events())
    other.stop(0)
    assert not perform(stopped / "log", requests.Pause("out"), on_behalf_of=ANN)["live"]
    (line,) = audited(stopped / "log")
    assert (line["who"], line["via"], line["pid"]) == ("ann@example.org", "console", os.getpid())


@pytest.mark.parametrize(
    "person",
    [
        "ann",
        None,
        {},
        {"who": ""},
        {"who": "  "},
        {"who": 7},
        {"who": "a" * 257},
        {"who": "ann\nmallory"},
        {"who": "ann\x1b[2J"},
        {"who": "nna\u202e"},
        {"who": "\ud800"},
        {"who": "ann", "via": "v" * 65},
        {"who": "ann", "from": "f" * 257},
        {"who": "ann", "from": ["here"]},
        {"who": "ann", "role": "root"},
    ],
)
def test_a_person_that_cannot_be_recorded_is_refused(
    served: tuple[Path, Events], person: object
) -> None:
    """A name that is missing, too long or has control characters is refused with its request."""
    log, events = served
    message = {"op": "pause", "args": {"route": "out"}, "for": person}
    answer = sent(log, "control.sock", **message)
    assert answer["ok"] is False
    assert answer["error"]["message"].startswith("for")
    assert audited(log) == []
    assert events.named("operator-acted") == []


def test_who_may_only_look_cannot_name_a_person(served: tuple[Path, Events]) -> None:
    """A name sent over the read-only socket admits nothing, and is not looked at."""
    log, _ = served
    request = {"args": {"route": "out"}, "for": ANN.encode()}
    assert "change nothing" in sent(log, "status.sock", op="pause", **request)["error"]["message"]
    assert sent(log, "status.sock", op="status", **{"for": 7})["ok"]
    assert audited(log) == []


@contextmanager
def old_engine(directory: Path, answer: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Serve one client as an engine without ``accepts`` does. Yield the requests it received."""
    received: list[dict[str, Any]] = []

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            lines = JsonLines(peer, MAX_REQUEST)
            lines.send({"pid": 1})
            while (message := lines.receive()) is not None:
                received.append(message)
                lines.send(answer)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "control.sock"))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        yield received
        thread.join()


def test_an_engine_that_would_not_record_the_person_is_not_asked(tmp_path: Path) -> None:
    """An older engine, which would record the front end alone, gets no request for a person."""
    with old_engine(tmp_path, {"ok": True, "result": {}}) as received:
        with (
            EngineClient(tmp_path) as client,
            pytest.raises(ActionRefused, match="older and does not record"),
        ):
            client.call(requests.Pause("out"), ANN)
        assert received == []


@pytest.mark.parametrize("problem", ["no such operation: 'pause'", "pause: unknown arguments"])
def test_an_engine_that_does_not_know_a_request_is_called_older(
    tmp_path: Path, problem: str
) -> None:
    """An older engine's refusal of a newer request says what to do."""
    error = {"type": "ActionRefused", "message": problem, "exit_code": 1, "problems": []}
    with (
        old_engine(tmp_path, {"ok": False, "error": error}),
        EngineClient(tmp_path) as client,
        pytest.raises(ActionRefused, match="'pause': it is older than this command; restart it"),
    ):
        client.call(requests.Pause("out"))


def test_an_older_engine_gets_the_arguments_that_it_knows(tmp_path: Path) -> None:
    """Arguments that have their defaults are not sent, so newer ones disturb no older engine."""
    with old_engine(tmp_path, {"ok": True, "result": {}}) as received:
        with EngineClient(tmp_path) as client:
            client.call(requests.RetryParked("out", 3, 7))
        assert received[0]["args"] == {"route": "out", "first": 3, "last": 7}

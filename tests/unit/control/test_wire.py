"""Encoding and decoding on both sides of the control socket."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from transporter.control import requests
from transporter.control.wire import (
    MAX_REQUEST,
    JsonLines,
    decode_error,
    decode_request,
    encode_error,
    encode_request,
    socket_address,
)
from transporter.errors import (
    ActionRefused,
    ConfigError,
    EnvironmentFault,
    OffsetRefused,
    RouteFault,
    TransporterError,
    UnknownName,
)
from transporter.pipeline.problems import InvalidPipeline

if TYPE_CHECKING:
    from pathlib import Path

REQUESTS = [
    requests.Status(),
    requests.LogMetadata(3, 5, 2),
    requests.Events(7, "warning", "r", 5),
    requests.History("r"),
    requests.Ack("r", 1, 5, "why"),
    requests.Replay("r", first=3, namespace="^a", partial=True),
    requests.Replay("r", since=7, until=9, dry_run=True),
    requests.CancelReplay("r"),
    requests.Pause("r", "é"),
    requests.Resume("r"),
    requests.Step("r"),
    requests.PauseReader("in", "é"),
    requests.ResumeReader("in"),
    requests.RestartReader("in"),
    requests.Forget("r"),
    requests.RetryParked("r"),
    requests.SkipParked("r", 1, 2),
    requests.SkipParked("r", offsets=((3, 3), (7, 9))),
    requests.NoteParked("r", 3, "waits for é"),
    requests.Reload(),
    requests.Reload("why", dry_run=True),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: type(each).__name__)
def test_a_request_comes_over_as_it_was(request_: requests.Request) -> None:
    """Every kind of request survives as JSON."""
    assert decode_request(json.loads(json.dumps(encode_request(request_)))) == request_
    assert {type(each) for each in REQUESTS} == set(requests.KINDS.values())


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"op": "dance"},
        {"op": ["ack"]},
        {"op": "ack"},
        {"op": "ack", "args": []},
        {"op": "ack", "args": {"route": "r", "first": "1", "last": 2}},
        {"op": "ack", "args": {"route": "r", "first": 1, "last": 2.5}},
        {"op": "ack", "args": {"route": 7, "first": 1, "last": 2}},
        {"op": "ack", "args": {"route": "r", "first": 1, "last": 2, "by": "me"}},
        {"op": "replay", "args": {"route": "r", "dry_run": "yes"}},
    ],
)
def test_what_is_no_request_is_refused(message: dict[str, Any]) -> None:
    """Unknown operations, and missing, unknown or ill-typed arguments, are refused."""
    with pytest.raises(ActionRefused):
        decode_request(message)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OffsetRefused("no"), OffsetRefused),
        (ActionRefused("no"), ActionRefused),
        (ConfigError("no", "f.yaml", 3), ConfigError),
        (EnvironmentFault("no"), EnvironmentFault),
        (RouteFault("no"), TransporterError),
    ],
)
def test_an_error_comes_over_with_its_text_and_code(
    error: TransporterError, kind: type[TransporterError]
) -> None:
    """An operator sees the same text and exit code, whichever side had the error."""
    back = decode_error(json.loads(json.dumps(encode_error(error))))
    assert type(back) is kind
    assert (str(back), back.exit_code) == (str(error), error.exit_code)


def test_every_problem_of_a_file_comes_over() -> None:
    """A refused reload names each problem's file and line on the operator's side."""
    there = InvalidPipeline(ConfigError("a", "f.yaml", 1), ConfigError("b", "f.yaml", 9))
    back = decode_error(json.loads(json.dumps(encode_error(there))))
    assert isinstance(back, InvalidPipeline)
    assert str(back) == "f.yaml:1: a\nf.yaml:9: b"


@pytest.fixture
def pair() -> Any:
    """Return both ends of a connection."""
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_objects_come_one_by_one(pair: Any) -> None:
    """Each line is one object, however the bytes are cut, and the end returns ``None``."""
    one, other = pair
    lines = JsonLines(other, MAX_REQUEST)
    one.sendall(b'{"v": 1, "n": 1}\n{"v": 1,')
    assert lines.receive() == {"v": 1, "n": 1}
    one.sendall(b' "n": 2}\n')
    assert lines.receive() == {"v": 1, "n": 2}
    one.close()
    assert lines.receive() is None


@pytest.mark.parametrize(
    "sent", [b"x" * 200 + b"\n", b"no json\n", b"[1]\n", b'{"v": 2}\n', b"{}\n", b"[" * 90 + b"\n"]
)
def test_a_line_that_cannot_be_understood_is_refused(pair: Any, sent: bytes) -> None:
    """A line that is too long, not an object, or of another version is refused at the limit."""
    one, other = pair
    one.sendall(sent)
    with pytest.raises(ActionRefused):
        JsonLines(other, 100).receive()


def test_a_version_that_is_not_ours_is_named(pair: Any) -> None:
    """The error to a command of another version names both versions."""
    one, other = pair
    one.sendall(b'{"v": 2, "op": "status"}\n')
    with pytest.raises(ActionRefused, match="version 2, but this transporter uses version 1"):
        JsonLines(other, 100).receive()


def test_an_address_is_never_longer_than_the_system_takes(tmp_path: Path) -> None:
    """A socket can be bound and reached in a directory with a path of hundreds of bytes."""
    deep = tmp_path / ("d" * 120) / ("é" * 60)
    deep.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as caller:
        with socket_address(deep) as address:
            listener.bind(address)
        listener.listen()
        with socket_address(deep) as address:
            caller.connect(address)
    assert (deep / "control.sock").is_socket()


def test_a_name_that_is_unknown_is_an_error_of_usage_on_either_side() -> None:
    """An unknown name has the exit code of a wrong command, with an engine and without."""
    error = decode_error(encode_error(UnknownName("there is no route 'none'")))
    assert (type(error), error.exit_code, str(error)) == (
        UnknownName,
        2,
        "there is no route 'none'",
    )

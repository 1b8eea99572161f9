"""Tests of the engine's connections: messages that run no code, with and without TLS."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import PATIENCE

from transporter.adaptor import StoredOffset
from transporter.protocol import channel as module
from transporter.protocol.certificate import client_context, server_context
from transporter.protocol.channel import (
    EngineChannel,
    WorkerChannel,
    decode_message,
    encode_message,
)
from transporter.protocol.messages import (
    ENGINE_MESSAGES,
    Announcement,
    Failure,
    FailureKind,
    Hello,
    HostEnding,
    HostHello,
    HostReady,
    Lent,
    Need,
    Opened,
    OpenFailed,
    Outcome,
    Output,
    PartialOutcome,
    TaskHello,
    WorkerEnded,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STORED = StoredOffset("log", "out", 1, 0, 0, 1, 15, "run")
OUTCOME = Outcome(7, 5, 1, 99, {"a": 7, "ü\U0001f511": 2}, Failure(FailureKind.REJECTED, "no", 7))
MESSAGES = [
    Hello("out", 1, 2, 3, 4, remote=True),
    TaskHello("out", 1, 2),
    HostHello(7),
    HostReady("4.2", "local"),
    HostEnding("why"),
    WorkerEnded("out", 0, "why", 3, gone=False),
    Opened(STORED, (STORED, STORED)),
    Opened(None),
    OpenFailed(Failure(FailureKind.UNAVAILABLE, "text\0\n\"'", None)),
    OUTCOME,
    PartialOutcome(Outcome(1, 1, 0, 0, {})),
    Output("printed\n"),
    Announcement(2**62),
    Need(),
]


@contextmanager
def pair(*, tls: bool = False, tcp: bool = False) -> Iterator[tuple[EngineChannel, WorkerChannel]]:
    """Yield both ends of one connection."""
    ours, theirs = _over_tcp() if tcp else socket.socketpair()
    with ExitStack() as stack:
        if tls:
            context, _ = server_context()
            ours, theirs = _encrypted(ours, theirs, context)
        yield (
            stack.enter_context(EngineChannel(ours)),
            stack.enter_context(WorkerChannel(theirs)),
        )


def _over_tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        theirs = socket.create_connection(door.getsockname())
        ours, _ = door.accept()
    return ours, theirs


def _encrypted(ours: socket.socket, theirs: socket.socket, context: Any) -> Any:
    found: list[socket.socket] = []
    shaking = threading.Thread(
        target=lambda: found.append(context.wrap_socket(ours, server_side=True))
    )
    shaking.start()
    wrapped = client_context().wrap_socket(theirs)
    shaking.join(PATIENCE)
    return found[0], wrapped


TLS = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])


@TLS
def test_all_that_is_said_arrives_as_it_was(tls: bool) -> None:
    """Every kind of message to the engine arrives unchanged, and so do messages from it."""
    assert {type(each) for each in MESSAGES} == set(ENGINE_MESSAGES)
    with pair(tls=tls) as (engine, worker):
        for each in MESSAGES:
            worker.send(each)
            assert engine.recv() == each
        engine.send(Lent("file", 1, b"\xff", 2))
        assert worker.recv() == Lent("file", 1, b"\xff", 2)


def test_text_that_is_no_unicode_arrives_without_what_is_none() -> None:
    """A text with bytes that are not Unicode arrives, with those bytes replaced."""
    assert decode_message(encode_message(Output("a\udcffb"))) == Output("a?b")


class Trap:
    """An object that leaves a trace when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("sprung",))


@pytest.mark.parametrize(
    "said",
    [
        pickle.dumps(Trap()),
        b"Output " + pickle.dumps(Trap()),
        b'Output {"text": 7}',
        b"Output {}",
        b"Output",
        b'Outcome {"through": "7", "delivered": 1, "skipped": 0, "size": 0, "namespaces": {}}',
        b'OpenFailed {"failure": {"kind": "os.system", "text": "", "offset": null}}',
        b'Slice {"first": 0, "last": 1, "generation": 0}',
        b'Progress {"offset": 1' + b"[" * 100_000,
        b"",
    ],
)
def test_an_engine_takes_nothing_for_a_message_that_is_none(
    said: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invalid message runs no code, and its connection counts as broken."""
    monkeypatch.chdir(tmp_path)
    with pair() as (engine, worker):
        worker.send_bytes(said)
        with pytest.raises(ConnectionError, match="not a message"):
            engine.recv()
    assert not (tmp_path / "sprung").exists()


@TLS
def test_an_end_is_told_from_a_break(tls: bool) -> None:
    """A close between two messages is an end, but in the middle of one it is a break."""
    with pair(tls=tls) as (engine, worker):
        worker.send(Need())
        worker.close()
        assert engine.recv() == Need()
        with pytest.raises(EOFError):
            engine.recv()
    with pair(tls=tls) as (engine, worker):
        worker.send_raw(struct.pack(">Q", 10) + b"Need")
        worker.close()
        with pytest.raises(ConnectionError, match="in the middle"):
            engine.recv()


@TLS
def test_a_reset_over_tcp_is_no_end(tls: bool) -> None:
    """A reset connection is not an end, because its worker may continue to deliver.

    No other worker may begin before the end of its process is reported (``Fence.wait``).
    """
    with pair(tls=tls, tcp=True) as (engine, worker):
        worker.close()
        with pytest.raises(EOFError):
            engine.recv()
    with pair(tls=tls, tcp=True) as (engine, worker):
        worker.send(Need())
        assert engine.recv() == Need()
        line = worker._line
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        worker.close()
        with pytest.raises(ConnectionError):
            engine.recv()


@TLS
def test_what_came_before_the_end_is_heard(tls: bool) -> None:
    """The last message of a worker is received before its end."""
    with pair(tls=tls, tcp=True) as (engine, worker):
        worker.send(Announcement(7))
        worker.close()
        assert engine.recv() == Announcement(7)
        with pytest.raises(EOFError):
            engine.recv()


def test_a_length_is_checked_before_it_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claimed length of a message is checked before memory is allocated (Invariant 17)."""
    with pair() as (engine, worker):
        worker.send_raw(struct.pack(">Q", 1 << 50))
        with pytest.raises(ConnectionError, match="at most"):
            engine.recv()
        monkeypatch.setattr(module, "MOST", 10)
        with pytest.raises(ValueError, match="longer than"):
            worker.send(Output("0123456789"))


@TLS
def test_polling_finds_what_has_been_received_already(tls: bool) -> None:
    """Each of several messages in one packet is an answer to a poll, and then none is left."""
    with pair(tls=tls) as (engine, worker):
        first, second = (encode_message(each) for each in (Announcement(1), Announcement(2)))
        lengths = [struct.pack(">Q", len(each)) for each in (first, second)]
        worker.send_raw(lengths[0] + first + lengths[1] + second)
        assert engine.poll(PATIENCE)
        assert engine.recv() == Announcement(1)
        assert engine.poll(0)
        assert engine.recv() == Announcement(2)
        assert not engine.poll(0)
        worker.close()
        assert engine.poll(PATIENCE)


@TLS
def test_bytes_arrive_as_they_are(tls: bool) -> None:
    """Megabytes of raw bytes arrive unchanged, beside the messages, in Arrow's memory."""
    data = os.urandom(3 << 20)
    with pair(tls=tls) as (engine, worker):
        sending = threading.Thread(target=engine.send_raw, args=(data,))
        sending.start()
        assert worker.receive_raw(len(data)).to_pybytes() == data
        sending.join(PATIENCE)


def test_a_closed_channel_is_not_polled() -> None:
    """A closed channel is not polled, because its descriptor may have another owner by then."""
    with pair() as (engine, _):
        engine.close()
        with pytest.raises(OSError, match="closed"):
            engine.poll(0)

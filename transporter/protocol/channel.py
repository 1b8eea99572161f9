"""The two ends of a connection between the engine and its Spark host, or a worker.

What the engine hears is JSON, checked against the types of the protocol's messages: whoever
sends it, it can run no code here. What it says is pickled, for it tells others what to do, and
that comes with code of the user's anyway; they unpickle only what an engine says that has
proved itself. TLS, where a connection has it, is below both.
"""

from __future__ import annotations

import json
import pickle
import select
import socket
import ssl
import struct
from dataclasses import asdict
from enum import Enum
from functools import cache
from typing import Any, Final, Self

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from transporter.protocol import messages

MOST: Final = 256 << 20
"""Bytes of the longest message: one with a pipeline's modules has up to 64 MiB."""
_HEARD: Final = {kind.__name__.encode(): kind for kind in messages.HEARD}
_LENGTH: Final = struct.Struct(">Q")


class Channel:
    """Messages, and bytes as they are, over a connected socket.

    Used by one thread at a time where it has TLS. The other side's end is an ``EOFError``
    between two messages; whatever else goes wrong is a ``ConnectionError`` or another ``OSError``.
    """

    def __init__(self, line: socket.socket) -> None:
        """Take *line* over; it blocks."""
        self._line = line
        self._tls = line if isinstance(line, ssl.SSLSocket) else None
        self._poll = select.poll()
        self._poll.register(line, select.POLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor; with TLS there may be more to receive than it tells."""
        return self._line.fileno()

    def close(self) -> None:
        """Hang up."""
        self._line.close()

    def poll(self, timeout: float = 0.0) -> bool:
        """Wait up to *timeout* seconds; return whether there is something to receive, or an end."""
        if self._line.fileno() < 0:
            raise OSError("the connection is closed")
        pending = self._tls is not None and self._tls.pending() > 0
        return pending or bool(self._poll.poll(timeout * 1000))

    def send_bytes(self, data: bytes) -> None:
        """Send one message."""
        if len(data) > MOST:
            raise ValueError(f"a message of {len(data)} bytes is longer than {MOST}")
        self.send_raw(_LENGTH.pack(len(data)) + data)

    def recv_bytes(self, most: int = MOST) -> bytes:
        """Return the next message, which has at most *most* bytes."""
        head = bytearray(_LENGTH.size)
        if self._tls is not None:
            _await_record(self._tls)
        self._fill(memoryview(head), begun=self._tls is not None)
        (size,) = _LENGTH.unpack(head)
        if size > most:
            raise ConnectionError(f"a message of {size} bytes, where at most {most} are expected")
        data = bytearray(size)
        self._fill(memoryview(data))
        return bytes(data)

    def send_raw(self, data: bytes) -> None:
        """Send *data* as it is: neither pickled nor copied, for it may be megabytes."""
        try:
            self._line.sendall(data)
        except ssl.SSLError as error:
            raise ConnectionError(str(error)) from error

    def receive_raw(self, size: int) -> pa.Buffer:
        """Return *size* bytes that were sent by :meth:`send_raw`."""
        # Into Arrow's memory, for the entries lie in it: Python would map new pages each time.
        buffer = pa.allocate_buffer(size)
        self._fill(memoryview(buffer).cast("B"))
        return buffer

    def limit(self, seconds: float | None) -> None:
        """Have each further call fail after *seconds* without progress."""
        self._line.settimeout(seconds)

    def _fill(self, left: memoryview, *, begun: bool = True) -> None:
        try:
            while left:
                if (got := self._line.recv_into(left)) == 0:
                    if begun:
                        raise ConnectionError("the connection ended in the middle of a message")
                    raise EOFError
                left, begun = left[got:], True
        except ssl.SSLError as error:
            raise ConnectionError(str(error)) from error


def _await_record(line: ssl.SSLSocket) -> None:
    """Wait until there is something to receive; raise what the kernel tells of an end.

    Python takes OpenSSL's report of a connection that was reset, or has timed out, for an
    end of file, and so for the end of a worker that may still be delivering.
    """
    if not line.pending() and not socket.socket.recv(line, 1, socket.MSG_PEEK):
        raise EOFError


class EngineChannel(Channel):
    """The engine's end."""

    def send(self, message: object) -> None:
        """Say *message*."""
        self.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def recv(self) -> Any:  # noqa: ANN401 - whatever is said
        """Return what the other side says; ``ConnectionError`` when it is no message of ours."""
        return decoded(self.recv_bytes())


class WorkerChannel(Channel):
    """The end of a worker, or of the Spark host."""

    def send(self, message: object) -> None:
        """Say *message*, one of those that an engine hears."""
        self.send_bytes(encoded(message))

    def recv(self) -> Any:  # noqa: ANN401 - whatever is said
        """Return what the engine says."""
        return pickle.loads(self.recv_bytes())  # noqa: S301 - it has proved itself


def encoded(message: Any) -> bytes:  # noqa: ANN401 - a dataclass of the protocol
    """Return *message* as its name and JSON."""
    text = json.dumps(asdict(message), ensure_ascii=False, default=_plain)
    # Half a surrogate, in an error's text say, is nothing that JSON can hold.
    return f"{type(message).__name__} {text}".encode(errors="replace")


def decoded(data: bytes) -> Any:  # noqa: ANN401 - as above
    """Return the message that :func:`encoded` has made *data* of.

    Raises:
        ConnectionError: it is none.

    """
    name, _, text = data.partition(b" ")
    try:
        return _adapter(_HEARD[name]).validate_json(text, strict=True)
    except (KeyError, ValidationError) as error:
        # Without its text, which may hold anything.
        raise ConnectionError(f"what was said is no message ({type(error).__name__})") from None


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} is nothing that an engine hears")


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    """Return what checks messages of this *kind*: making one takes some milliseconds."""
    return TypeAdapter(kind)

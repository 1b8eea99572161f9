"""The two ends of a connection between the engine and its Spark host, or a worker.

The engine receives JSON, validated against the types of the protocol's messages, so that no
sender can run code in it. It sends pickles, because its requests carry the user's code anyway.
The other side unpickles only messages of an engine that has proved its identity. TLS, where a
connection has it, is below both.
"""

from __future__ import annotations

import json
import pickle
import select
import socket
import ssl
import struct
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Final, Self

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from transporter.protocol import messages

MOST: Final = 256 << 20
"""Bytes of the longest message: one with a pipeline's modules has up to 64 MiB."""
_RECEIVABLE: Final = {kind.__name__.encode(): kind for kind in messages.ENGINE_MESSAGES}
_LENGTH: Final = struct.Struct(">Q")


class Channel:
    """Messages, and bytes as they are, over a connected socket.

    With TLS it is used by one thread at a time. The other side's end is an ``EOFError``
    between two messages. Every other failure is a ``ConnectionError`` or another ``OSError``.
    """

    def __init__(self, line: socket.socket) -> None:
        """Take over *line*, in blocking mode."""
        self._line = line
        self._tls = line if isinstance(line, ssl.SSLSocket) else None
        self._poll = select.poll()
        self._poll.register(line, select.POLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor. With TLS there may be buffered data that it does not show."""
        return self._line.fileno()

    def close(self) -> None:
        """Hang up."""
        self._line.close()

    def poll(self, timeout: float = 0.0) -> bool:
        """Wait up to *timeout* seconds; return whether data or an end can be received."""
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

    def set_timeout(self, seconds: float | None) -> None:
        """Have each further call fail after *seconds* without progress."""
        self._line.settimeout(seconds)

    def set_send_timeout(self, seconds: float) -> None:
        """Have each further send fail after *seconds* without progress; not with TLS."""
        whole, rest = divmod(seconds, 1)
        timeout = struct.pack("ll", int(whole), int(rest * 1e6))
        self._line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)

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
    """Wait for data; raise the kernel's error if the connection failed.

    Python treats OpenSSL's report of a reset or a timed-out connection as an end of file, and
    so as the end of a worker that may still be delivering.
    """
    if not line.pending() and not socket.socket.recv(line, 1, socket.MSG_PEEK):
        raise EOFError


class EngineChannel(Channel):
    """The engine's end."""

    def send(self, message: object) -> None:
        """Send *message*."""
        self.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def recv(self) -> Any:  # noqa: ANN401 - any message
        """Receive a message. Raises ``ConnectionError`` if it is not one of the protocol."""
        return decode_message(self.recv_bytes())


class WorkerChannel(Channel):
    """The end of a worker, or of the Spark host."""

    def send(self, message: object) -> None:
        """Send *message*, one of those that an engine receives."""
        self.send_bytes(encode_message(message))

    def recv(self) -> Any:  # noqa: ANN401 - any message
        """Receive a message of the engine."""
        return pickle.loads(self.recv_bytes())  # noqa: S301 - it has proved itself


def encode_message(message: Any) -> bytes:  # noqa: ANN401 - a dataclass of the protocol
    """Return *message* as its name and JSON."""
    text = _ENCODER.encode(message)
    # JSON cannot hold a lone surrogate, which an error's text may have.
    return f"{type(message).__name__} {text}".encode(errors="replace")


def decode_message(data: bytes) -> Any:  # noqa: ANN401 - as above
    """Return the message that :func:`encode_message` has made *data* of.

    Raises:
        ConnectionError: it is none.

    """
    name, _, text = data.partition(b" ")
    try:
        return _adapter(_RECEIVABLE[name]).validate_json(text, strict=True)
    except (KeyError, ValidationError) as error:
        # Without its text, which may hold anything.
        raise ConnectionError(
            f"received data is not a message of the protocol ({type(error).__name__})"
        ) from None


def _to_plain(value: Any) -> object:  # noqa: ANN401 - a dataclass of the protocol, or an enum
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        # Several times as fast as asdict, which copies everything.
        return {each.name: getattr(value, each.name) for each in fields(value)}
    raise TypeError(f"{type(value).__name__} is not a value that can be sent to an engine")


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, default=_to_plain)


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    """Return the validator of this *kind* of message, cached: building one takes milliseconds."""
    return TypeAdapter(kind)

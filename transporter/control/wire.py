"""The conversation on a control socket: JSON, one object a line. docs/design/operating.md.

A server greets first (``{"v": 1, "pid": …, "accepts": ["for"]}``). Then each request is
``{"v": 1, "op": name, "args": {…}}``, with ``"for": {"who", "via", "from"}`` if it is made on
behalf of a person. Each answer is ``{"v": 1, "ok": true, "result": …}`` or
``{"v": 1, "ok": false, "error": {…}}``. Lines are bounded (Invariant 17).
"""

from __future__ import annotations

import json
import os
import socket
import struct
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from transporter import errors
from transporter.audit import OnBehalfOf, Operator
from transporter.control.requests import KINDS, Request
from transporter.errors import ActionRefused, EngineUnreachable, TransporterError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pydantic import TypeAdapter

VERSION: Final = 1
ACCEPTS: Final = ("for",)
"""Parts of a request, beside operation and arguments, that this engine knows."""
SOCKET: Final = "control.sock"
READ_SOCKET: Final = "status.sock"
"""The socket of read-only requests, for the group of the log directory."""
MAX_REQUEST: Final = 256 << 10
MAX_ANSWER: Final = 8 << 20
_LONGEST_PATH: Final = 107
"""Bytes that the system takes for the address of a socket."""
_PIECE: Final = 64 << 10


@contextmanager
def socket_address(directory: Path, name: str = SOCKET) -> Iterator[str]:
    """Yield an address of the socket *name* in *directory* that the system takes.

    A path that is too long for a socket is reached through a descriptor of its
    directory, so nothing has to be written down anywhere else.
    """
    path = directory / name
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    # It is only passed through, so the right to list it is not needed.
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def peer_operator(peer: socket.socket) -> Operator:
    """Return the originator of a connection to a Unix socket of this host."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return Operator.of_process(pid, uid)


class JsonLines:
    """Sends and receives the objects of one conversation. Not thread-safe."""

    def __init__(self, peer: socket.socket, max_bytes: int) -> None:
        """Refuse a line of more than *max_bytes* bytes."""
        self._peer, self._max_bytes = peer, max_bytes
        self._buffer = b""

    def send(self, content: dict[str, Any]) -> None:
        """Send one object."""
        self._peer.sendall(json.dumps({"v": VERSION, **content}, default=str).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """Return the next object, or ``None`` after the other side has closed.

        Raises:
            ActionRefused: it is too long, not an object, or of another version.

        """
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > self._max_bytes:
                raise ActionRefused(f"the line is longer than {self._max_bytes} bytes")
            piece = self._peer.recv(_PIECE)
            if not piece:
                return None
            self._buffer += piece
        line, self._buffer = self._buffer[:end], self._buffer[end + 1 :]
        return _parse_object(line)


def _parse_object(line: bytes) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ActionRefused("the line is not JSON") from error
    version = content.get("v") if isinstance(content, dict) else None
    if version != VERSION:
        raise ActionRefused(
            f"the message has version {version!r}, but this transporter uses version {VERSION}; "
            "use the same version for the command and the engine"
        )
    found: dict[str, Any] = content
    return found


def encode_request(request: Request, on_behalf_of: OnBehalfOf | None = None) -> dict[str, Any]:
    """Return *request* as a message.

    Arguments that have their defaults are left out, so an older engine accepts every request
    that does not use newer ones.
    """
    defaults = {each.name: each.default for each in fields(request)}
    args = {name: value for name, value in asdict(request).items() if value != defaults[name]}
    person = {} if on_behalf_of is None else {"for": on_behalf_of.encode()}
    return {"op": request_name(request), "args": args, **person}


def request_name(request: Request) -> str:
    """Return the name of *request* on the socket."""
    return next(name for name, kind in KINDS.items() if type(request) is kind)


def decode_on_behalf_of(message: dict[str, Any]) -> OnBehalfOf | None:
    """Return the person for whom *message* was sent, if it names one."""
    return OnBehalfOf.decode(message["for"]) if "for" in message else None


def decode_request(message: dict[str, Any]) -> Request:
    """Return the request in *message*; raise :class:`ActionRefused` if it is not one."""
    operation, arguments = message.get("op"), message.get("args", {})
    kind = KINDS.get(operation) if isinstance(operation, str) else None
    if kind is None:
        raise ActionRefused(f"no such operation: {operation!r}"[:200])
    if not isinstance(arguments, dict) or set(arguments) - {each.name for each in fields(kind)}:
        raise ActionRefused(f"{operation}: unknown arguments")
    return _validate(kind, arguments)


def _validate(kind: type[Any], arguments: dict[str, Any]) -> Request:
    from pydantic import ValidationError  # noqa: PLC0415 - the asking side does without

    try:
        checked: Request = _adapters()[kind].validate_json(json.dumps(arguments), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ActionRefused(f"{place}: {first['msg']}") from error
    return checked


@cache
def _adapters() -> dict[type[Any], TypeAdapter[Any]]:
    """Return the validators of all requests, cached: building one is slow."""
    from pydantic import TypeAdapter  # noqa: PLC0415 - as above

    return {kind: TypeAdapter(kind) for kind in KINDS.values()}


def encode_error(error: TransporterError) -> dict[str, Any]:
    """Return *error* as plain values."""
    problems = getattr(error, "problems", ())
    return {
        "type": type(error).__name__,
        "message": str(error),
        "exit_code": error.exit_code,
        "problems": [[each.problem, each.file, each.line] for each in problems],
    }


def decode_error(content: dict[str, Any]) -> TransporterError:
    """Return the error that the other side has had."""
    if content.get("problems"):
        from transporter.pipeline.problems import InvalidPipeline  # noqa: PLC0415 - rarely needed

        return InvalidPipeline(*(errors.ConfigError(*each) for each in content["problems"]))
    kind = getattr(errors, str(content.get("type")), None)
    known = isinstance(kind, type) and issubclass(kind, TransporterError)
    made = kind if known and kind in _OF_ONE_TEXT else _error_class(content.get("exit_code"))
    return made(str(content.get("message")))


_OF_ONE_TEXT: Final = frozenset(
    {
        errors.ActionRefused,
        errors.Corrupt,
        errors.EngineUnreachable,
        errors.EntriesLost,
        errors.LogFull,
        errors.LogLocked,
        errors.LogPoisoned,
        errors.OffsetRefused,
        errors.UnknownName,
    }
)


def _error_class(exit_code: object) -> type[TransporterError]:
    nearest = {2: errors.ConfigError, errors.EnvironmentFault.exit_code: errors.EnvironmentFault}
    return (
        nearest.get(exit_code, TransporterError)
        if isinstance(exit_code, int)
        else (EngineUnreachable)
    )

"""Client of an engine's control socket, or of the log itself when no engine runs."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, Self

from transporter.audit import this_operator
from transporter.control.requests import LogMetadata, Status
from transporter.control.wire import (
    MAX_ANSWER,
    READ_SOCKET,
    JsonLines,
    decode_error,
    encode_request,
    socket_address,
)
from transporter.errors import EngineUnreachable, EnvironmentFault, LogLocked

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.control.requests import Request

PATIENCE: Final = 3.0
"""Seconds that an engine may take to start or to stop before a command gives up."""
_PAUSE: Final = 0.1
_ANSWER: Final = 120.0
"""Seconds to wait for an answer: longer than the engine lets anything take."""


class NoEngine(Exception):
    """No process serves the control socket, so nothing was requested."""


class EngineEnded(EnvironmentFault):
    """The engine ended before it answered, so the outcome is unknown."""


class EngineClient:
    """A conversation with the engine that runs on a log. Not thread-safe."""

    def __init__(self, directory: Path, answer_within: float = _ANSWER) -> None:
        """Connect. An engine that takes longer than *answer_within* seconds counts as ended.

        Raises:
            NoEngine: no process listens.
            EngineUnreachable: the engine does not accept this client now.

        """
        with ExitStack() as stack:
            peer = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            peer.settimeout(answer_within)
            try:
                _connect(peer, directory)
                self._lines = JsonLines(peer, MAX_ANSWER)
                greeting = self._lines.receive()
            except OSError as error:
                raise NoEngine from error
            if greeting is None:
                raise NoEngine
            if "error" in greeting:
                raise decode_error(greeting["error"])
            self.pid = int(greeting["pid"])
            self._close = stack.pop_all()

    def call(self, request: Request) -> dict[str, Any]:
        """Return the engine's answer, or raise its error."""
        try:
            self._lines.send(encode_request(request))
            answer = self._lines.receive()
        except OSError:
            answer = None
        if answer is None:
            raise EngineEnded(
                "the engine ended before it answered; "
                "'transporter audit' shows whether the change was made"
            )
        if not answer.get("ok"):
            raise decode_error(answer.get("error", {}))
        result: dict[str, Any] = answer["result"]
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close.close()


def _connect(peer: socket.socket, directory: Path) -> None:
    """Connect to the engine's socket, or where this user may only look, to that for it."""
    try:
        with socket_address(directory) as address:
            peer.connect(address)
    except PermissionError:
        with socket_address(directory, READ_SOCKET) as address:
            peer.connect(address)


def perform(directory: Path, request: Request, patience: float = PATIENCE) -> dict[str, Any]:
    """Perform *request* through the engine that runs on *directory*, or without one.

    An engine that starts or stops just now is waited for, *patience* seconds long.

    Raises:
        EngineUnreachable: the log is in use, and its owner does not answer.
        TransporterError: the request was refused or failed.

    """
    deadline = time.monotonic() + patience
    while True:
        try:
            return _try_perform(directory, request)
        except LogLocked as error:
            if time.monotonic() > deadline:
                raise EngineUnreachable(f"{error} (it does not answer operators)") from error
        except EngineUnreachable:
            if time.monotonic() > deadline:
                raise
        # No event tells another process that an engine has begun to listen.
        time.sleep(_PAUSE)


def _try_perform(directory: Path, request: Request) -> dict[str, Any]:
    with suppress(NoEngine), EngineClient(directory) as engine:
        try:
            return engine.call(request) | {"live": True}
        except EngineEnded:
            # A read-only request has no effect, so it may be repeated, on the disk.
            if not isinstance(request, Status | LogMetadata):
                raise
    return _perform_offline(directory, request) | {"live": False}


def _perform_offline(directory: Path, request: Request) -> dict[str, Any]:
    if isinstance(request, Status):
        from transporter.control.offline_status import read_status  # noqa: PLC0415 - imports pyarrow

        return read_status(directory)
    from transporter.control.stopped_log import StoppedLog  # noqa: PLC0415 - all that can append

    return StoppedLog(directory).perform(request, this_operator())

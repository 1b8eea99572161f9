"""Client of an engine's control socket, or of the log itself when no engine runs."""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, Self

from transporter.audit import this_operator
from transporter.control.requests import ReadRequest, Status
from transporter.control.wire import (
    MAX_ANSWER,
    MAX_REQUEST,
    READ_SOCKET,
    JsonLines,
    decode_error,
    encode_request,
    request_name,
    socket_address,
)
from transporter.errors import ActionRefused, EngineUnreachable, EnvironmentFault, LogLocked

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.audit import OnBehalfOf
    from transporter.control.requests import Request
    from transporter.errors import TransporterError

PATIENCE: Final = 3.0
"""Seconds that an engine may take to start or to stop before a command gives up."""
_PAUSE: Final = 0.1
_ENVELOPE: Final = 100
"""Bytes of a request's line beside the request itself."""
_ANSWER: Final = 120.0
"""Seconds to wait for an answer: longer than the engine lets anything take."""


class NoEngine(Exception):
    """No process serves the control socket, so nothing was requested."""


class EngineEnded(EnvironmentFault):
    """The engine ended before it answered, or took too long, so the outcome is unknown."""


class EngineClient:
    """A conversation with the engine that runs on a log. Not thread-safe."""

    def __init__(self, directory: Path, answer_within: float = _ANSWER) -> None:
        """Connect. An engine that takes longer than *answer_within* seconds counts as ended.

        Raises:
            NoEngine: no process listens.
            EngineUnreachable: the engine does not accept this client now.

        """
        self._answer_within = answer_within
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
            self._accepts = greeting.get("accepts", ())
            self._close = stack.pop_all()

    def call(self, request: Request, on_behalf_of: OnBehalfOf | None = None) -> dict[str, Any]:
        """Return the engine's answer to *request*, or raise its error.

        A front end passes the person for whom it acts as *on_behalf_of*.

        Raises:
            ActionRefused: the request is too long, or the engine too old for it, and nothing was
                changed.

        """
        if on_behalf_of is not None and "for" not in self._accepts:
            # It would ignore the name, and record the front end's own user alone.
            raise ActionRefused(
                "the running engine is older and does not record for whom a request is made; "
                "restart it with this version"
            )
        message = encode_request(request, on_behalf_of)
        if len(json.dumps(message)) > MAX_REQUEST - _ENVELOPE:
            raise ActionRefused(
                f"the request is longer than {MAX_REQUEST >> 10} KiB; name fewer offsets at once"
            )
        try:
            self._lines.send(message)
            answer = self._lines.receive()
        except TimeoutError as error:
            raise EngineEnded(
                f"the engine did not answer within {self._answer_within:g} s; "
                "'transporter audit' shows whether the change was made"
            ) from error
        except OSError:
            answer = None
        if answer is None:
            raise EngineEnded(
                "the engine ended before it answered; "
                "'transporter audit' shows whether the change was made"
            )
        if not answer.get("ok"):
            raise _explain_age(decode_error(answer.get("error", {})), request)
        result: dict[str, Any] = answer["result"]
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close.close()


def _explain_age(error: TransporterError, request: Request) -> TransporterError:
    """Return *error*, or a clearer one if the engine is too old to know *request*."""
    name = request_name(request)
    unknown = (f"no such operation: {name!r}", f"{name}: unknown arguments")
    if isinstance(error, ActionRefused) and str(error) in unknown:
        return ActionRefused(
            f"the running engine does not know this form of the request {name!r}: it is older than "
            "this command; restart it with this version. Nothing was changed"
        )
    return error


def _connect(peer: socket.socket, directory: Path) -> None:
    """Connect to the engine's socket, or where this user may only look, to that for it."""
    try:
        with socket_address(directory) as address:
            peer.connect(address)
    except PermissionError:
        with socket_address(directory, READ_SOCKET) as address:
            peer.connect(address)


def perform(
    directory: Path,
    request: Request,
    patience: float = PATIENCE,
    *,
    on_behalf_of: OnBehalfOf | None = None,
    answer_within: float = _ANSWER,
) -> dict[str, Any]:
    """Perform *request* through the engine that runs on *directory*, or without one.

    An engine that starts or stops just now is waited for, *patience* seconds long, and its answer
    for *answer_within* seconds. A front end passes the person for whom it acts as *on_behalf_of*.

    Raises:
        EngineEnded: no answer came, so the outcome is unknown.
        EngineUnreachable: the log is in use, and its owner does not answer.
        TransporterError: the request was refused or failed.

    """
    deadline = time.monotonic() + patience
    while True:
        try:
            return _try_perform(directory, request, on_behalf_of, answer_within)
        except LogLocked as error:
            if time.monotonic() > deadline:
                raise EngineUnreachable(f"{error} (it does not answer operators)") from error
        except EngineUnreachable:
            if time.monotonic() > deadline:
                raise
        # No event tells another process that an engine has begun to listen.
        time.sleep(_PAUSE)


def _try_perform(
    directory: Path, request: Request, on_behalf_of: OnBehalfOf | None, answer_within: float
) -> dict[str, Any]:
    with suppress(NoEngine), EngineClient(directory, answer_within) as engine:
        try:
            return engine.call(request, on_behalf_of) | {"live": True}
        except EngineEnded:
            # A read-only request has no effect, so it may be repeated, on the disk.
            if not isinstance(request, ReadRequest):
                raise
    return _perform_offline(directory, request, on_behalf_of) | {"live": False}


def _perform_offline(
    directory: Path, request: Request, on_behalf_of: OnBehalfOf | None
) -> dict[str, Any]:
    if isinstance(request, Status):
        from transporter.control.offline_status import read_status  # noqa: PLC0415 - imports pyarrow

        return read_status(directory)
    from transporter.control.stopped_log import StoppedLog  # noqa: PLC0415 - all that can append

    return StoppedLog(directory).perform(request, this_operator().acting_for(on_behalf_of))

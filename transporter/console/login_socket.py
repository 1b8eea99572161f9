"""The Unix socket that gives login links to the console's own user, and to no other.

It lies in the log's directory beside ``control.sock``, with the same rights: 0600.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Self

from transporter.control.wire import peer_operator, socket_address
from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NAME: Final = "console.sock"
_SECONDS: Final = 5.0
_START_SECONDS: Final = 20.0
"""Seconds within which a console of an engine is up on a busy host, and answers."""
_MOST: Final = 4096
_TRIES: Final = 2
"""One more than the consoles of an engine that may be leaving just then."""
_PAUSE: Final = 0.5
"""Seconds until another try where no descriptor is left."""


@contextmanager
def listening(directory: Path) -> Iterator[socket.socket]:
    """Yield a socket that listens in *directory*, with rights for this user alone.

    Its name is removed at the end, unless it is another console's by then.

    Raises:
        EnvironmentFault: another console listens there.
        OSError: the directory cannot hold the socket.

    """
    path = directory / NAME
    refuse_second(directory)
    with suppress(FileNotFoundError):
        path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        # Before the socket has a name, so that no other user ever finds it open.
        os.fchmod(listener.fileno(), 0o600)
        with socket_address(directory, NAME) as address:
            listener.bind(address)
        path.chmod(0o600)
        inode = path.stat().st_ino
        listener.listen()
        try:
            yield listener
        finally:
            with suppress(OSError):
                if path.lstat().st_ino == inode:
                    path.unlink()


def refuse_second(directory: Path) -> None:
    """Raise :class:`EnvironmentFault` if a console already serves the log in *directory*."""
    with suppress(OSError), _connect(directory):
        raise EnvironmentFault(
            f"a console already serves {directory}; 'transporter ui --login' prints its link"
        )


class LoginSocket:
    """Gives a link to each process of this user, or of root, that connects. Runs a thread."""

    def __init__(
        self, listener: socket.socket, make_link: Callable[[str], str], *, is_shared: bool = False
    ) -> None:
        """Answer on *listener*. *make_link* makes a link for the name of a user.

        One that *is_shared* with the engine's process is left as it is at the end.
        """
        self._listener, self._make_link, self._is_shared = listener, make_link, is_shared
        self._thread = threading.Thread(target=self._serve, name="console-login", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Answer no more."""
        if self._is_shared:
            return  # It ends with this process: a shutdown would be the engine's as well.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(_SECONDS)

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError as error:
                if error.errno not in {errno.EMFILE, errno.ENFILE, errno.ECONNABORTED}:
                    return  # closed
                time.sleep(_PAUSE)
                continue
            with peer, suppress(OSError):
                peer.settimeout(_SECONDS)
                self._answer(peer)

    def _answer(self, peer: socket.socket) -> None:
        operator = peer_operator(peer)
        if operator.uid not in {0, os.getuid()}:
            answer = {"v": 1, "error": "only the console's own user may log in by a link"}
        else:
            answer = {"v": 1, "link": self._make_link(operator.who)}
        peer.sendall(json.dumps(answer).encode() + b"\n")


def _connect(directory: Path) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(_SECONDS)
    try:
        with socket_address(directory, NAME) as address:
            peer.connect(address)
    except OSError:
        peer.close()
        raise
    return peer


def request_link(directory: Path) -> str:
    """Return a login link from the console that serves the log in *directory*.

    Raises:
        EnvironmentFault: no console runs, or it gives none to this user.

    """
    try:
        line = next(filter(None, (_ask(directory) for _ in range(_TRIES))), b"")
    except PermissionError as error:
        raise EnvironmentFault(
            f"{directory / NAME}: only the console's own user and root may log in by a link"
        ) from error
    except TimeoutError as error:
        raise EnvironmentFault(f"the console of {directory} does not answer") from error
    except OSError as error:
        raise EnvironmentFault(
            f"no console runs on {directory}; start it with 'transporter ui {directory}'"
        ) from error
    try:
        answer = json.loads(line)
    except ValueError:
        raise EnvironmentFault(
            f"the console of {directory} has ended without an answer; the event console-failed "
            "has the reason, if an engine has started it"
        ) from None
    if "link" not in answer:
        raise EnvironmentFault(answer["error"])
    return str(answer["link"])


def _ask(directory: Path) -> bytes:
    """Return the line of an answer, or nothing from a console that has ended meanwhile."""
    with _connect(directory) as peer, peer.makefile("rb") as lines:
        peer.settimeout(_START_SECONDS)
        with suppress(ConnectionResetError):
            return lines.readline(_MOST)
    return b""

"""The Unix socket that gives login links to the console's own user, and to no other.

It lies in the log's directory beside ``control.sock``, with the same rights: 0600.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from transporter.control.wire import peer_operator, socket_address
from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAME: Final = "console.sock"
_SECONDS: Final = 5.0
_MOST: Final = 4096


class LoginSocket:
    """Gives a link to each process of this user, or of root, that connects. Runs a thread."""

    def __init__(self, directory: Path, make_link: Callable[[str], str]) -> None:
        """Listen in *directory*. *make_link* makes a link for the name of a user.

        Raises:
            EnvironmentFault: another console listens there.
            OSError: the directory cannot hold the socket.

        """
        self._path, self._make_link = directory / NAME, make_link
        if _is_served(directory):
            raise EnvironmentFault(
                f"a console already serves {directory}; 'transporter ui --login' prints its link"
            )
        with suppress(FileNotFoundError):
            self._path.unlink()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Before the socket has a name, so that no other user ever finds it open.
            os.fchmod(self._listener.fileno(), 0o600)
            with socket_address(directory, NAME) as address:
                self._listener.bind(address)
            self._path.chmod(0o600)
            self._inode = self._path.stat().st_ino
            self._listener.listen()
        except OSError:
            self._listener.close()
            raise
        self._thread = threading.Thread(target=self._serve, name="console-login", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Listen no more, and remove the socket's name unless it is another console's by now."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(_SECONDS)
        with suppress(OSError):
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
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


def _is_served(directory: Path) -> bool:
    """Return whether a console listens in *directory*. A socket that is left over answers not."""
    with suppress(OSError), _connect(directory):
        return True
    return False


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
        with _connect(directory) as peer, peer.makefile("rb") as lines:
            answer = json.loads(lines.readline(_MOST))
            found = answer.get("link")
            problem = answer.get("error", "the console gave no link")
    except PermissionError as error:
        raise EnvironmentFault(
            f"{directory / NAME}: only the console's own user and root may log in by a link"
        ) from error
    except (OSError, ValueError) as error:
        raise EnvironmentFault(
            f"no console runs on {directory}; start it with 'transporter ui {directory}'"
        ) from error
    if not isinstance(found, str):
        raise EnvironmentFault(str(problem))
    return found

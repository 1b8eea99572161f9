"""The console's listening socket, and its address."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Final

from transporter.console.guard import bracketed
from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from transporter.pipeline.observe_config import ListenAddress

UNREAD: Final = 60
"""Seconds after which a connection is closed whose peer reads nothing, on Linux."""


def bind(listen: ListenAddress) -> tuple[socket.socket, ListenAddress]:
    """Return a socket that listens on *listen*, and its address with the port that it really has.

    Raises:
        EnvironmentFault: the address is taken, or is not of this host.

    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise EnvironmentFault(f"{listen.host}: {reason}") from error
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":
            # Accepted connections inherit it. One who takes nothing more would hold a thread.
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * UNREAD)
        found.bind(address)
        # At once: two sockets may be bound to one address until one of them listens.
        found.listen()
    except OSError as error:
        found.close()
        raise EnvironmentFault(
            f"{listen.host}:{listen.port}: {error.strerror}; choose another address with "
            "--listen, or with observe.console in the pipeline file"
        ) from error
    return found, listen._replace(port=found.getsockname()[1])


def page_url(listen: ListenAddress, base_path: str) -> str:
    """Return the address of the first page, by its host on this machine."""
    host = listen.host
    shown = "localhost" if host in {"0.0.0.0", "::"} else bracketed(host)  # noqa: S104 - compared
    return f"http://{shown}:{listen.port}{base_path}/"

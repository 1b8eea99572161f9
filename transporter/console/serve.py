"""The console's server: its listening socket, and waitress."""

from __future__ import annotations

import logging
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from waitress.server import create_server

from transporter.console.app import MOST_BODY, create_app
from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transporter.console.state import Console
    from transporter.pipeline.observe_config import ListenAddress

THREADS: Final = 8


def bind(listen: ListenAddress) -> tuple[socket.socket, ListenAddress]:
    """Return a socket bound to *listen*, and its address with the port that it really has.

    Raises:
        EnvironmentFault: the address is taken, or is not of this host.

    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise EnvironmentFault(f"{listen.host}: {error.strerror or error}") from error
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        found.close()
        raise EnvironmentFault(
            f"{listen.host}:{listen.port}: {error.strerror}; choose another address with "
            "--listen, or with observe.console in the pipeline file"
        ) from error
    return found, listen._replace(port=found.getsockname()[1])


@contextmanager
def serving(console: Console, listener: socket.socket) -> Iterator[Callable[[], None]]:
    """Yield a function that serves *console* on *listener* until it is interrupted."""
    logging.getLogger("waitress").setLevel(logging.ERROR)
    server = create_server(
        create_app(console),
        sockets=[listener],
        threads=THREADS,
        ident=None,
        clear_untrusted_proxy_headers=False,  # the guard knows which peers to believe
        url_prefix=console.access.base_path,
        max_request_body_size=MOST_BODY,
    )
    try:
        yield server.run
    finally:
        server.close()
        console.close()

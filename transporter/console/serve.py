"""The console's server: waitress on a listening socket."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from waitress.server import create_server

from transporter.console.app import MOST_BODY, create_app

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from transporter.console.state import Console

THREADS: Final = 8
CONNECTIONS: Final = 500
"""Connections at once. Beyond that nobody is accepted until one closes."""
SILENCE: Final = 20
"""Seconds after which a connection is closed that sends no request, or no more of one."""


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
        connection_limit=CONNECTIONS,
        asyncore_use_poll=True,  # select() cannot wait for that many
        channel_timeout=SILENCE,
        cleanup_interval=SILENCE // 4,
    )
    try:
        yield server.run
    finally:
        server.close()
        console.close()

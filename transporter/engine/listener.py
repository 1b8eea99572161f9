"""Where the Spark host and the workers call back."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import threading
from contextlib import suppress
from multiprocessing import AuthenticationError, connection
from typing import TYPE_CHECKING, Any, Final

from transporter.engine.protocol import Hello, HostHello

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

_GREETING: Final = 10.0
"""Seconds that a caller has to say who it is."""
_REFUSED: Final = (OSError, EOFError, AuthenticationError)


def _limit_reads(caller: Connection, seconds: float) -> None:
    """Let the system fail every read from *caller* that takes longer; 0 takes the limit away."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with socket.socket(fileno=os.dup(caller.fileno())) as shared:
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


class Listener:
    """Accepts authenticated connections and hands each to whoever it calls.

    On one host it is a unix socket in a private folder.
    """

    def __init__(
        self,
        on_host: Callable[[HostHello, Connection], None],
        on_worker: Callable[[Hello, Connection], None],
    ) -> None:
        """Listen; nothing is accepted before :meth:`start`. Callbacks run on short threads."""
        self.authkey = secrets.token_bytes(32)
        # Without the key: accept() would wait, for as long as it takes, until a caller proves it.
        self._listener = connection.Listener(family="AF_UNIX")
        self.address = self._listener.address
        self._on_host, self._on_worker = on_host, on_worker
        self._closing = False
        self.thread = threading.Thread(target=self._accept, name="listener")

    def start(self) -> None:
        """Begin to accept."""
        self.thread.start()

    def close(self) -> None:
        """Stop accepting, and wait until that is so."""
        self._closing = True
        if self.thread.is_alive():
            # accept() has no timeout: one last caller ends it. It must not wait for an answer,
            # for the thread may just have ended on another one.
            with suppress(OSError):
                connection.Client(self.address).close()
            self.thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                caller = self._listener.accept()
            except _REFUSED:
                continue
            # A caller that stays silent must not keep the others waiting.
            threading.Thread(target=self._greet, args=(caller,), name="greeter").start()

    def _greet(self, caller: Connection) -> None:
        said: Any = None
        with suppress(*_REFUSED):
            _limit_reads(caller, _GREETING)
            connection.deliver_challenge(caller, self.authkey)
            connection.answer_challenge(caller, self.authkey)
            said = caller.recv()
            _limit_reads(caller, 0)
        match said:
            case HostHello():
                self._on_host(said, caller)
            case Hello():
                self._on_worker(said, caller)
            case _:
                caller.close()

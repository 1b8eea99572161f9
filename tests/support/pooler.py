"""A pooler for tests: sessions of a real server, lent for a transaction or for a session."""

from __future__ import annotations

import socket
import struct
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final, Literal

from psycopg.conninfo import conninfo_to_dict, make_conninfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.postgres import Database

_NO_TLS: Final = 80877103
"""The request for TLS, which is answered with N."""


@dataclass
class _Pool:
    """Idle sessions. The one that was used last is lent first, as poolers do."""

    database: Database
    startup: bytes = b""
    greeting: bytes = b""
    idle: list[socket.socket] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)
    is_closed: bool = False

    def take(self, *, oldest: bool = False) -> socket.socket:
        with self.lock:
            if self.idle:
                return self.idle.pop(0 if oldest else -1)
        parts = conninfo_to_dict(self.database.dsn)
        path = Path(str(parts["host"])) / f".s.PGSQL.{self.database.server.port}"
        with ExitStack() as failed:
            server = failed.enter_context(socket.socket(socket.AF_UNIX))
            server.connect(str(path))
            server.sendall(self.startup)
            greeting = b""
            while not greeting.endswith(b"Z\0\0\0\5I"):
                greeting += _exactly(server, 1)
            self.greeting = greeting
            failed.pop_all()
        return server

    def greeting_of(self, client: int) -> bytes:
        """Return the greeting of a client, with an invented process number."""
        key = self.greeting.index(b"K\0\0\0\x0c") + 5
        return self.greeting[:key] + struct.pack("!I", 2**30 + client) + self.greeting[key + 4 :]

    def give_back(self, server: socket.socket) -> None:
        with self.lock:
            if not self.is_closed:
                self.idle.append(server)
                return
        server.close()

    def close(self) -> None:
        """Close the idle sessions, and each that is given back later."""
        with self.lock:
            self.is_closed = True
        for server in self.idle:
            server.close()


def _exactly(source: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = source.recv(size - len(found))
        if not more:
            raise ConnectionError
        found += more
    return found


def _message(source: socket.socket, kind: int = 1) -> bytes:
    """Read one message, with *kind* bytes before its length."""
    head = _exactly(source, kind + 4)
    (size,) = struct.unpack("!I", head[kind:])
    return head + _exactly(source, size - 4)


def _serve(client: socket.socket, pool: _Pool, mode: str) -> None:
    # A client that disconnects, like one that terminates properly, ends the session that it has.
    with suppress(OSError), client, ExitStack() as held:
        while struct.unpack("!I", (startup := _message(client, 0))[4:8]) == (_NO_TLS,):
            client.sendall(b"N")
        pool.startup = startup
        server = held.enter_context(pool.take(oldest=False))
        client.sendall(pool.greeting_of(client.fileno()))
        while True:
            if mode != "session":
                held.pop_all()
                pool.give_back(server)
            sent = _message(client)
            if sent[:1] == b"X":
                return
            if mode != "session":
                server = held.enter_context(pool.take(oldest=mode == "in turn"))
            while not _answered(client, server, sent):
                sent = _message(client)


def _answered(client: socket.socket, server: socket.socket, sent: bytes) -> bool:
    """Pass a message on, and its answer back. Return true if no transaction is open then."""
    server.sendall(sent)
    # Only a query, or the sync behind its parts, is answered.
    if sent[:1] not in b"QS":
        return False
    while (answer := _message(server))[:1] != b"Z":
        client.sendall(answer)
    client.sendall(answer)
    return answer[5:] == b"I"


@contextmanager
def pooler(database: Database, mode: Literal["transaction", "in turn", "session"]) -> Iterator[str]:
    """Serve *database* on a port of 127.0.0.1, and yield its connection string."""
    pool = _Pool(database)
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = door.accept()
                    Thread(target=_serve, args=(client, pool, mode), daemon=True).start()

        thread = Thread(target=serve, daemon=True)
        thread.start()
        dsn = conninfo_to_dict(database.dsn)
        given = {"host": "127.0.0.1", "port": door.getsockname()[1], "sslmode": "disable"}
        yield make_conninfo(**{**dsn, **given})
        door.shutdown(socket.SHUT_RDWR)
        thread.join(5)
    pool.close()

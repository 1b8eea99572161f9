"""A TCP proxy that fails at a test's command: between an adaptor and its real system."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import Final, Self

_BLOCK: Final = 65536
_CONNECT_SECONDS: Final = 10.0
_RESET: Final = struct.pack("ii", 1, 0)
"""Linger on, with no time: a close then resets the connection."""


class FaultyProxy:
    """A proxy that passes TCP connections on to *target*, except during a fault. Thread-safe.

    ``with FaultyProxy(("127.0.0.1", 5432)) as proxy`` listens on a free port of 127.0.0.1,
    :attr:`port`. A fault lasts until :meth:`heal`.
    """

    def __init__(self, target: tuple[str, int] | str) -> None:
        """Listen at once. The target is connected to only when a client comes.

        It is a host and a port, or the path of a Unix socket.
        """
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._refusing = False
        self._answer_bytes: int | None = None
        self._bytes_to_hang: int | None = None
        self._flowing = threading.Event()
        self._flowing.set()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cut(self) -> int:
        """Reset every open connection, on both sides. Return how many there were."""
        with self._lock:
            links, self._links = self._links, set()
        count = sum(link.live for link in links)
        for link in links:
            link.reset()
        return count

    def refuse(self) -> None:
        """Reset every connection, and new ones as soon as they come."""
        self._refusing = True
        self.cut()

    def hang(self, after: int = 0) -> None:
        """Pass nothing on and close nothing, as when a cable is pulled.

        Until then *after* more bytes of answers are passed on, so an answer may end anywhere.
        """
        with self._lock:
            self._bytes_to_hang = after
            if not after:
                self._flowing.clear()

    def lose_answers(self, after: int = 0) -> None:
        """Pass requests on, and reset a connection *after* so many more bytes of answers in all.

        So the target may have done work that its client never sees confirmed.
        """
        with self._lock:
            self._answer_bytes = after

    def heal(self) -> None:
        """Let everything through again. Bytes that had hung flow on."""
        with self._lock:
            self._answer_bytes = self._bytes_to_hang = None
        self._refusing = False
        self._flowing.set()

    def close(self) -> None:
        """Reset everything and listen no more. Safe to call twice."""
        with suppress(OSError):
            # Closing alone does not wake the thread that accepts.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        self.refuse()
        self._flowing.set()

    def passed(self, answer: bytes) -> bytes:
        """Return the part of *answer* that is passed on. For the connections' own use."""
        with self._lock:
            if self._answer_bytes is None:
                return answer
            kept = answer[: self._answer_bytes]
            self._answer_bytes -= len(kept)
            return kept

    def next_part(self, answer: bytes) -> bytes:
        """Wait while nothing flows, and return what then flows of *answer*.

        For the connections' own use.
        """
        self._flowing.wait()
        with self._lock:
            if self._bytes_to_hang is None:
                return answer
            part = answer[: self._bytes_to_hang]
            self._bytes_to_hang -= len(part)
            if not self._bytes_to_hang:
                self._flowing.clear()
            return part

    def await_flow(self) -> None:
        """Wait while nothing flows. For the connections' own use."""
        self._flowing.wait()

    def _connect(self) -> socket.socket:
        if not isinstance(self._target, str):
            return socket.create_connection(self._target, timeout=_CONNECT_SECONDS)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            server.connect(self._target)
        except OSError:
            server.close()
            raise
        return server

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = self._connect()
            except OSError:
                _reset(client)
                continue
            server.settimeout(None)
            link = _Link(self, client, server)
            with self._lock:
                self._links = {each for each in self._links if each.live} | {link}
            if self._refusing:
                link.reset()
            link.start()


class _Link:
    """One connection through a proxy: two sockets, and a thread for each direction."""

    def __init__(self, proxy: FaultyProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._directions = [
            threading.Thread(target=self._requests, daemon=True),
            threading.Thread(target=self._answers, daemon=True),
        ]
        self._ended = threading.Semaphore(1)
        self.live = True

    def start(self) -> None:
        for thread in self._directions:
            thread.start()

    def reset(self) -> None:
        _reset(self._client)
        _reset(self._server)

    def _requests(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(_BLOCK):
                self._proxy.await_flow()
                self._server.sendall(data)
            self._server.shutdown(socket.SHUT_WR)
        self._end()

    def _answers(self) -> None:
        try:
            while data := self._server.recv(_BLOCK):
                while data:
                    part = self._proxy.next_part(data)
                    data = data[len(part) :]
                    passed = self._proxy.passed(part)
                    self._client.sendall(passed)
                    if len(passed) < len(part):
                        self.reset()
            self._client.shutdown(socket.SHUT_WR)
        except OSError:
            # No answer comes any more, and the client would wait for one.
            self._proxy.await_flow()
            self.reset()
        self._end()

    def _end(self) -> None:
        """Close both sockets when the second direction ends."""
        if self._ended.acquire(blocking=False):
            return
        self.live = False
        self._client.close()
        self._server.close()


def _reset(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        # Closing alone does not wake a thread that receives from it.
        connection.shutdown(socket.SHUT_RD)
    connection.close()

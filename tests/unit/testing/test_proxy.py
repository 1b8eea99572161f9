"""Tests of the proxy for tests of adaptors: its traffic, and its failures."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from transporter.testing import FaultyProxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Echo:
    """A server that sends back its input in capitals, and keeps it."""

    def __init__(self) -> None:
        """Start the server."""
        self.heard = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()[:2]
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(100):
                    self.heard += data
                    connection.sendall(data.upper())
            except OSError:
                pass
        self.ended.set()

    def close(self) -> None:
        """Stop the server."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@pytest.fixture
def echo() -> Iterator[Echo]:
    """Yield a server."""
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultyProxy]:
    """Yield a proxy before the server."""
    with FaultyProxy(echo.address) as made:
        yield made


@pytest.fixture
def client(proxy: FaultyProxy) -> Iterator[socket.socket]:
    """Yield a connection through the proxy that has already been used."""
    with connected(proxy) as made:
        assert said(made, b"hello") == b"HELLO"
        yield made


def connected(proxy: FaultyProxy) -> socket.socket:
    """Connect to *proxy*, with a timeout of ten seconds."""
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def said(client: socket.socket, text: bytes) -> bytes:
    """Send *text* and return as many bytes of the answer."""
    client.sendall(text)
    answer = b""
    while len(answer) < len(text) and (data := client.recv(100)):
        answer += data
    return answer


def is_reset(proxy: FaultyProxy) -> bool:
    """Return whether a new connection is reset, at once or when bytes are sent."""
    try:
        with connected(proxy) as client:
            return said(client, b"x") + said(client, b"x") == b""
    except ConnectionError:
        return True


def test_both_ends_hear_of_an_end(echo: Echo, client: socket.socket) -> None:
    """A client that has finished sending still gets its answer, and then the end."""
    client.sendall(b"last")
    client.shutdown(socket.SHUT_WR)
    assert client.recv(100) == b"LAST"
    assert client.recv(100) == b""
    assert echo.ended.wait(10)


def test_a_cut_resets_and_the_next_connection_works(
    echo: Echo, proxy: FaultyProxy, client: socket.socket
) -> None:
    """A cut resets both ends, and affects only connections that are open."""
    assert proxy.cut() == 1
    with pytest.raises(ConnectionError):
        said(client, b"again")
    assert echo.ended.wait(10)
    with connected(proxy) as second:
        assert said(second, b"new") == b"NEW"


def test_refused_until_healed(proxy: FaultyProxy, client: socket.socket) -> None:
    """A refusing proxy resets every connection, old and new, until it is healed."""
    proxy.refuse()
    with pytest.raises(ConnectionError):
        said(client, b"again")
    assert is_reset(proxy)
    proxy.heal()
    with connected(proxy) as third:
        assert said(third, b"new") == b"NEW"


def test_what_hangs_flows_on_when_healed(
    echo: Echo, proxy: FaultyProxy, client: socket.socket
) -> None:
    """A hanging proxy passes nothing on and closes nothing, and loses nothing when healed."""
    proxy.hang()
    client.sendall(b"wait")
    client.settimeout(0.3)
    with pytest.raises(TimeoutError):
        client.recv(100)
    assert echo.heard == b"hello"
    client.settimeout(10)
    proxy.heal()
    assert client.recv(100) == b"WAIT"


def test_an_answer_that_stops_in_the_middle_flows_on_when_healed(
    proxy: FaultyProxy, client: socket.socket
) -> None:
    """Only a number of bytes of the answer come, and the rest once the proxy is healed."""
    proxy.hang(after=3)
    client.sendall(b"answer")
    assert client.recv(3) == b"ANS"
    client.settimeout(0.3)
    with pytest.raises(TimeoutError):
        client.recv(100)
    client.settimeout(10)
    proxy.heal()
    assert client.recv(100) == b"WER"


def test_an_answer_is_lost_though_the_request_arrived(
    echo: Echo, proxy: FaultyProxy, client: socket.socket
) -> None:
    """The connection is reset after a number of bytes of answers, but the server got all."""
    proxy.lose_answers(after=3)
    assert said(client, b"abc") == b"ABC"
    with pytest.raises(ConnectionError):
        said(client, b"done")
    assert echo.ended.wait(10)
    assert echo.heard == b"helloabcdone"
    proxy.heal()
    with connected(proxy) as second:
        assert said(second, b"new") == b"NEW"


def test_a_target_may_be_a_unix_socket(tmp_path: Path) -> None:
    """Servers that listen on one alone are reached by a port; none there is no target."""
    path = str(tmp_path / "socket")
    with FaultyProxy(path) as proxy:
        assert is_reset(proxy)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(path)
            listener.listen()
            with connected(proxy) as client:
                server, _ = listener.accept()
                with server:
                    server.sendall(b"hello")
                    assert client.recv(100) == b"hello"


def test_without_a_target_connections_are_reset() -> None:
    """A proxy without a listener behind it resets its connections."""
    listener = socket.create_server(("127.0.0.1", 0))
    target = listener.getsockname()[:2]
    listener.close()
    with FaultyProxy(target) as proxy:
        assert is_reset(proxy)


def test_closing_twice_ends_everything(echo: Echo) -> None:
    """After a close the port is free, and open connections are gone."""
    proxy = FaultyProxy(echo.address)
    with connected(proxy) as client:
        assert said(client, b"x") == b"X"
        proxy.close()
        proxy.close()
        with pytest.raises(ConnectionError):
            said(client, b"y")
    with pytest.raises(ConnectionRefusedError):
        connected(proxy)


def test_a_connection_that_the_server_resets_is_reset_for_the_client() -> None:
    """A reset by the server reaches the client, so that no client waits for an answer."""
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, FaultyProxy(listener.getsockname()[:2]) as proxy, connected(proxy) as client:
        server, _ = listener.accept()
        client.sendall(b"hello")
        assert server.recv(1) == b"h"
        server.close()  # With bytes that it has not read: that is a reset.
        with pytest.raises(ConnectionResetError):
            client.recv(100)

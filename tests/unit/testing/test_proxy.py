"""The proxy that adaptors are tested through: what it passes on, and how it fails."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from transporter.testing import FaultyProxy

if TYPE_CHECKING:
    from collections.abc import Iterator


class Echo:
    """A server that says what it hears, in capitals, and remembers it."""

    def __init__(self) -> None:
        """Serve at once."""
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
        """Serve no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@pytest.fixture
def echo() -> Iterator[Echo]:
    """Give a server."""
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultyProxy]:
    """Give a proxy before it."""
    with FaultyProxy(echo.address) as made:
        yield made


@pytest.fixture
def client(proxy: FaultyProxy) -> Iterator[socket.socket]:
    """Give a connection through the proxy that has already been used."""
    with connected(proxy) as made:
        assert said(made, b"hello") == b"HELLO"
        yield made


def connected(proxy: FaultyProxy) -> socket.socket:
    """Connect to *proxy*; nothing is waited for longer than ten seconds."""
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def said(client: socket.socket, text: bytes) -> bytes:
    """Say *text* and return as many bytes of the answer."""
    client.sendall(text)
    answer = b""
    while len(answer) < len(text) and (data := client.recv(100)):
        answer += data
    return answer


def is_reset(proxy: FaultyProxy) -> bool:
    """Tell whether a new connection is reset, at once or when something is said."""
    try:
        with connected(proxy) as client:
            return said(client, b"x") + said(client, b"x") == b""
    except ConnectionError:
        return True


def test_both_ends_hear_of_an_end(echo: Echo, client: socket.socket) -> None:
    """A client that has said all still gets its answer, and then the end."""
    client.sendall(b"last")
    client.shutdown(socket.SHUT_WR)
    assert client.recv(100) == b"LAST"
    assert client.recv(100) == b""
    assert echo.ended.wait(10)


def test_a_cut_resets_and_the_next_connection_works(
    echo: Echo, proxy: FaultyProxy, client: socket.socket
) -> None:
    """Both ends learn of a cut; only connections that were open are cut."""
    assert proxy.cut() == 1
    with pytest.raises(ConnectionError):
        said(client, b"again")
    assert echo.ended.wait(10)
    with connected(proxy) as second:
        assert said(second, b"new") == b"NEW"


def test_refused_until_healed(proxy: FaultyProxy, client: socket.socket) -> None:
    """While it refuses, every connection is reset, old and new."""
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
    """Nothing comes through and nothing is closed; later nothing is missing."""
    proxy.hang()
    client.sendall(b"wait")
    client.settimeout(0.3)
    with pytest.raises(TimeoutError):
        client.recv(100)
    assert echo.heard == b"hello"
    client.settimeout(10)
    proxy.heal()
    assert client.recv(100) == b"WAIT"


def test_an_answer_is_lost_though_the_request_arrived(
    echo: Echo, proxy: FaultyProxy, client: socket.socket
) -> None:
    """After so many bytes of answers the connection is reset, and the server has heard all."""
    proxy.lose_answers(after=3)
    assert said(client, b"abc") == b"ABC"
    with pytest.raises(ConnectionError):
        said(client, b"done")
    assert echo.ended.wait(10)
    assert echo.heard == b"helloabcdone"
    proxy.heal()
    with connected(proxy) as second:
        assert said(second, b"new") == b"NEW"


def test_without_a_target_connections_are_reset() -> None:
    """When nobody listens behind it, the proxy says so as a reset."""
    listener = socket.create_server(("127.0.0.1", 0))
    target = listener.getsockname()[:2]
    listener.close()
    with FaultyProxy(target) as proxy:
        assert is_reset(proxy)


def test_closing_twice_ends_everything(echo: Echo) -> None:
    """After a close nothing listens on the port, and open connections are gone."""
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
    """A target that was killed leaves no client waiting for an answer."""
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, FaultyProxy(listener.getsockname()[:2]) as proxy, connected(proxy) as client:
        server, _ = listener.accept()
        client.sendall(b"hello")
        assert server.recv(1) == b"h"
        server.close()  # With bytes that it has not read: that is a reset.
        with pytest.raises(ConnectionResetError):
            client.recv(100)

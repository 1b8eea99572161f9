"""One persistent connection to the receiver, and requests that end in time."""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
from contextlib import suppress
from http.client import HTTPException
from typing import TYPE_CHECKING, Final

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError

from transporter.errors import RouteFault, SinkTimeout, SinkUnavailable
from transporter_adaptors.http.answers import Answer, is_ack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transporter.errors import SinkError
    from transporter_adaptors.http.targets import Proxy, Target
    from transporter_adaptors.http.tls import Tls

MOST_READ: Final = 64 * 1024
"""Maximum bytes of an answer's body. If there are more the connection is closed."""

_TIMEOUTS: Final = (TimeoutError, ConnectTimeoutError, ReadTimeoutError)
_CHUNK: Final = 8192
_FAREWELL_SECONDS: Final = 1.0
"""Longest wait of a close for an abandoned request, whose socket is shut already."""
_TUNNEL: Final = re.compile(r"Tunnel connection failed: ([0-9]{3})")
_REFUSED: Final = frozenset({400, 401, 403, 405, 407})
"""Answers of a proxy that will be the same next time."""


class Client:
    """A client for successive requests to one origin, over one connection, perhaps by a proxy.

    A connection that the receiver has closed meanwhile is detected before its
    use, and replaced. If the receiver closes one at the moment of sending, the request fails.
    It is unknown whether it was accepted, so nothing is sent twice here.

    Not thread-safe. No request outlives its time, except where the system's name
    resolution or connecting hangs. Then nothing of it is ever sent.
    """

    def __init__(self, target: Target, tls: Tls, proxy: Proxy | None, role: str) -> None:
        """Prepare for the origin of *target*, with *tls* for https. Connects later.

        *role* names the receiver in messages to people.
        """
        self._target, self._tls, self._proxy = target, tls, proxy
        through = f" through the proxy {proxy.place}" if proxy else ""
        self.place = f"{role} {target.place}{through}"
        self._connection: HTTPConnection | None = None
        self._abandoned: _Exchange | None = None

    def send(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], seconds: float
    ) -> Answer:
        """Send a request and return the whole answer.

        Raises:
            SinkTimeout: The request took longer than *seconds*, in all.
            SinkUnavailable: The receiver cannot be reached, does not match its certificate, or
                does not answer to the end.
        """
        end = time.monotonic() + seconds
        self._await_abandoned(seconds)
        if self._connection is None or not self._connection.is_connected:
            self.close()
            self._connection = self._connect()
        self._connection.timeout = max(0.001, end - time.monotonic())
        if self._proxy and self._target.scheme == "http":
            path = f"http://{self._target.place}{path}"
            headers = {**headers, **self._proxy.headers}
        try:
            exchange = _Exchange(self._connection, (method, path, body, headers))
        except RuntimeError as error:  # no room for a thread, which is not an entry's fault
            raise SinkUnavailable(f"{self.place}: {error}") from error
        if not exchange.wait(end - time.monotonic()):
            self._connection, self._abandoned = None, exchange
            raise SinkTimeout(f"{self.place}: no answer within {round(seconds, 2):g} s")
        if exchange.error is not None:
            self.close()
            raise self._translate_error(exchange.error, seconds) from exchange.error
        assert exchange.answer is not None  # noqa: S101 - it ended without an error
        return exchange.answer

    def check_connection(self, seconds: float) -> None:
        """Connect, send nothing, and close. Raises as :meth:`send`.

        *seconds* bound each step of it: the connection, the proxy's answer, TLS.
        """
        connection = self._connect()
        connection.timeout = seconds
        try:
            connection.connect()
        except (OSError, HTTPException, HTTPError) as error:
            raise self._translate_error(error, seconds) from error
        finally:
            connection.close()

    def close(self) -> None:
        """Close the connection. Safe to call twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if self._abandoned is not None and self._abandoned.join(_FAREWELL_SECONDS):
            self._abandoned = None

    def _connect(self) -> HTTPConnection:
        """Return a new connection, which connects with its first use."""
        target, proxy = self._target, self._proxy
        host, port = (proxy or target).host, (proxy or target).port
        if target.scheme == "http":
            return HTTPConnection(host, port)
        connection = HTTPSConnection(host, port, ssl_context=self._tls.context())
        if proxy is not None:
            connection.set_tunnel(target.host, target.port, proxy.headers)
        return connection

    def _await_abandoned(self, seconds: float) -> None:
        """Ensure that there is at most one abandoned request."""
        if self._abandoned is not None and not self._abandoned.wait(seconds):
            raise SinkTimeout(f"{self.place}: the previous attempt still waits for a connection")
        self._abandoned = None

    def _translate_error(self, error: Exception, seconds: float) -> SinkError:
        place = self.place
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = error.verify_message or error
            return SinkUnavailable(
                f"{place}: its certificate is not trusted, so nothing was sent: {reason} "
                "(see the setting ca_file)"
            )
        if isinstance(error, _TIMEOUTS) and not isinstance(error, NewConnectionError):
            return SinkTimeout(f"{place}: no answer within {round(seconds, 2):g} s")
        if isinstance(error, OSError | HTTPException | HTTPError):
            # urllib3 puts its own name for the connection before the reason.
            cause = (isinstance(error, NewConnectionError) and error.__cause__) or error
            if found := _TUNNEL.match(str(cause)):
                return _tunnel_error(place, int(found[1]))
            text = " ".join(str(cause).split()) or type(cause).__name__
            return SinkUnavailable(f"{place}: {text}")
        raise error


def _tunnel_error(place: str, status: int) -> SinkError:
    """Return the error for a proxy's answer with *status*, without its text."""
    text = f"{place}: the proxy answered {status}"
    if status in _REFUSED:
        return RouteFault(f"{text}: check the setting proxy and the proxy's own rules")
    return SinkUnavailable(text)


class _Exchange:
    """A request in a thread of its own, so that it can be abandoned whatever it waits for.

    Time limits of a socket start again with every byte that comes, and the
    system's name resolution has none.
    """

    def __init__(
        self, connection: HTTPConnection, request: tuple[str, str, bytes, Mapping[str, str]]
    ) -> None:
        """Begin to send *request*: method, path, body and headers."""
        self.answer: Answer | None = None
        self.error: Exception | None = None
        self._connection, self._request = connection, request
        self._socket: socket.socket | None = None
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._run, name="http-request", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for the end, or after *seconds* cut the connection and return ``False``."""
        if self.join(seconds):
            return True
        self._is_abandoned = True
        # During the exchange with a proxy only the connection has the socket.
        sock = self._socket or self._connection.sock
        if sock is not None:
            with suppress(OSError):
                # Past TLS, whose own shutdown belongs to the other thread.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        return False

    def join(self, seconds: float) -> bool:
        """Wait for the end, at most *seconds*, and return whether it has come.

        The connection of an abandoned request is closed then.
        """
        self._thread.join(max(0.0, seconds))
        if self._thread.is_alive():
            return False
        if self._is_abandoned:
            self._connection.close()
        return True

    def _run(self) -> None:
        try:
            self.answer = self._send_and_receive()
        except Exception as error:  # noqa: BLE001 - raised again in the waiting thread
            self.error = error

    def _send_and_receive(self) -> Answer:
        connection = self._connection
        if connection.sock is None:
            connection.connect()
        # First the socket, then the check. The waiting thread uses the opposite order.
        self._socket = connection.sock
        if self._is_abandoned:
            raise TimeoutError
        unsent = self._send()
        answer = self._receive()
        if unsent is not None:
            connection.close()
            if is_ack(answer):
                raise unsent
        return answer

    def _send(self) -> OSError | None:
        """Send the request, and return the error if the receiver stopped reading it.

        It may have refused a body before reading its end, and its answer then has the reason.
        """
        method, path, body, headers = self._request
        try:
            self._connection.request(
                method, path, body, headers, preload_content=False, decode_content=False
            )
        except (BrokenPipeError, ConnectionResetError) as error:
            return error
        return None

    def _receive(self) -> Answer:
        connection = self._connection
        response = connection.getresponse()
        try:
            text = bytearray()
            while chunk := response.read(_CHUNK):
                text += chunk
                if len(text) > MOST_READ:
                    connection.close()  # The answer's rest must not be read as the next answer.
                    break
        finally:
            response.close()
        return Answer(response.status, response.headers, bytes(text[:MOST_READ]))

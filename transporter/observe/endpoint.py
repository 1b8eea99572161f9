"""A small HTTP server for probes and scrapes: plain GET, bounded in time and in callers."""

from __future__ import annotations

import errno
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transporter.pipeline.observing import Address

CALLERS: Final = 16
"""Callers that are answered at once; for one more, who has been here longest is hung up on."""
PATIENCE: Final = 5.0
"""Seconds that a caller may take to ask and to take the answer."""


class Answer(NamedTuple):
    """What a caller gets."""

    code: int
    content_type: str
    body: bytes


class PortTaken(EnvironmentFault):
    """Somebody else listens where we should."""


class Endpoint:
    """Serves *pages* by path, once it is started. Its thread is joined by :meth:`stop`."""

    def __init__(self, address: Address) -> None:
        """Take the *address*, so that nobody else can; callers wait until :meth:`start`.

        Raises:
            PortTaken: somebody else listens there.
            EnvironmentFault: nobody can listen there.

        """
        self._pages: dict[str, Callable[[str], Answer]] = {}
        self._server = _listen(address, self._pages)
        self.thread = threading.Thread(target=self._server.serve_forever, name="endpoint")

    @property
    def url(self) -> str:
        """Where it is to be found."""
        host, port = self._server.server_address[:2]
        text = host.decode() if isinstance(host, bytes | bytearray) else str(host)
        return f"http://[{text}]:{port}" if ":" in text else f"http://{text}:{port}"

    def start(self, pages: Mapping[str, Callable[[str], Answer]]) -> None:
        """Begin to answer; a page makes its answer from the caller's ``Accept`` header."""
        self._pages.update(pages)
        self.thread.start()

    def stop(self) -> None:
        """Close, hanging up on whoever is still asking."""
        if self.thread.is_alive():
            self._server.shutdown()
            self.thread.join()
        self._server.hang_up()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    allow_reuse_address = True

    def __init__(
        self, family: int, address: tuple[str, int], pages: Mapping[str, Callable[[str], Answer]]
    ) -> None:
        self.address_family = family
        self.pages, self._lock = pages, threading.Lock()
        self._callers: dict[socket.socket, float] = {}
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks the name service for our name: that may take seconds.
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - socketserver's
        with self._lock:
            # Whoever only holds a place loses it to those who come to ask.
            while len(self._callers) >= CALLERS:
                self._hang_up(next(iter(self._callers)))
            self._callers[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Hang up on who has taken too long, however steadily: called twice a second."""
        latest = time.monotonic() - PATIENCE
        with self._lock:
            for caller in [each for each, since in self._callers.items() if since < latest]:
                self._hang_up(caller)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - as above
        with self._lock:
            self._callers.pop(request, None)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """Let nobody who asks slowly keep the end waiting."""
        with self._lock:
            for caller in list(self._callers):
                self._hang_up(caller)

    def _hang_up(self, caller: socket.socket) -> None:
        """End the connection of *caller*; its thread finds out, and closes it."""
        del self._callers[caller]
        with suppress(OSError):
            caller.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as above
        """Say nothing: a caller that hangs up is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = PATIENCE
    server_version, sys_version = "transporter", ""

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            self._send(Answer(404, "text/plain; charset=utf-8", b"not found\n"))
            return
        try:
            answer = page(self.headers.get("Accept", ""))
        except Exception as error:  # noqa: BLE001 - its text may hold anything
            text = f"{type(error).__name__}\n".encode()
            answer = Answer(500, "text/plain; charset=utf-8", text)
        self._send(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing: a probe every second would fill the log."""

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.code)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(answer.body)


def _listen(address: Address, pages: Mapping[str, Callable[[str], Answer]]) -> _Server:
    shown = f"observe.listen: {address.host}:{address.port}"
    try:
        family, *_, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return _Server(family, where[:2], pages)  # type: ignore[arg-type]
    except OSError as error:
        kind = PortTaken if error.errno == errno.EADDRINUSE else EnvironmentFault
        raise kind(
            f"{shown} cannot be listened at: {error.strerror}; "
            "set observe.listen to another port, to port 0 for any, or to off"
        ) from error

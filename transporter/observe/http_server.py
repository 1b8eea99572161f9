"""HTTP server for probes and scrapes: GET only, bounded in time and in clients.

It uses TLS with a certificate, and requires the token if one is set.
"""

from __future__ import annotations

import errno
import hmac
import socket
import ssl
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from transporter.pipeline.observe_config import ListenAddress, TlsConfig, Token

CLIENTS: Final = 16
"""Concurrent clients. One more closes the connection of the oldest."""
PATIENCE: Final = 5.0
"""Seconds for a request and for reading its response."""


class HttpAnswer(NamedTuple):
    """A response."""

    code: int
    content_type: str
    body: bytes


class PortTaken(EnvironmentFault):
    """Another process listens on the address."""


class Endpoint:
    """Serves *pages* by path, once it is started. Its thread is joined by :meth:`stop`."""

    def __init__(
        self, address: ListenAddress, tls: TlsConfig | None = None, token: Token | None = None
    ) -> None:
        """Bind the *address*. Clients wait until :meth:`start`.

        Raises:
            PortTaken: another process listens there.
            EnvironmentFault: the address or the certificate cannot be used.

        """
        self._pages: dict[str, Callable[[str], HttpAnswer]] = {}
        certificate = _Certificate(tls) if tls is not None else None
        self._scheme = "http" if certificate is None else "https"
        self._server = _listen(address, self._pages, certificate, token)
        self.thread = threading.Thread(target=self._server.serve_forever, name="endpoint")

    @property
    def url(self) -> str:
        """Where it is to be found."""
        host, port = self._server.server_address[:2]
        text = host.decode() if isinstance(host, bytes | bytearray) else str(host)
        return f"{self._scheme}://{f'[{text}]' if ':' in text else text}:{port}"

    def start(self, pages: Mapping[str, Callable[[str], HttpAnswer]]) -> None:
        """Begin to serve. A page makes its response from the ``Accept`` header."""
        self._pages.update(pages)
        self.thread.start()

    def stop(self) -> None:
        """Close, with all open connections."""
        if self.thread.is_alive():
            self._server.shutdown()
            self.thread.join()
        self._server.close_connections()
        self._server.server_close()


class _Certificate:
    """A certificate and its key, loaded again once their files have changed."""

    def __init__(self, files: TlsConfig) -> None:
        self._files = files
        self._loaded_stamps = self._file_stamps()
        try:
            self._context = self._load_context()
        except OSError as error:
            raise EnvironmentFault(
                f"observe.tls: {files.cert} and {files.key} cannot be used: "
                f"{error.strerror or type(error).__name__}"
            ) from error

    def wrap(self, client: socket.socket) -> ssl.SSLSocket:
        """Wrap *client* in TLS; the handshake follows later."""
        # A certificate that cannot be used, or is being written, is ignored: the loaded one stays.
        with suppress(OSError):
            if (looked := self._file_stamps()) != self._loaded_stamps:
                self._context, self._loaded_stamps = self._load_context(), looked
        return self._context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)

    def _load_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A key with a passphrase is refused; a prompt would block.
        context.load_cert_chain(self._files.cert, self._files.key, password="")
        return context

    def _file_stamps(self) -> list[tuple[int, int, int] | None]:
        return [_file_stamp(each) for each in (self._files.cert, self._files.key)]


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    allow_reuse_address = True
    request_queue_size = 128
    """Callers that may come at once: of five, as in the library, others try a second later."""

    def __init__(
        self,
        family: int,
        address: tuple[str, int],
        pages: Mapping[str, Callable[[str], HttpAnswer]],
        certificate: _Certificate | None,
        token: Token | None,
    ) -> None:
        self.address_family = family
        self.pages, self._lock = pages, threading.Lock()
        self._certificate, self.token = certificate, token
        self._clients: dict[socket.socket, float] = {}
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # Not HTTPServer's, which resolves our host name: that may take seconds.
        TCPServer.server_bind(self)

    def get_request(self) -> tuple[Any, Any]:
        client, place = super().get_request()
        return client if self._certificate is None else self._certificate.wrap(client), place

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - socketserver's
        with self._lock:
            # An idle client loses its place to a new one.
            while len(self._clients) >= CLIENTS:
                self._close_connection(next(iter(self._clients)))
            self._clients[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Hang up on who has taken too long, however steadily: called twice a second."""
        latest = time.monotonic() - PATIENCE
        with self._lock:
            for client in [each for each, since in self._clients.items() if since < latest]:
                self._close_connection(client)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - as above
        with self._lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        """Keep slow clients from delaying the shutdown."""
        with self._lock:
            for client in list(self._clients):
                self._close_connection(client)

    def _close_connection(self, client: socket.socket) -> None:
        """Shut the connection of *client* down; its thread closes it."""
        del self._clients[client]
        with suppress(OSError):
            # Not that of a TLS socket, which first makes it a plain one for its thread.
            socket.socket.shutdown(client, socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as above
        """Log nothing: a client that disconnects is not an event."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = PATIENCE
    server_version, sys_version = "transporter", ""

    def setup(self) -> None:
        super().setup()
        if isinstance(self.request, ssl.SSLSocket):
            # In the client's own thread, because the accepting thread must not block.
            self.request.do_handshake()

    def do_GET(self) -> None:
        if not self._is_authorized():
            self._send(HttpAnswer(401, "text/plain; charset=utf-8", b"unauthorized\n"))
            return
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            self._send(HttpAnswer(404, "text/plain; charset=utf-8", b"not found\n"))
            return
        try:
            answer = page(self.headers.get("Accept", ""))
        except Exception as error:  # noqa: BLE001 - its text may hold anything
            text = f"{type(error).__name__}\n".encode()
            answer = HttpAnswer(500, "text/plain; charset=utf-8", text)
        self._send(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Log nothing: a probe every second would fill the log."""

    def _is_authorized(self) -> bool:
        """Compare the token in constant time."""
        if self.server.token is None:
            return True
        wanted = self.server.token.current_value()
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode(errors="replace"), (wanted or "").encode())
        return same and wanted is not None and scheme.lower() == "bearer"

    def _send(self, answer: HttpAnswer) -> None:
        self.send_response(answer.code)
        if answer.code == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(answer.body)


def _listen(
    address: ListenAddress,
    pages: Mapping[str, Callable[[str], HttpAnswer]],
    certificate: _Certificate | None,
    token: Token | None,
) -> _Server:
    try:
        family, *_, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return _Server(family, where[:2], pages, certificate, token)  # type: ignore[arg-type]
    except (OSError, UnicodeError) as error:
        # A UnicodeError: it cannot be the name of a host.
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = error.strerror if isinstance(error, OSError) else "it is no name of a host"
        raise (PortTaken if taken else EnvironmentFault)(
            f"observe.listen: cannot listen on {address.host}:{address.port}: {reason}; "
            "set observe.listen to another port, to port 0 for any, or to off"
        ) from error

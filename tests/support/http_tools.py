"""A receiver of HTTP requests with scripted replies."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import struct
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from transporter.message import Entries, Message
from transporter.testing import RecordingAck, entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from transporter_adaptors.http.writer import HttpWriter

    from transporter.errors import SinkError

    Open = Callable[..., HttpWriter]
    """Opens a writer to a URL, with settings by their names."""

LOCALHOST = Path(__file__).parents[1] / "unit" / "adaptors" / "http" / "localhost.cert.pem"
"""A self-signed certificate for the name localhost, valid until the year 2126."""

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00Z")


@dataclass(frozen=True)
class Request:
    """A request as it arrived. *headers* are by their name in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    """Number of its connection, the first being 1."""


@dataclass(frozen=True)
class Reply:
    """The response to a request.

    ``after`` resets the connection behind so many bytes of the response. ``hold`` delays the
    response until the sender is gone or the receiver stops. With ``late`` the request, too, counts
    as received only then. ``drip`` sends the response's bytes one at a time, with so many seconds
    between, for as long as the sender stays.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    after: int | None = None
    hold: bool = False
    late: bool = False
    drip: float = 0.0
    raw: bytes | None = None
    """The whole response, in place of the one that the other fields make."""
    close: bool = False
    """Close the connection behind the response, without prior notice."""

    def encode(self) -> bytes:
        """Return the response's bytes."""
        if self.raw is not None:
            return self.raw
        lines = [f"HTTP/1.1 {self.status} x", f"Content-Length: {len(self.body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


OK = Reply()


@dataclass
class Receiver:
    """Listens on the loopback address with a thread for each connection. Use it as a context.

    ``decide`` is called for each request, by all threads, one at a time. A list of replies is used
    in order, and after it every response is 200.
    """

    decide: Callable[[Request], Reply] | Iterable[Reply] = ()
    early: Callable[[], bool | Reply] = bool
    """Called for each request before its body: true resets the connection, a reply is sent."""
    tls: ssl.SSLContext | None = None
    requests: list[Request] = field(default_factory=list)
    """Requests that were received whole, in order of arrival."""
    connections: int = 0

    def __post_init__(self) -> None:
        self._script = iter(() if callable(self.decide) else self.decide)
        self._one = threading.Lock()
        self._closed = threading.Condition(self._one)
        self._stopped = threading.Event()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    @property
    def url(self) -> str:
        """Its URL."""
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}/in"

    @property
    def messages(self) -> list[Message]:
        """The contents of the requests as messages, in the order of arrival."""
        return [message for request in self.requests for message in messages_of(request)]

    def script(self, *replies: Reply) -> None:
        """Answer the next requests with *replies*."""
        with self._one:
            self._script = iter(replies)

    def await_closed(self) -> None:
        """Wait until no connection is open."""
        with self._closed:
            assert self._closed.wait_for(lambda: not self._open, 10)

    def hang_up(self) -> None:
        """Shut every connection."""
        with self._one:
            connections = list(self._open)
        for each in connections:
            with suppress(OSError):
                socket.socket.shutdown(each, socket.SHUT_RDWR)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="receiver", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._one:
                self.connections += 1
                self._open.add(connection)
                number = self.connections
            self._start(self._serve, connection, number)

    def _serve(self, plain: socket.socket, number: int) -> None:
        connection = plain
        with closing(plain), suppress(OSError):
            connection = self.tls.wrap_socket(plain, server_side=True) if self.tls else plain
            with self._one:
                self._open = (self._open - {plain}) | {connection}
            with closing(connection), connection.makefile("rb") as stream:
                while (head := _head(stream, number)) and self._handle(connection, stream, *head):
                    pass
        with self._one:
            self._open -= {plain, connection}
            self._closed.notify_all()

    def _handle(
        self, connection: socket.socket, stream: BinaryIO, head: Request, length: int
    ) -> bool:
        """Take a request and carry out the decision. Return true if the connection goes on."""
        with self._one:
            early = self.early()
        if isinstance(early, Reply):
            connection.sendall(early.encode())
            return False  # A close with unread bytes is a reset, behind the response.
        if early:
            stream.read(length // 2)
            _reset(connection)
            return False
        body = stream.read(length)
        if len(body) < length:
            return False
        request = replace(head, body=body)
        with self._one:
            reply = self.decide(request) if callable(self.decide) else next(self._script, OK)
            if not reply.late:
                self.requests.append(request)
        answer = reply.encode()
        if reply.hold or reply.late:
            with suppress(OSError):
                connection.recv(1)  # Only the end of the connection can arrive.
        if reply.late:
            with self._one:
                self.requests.append(request)
        if reply.after is not None:
            connection.sendall(answer[: reply.after])
            _reset(connection)
            return False
        if reply.drip:
            return self._drip(connection, answer, reply.drip)
        connection.sendall(answer)
        return not reply.close

    def _drip(self, connection: socket.socket, answer: bytes, pause: float) -> bool:
        for at in range(len(answer)):
            if self._stopped.wait(pause):
                break
            connection.sendall(answer[at : at + 1])
        return False


def _head(stream: BinaryIO, number: int) -> tuple[Request, int] | None:
    """Read a request up to its body. Return it, without the body, and the body's length."""
    first = stream.readline().decode("latin-1").split()
    if len(first) != 3:
        return None
    headers: dict[str, str] = {}
    while line := stream.readline().decode("latin-1").strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return Request(first[0], first[1], headers, b"", number), int(headers.get("content-length", 0))


def _reset(connection: socket.socket) -> None:
    """Turn the close that follows into a reset, which drops data in flight."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def ids_of(request: Request) -> list[str]:
    """Return the ids of the entries in *request*."""
    if "entry-id" in request.headers:
        return [unquote(request.headers["entry-id"])]
    return [fields["id"] for fields, _ in _parsed(request)]


def messages_of(request: Request) -> list[Message]:
    """Return the entries in *request* as messages."""
    if "entry-id" in request.headers:
        return [_from_headers(request)]
    return [_from_fields(fields, text) for fields, text in _parsed(request)]


def _parsed(request: Request) -> list[tuple[dict[str, Any], bytes]]:
    """Return each entry parsed from JSON, and as its original bytes."""
    if request.headers["content-type"] == "application/x-ndjson":
        assert request.body.endswith(b"\n")
        return [(json.loads(line), line) for line in request.body[:-1].split(b"\n")]
    assert request.headers["content-type"] == "application/json"
    text, at, found = request.body.decode(), 1, []
    while at < len(text) - 1:
        fields, end = json.JSONDecoder().raw_decode(text, at)
        found.append((fields, text[at:end].encode()))
        assert text[end] in ",]"
        at = end + 1
    assert [fields for fields, _ in found] == json.loads(text)
    return found


def _from_fields(fields: dict[str, Any], text: bytes) -> Message:
    data: bytes | None = None
    if "data" in fields:
        data = text[text.index(b',"data":') + len(b',"data":') : -1]  # as it stands there
    elif "text" in fields:
        data = fields["text"].encode()
    elif "base64" in fields:
        data = base64.b64decode(fields["base64"])
    return Message(
        fields["namespace"],
        data,
        _raw(fields["key"]),
        fields["op"],
        fields["phase"],
        (datetime.fromisoformat(fields["timestamp"]) - _EPOCH) // timedelta(microseconds=1),
        fields["source_id"],
        fields["content_type"],
        tuple((name, _raw(value)) for name, value in fields["headers"]),
    )


def _raw(value: Any) -> bytes | None:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return None if value is None else value.encode()


def _from_headers(request: Request) -> Message:
    """Return a message of the format ``data``, with the fields which that format keeps."""
    headers = request.headers
    key = headers.get("entry-key")
    return Message(
        unquote(headers["entry-namespace"]),
        request.body if "content-type" in headers else None,
        None if key is None else unquote_to_bytes(key),
        headers["entry-op"],
        headers["entry-phase"],
        content_type=headers.get("content-type"),
    )


def numbered(count: int, first: int = 1) -> Entries:
    """Return *count* entries whose data are their offsets."""
    return entries([Message("n", b"%d" % (first + each)) for each in range(count)], first)


def write(writer: HttpWriter, batch: Entries) -> RecordingAck:
    """Write *batch* and return the acks and failures that the writer reported."""
    ack = RecordingAck(batch)
    writer.write(batch, ack)
    return ack


def failure(ack: RecordingAck) -> SinkError:
    """Return the only failure that a writer reported."""
    ((error, _),) = ack.failures
    return error


def localhost_tls(client: Path | None = None) -> ssl.SSLContext:
    """Return the TLS context of a localhost receiver that may require the certificate *client*."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(LOCALHOST, LOCALHOST.with_name("localhost.key.pem"))
    if client is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client)
    return context


@dataclass
class Proxy:
    """An HTTP proxy on the loopback address: tunnels, and requests that it passes on.

    ``credentials`` is the required header. ``refuse`` is a status for every response. The response
    to a tunnel comes after ``pause`` seconds for each byte.
    """

    credentials: str = ""
    refuse: int = 0
    pause: float = 0.0
    heads: list[Request] = field(default_factory=list)
    """The requests it got, without bodies."""

    def __post_init__(self) -> None:
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for each in [self._listener, *self._open]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    @property
    def url(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    def await_closed(self) -> None:
        """Wait until no caller is connected: an end reaches a caller only when passed on."""
        ends = time.monotonic() + 10
        while any(each.fileno() >= 0 for each in self._open):
            assert time.monotonic() < ends, "a caller is still connected"
            time.sleep(0.005)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with closing(connection), suppress(OSError):
            text = b""
            while b"\r\n\r\n" not in text:
                if not (more := connection.recv(65536)):
                    return
                text += more
            first, *lines = text.partition(b"\r\n\r\n")[0].decode().split("\r\n")
            pairs = [line.split(": ", 1) for line in lines]
            method, place, _ = first.split()
            headers = {name.lower(): value for name, value in pairs}
            self.heads.append(Request(method, place, headers, b"", len(self._open)))
            if refused := self.refuse or self._refused(headers):
                words = f"HTTP/1.1 {refused} of word-of-ada\r\nContent-Length: 0\r\n\r\n"
                connection.sendall(words.encode())
            elif method == "CONNECT":
                self._drip(connection, b"HTTP/1.1 200 OK\r\n\r\n")
                self._pass(connection, _address(place), b"")
            else:
                self._pass(connection, _address(urlsplit(place).netloc), text)

    def _refused(self, headers: dict[str, str]) -> int:
        return 407 if headers.get("proxy-authorization", "") != self.credentials else 0

    def _drip(self, connection: socket.socket, answer: bytes) -> None:
        for at in range(len(answer)):
            if self.pause:
                self._stopped.wait(self.pause)
            connection.sendall(answer[at : at + 1])

    def _pass(self, connection: socket.socket, address: tuple[str, int], begun: bytes) -> None:
        """Pass on the data of either side, until one of them is gone."""
        with socket.create_connection(address) as beyond:
            self._open.append(beyond)
            beyond.sendall(begun)
            self._start(_copy, beyond, connection)
            _copy(connection, beyond)


def _address(place: str) -> tuple[str, int]:
    host, _, port = place.rpartition(":")
    return host, int(port)


def _copy(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while text := one.recv(65536):
            other.sendall(text)
    for each in (one, other):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)

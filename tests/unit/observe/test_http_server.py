"""The small HTTP server: its answers, and its tolerance of misbehaving callers."""

from __future__ import annotations

import errno
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
from acceptance_tools import page

from transporter.errors import EnvironmentFault
from transporter.observe import http_server as module
from transporter.observe.http_server import CLIENTS, Endpoint, HttpAnswer, PortTaken
from transporter.pipeline.observe_config import ListenAddress

if TYPE_CHECKING:
    from collections.abc import Iterator


def broken(accept: str) -> HttpAnswer:
    """Raise an error, like a page with a bug."""
    raise RuntimeError(f"hunter2{accept}")


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """Yield a running endpoint with a page that works and one that does not."""
    found = Endpoint(ListenAddress("127.0.0.1", 0))
    found.start(
        {"/good": lambda accept: HttpAnswer(200, "text/plain", accept.encode()), "/bad": broken}
    )
    yield found
    found.stop()


def connected(endpoint: Endpoint) -> socket.socket:
    """Return a connection to *endpoint*."""
    host, _, port = endpoint.url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def test_pages_and_what_is_none(endpoint: Endpoint) -> None:
    """A page is answered, a query is ignored, and any other path is not found."""
    assert page(f"{endpoint.url}/good?x=1")[0] == 200
    assert page(f"{endpoint.url}/other")[0] == 404
    assert page(f"{endpoint.url}/../../etc/passwd")[0] == 404


def test_a_page_that_fails_does_not_tell_why(endpoint: Endpoint) -> None:
    """A failing page returns 500 and the kind of error without its text, and serving goes on."""
    assert page(f"{endpoint.url}/bad") == (500, "RuntimeError\n")
    assert page(f"{endpoint.url}/good")[0] == 200


@pytest.mark.parametrize(
    "said", [b"", b"\0\xff\n\n", b"GET " + b"x" * 100_000, b"POST /good HTTP/1.0\r\n\r\n"]
)
def test_whatever_a_caller_says_others_are_answered(endpoint: Endpoint, said: bytes) -> None:
    """An invalid request ends its own connection and no other."""
    with connected(endpoint) as caller:
        caller.sendall(said)
        assert page(f"{endpoint.url}/good")[0] == 200


def drip(caller: socket.socket) -> None:
    """Send a byte now and then for as long as a test may take."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        caller.sendall(b"G")
        time.sleep(0.05)


def test_who_only_holds_a_place_loses_it(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers that send nothing, or a byte now and then, do not delay another one."""
    monkeypatch.setattr(module._Handler, "timeout", 60)
    monkeypatch.setattr(module, "PATIENCE", 60)  # Otherwise the first would have to go anyway.
    silent = [connected(endpoint) for _ in range(4 * CLIENTS)]
    try:
        for each in silent[-CLIENTS:]:
            each.sendall(b"G")
        assert page(f"{endpoint.url}/good")[0] == 200
        assert silent[0].recv(1) == b""
    finally:
        for each in silent:
            each.close()


def test_a_whole_request_has_its_time(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that keeps sending single bytes is closed, too."""
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    with connected(endpoint) as caller, pytest.raises(ConnectionError):
        drip(caller)


def test_a_silent_caller_does_not_keep_the_end_waiting(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop closes the connection of a silent caller."""
    monkeypatch.setattr(module._Handler, "timeout", 60)
    monkeypatch.setattr(module, "PATIENCE", 60)
    with connected(endpoint) as caller:
        caller.sendall(b"GET /go")
        assert page(f"{endpoint.url}/good")[0] == 200
        begun = time.monotonic()
        endpoint.stop()
        assert time.monotonic() - begun < 30


def test_a_port_in_use_is_told_as_such(endpoint: Endpoint) -> None:
    """The error of a port in use names the address and the setting."""
    port = int(endpoint.url.rpartition(":")[2])
    with pytest.raises(
        PortTaken, match=rf"observe.listen: cannot listen on 127.0.0.1:{port}: .*observe.listen"
    ):
        Endpoint(ListenAddress("127.0.0.1", port))


def test_an_address_of_another_machine_is_another_error() -> None:
    """Only a port in use counts as taken."""
    with pytest.raises(EnvironmentFault, match="cannot listen on") as found:
        Endpoint(ListenAddress("192.0.2.1", 0))
    assert not isinstance(found.value, PortTaken)
    assert found.value.__cause__.errno == errno.EADDRNOTAVAIL


@pytest.mark.parametrize("host", ["metrics..internal", "x" * 64])
def test_what_is_no_name_of_a_host_is_told(host: str) -> None:
    """The error names the setting, also where the name cannot even be looked up."""
    with pytest.raises(EnvironmentFault, match=f"observe.listen: cannot listen on {host}:0"):
        Endpoint(ListenAddress(host, 0))


def test_nothing_of_it_stays(endpoint: Endpoint) -> None:
    """A stop leaves neither the port nor a thread."""
    before = threading.active_count()
    other = Endpoint(ListenAddress("127.0.0.1", 0))
    other.start({})
    url = other.url
    other.stop()
    assert threading.active_count() == before
    Endpoint(ListenAddress("127.0.0.1", int(url.rpartition(":")[2]))).stop()

"""The console's server, and peers that send half of a request."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from console_tools import TOKENS, client_of, make_console, make_shop
from engine_tools import make_pipeline

from transporter.console import app, listening
from transporter.pipeline.observe_config import ListenAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest

HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: "


@contextmanager
def served(folder: Path) -> Iterator[int]:
    """Serve a console of a log that does not exist yet. Yield its port."""
    make_pipeline(folder, [], out={})
    (folder / "pipeline.yaml").rename(folder / "shop.yaml")
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with app.serving(make_console(folder), listener) as run:
        # It ends with the socket that it listens on.
        threading.Thread(target=run, daemon=True).start()
        yield port


def test_half_a_request_keeps_nobody_out(tmp_path: Path) -> None:
    """A console answers beside more of them than waitress accepts by default."""
    with served(tmp_path) as port, ExitStack() as stack:
        for _ in range(150):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            peer.sendall(HALF)
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        client.request("GET", "/healthz")
        assert client.getresponse().status == 200
        client.close()


def test_who_takes_nothing_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that reads no more holds a place among the downloads for a while only."""
    monkeypatch.setattr(listening, "UNREAD", 1)
    ended = threading.Event()

    def answer(_: object, start_response: Callable[..., object]) -> Iterator[bytes]:
        start_response("200 OK", [])
        try:
            while True:
                yield bytes(1 << 20)
        finally:
            ended.set()

    listener, address = listening.bind(ListenAddress("127.0.0.1", 0))
    monkeypatch.setattr(app, "create_app", lambda _: answer)
    with app.serving(make_console(make_shop(tmp_path)), listener) as run:
        threading.Thread(target=run, daemon=True).start()
        with socket.create_connection(address) as peer:
            peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert ended.wait(30)


def test_a_download_is_no_idle_time(tmp_path: Path) -> None:
    """It counts until all of it is sent, or its peer has gone, and an error counts no longer."""
    console = make_console(make_shop(tmp_path))
    client = client_of(console)
    bearer = {"Authorization": f"Bearer {TOKENS['operator']}"}
    sent = client.get("/p/shop/export", headers=bearer, buffered=False)
    time.sleep(0.01)
    assert console.activity.idle_seconds == 0
    sent.close()
    missing = client.get("/p/nowhere/export", headers=bearer, buffered=True)
    assert missing.status_code == 404
    time.sleep(0.01)
    assert console.activity.idle_seconds > 0


def test_half_a_request_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that says nothing more is gone after some seconds."""
    monkeypatch.setattr(app, "SILENCE", 1)
    with (
        served(tmp_path) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as peer,
    ):
        peer.sendall(HALF)
        assert peer.recv(100) == b""

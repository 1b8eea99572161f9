"""The console's server, and peers that send half of a request."""

from __future__ import annotations

import http.client
import socket
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from console_tools import make_console
from engine_tools import make_pipeline

from transporter.console import serve

if TYPE_CHECKING:
    from collections.abc import Iterator
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
    with serve.serving(make_console(folder), listener) as run:
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


def test_half_a_request_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that says nothing more is gone after some seconds."""
    monkeypatch.setattr(serve, "SILENCE", 1)
    with (
        served(tmp_path) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as peer,
    ):
        peer.sendall(HALF)
        assert peer.recv(100) == b""

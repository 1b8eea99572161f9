"""The listener: who may call, and that nobody keeps the others waiting."""

from __future__ import annotations

import queue
import socket
import threading
from contextlib import contextmanager
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import PATIENCE

from transporter.engine import listener as module
from transporter.engine.listener import Listener
from transporter.engine.protocol import Hello, HostHello

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def listening() -> Iterator[tuple[Listener, queue.Queue[Any]]]:
    """Run a listener that puts what callers say, and their connections, in a queue."""
    heard: queue.Queue[Any] = queue.Queue()
    listener = Listener(
        lambda said, caller: heard.put((said, caller)),
        lambda said, caller: heard.put((said, caller)),
    )
    listener.start()
    try:
        yield listener, heard
    finally:
        listener.close()


@pytest.mark.parametrize("said", [HostHello(7), Hello("out", 0, 1, 7)])
def test_a_caller_is_handed_on_with_its_connection(said: object) -> None:
    """Hosts and workers are told apart by what they say, and can be answered."""
    with listening() as (listener, heard), Client(listener.address, authkey=listener.authkey) as us:
        us.send(said)
        got, caller = heard.get(timeout=PATIENCE)
        with caller:
            assert got == said
            caller.send("welcome")
            assert us.recv() == "welcome"


def test_a_caller_without_the_key_is_refused() -> None:
    """Whoever does not know the key is turned away, and the next caller is served."""
    with listening() as (listener, heard):
        with pytest.raises((AuthenticationError, OSError, EOFError)):
            Client(listener.address, authkey=b"wrong").recv()
        with Client(listener.address, authkey=listener.authkey) as us:
            us.send(HostHello(1))
            heard.get(timeout=PATIENCE)[1].close()
        assert heard.empty()


def test_a_caller_that_says_something_else_is_closed() -> None:
    """Only a host or a worker gets anywhere."""
    with listening() as (listener, heard), Client(listener.address, authkey=listener.authkey) as us:
        us.send("hello?")
        with pytest.raises(EOFError):
            us.recv()
        assert heard.empty()


def test_a_caller_that_stays_silent_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers are served, and the listener closes, while one says nothing at all."""
    monkeypatch.setattr(module, "_GREETING", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        with listening() as (listener, heard):
            silent.connect(listener.address)
            done = threading.Event()

            def call() -> None:
                with Client(listener.address, authkey=listener.authkey) as us:
                    us.send(HostHello(1))
                    heard.get(timeout=PATIENCE)[1].close()
                    done.set()

            threading.Thread(target=call, daemon=True).start()
            assert done.wait(5), "the silent caller keeps the others waiting"
        # It is shown the door in the end: what it was sent is a challenge, then nothing.
        silent.settimeout(PATIENCE)
        while silent.recv(1024):
            pass


def test_a_listener_that_never_started_can_be_closed() -> None:
    """Closing needs no start."""
    Listener(lambda *_: None, lambda *_: None).close()

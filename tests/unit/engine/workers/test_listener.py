"""The listener: its check of callers, none of which delays the others."""

from __future__ import annotations

import fcntl
import itertools
import os
import pickle
import queue
import socket
import struct
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import PATIENCE

from transporter.engine.workers import listener as module
from transporter.engine.workers.listener import Listener
from transporter.errors import HostFailed
from transporter.protocol import network
from transporter.protocol.messages import Hello, HostHello
from transporter.protocol.network import Network, connect_engine

if TYPE_CHECKING:
    from collections.abc import Iterator


HOST = HostHello.claim
LOOPBACK = Network("127.0.0.1", 0, "127.0.0.1")
BOTH = pytest.mark.parametrize("network", [None, LOOPBACK], ids=["unix", "tcp"])


@contextmanager
def listening(network: Network | None = None) -> Iterator[tuple[Listener, queue.Queue[Any]]]:
    """Run a listener that puts callers' greetings and connections in a queue."""
    heard: queue.Queue[Any] = queue.Queue()
    listener = Listener(
        lambda said, caller: heard.put((said, caller)),
        lambda said, caller: heard.put((said, caller)),
        network,
    )
    listener.start()
    try:
        yield listener, heard
    finally:
        listener.close()


@pytest.mark.parametrize("said", [HostHello(7), Hello("out", 0, 1, 7)])
@BOTH
def test_a_caller_is_handed_on_with_its_connection(
    network: Network | None, said: HostHello | Hello
) -> None:
    """Hosts and workers are distinguished by their greetings and can be answered."""
    with (
        listening(network) as (listener, heard),
        connect_engine(listener.ticket(said.claim)) as us,
    ):
        us.send(said)
        got, caller = heard.get(timeout=PATIENCE)
        with caller:
            assert got == said
            caller.send("welcome")
            assert us.recv() == "welcome"


@BOTH
def test_a_caller_without_the_key_is_refused(network: Network | None) -> None:
    """A caller without the key is refused, and the next caller is served."""
    with listening(network) as (listener, heard):
        with pytest.raises((AuthenticationError, OSError, EOFError)):
            connect_engine(replace(listener.ticket(HOST), key=b"wrong")).recv()
        with connect_engine(listener.ticket(HOST)) as us:
            us.send(HostHello(1))
            heard.get(timeout=PATIENCE)[1].close()
        assert heard.empty()


def test_a_caller_that_says_something_else_is_closed() -> None:
    """A caller that is neither a host nor a worker is refused."""
    with listening() as (listener, heard), connect_engine(listener.ticket(HOST)) as us:
        us.send_bytes(b"hello?")
        with pytest.raises(EOFError):
            us.recv()
        assert heard.empty()


def test_a_caller_that_stays_silent_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent caller delays neither the other callers nor the close of the listener."""
    monkeypatch.setattr(module, "_AUTHENTICATION", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        with listening() as (listener, heard):
            silent.connect(listener.address)
            done = threading.Event()

            def proves() -> None:
                with connect_engine(listener.ticket(HOST)) as us:
                    us.send(HostHello(1))
                    heard.get(timeout=PATIENCE)[1].close()
                    done.set()

            threading.Thread(target=proves, daemon=True).start()
            assert done.wait(5), "the silent caller keeps the others waiting"
        # The silent caller is closed in the end.
        silent.settimeout(PATIENCE)
        while silent.recv(1024):
            pass


@BOTH
def test_idle_callers_make_way_for_those_who_prove_themselves(network: Network | None) -> None:
    """Idle callers are closed for the next one, which is served at once."""
    family = socket.AF_UNIX if network is None else socket.AF_INET
    with listening(network) as (listener, heard), ExitStack() as stack:
        idle = [stack.enter_context(socket.socket(family)) for _ in range(module._MAX_CALLERS + 9)]
        for each in idle:
            each.connect(listener.worker_address)
        done = threading.Event()

        def worker() -> None:
            with connect_engine(listener.ticket(HOST)) as us:
                us.send(HostHello(1))
                heard.get(timeout=PATIENCE)[1].close()
                done.set()

        threading.Thread(target=worker, daemon=True).start()
        assert done.wait(module._AUTHENTICATION / 2), "idle callers keep a worker waiting"
        # The oldest idle caller was closed.
        idle[0].settimeout(PATIENCE)
        while idle[0].recv(1024):
            pass


def test_those_who_had_to_make_way_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more callers connect than are allowed at once, all are served in the end."""
    monkeypatch.setattr(module, "_MAX_CALLERS", 8)
    with listening(LOOPBACK) as (listener, heard):

        def worker(number: int) -> None:
            with connect_engine(listener.ticket(HOST)) as us:
                us.send(HostHello(number))

        calling = [threading.Thread(target=worker, args=(number,)) for number in range(24)]
        for each in calling:
            each.start()
        served = set()
        for _ in calling:
            said, caller = heard.get(timeout=PATIENCE)
            served.add(said.pid)
            caller.close()
        for each in calling:
            each.join(PATIENCE)
    assert served == set(range(24))


def test_slow_callers_may_take_their_time_while_there_is_room() -> None:
    """A slow caller is not closed for later ones while there is room."""
    with listening() as (listener, heard), ExitStack() as stack:
        room = range(module._MAX_CALLERS - 1)
        slow = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in room]
        for each in slow:
            each.connect(listener.address)
        with connect_engine(listener.ticket(HOST)) as us:
            us.send(HostHello(1))
            heard.get(timeout=PATIENCE)[1].close()
        for each in slow:
            each.settimeout(0)
            with pytest.raises(BlockingIOError):
                each.recv(1024)


def test_a_listener_that_never_started_can_be_closed() -> None:
    """A listener that never started can be closed."""
    Listener(lambda *_: None, lambda *_: None).close()


@BOTH
def test_a_caller_is_nobody_but_whom_it_has_proved_to_be(network: Network | None) -> None:
    """A worker's ticket admits neither another worker nor the host, which have their own keys."""
    mine, others = Hello("out", 0, 1, 7), Hello("out", 1, 1, 7)
    with listening(network) as (listener, heard):
        for said in (others, HostHello(7)):
            with connect_engine(listener.ticket(mine.claim)) as us:
                us.send(said)
                with pytest.raises((EOFError, ConnectionError)):
                    us.recv()
        with pytest.raises((AuthenticationError, OSError, EOFError)):
            connect_engine(replace(listener.ticket(mine.claim), claim=others.claim)).recv()
        assert heard.empty()


def test_a_worker_talks_with_nobody_but_its_engine() -> None:
    """An engine with another certificate is refused before any message, whatever it answers."""
    with listening(LOOPBACK) as (engine, _), listening(LOOPBACK) as (other, heard):
        ticket = replace(engine.ticket(HOST), address=other.worker_address)
        with pytest.raises(HostFailed, match="certificate at the engine's address is not"):
            connect_engine(ticket)
        with pytest.raises((AuthenticationError, OSError, EOFError)):
            connect_engine(replace(ticket, certificate=other.ticket(HOST).certificate))
        assert heard.empty()


class Trap:
    """An object that leaves a trace when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("sprung",))


@pytest.mark.parametrize(
    "said",
    [
        pickle.dumps(Trap()),
        b"Hello " + pickle.dumps(Trap()),
        b'Hello {"route": "out"}',
        b'Hello {"route": ["out"], "shard": 0, "epoch": 1, "pid": 7}',
        b'StartWorker {"invitation": null}',
        b"__import__ {}",
        b"",
    ],
)
@BOTH
def test_nothing_that_a_caller_says_runs_here(
    network: Network | None, said: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pickle is not a message, not even from a proven caller, and the next caller is served."""
    monkeypatch.chdir(tmp_path)
    claim = Hello("out", 0, 1, 7).claim
    with listening(network) as (listener, heard):
        for _ in range(3):
            with connect_engine(listener.ticket(claim)) as us:
                us.send_bytes(said)
                with pytest.raises((EOFError, ConnectionError)):
                    us.recv()
        with connect_engine(listener.ticket(HOST)) as us:
            us.send(HostHello(1))
            heard.get(timeout=PATIENCE)[1].close()
        assert heard.empty()
    assert not (tmp_path / "sprung").exists()


def test_a_caller_that_finds_no_thread_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without free threads refuses a caller and serves the next one later."""
    start = threading.Thread.start
    refused: list[str] = []

    def refuse(thread: threading.Thread) -> None:
        if thread.name in refused:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with listening(LOOPBACK) as (listener, heard):
        refused[:] = ["greeter"]
        monkeypatch.setattr(network, "_PAUSES", ())
        for _ in range(3):
            with pytest.raises((EOFError, OSError)):
                connect_engine(listener.ticket(HOST))
        assert listener._unauthenticated == {}
        refused.clear()
        with connect_engine(listener.ticket(HOST)) as us:
            us.send(HostHello(1))
            heard.get(timeout=PATIENCE)[1].close()


def test_who_claims_too_much_is_cut_off() -> None:
    """Before its proof a caller can make the engine keep some kilobytes, and not more."""
    with listening() as (listener, heard), socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(listener.address)
        stranger.sendall(struct.pack(">Q", 1 << 40))
        stranger.settimeout(PATIENCE)
        assert stranger.recv(1024) == b""
        assert heard.empty()


def test_a_caller_that_drips_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Single bytes now and then do not extend a caller's time."""
    monkeypatch.setattr(module, "_AUTHENTICATION", 0.3)
    with listening(LOOPBACK) as (listener, _), socket.socket() as dripping:
        dripping.connect(listener.worker_address)
        dripping.settimeout(PATIENCE)
        for byte in itertools.islice(itertools.cycle(b"\x16\x03\x01\x40"), 200):
            try:
                dripping.sendall(bytes([byte]))
            except ConnectionError:
                return
            time.sleep(0.05)
        pytest.fail("who drips is listened to")


def test_an_address_that_is_taken_is_named() -> None:
    """An address that is taken fails with the setting to change and leaves nothing open."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        network = Network("127.0.0.1", taken.getsockname()[1], "127.0.0.1")
        with pytest.raises(HostFailed, match=r"set spark\.listen"):
            Listener(lambda *_: None, lambda *_: None, network)


def test_sockets_of_killed_engines_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose lock is free go; living, young, foreign ones and links stay."""
    boot = network.boot_id()
    locks = {"killed": boot, "living": boot, "young": "", "elsewhere": "another run"}
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as outside:
        monkeypatch.setattr("tempfile.tempdir", place)
        for name, content in locks.items():
            folder = Path(place) / f"transporter-{name}"
            folder.mkdir()
            (folder / "engine.sock").touch()
            (folder / "engine.lock").write_text(content)
        (Path(outside) / "engine.lock").write_text(boot)
        (Path(place) / "transporter-link").symlink_to(outside)
        (Path(place) / "transporter-other").mkdir()
        with (Path(place) / "transporter-living" / "engine.lock").open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with listening():
                left = {each.name.removeprefix("transporter-") for each in Path(place).iterdir()}
                assert len(left) == 6  # Its own is there, too.
        assert {"living", "young", "elsewhere", "link", "other"} < left
        assert (Path(outside) / "engine.lock").exists()
        assert "killed" not in left

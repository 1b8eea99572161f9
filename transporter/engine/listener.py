"""Where the Spark host and the workers call back."""

from __future__ import annotations

import errno
import secrets
import selectors
import socket
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from transporter.engine.network import family_of, watch_over
from transporter.engine.protocol import Hello, HostHello
from transporter.errors import HostFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transporter.engine.network import Network

_GREETING: Final = 10.0
"""Seconds that a caller has to say who it is."""
_CALLERS: Final = 64
"""Callers that are asked at once who they are; for one more, who has been here longest goes."""
_BACKLOG: Final = 128
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
_PAUSE: Final = 0.1
"""Seconds until the door is tried again when this process has no descriptor left."""


class Listener:
    """Accepts authenticated connections and hands each to whoever it calls.

    On one host it is a unix socket in a private folder; with a *network* workers
    call over TCP. Nothing that a caller says is unpickled before it has proved
    that it knows the key.
    """

    def __init__(
        self,
        on_host: Callable[[HostHello, Connection], None],
        on_worker: Callable[[Hello, Connection], None],
        network: Network | None = None,
    ) -> None:
        """Listen; nothing is accepted before :meth:`start`. Callbacks run on short threads.

        Raises:
            HostFailed: nobody can listen at the address of *network*.

        """
        self.authkey = secrets.token_bytes(32)
        self._on_host, self._on_worker = on_host, on_worker
        self._unproved: dict[socket.socket, float] = {}
        """Lines to callers that are being asked, the oldest first, and until when they may be."""
        self._lock = threading.Lock()
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="transporter-"))
            self.address = str(Path(folder) / "engine.sock")
            self._doors = [stack.enter_context(_unix_door(self.address))]
            self.worker_address: Any = self.address
            if network is not None:
                self._doors.append(stack.enter_context(_tcp_door(network)))
                self.worker_address = (network.advertised, self._doors[-1].getsockname()[1])
            self._bell, self._rung = (stack.enter_context(each) for each in socket.socketpair())
            self._open = stack.pop_all()
        self.thread = threading.Thread(target=self._accept, name="listener")

    def start(self) -> None:
        """Begin to accept."""
        self.thread.start()

    def close(self) -> None:
        """Stop accepting, and wait until that is so."""
        self._bell.close()
        if self.thread.is_alive():
            self.thread.join()
        with self._lock:
            self._turn_away(list(self._unproved))
        self._open.close()

    def _accept(self) -> None:
        with selectors.DefaultSelector() as ready:
            for each in (*self._doors, self._rung):
                ready.register(each, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select(self._end_greetings()):
                    if key.fileobj is self._rung:
                        return
                    self._let_in(next(each for each in self._doors if each is key.fileobj))

    def _let_in(self, door: socket.socket) -> None:
        try:
            with ExitStack() as stack:
                caller = stack.enter_context(door.accept()[0])
                line = stack.enter_context(caller.dup())
                stack.pop_all()
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                # The caller stays at the door, which would ring again at once.
                time.sleep(_PAUSE)
            return
        with self._lock:
            # Whoever only holds a place loses it to those who come to prove themselves.
            while len(self._unproved) >= _CALLERS:
                self._turn_away([next(iter(self._unproved))])
            self._unproved[line] = time.monotonic() + _GREETING
        # A caller that stays silent must not keep the others waiting.
        greeter = threading.Thread(target=self._greet, args=(caller, line), name="greeter")
        try:
            greeter.start()
        except RuntimeError:
            # There is no thread to be had; the caller tries again, or somebody in its place.
            caller.close()
            self._done_with(line)

    def _end_greetings(self) -> float | None:
        """Turn away who has taken too long, however it drips; return when that is due again."""
        now = time.monotonic()
        with self._lock:
            self._turn_away([line for line, until in self._unproved.items() if until <= now])
            return next((until - now for until in self._unproved.values()), None)

    def _turn_away(self, lines: list[socket.socket]) -> None:
        """Hang up on the callers at *lines*: their greeters find that out, and close."""
        for line in lines:
            del self._unproved[line]
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def _done_with(self, line: socket.socket) -> None:
        with self._lock:
            self._unproved.pop(line, None)
            line.close()

    def _greet(self, caller: socket.socket, line: socket.socket) -> None:
        try:
            known, said = self._identify(caller)
        except Exception:  # noqa: BLE001 - whatever a caller sends, the next one is served
            caller.close()
            return
        finally:
            self._done_with(line)
        match said:
            case HostHello():
                self._on_host(said, known)
            case Hello():
                self._on_worker(said, known)
            case _:
                known.close()

    def _identify(self, caller: socket.socket) -> tuple[Connection, object]:
        """Return the connection to *caller*, who has proved itself, and its first message."""
        if caller.family != socket.AF_UNIX:
            watch_over(caller)
        with ExitStack() as stack:
            known = Connection(caller.detach())
            stack.callback(known.close)
            # The caller proves itself first: we do not answer a stranger's challenge.
            connection.deliver_challenge(known, self.authkey)
            connection.answer_challenge(known, self.authkey)
            said = known.recv()
            stack.pop_all()
        return known, said


@contextmanager
def _unix_door(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(address)
        door.listen(_BACKLOG)
        yield door


@contextmanager
def _tcp_door(network: Network) -> Iterator[socket.socket]:
    place = (network.host, network.port)
    try:
        door = socket.create_server(place, family=family_of(network.host), backlog=_BACKLOG)
    except OSError as error:
        raise HostFailed(
            f"cannot listen for workers at {network.host}, {network.port or 'any port'}: "
            f"{error.strerror or error}; set spark.listen to an address of this host "
            "and a port that is free"
        ) from error
    with door:
        yield door

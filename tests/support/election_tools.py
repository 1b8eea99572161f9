"""Electors pulsed by threads and processes under constant watch, and a bad pooler."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from pydantic import SecretStr, TypeAdapter

from transporter.election.config import Election, make_elector
from transporter.election.state_machine import Standing, StandingChange
from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transporter.election.elector import Elector, Pulse

GAP = 0.05
PATIENCE = 60.0
TERM = 1.0
SESSION = 6.0
"""The shortest session, in seconds, that a broker allows by default."""
BUSY = 0.4
"""Seconds by which a shared machine may be late."""

CHILD = """
import json, sys, time
from pydantic import SecretStr, TypeAdapter
from transporter.election.config import Election, make_elector
election = TypeAdapter(Election).validate_python(json.loads(sys.argv[1]))
elector = make_elector(election, sys.argv[2], SecretStr(sys.argv[3]))
while True:
    now = time.monotonic()
    found = elector.pulse(now)
    changes = [each.change for each in found.transitions]
    print(json.dumps([now, found.standing, changes]), flush=True)
    time.sleep(0.05)
"""


class Engine:
    """A thread that pulses an elector as an engine does, and keeps the reported transitions."""

    def __init__(self, elector: Elector, gap: float = GAP) -> None:
        self.elector, self.gap = elector, gap
        self.changes: list[tuple[float, StandingChange]] = []
        self.problems: list[str] = []
        self.longest = 0.0
        self.error: BaseException | None = None
        self.pulsing = threading.Event()
        """Flag that is cleared while the engine is paused."""
        self.pulsing.set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self.gap):
                self.pulsing.wait()
                began = time.monotonic()
                self._note(self.elector.pulse(began))
                self.longest = max(self.longest, time.monotonic() - began)
        except BaseException as error:  # noqa: BLE001 - looked at by the tests
            self.error = error

    def _note(self, found: Pulse) -> None:
        now = time.monotonic()
        self.changes += [(now, each.change) for each in found.transitions]
        if found.problem:
            self.problems.append(found.problem)

    @property
    def leads(self) -> bool:
        return self.elector.standing(time.monotonic()) is Standing.LEADER

    def stop(self) -> float:
        """Stop pulsing, close, and return how long closing took."""
        self._stop.set()
        self.pulsing.set()
        self._thread.join()
        began = time.monotonic()
        self.elector.close()
        return time.monotonic() - began


class Watch:
    """A constant watch of the number of leaders."""

    def __init__(self) -> None:
        self.engines: list[Engine] = []
        self.worst: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for each in self.engines:
            each.stop()
            assert each.error is None or isinstance(each.error, EnvironmentFault)
        assert self.worst == []

    def _run(self) -> None:
        while not self._stop.wait(0.001):
            # Look twice: between reading two electors the first may have handed over.
            if len(leaders := self.leaders) > 1 and all(each.leads for each in leaders):
                self.worst.append(f"{len(leaders)} led at {time.monotonic()}")

    @property
    def leaders(self) -> list[Engine]:
        return [each for each in [*self.engines] if each.leads]

    def add(self, elector: Elector, gap: float = GAP) -> Engine:
        self.engines.append(Engine(elector, gap))
        return self.engines[-1]

    def leader(self, seconds: float = PATIENCE) -> Engine:
        """Wait for a leader, and return it."""
        until(lambda: self.leaders, "somebody leads", seconds)
        return self.leaders[0]

    def successor(self, of: Engine, seconds: float = PATIENCE) -> Engine:
        """Wait for a leader other than *of*, and return it."""
        until(lambda: [each for each in self.leaders if each is not of], "another leads", seconds)
        return next(each for each in self.leaders if each is not of)


def until(holds: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Check *holds* repeatedly, and fail after *seconds*."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.005)


def tell(text: str) -> None:
    """Show a measured time, with ``pytest -s``."""
    print(text)  # noqa: T201 - that is the point


def elector(dsn: str = "", name: str = "orders", **election: Any) -> Elector:
    """Return an elector, by default through PostgreSQL with a term of a second."""
    values = {"kind": "postgres", "term": TERM, **election}
    return make_elector(TypeAdapter(Election).validate_python(values), name, SecretStr(dsn))


class Child:
    """An engine in a process of its own."""

    def __init__(self, election: dict[str, Any], dsn: str = "", name: str = "orders") -> None:
        self.lines: list[tuple[float, str, list[str]]] = []
        arguments = [json.dumps(election), name, dsn]
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(tuple(json.loads(line)))

    @property
    def leads(self) -> bool:
        return bool(self.lines) and self.lines[-1][1] == "leader"

    def stop(self) -> float:
        """Freeze it. Return the time."""
        self.process.send_signal(signal.SIGSTOP)
        return time.monotonic()

    def resume(self) -> tuple[float, str, list[str]]:
        """Let it go on. Return the first pulse that it finished behind the pause."""
        seen = len(self.lines)
        resumed = time.monotonic()
        self.process.send_signal(signal.SIGCONT)
        until(lambda: [line for line in self.lines[seen:] if line[0] > resumed], "it pulses")
        # The pulse in which it was stopped counts as well.
        return next(line for line in self.lines[seen:] if line[2] or line[0] > resumed)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def child(election: dict[str, Any], dsn: str = "") -> Iterator[Child]:
    """Run an engine in a process of its own. It leads when the block begins."""
    made = Child(election, dsn)
    try:
        until(lambda: made.leads, "the child leads")
        yield made
    finally:
        made.kill()


class Pooler:
    """A pooler that lends one server session to all its clients, one query at a time."""

    def __init__(self, port: int) -> None:
        self._lock = threading.Lock()
        self._server = socket.create_connection(("127.0.0.1", port))
        self._sockets = [self._server]
        parameters = b"user\0postgres\0database\0postgres\0\0"
        length = (8 + len(parameters)).to_bytes(4, "big")
        self._server.sendall(length + (196608).to_bytes(4, "big") + parameters)
        self._greeting = self._answer()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets.append(self._listener)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError, EOFError):
            while True:  # Refuse encryption until the client does without.
                body = self._exactly(client, int.from_bytes(self._exactly(client, 4), "big") - 4)
                if body[:4] == (196608).to_bytes(4, "big"):
                    break
                client.sendall(b"N")
            client.sendall(self._greeting)
            question = b""
            while True:
                kind, message = self._message(client)
                question += message
                if kind in b"SQ":
                    with self._lock:
                        self._server.sendall(question)
                        client.sendall(self._answer())
                    question = b""

    def _answer(self) -> bytes:
        found = b""
        while True:
            kind, message = self._message(self._server)
            found += message
            if kind == b"Z":
                return found

    def _message(self, peer: socket.socket) -> tuple[bytes, bytes]:
        head = self._exactly(peer, 5)
        return head[:1], head + self._exactly(peer, int.from_bytes(head[1:], "big") - 4)

    @staticmethod
    def _exactly(peer: socket.socket, count: int) -> bytes:
        found = b""
        while len(found) < count:
            part = peer.recv(count - len(found))
            if not part:
                raise EOFError
            found += part
        return found

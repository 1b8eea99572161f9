"""The control sockets' side in the engine: accepts operators, each on a thread of its own."""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
import threading
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from transporter.control.metadata import ReadOnly
from transporter.control.running_engine import RunningEngine
from transporter.control.wire import (
    ACCEPTS,
    MAX_REQUEST,
    READ_SOCKET,
    SOCKET,
    JsonLines,
    decode_on_behalf_of,
    decode_request,
    encode_error,
    peer_operator,
    socket_address,
)
from transporter.errors import ActionRefused, EngineUnreachable, LogPoisoned, TransporterError
from transporter.log.filesystem import FULL_TABLE, NO_SPACE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from transporter.audit import OnBehalfOf, Operator
    from transporter.control.requests import Operations
    from transporter.engine.engine import Engine
    from transporter.engine.events import Observer

CLIENTS: Final = 32
"""Concurrent clients; further ones are refused and may retry."""
_SILENCE: Final = 60.0
"""Seconds that a client may send nothing, or read nothing."""
_GRACE: Final = 2.0
_FULL: Final = 0.1
"""Seconds until a client is accepted again after descriptors ran out."""
ROOM: Final = 5.0
"""Seconds between two tries to listen while the disk is full."""


class ControlServer:
    """Serves operators on ``control.sock``; implements ``engine.Service``.

    Only the engine's own user and root are served. A client that hangs blocks only its own
    thread. The caller owns the log's lock, so an existing socket is that of a dead engine.
    """

    name: ClassVar[str] = SOCKET

    def __init__(self, operations: Operations, directory: Path, observe: Observer) -> None:
        """Prepare to serve *operations* in the log *directory*; :meth:`start` makes the socket."""
        self._operations, self._directory, self._observe = operations, directory, observe
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._lock = threading.Condition()
        self._clients: dict[threading.Thread, socket.socket] = {}
        self._evicted: dict[threading.Thread, socket.socket] = {}
        """Clients that have lost their place, until their threads have ended."""
        self._stopping = threading.Event()
        self._inode = 0
        self._on_failure: Callable[[BaseException], None] = lambda _: None
        self._path = directory / self.name
        self._thread = threading.Thread(target=self._accept_clients, name=self.name)

    def start(self, on_failure: Callable[[BaseException], None]) -> None:
        """Listen. An engine that cannot listen runs without a socket and reports it.

        On a full disk it listens as soon as there is room for the socket's name.
        """
        self._on_failure = on_failure
        try:
            self._bind()
        except OSError as error:
            self._observe("control-unavailable", problem=f"{self.name}: {error.strerror}")
            self._listener.close()
            if error.errno not in NO_SPACE:
                return
        self._thread.start()

    def stop(self) -> None:
        """Let answers under way end, and listen no more."""
        self._stopping.set()
        if self._thread.ident is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._thread.join()
            with suppress(OSError):
                self._remove_socket()
        self._listener.close()
        self._disconnect_clients()

    def _bind(self) -> None:
        with suppress(FileNotFoundError):
            self._path.unlink()
        # Before the socket has a name, so that no other user ever finds it open.
        os.fchmod(self._listener.fileno(), 0o600)
        with socket_address(self._directory, self.name) as address:
            self._listener.bind(address)
        with _stable_path(self._path) as place:
            self._set_permissions(place)
            self._inode = os.stat(place).st_ino  # noqa: PTH116 - it is a descriptor's
        self._listener.listen(CLIENTS)

    def _set_permissions(self, place: str) -> None:
        """Give the socket, which is at *place*, its rights."""
        os.chmod(place, 0o600)  # noqa: PTH101 - as above

    def _is_allowed(self, operator: Operator) -> bool:
        return operator.uid in {0, os.getuid()}

    def _make_room(self) -> None:
        """Make room for one more client, or refuse it; the lock is held."""

    def _remove_socket(self) -> None:
        """Remove the socket's name, unless it is another engine's by now (Invariant 12)."""
        if self._path.lstat().st_ino == self._inode:
            self._path.unlink()

    def _retry_bind(self) -> None:
        """Try again to listen, until there is room on the disk, or the end."""
        while not self._inode and not self._stopping.wait(ROOM):
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self._bind()
            except OSError as error:
                self._listener.close()
                if error.errno not in NO_SPACE:
                    self._observe("control-unavailable", problem=f"{self.name}: {error.strerror}")
                    return
            else:
                self._observe("control-opened", socket=self.name)

    def _accept_clients(self) -> None:
        try:
            self._retry_bind()
            while self._inode and not self._stopping.is_set():
                try:
                    peer, _ = self._listener.accept()
                except OSError as error:
                    if self._stopping.is_set():
                        return
                    if error.errno not in FULL_TABLE:
                        raise
                    self._stopping.wait(_FULL)
                    continue
                self._admit(peer)
        except BaseException as error:  # noqa: BLE001 - a thread must not die silently
            self._on_failure(error)

    def _admit(self, peer: socket.socket) -> None:
        peer.settimeout(_SILENCE)
        operator = peer_operator(peer)
        if not self._is_allowed(operator):
            peer.close()
            return
        thread = threading.Thread(
            target=self._serve_client, args=(peer, operator), name=f"operator-{operator.pid}"
        )
        problem = f"{CLIENTS} operators are connected, which is the limit; end one first"
        with self._lock:
            if len(self._clients) >= CLIENTS:
                self._make_room()
            if len(self._clients) < CLIENTS:
                self._clients[thread] = peer
                try:
                    thread.start()
                except RuntimeError:
                    # An operator must not end the engine, which needs no thread for its work.
                    del self._clients[thread]
                    problem = "the engine can start no further thread; try again later"
                else:
                    return
        with peer, suppress(OSError):
            error = encode_error(EngineUnreachable(problem))
            JsonLines(peer, 0).send({"ok": False, "error": error})

    def _serve_client(self, peer: socket.socket, operator: Operator) -> None:
        try:
            with peer, suppress(OSError):
                lines = JsonLines(peer, MAX_REQUEST)
                lines.send({"pid": os.getpid(), "accepts": ACCEPTS})
                self._answer_requests(lines, operator, partial(self._is_abandoned, peer))
        finally:
            with self._lock:
                for clients in (self._clients, self._evicted):
                    clients.pop(threading.current_thread(), None)
                self._lock.notify_all()

    def _is_abandoned(self, peer: socket.socket) -> bool:
        """Return whether no client waits for an answer: it has closed, or the engine ends."""
        look = select.poll()
        look.register(peer, 0)
        return self._stopping.is_set() or bool(look.poll(0))

    def _answer_requests(
        self, lines: JsonLines, operator: Operator, is_abandoned: Callable[[], bool]
    ) -> None:
        while True:
            try:
                message = lines.receive()
            except ActionRefused as error:
                lines.send({"ok": False, "error": encode_error(error)})
                return
            if message is None:
                return
            lines.send(self._perform(message, operator, is_abandoned))

    def _perform(
        self, message: dict[str, Any], operator: Operator, is_abandoned: Callable[[], bool]
    ) -> dict[str, Any]:
        try:
            request, person = decode_request(message), self._acted_for(message)
            actor = operator.acting_for(person)
            return {"ok": True, "result": self._operations.perform(request, actor, is_abandoned)}
        except TransporterError as error:
            if isinstance(error, LogPoisoned):
                self._on_failure(error)
            return {"ok": False, "error": encode_error(error)}
        except Exception as error:  # noqa: BLE001 - it must not end the engine
            # Not its text: that may hold a secret (Invariant 20).
            bug = ActionRefused(
                f"this is a bug in transporter: {type(error).__name__}; please report it"
            )
            return {"ok": False, "error": encode_error(bug)}

    def _acted_for(self, message: dict[str, Any]) -> OnBehalfOf | None:
        """Return the person whom *message* names. Every client here may act, so it is believed."""
        return decode_on_behalf_of(message)

    def _disconnect_clients(self) -> None:
        # First from idle clients, then from those that do not read.
        for how in (socket.SHUT_RD, socket.SHUT_RDWR):
            with self._lock:
                clients = self._clients | self._evicted
            for peer in clients.values():
                with suppress(OSError):
                    peer.shutdown(how)
            for thread in clients:
                thread.join(_GRACE if how == socket.SHUT_RD else None)


class StatusServer(ControlServer):
    """Serves read-only requests on ``status.sock``.

    The system lets the group of the log directory connect, where it may enter the directory.
    The oldest client loses its place to a new one.
    """

    name = READ_SOCKET

    def _set_permissions(self, place: str) -> None:
        super()._set_permissions(place)
        try:
            os.chown(place, -1, self._directory.stat().st_gid)
        except PermissionError:
            problem = f"{self.name}: this user is not a member of the log directory's group"
            self._observe("control-unavailable", problem=problem)
            return
        os.chmod(place, 0o660)  # noqa: PTH101 - as above

    def _is_allowed(self, operator: Operator) -> bool:  # noqa: ARG002 - every client that could connect is served
        return True

    def _acted_for(self, message: dict[str, Any]) -> OnBehalfOf | None:  # noqa: ARG002 - these clients may not act, so they are not believed
        return None

    def _make_room(self) -> None:
        has_ended = self._lock.wait_for(lambda: len(self._evicted) < CLIENTS, _FULL)
        if not has_ended or len(self._clients) < CLIENTS:
            return
        oldest = next(iter(self._clients))
        peer = self._evicted[oldest] = self._clients.pop(oldest)
        with suppress(OSError):
            # Its thread finds out, and ends.
            peer.shutdown(socket.SHUT_RDWR)


@contextmanager
def _stable_path(path: Path) -> Iterator[str]:
    """Yield a name for the socket at *path* that stays valid when *path* is replaced."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise FileExistsError(errno.EEXIST, "another file has taken its place")
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def attach_control(engine: Engine, environ: Mapping[str, str]) -> None:
    """Serve operators' requests to *engine* while it runs; call this before it starts.

    The log directory's group has read-only access. Variables of a reloaded pipeline file
    come from *environ*.
    """
    operations, observe = RunningEngine(engine, environ), engine.observe
    engine.attach(ControlServer(operations, engine.log.directory, observe))
    engine.attach(StatusServer(ReadOnly(operations), engine.log.directory, observe))

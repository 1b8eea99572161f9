"""The listener to which the Spark host and the workers connect."""

from __future__ import annotations

import errno
import fcntl
import hmac
import os
import secrets
import selectors
import socket
import stat
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from transporter.errors import HostFailed
from transporter.protocol.certificate import server_context
from transporter.protocol.channel import EngineChannel
from transporter.protocol.messages import Hello, HostHello, TaskHello, Ticket
from transporter.protocol.network import boot_id, enable_keepalive, family_of, prove

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

    from transporter.protocol.network import Network

_AUTHENTICATION: Final = 10.0
"""Seconds that a caller has to authenticate."""
_MAX_CALLERS: Final = 128
"""Callers that authenticate at the same time. One more evicts the oldest."""
_LEAST_AUTHENTICATION: Final = 0.5
"""Seconds that a caller has at least: many workers may begin at once, and none is idle."""
_LONGEST_CLAIM: Final = 4096
_BACKLOG: Final = 128
_PREFIX: Final = "transporter-"
_NAME: Final = "engine.sock"
_LOCK: Final = "engine.lock"
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
_DESCRIPTOR_RETRY: Final = 0.1
"""Seconds until the door is tried again when this process has no descriptor left."""
_ROOM_RETRY: Final = 0.02
"""Seconds between two looks whether there is a place for the next caller."""


class Listener:
    """Accepts authenticated connections and passes each to its addressee.

    On one host it is a unix socket in a private folder. With a *network* workers connect over
    TCP with TLS, whose certificate is created here. Each caller has a ticket, whose key proves
    its identity. No message is parsed before that proof.
    """

    def __init__(
        self,
        on_host: Callable[[HostHello, EngineChannel], None],
        on_worker: Callable[[Hello, EngineChannel], None],
        network: Network | None = None,
        on_task: Callable[[TaskHello, EngineChannel], None] | None = None,
    ) -> None:
        """Listen. Nothing is accepted before :meth:`start`. Callbacks run on short-lived threads.

        Raises:
            HostFailed: the address of *network* is not usable.

        """
        self._root = secrets.token_bytes(32)
        self._on_host, self._on_worker, self._on_task = on_host, on_worker, on_task
        self._unauthenticated: dict[socket.socket, float] = {}
        """Lines to callers that authenticate, the oldest first, with their deadlines."""
        self._lock = threading.Lock()
        _remove_abandoned()
        with ExitStack() as stack:
            self.address = str(stack.enter_context(_private_folder()) / _NAME)
            self._sockets = [stack.enter_context(_listen_unix(self.address))]
            self.worker_address: Any = self.address
            self._tls: ssl.SSLContext | None = None
            self._certificate = ""
            if network is not None:
                self._tls, self._certificate = server_context()
                self._sockets.append(stack.enter_context(_listen_tcp(network)))
                self.worker_address = (network.advertised, self._sockets[-1].getsockname()[1])
            self._stop_sender, self._stop_receiver = (
                stack.enter_context(each) for each in socket.socketpair()
            )
            self._open = stack.pop_all()
        self.thread = threading.Thread(target=self._accept, name="listener")

    def start(self) -> None:
        """Begin to accept."""
        self.thread.start()

    def ticket(self, claim: str) -> Ticket:
        """Return the ticket for a worker with the identity *claim*, at the workers' address."""
        return Ticket(self.worker_address, claim, self._key(claim), self._certificate)

    def host_ticket(self) -> Ticket:
        """Return the ticket for the Spark host, a child of this process."""
        return Ticket(self.address, HostHello.claim, self._key(HostHello.claim))

    def _key(self, claim: str) -> bytes:
        return hmac.digest(self._root, claim.encode(), "sha256")

    def close(self) -> None:
        """Stop accepting, and wait until that is so."""
        self._stop_sender.close()
        if self.thread.is_alive():
            self.thread.join()
        with self._lock:
            self._disconnect(list(self._unauthenticated))
        self._open.close()

    def _accept(self) -> None:
        with selectors.DefaultSelector() as ready:
            for each in (*self._sockets, self._stop_receiver):
                ready.register(each, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select(self._close_late_callers()):
                    if key.fileobj is self._stop_receiver:
                        return
                    self._accept_caller(next(each for each in self._sockets if each is key.fileobj))

    def _accept_caller(self, socket_: socket.socket) -> None:
        if not self._make_room():
            time.sleep(_ROOM_RETRY)  # The caller stays at the door.
            return
        try:
            with ExitStack() as stack:
                caller = stack.enter_context(socket_.accept()[0])
                line = stack.enter_context(caller.dup())
                stack.pop_all()
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                # The caller stays at the door, which would ring again at once.
                time.sleep(_DESCRIPTOR_RETRY)
            return
        with self._lock:
            self._unauthenticated[line] = time.monotonic() + _AUTHENTICATION
        # A caller that stays silent must not keep the others waiting.
        greeter = threading.Thread(target=self._authenticate, args=(caller, line), name="greeter")
        try:
            greeter.start()
        except RuntimeError:
            # No thread can be started. The caller retries, or another one in its place.
            caller.close()
            self._forget_caller(line)

    def _make_room(self) -> bool:
        """Make a place for one more; ``False`` if no caller has been here for long enough."""
        with self._lock:
            if len(self._unauthenticated) < _MAX_CALLERS:
                return True
            # An idle caller loses its place to one that authenticates.
            line, until = next(iter(self._unauthenticated.items()))
            if time.monotonic() < until - _AUTHENTICATION + _LEAST_AUTHENTICATION:
                return False
            self._disconnect([line])
            return True

    def _close_late_callers(self) -> float | None:
        """Close callers that take too long, even if they drip; return when this is due again."""
        now = time.monotonic()
        with self._lock:
            self._disconnect(
                [line for line, until in self._unauthenticated.items() if until <= now]
            )
            return next((until - now for until in self._unauthenticated.values()), None)

    def _disconnect(self, lines: list[socket.socket]) -> None:
        """Hang up on the callers at *lines*: their greeters find that out, and close."""
        for line in lines:
            del self._unauthenticated[line]
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def _forget_caller(self, line: socket.socket) -> None:
        with self._lock:
            self._unauthenticated.pop(line, None)
            line.close()

    def _authenticate(self, caller: socket.socket, line: socket.socket) -> None:
        try:
            channel, hello = self._identify(caller)
        except Exception:  # noqa: BLE001 - whatever a caller sends, the next one is served
            return
        finally:
            self._forget_caller(line)
        match hello:
            case HostHello():
                self._on_host(hello, channel)
            case Hello():
                self._on_worker(hello, channel)
            case TaskHello() if self._on_task is not None:
                self._on_task(hello, channel)
            case _:
                channel.close()

    def _identify(self, caller: socket.socket) -> tuple[EngineChannel, object]:
        """Return the channel to *caller*, who has proved itself, and its first message."""
        with ExitStack() as stack:
            line = stack.enter_context(caller)
            if self._tls is not None and caller.family != socket.AF_UNIX:
                enable_keepalive(caller)
                line = stack.enter_context(self._tls.wrap_socket(caller, server_side=True))
            channel = EngineChannel(line)
            claim = channel.recv_bytes(_LONGEST_CLAIM).decode()
            # The caller proves itself first: we do not answer a stranger's challenge.
            prove(channel, self._key(claim), first=True)
            hello = channel.recv()
            if hello.claim != claim:
                raise ConnectionError("its greeting does not match its ticket")
            stack.pop_all()
        return channel, hello


@contextmanager
def _private_folder() -> Iterator[Path]:
    """Make a folder for the socket. A lock tells that its engine lives, on this run of the machine.

    Temporary folders may be shared with other machines, whose locks cannot be seen.
    """
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX) as folder,
        (Path(folder) / _LOCK).open("w", encoding="ascii") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(boot_id())
        lock.flush()
        yield Path(folder)


def _remove_abandoned() -> None:
    """Remove the sockets of this user's engines that were killed. Nobody else would."""
    if not (boot := boot_id()):
        return
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as found:
        for each in found:
            if each.name.startswith(_PREFIX):
                with suppress(OSError):
                    _remove_if_abandoned(each, boot)


def _remove_if_abandoned(folder: os.DirEntry[str], boot: str) -> None:
    status = folder.stat(follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return
    place = os.open(folder.path, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        lock = os.open(_LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
        try:
            # Its engine writes after it has the lock, so an empty one is being made.
            if os.read(lock, 64) != boot.encode():
                return
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in (_NAME, _LOCK):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=place)
            Path(folder.path).rmdir()
        finally:
            os.close(lock)
    finally:
        os.close(place)


@contextmanager
def _listen_unix(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(address)
        door.listen(_BACKLOG)
        yield door


@contextmanager
def _listen_tcp(network: Network) -> Iterator[socket.socket]:
    place = (network.host, network.port)
    try:
        door = socket.create_server(place, family=family_of(network.host), backlog=_BACKLOG)
    except OSError as error:
        raise HostFailed(
            f"cannot listen for workers at {network.host}, {network.port or 'any port'}: "
            f"{error.strerror or error}; set spark.listen to an address of this host "
            "and a free port"
        ) from error
    with door:
        yield door

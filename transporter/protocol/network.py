"""Connections between an engine and workers on other hosts: addresses and TLS.

An address that is a text is a unix socket; a host and a port are TCP, with TLS.
"""

from __future__ import annotations

import os
import random
import socket
import ssl
import struct
import time
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import answer_challenge, deliver_challenge
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from transporter.errors import HostFailed
from transporter.pipeline.address import split_address
from transporter.protocol.certificate import client_context, digest
from transporter.protocol.channel import Channel, WorkerChannel

if TYPE_CHECKING:
    from transporter.pipeline.config import SparkConfig
    from transporter.protocol.messages import Ticket

CALL: Final = 20.0
"""Seconds a worker may take to reach its engine."""
_PAUSES: Final = (0.1, 0.5, 2.0)
"""Seconds, at most, between two tries of a caller that the engine has hung up on."""
_TIMEVAL: Final = struct.Struct("@ll")
_SILENT: Final = 10
"""Seconds of silence after which a keep-alive probe is sent."""
_PROBES: Final = 3
_BETWEEN: Final = 5
_UNANSWERED: Final = (_SILENT + _PROBES * _BETWEEN) * 1000
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_ANY: Final = ("0.0.0.0", "::")  # noqa: S104 - a user may write it; it is never our default
_NOWHERE: Final = ("192.0.2.1", "2001:db8::1")
_PORT: Final = 7077


@dataclass(frozen=True, slots=True)
class Network:
    """Where the engine listens for workers on other hosts, and how they call it."""

    host: str
    port: int
    advertised: str
    insecure: bool = False
    """Whether Spark's own connections need no protection."""


def network_of(spark: SparkConfig) -> Network | None:
    """Return the host name or address for workers of *spark*'s master; ``None`` if they run here.

    Raises:
        HostFailed: this host has no address on a network of the master.

    """
    if spark.local:
        return None
    config = spark.config
    listen = spark.listen or config.get("spark.driver.bindAddress", "")
    host, port = split_address(listen) if listen else (_own_address(spark.master), 0)
    called = spark.advertise or config.get("spark.driver.host", "")
    advertised = called or (_own_address(spark.master) if host in _ANY else host)
    return Network(host, port, advertised, spark.insecure)


def _own_address(towards: str) -> str:
    """Return the address of this host that packets *towards* a master, or anywhere, carry."""
    for host in (*_hosts(towards), *_NOWHERE):
        try:
            # Nothing is sent: connecting a datagram socket only consults the routing table.
            with socket.socket(family_of(host), socket.SOCK_DGRAM) as asking:
                asking.connect((host, _PORT))
                return str(asking.getsockname()[0])
        except OSError:
            continue
    raise HostFailed(
        f"this host has no route to {towards}: set spark.advertise to the address "
        "by which workers reach this host"
    )


def _hosts(master: str) -> list[str]:
    """Return the hosts in the address *master*; none for ``yarn``."""
    _, scheme, rest = master.rpartition("://")
    named = rest.partition("/")[0].split(",") if scheme else []
    return [split_address(each)[0] for each in named if each]


def family_of(host: str) -> socket.AddressFamily:
    """Return whether *host* is reached by IPv4 or by IPv6."""
    try:
        return socket.getaddrinfo(host, None)[0][0]
    except OSError:
        return socket.AF_INET


def is_tcp(address: Any) -> bool:  # noqa: ANN401 - as multiprocessing declares it
    """Return whether *address* is one of TCP, so that its workers may be on any host."""
    return not isinstance(address, str)


def connect_engine(ticket: Ticket) -> WorkerChannel:
    """Return a connection to the engine of *ticket*; each has proved itself to the other.

    Retries a few times if the engine closes the connection before that, as it does to some
    where many connect at once.

    Raises:
        OSError: no process answers there.
        EOFError: the engine closes the connection.
        AuthenticationError: one side does not have the key.
        HostFailed: it is not the engine of the ticket.

    """
    for pause in _PAUSES:
        try:
            return _connect_once(ticket)
        except ConnectionRefusedError:
            raise
        except (EOFError, ConnectionError, ssl.SSLError):
            time.sleep(random.uniform(0, pause))  # noqa: S311 - so that not all come again at once
    return _connect_once(ticket)


def _connect_once(ticket: Ticket) -> WorkerChannel:
    with ExitStack() as stack:
        line = stack.enter_context(_open_line(ticket))
        channel = stack.enter_context(WorkerChannel(line))
        channel.send_bytes(ticket.claim.encode())
        prove(channel, ticket.key, first=False)
        channel.set_timeout(None)
        stack.pop_all()
    return channel


def prove(channel: Channel, key: bytes, *, first: bool) -> None:
    """Prove to each other that both sides have *key*. With *first* the other side begins.

    Raises:
        AuthenticationError: the other side does not have it.

    """
    steps = [deliver_challenge, answer_challenge]
    for step in steps if first else reversed(steps):
        # A channel has the methods of a connection that it needs.
        step(cast("Any", channel), key)


def _open_line(ticket: Ticket) -> socket.socket:
    """Return a line to the engine of *ticket*, encrypted where others could listen."""
    if not is_tcp(ticket.address):
        return _open_unix_socket(ticket.address)
    line = socket.create_connection(tuple(ticket.address), CALL)
    enable_keepalive(line)
    safe = client_context().wrap_socket(line)
    if digest(safe.getpeercert(binary_form=True) or b"") != ticket.certificate:
        safe.close()
        raise HostFailed(
            "the certificate at the engine's address is not the engine's: a proxy between the "
            "engine and its workers must pass TLS through unchanged"
        )
    return safe


def _open_unix_socket(address: str) -> socket.socket:
    with ExitStack() as stack:
        line = stack.enter_context(socket.socket(socket.AF_UNIX))
        # With a time-out of Python's a call fails at once where others wait at the door.
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(CALL), 0))
        line.connect(address)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(0, 0))
        line.settimeout(CALL)
        stack.pop_all()
    return line


def enable_keepalive(line: socket.socket) -> None:
    """Send at once, and find out within half a minute that the other host is gone."""
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _SILENT),
        ("TCP_KEEPINTVL", _BETWEEN),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", _UNANSWERED),
    ):
        if (known := getattr(socket, option, None)) is not None:
            line.setsockopt(socket.IPPROTO_TCP, known, value)


def boot_id() -> str:
    """Return the name of this run of the kernel, or an empty text if unknown."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def place_of(directory: Path) -> str:
    """Return the identity of a directory on a running machine, or an empty text if unknown.

    Equal places are one directory under one kernel: both sides read and lock the same files.
    A copy, a snapshot or a network file system at the same path has another place.
    """
    try:
        found = directory.stat()
    except OSError:
        return ""
    boot = boot_id()
    return f"{boot}:{found.st_dev}:{found.st_ino}" if boot else ""


def is_at_place(place: str, directory: Path) -> bool:
    """Return whether *directory*, on this host, is the one at *place*."""
    return bool(place) and place_of(directory) == place


def this_host() -> str:
    """Return the name of this host, for people."""
    return os.uname().nodename

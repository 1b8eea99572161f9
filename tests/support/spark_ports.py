"""A client of Spark's block manager without a secret."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable


def listening_ports(processes: Iterable[psutil.Process]) -> list[int]:
    """Return the TCP ports at which *processes* listen."""
    return [
        each.laddr.port
        for process in processes
        for each in process.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    ]


def blocks(port: int, count: int, host: str = "127.0.0.1") -> bytes:
    """Return the first broadcasts that Spark sends to any client at *port*."""
    told = b""
    # A peer that closes, or is silent, is not Spark's block manager, or refuses access.
    with suppress(OSError, struct.error):
        for number in range(count):
            told += _block(number, (host, port))
    return told


def _block(number: int, address: tuple[str, int]) -> bytes:
    with socket.create_connection(address, 2) as caller:
        # Spark's protocol: OpenBlocks in an RpcRequest, then a ChunkFetchRequest.
        names = b"".join(map(_text, ("", "driver"))) + struct.pack(">i", 1)
        body = b"\0" + names + _text(f"broadcast_{number}_piece0")
        caller.sendall(_frame(b"\3" + struct.pack(">qi", number, len(body)) + body))
        # Its type, the request, the length and the type of the body stand before the stream.
        stream = _answer(caller)[14:22]
        caller.sendall(_frame(b"\0" + stream + bytes(4)))
        answer = _answer(caller)
        return answer if answer[:1] == b"\1" else b""


def _answer(caller: socket.socket) -> bytes:
    with caller.makefile("rb") as file:
        (size,) = struct.unpack(">q", file.read(8))
        return file.read(min(max(8, size), 1 << 20) - 8)


def _frame(message: bytes) -> bytes:
    return struct.pack(">q", 8 + len(message)) + message


def _text(text: str) -> bytes:
    return struct.pack(">i", len(text)) + text.encode()

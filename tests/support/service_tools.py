"""A service manager's notification socket, and adaptors that hold an engine where it is."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from engine_tools import PATIENCE, LinesReader, LinesWriter, LinesWriterConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transporter.adaptor import AdaptorConfig, Batch, StoredOffset, WriterContext


class ServiceManager:
    """Receives notifications on a real datagram socket at *address*, as systemd does."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._socket.settimeout(0)
        self.lines: list[str] = []

    def look(self) -> list[str]:
        """Return all lines so far, in order."""
        try:
            while True:
                self.lines += self._socket.recv(4096).decode().split("\n")
        except BlockingIOError:
            return self.lines

    def await_line(self, begins: str, count: int = 1, patience: float = PATIENCE) -> str:
        """Return line *count* of those that begin so, waiting for it."""
        deadline = time.monotonic() + patience
        while len(found := [each for each in self.look() if each.startswith(begins)]) < count:
            assert time.monotonic() < deadline, (begins, self.lines)
            time.sleep(0.02)
        return found[count - 1]

    def count(self, line: str) -> int:
        """Return how often *line* has come."""
        return self.look().count(line)

    def close(self) -> None:
        """Receive nothing more."""
        self._socket.close()


class HeldWriter(LinesWriter):
    """Waits in its open as long as a file ``<path>.held`` exists."""

    Config: type[AdaptorConfig] = LinesWriterConfig  # type: ignore[misc]

    def open(self, context: WriterContext) -> StoredOffset | None:
        _wait_while(self._beside("held").exists)
        return super().open(context)


class HangingReader(LinesReader):
    """Does not return from a poll as long as a file ``<path>.hangs`` exists."""

    def poll(self, timeout: float) -> Batch:
        path: Path = self._config.path.with_suffix(".hangs")
        _wait_while(path.exists)
        return super().poll(timeout)


def _wait_while(condition: Callable[[], bool]) -> None:
    while condition():
        time.sleep(0.01)

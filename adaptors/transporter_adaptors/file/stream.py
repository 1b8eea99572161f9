"""Outputs without a length: standard output, pipes and devices."""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from transporter.errors import SinkTimeout
from transporter_adaptors.file.disk import exclusive_lock

if TYPE_CHECKING:
    from pathlib import Path


class StandardOutput:
    """The engine's standard output. It is flushed, may block, and stays open."""

    def is_terminal(self) -> bool:
        """Return whether a terminal shows the output."""
        return sys.stdout.isatty()

    def write(self, text: bytes) -> None:
        """Write *text* and flush it."""
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()

    def close(self) -> None:
        """Leave it open."""


class Device:
    """A pipe or a device. A partial write stays, because nothing can be taken back."""

    def __init__(self, path: Path, seconds: float) -> None:
        """Open *path*, whose reader has *seconds* for each slice.

        Raises:
            OSError: It may not be written, or is a pipe without a reader.
        """
        self._path, self._seconds = path, seconds
        # A pipe without a reader would block the opening, and a full one the writing, for ever.
        flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        self._descriptor = os.open(path, flags)

    def is_terminal(self) -> bool:
        """Return whether it is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, text: bytes) -> None:
        """Write *text*, together.

        Raises:
            SinkTimeout: Its reader takes too long.
        """
        deadline = time.monotonic() + self._seconds
        view = memoryview(text)
        with exclusive_lock(self._descriptor, self._seconds, self._path):
            while view:
                with suppress(BlockingIOError):
                    view = view[os.write(self._descriptor, view) :]
                    continue
                self._wait(deadline - time.monotonic())

    def close(self) -> None:
        """Close it. Safe to call twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _wait(self, seconds: float) -> None:
        """Wait until there is room in it."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        if seconds <= 0 or not poll.poll(seconds * 1000):
            raise SinkTimeout(f"{self._path}: its reader accepted nothing for {self._seconds:g} s")

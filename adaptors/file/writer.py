"""Appends entries to a file, or to standard output, as lines."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, ClassVar, Final

from adaptors.file.config import FileWriterConfig
from adaptors.file.shapes import data_line, json_line
from transporter.errors import RouteFault, SinkError, SinkTimeout, SinkUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.adaptor import Ack, AdaptorConfig, Entries, StoredOffset, WriterContext

_PASSING: Final = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EAGAIN, errno.ESTALE}
_LOCK_LOOK_SECONDS: Final = 0.01


class FileWriter:
    """Appends one line an entry and acks when the lines are on disk.

    A slice is written whole or, as far as the file system allows, not at all.
    Several routes and processes may share a file: each slice stays together. A
    broken line that a crash left behind is ended, never removed.

    Standard output is flushed, not synced. Not thread-safe.
    """

    Config: ClassVar[type[AdaptorConfig]] = FileWriterConfig

    def __init__(self, config: FileWriterConfig) -> None:
        """Keep *config*; the file is opened by :meth:`open`."""
        self._config = config
        self._seconds = 0.0
        self._descriptor = -1

    def open(self, context: WriterContext) -> StoredOffset | None:
        """Open the file for appending, and make it and its folder when they are not there.

        :raises SinkUnavailable: when the disk is full.
        :raises RouteFault: when it may not be written.
        """
        self._seconds = context.deadline
        if self._config.path != "-":
            try:
                self._descriptor = _open(self._config.path)
            except OSError as error:
                raise self._translated(error) from error
        return None

    def write(self, batch: Entries, ack: Ack) -> None:
        """Append *batch* and wait until it is on disk."""
        try:
            if self._config.path == "-":
                self._print(batch)
            else:
                self._append(batch)
        except OSError as error:
            ack.fail(self._translated(error))
        except SinkTimeout as error:
            ack.fail(error)
        else:
            ack.all()

    def close(self) -> None:
        """Close the file; safe to call twice. Standard output stays open."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _lines(self, batch: Entries, *, terminal: bool = False) -> bytes:
        if self._config.format == "json":
            lines = [json_line(entry) for entry in batch]
        else:
            lines = [data_line(entry, terminal=terminal) for entry in batch]
        return b"".join(line + b"\n" for line in lines)

    def _print(self, batch: Entries) -> None:
        output = sys.stdout.buffer
        output.write(self._lines(batch, terminal=sys.stdout.isatty()))
        output.flush()

    def _append(self, batch: Entries) -> None:
        if not len(batch):
            return
        text = self._lines(batch)
        with self._alone():
            before = os.fstat(self._descriptor).st_size
            broken = before > 0 and os.pread(self._descriptor, 1, before - 1) != b"\n"
            try:
                _write_all(self._descriptor, b"\n" + text if broken else text)
                os.fsync(self._descriptor)
            except OSError:
                with suppress(OSError):  # If it cannot be taken back, the next slice ends it.
                    os.ftruncate(self._descriptor, before)
                raise

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other writers out, so that slices stay together and a rollback is safe."""
        deadline = time.monotonic() + self._seconds
        pause = threading.Event()  # never set; flock has no deadline of its own
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise SinkTimeout(
                        f"{self._config.path}: another writer held it for {self._seconds:g} s"
                    ) from None
                pause.wait(_LOCK_LOOK_SECONDS)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _translated(self, error: OSError) -> SinkError:
        place = "standard output" if self._config.path == "-" else self._config.path
        text = f"{place}: {error.strerror or error}"
        if error.errno in _PASSING:
            return SinkUnavailable(text)
        return RouteFault(f"{text}: check the file and its rights")


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)  # Lines are only as durable as the name of their file.
    finally:
        os.close(folder)
    return descriptor


def _write_all(descriptor: int, text: bytes) -> None:
    view = memoryview(text)
    while view:
        view = view[os.write(descriptor, view) :]

"""Writer of entries as lines to a file, to numbered files, or to standard output."""

from __future__ import annotations

import errno
import os
import select
import sys
import time
from bisect import bisect_right
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, Final

from transporter.adaptor import Finding
from transporter.errors import RouteFault, SinkError, SinkTimeout, SinkUnavailable
from transporter_adaptors.file.config import FileWriterConfig
from transporter_adaptors.file.disk import Disk, exclusive_lock
from transporter_adaptors.file.output import Output, has_length
from transporter_adaptors.file.rolling import Roll, RolledGroup, RolledPart
from transporter_adaptors.file.shapes import data_line, json_line
from transporter_adaptors.passing_errors import PASSING
from transporter_adaptors.rights import check_writable, mode_bits

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from transporter.adaptor import Ack, AdaptorConfig, Entries, StoredOffset, WriterContext
    from transporter.message import Entry
    from transporter_adaptors.file.progress import FileState


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
        self._descriptor = -1
        self._open()

    def _open(self) -> int:
        """Return its descriptor, after opening it again if it was closed."""
        if self._descriptor < 0:
            # A pipe without a reader would block here, and a full one the writing, for ever.
            flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags)
        return self._descriptor

    def is_terminal(self) -> bool:
        """Return whether it is a terminal."""
        return os.isatty(self._open())

    def write(self, text: bytes) -> None:
        """Write *text*, together.

        Raises:
            SinkTimeout: Its reader takes too long.
        """
        deadline = time.monotonic() + self._seconds
        view = memoryview(text)
        with exclusive_lock(self._open(), self._seconds, self._path):
            while view:
                with suppress(BlockingIOError):
                    view = view[os.write(self._descriptor, view) :]
                    continue
                self._wait(deadline - time.monotonic())

    def close(self) -> None:
        """Close it. Safe to call twice. The next write opens it by its name again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)

    def _wait(self, seconds: float) -> None:
        """Wait until there is room in it."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        if seconds <= 0 or not poll.poll(seconds * 1000):
            raise SinkTimeout(f"{self._path}: its reader accepted nothing for {self._seconds:g} s")


_PASSING: Final = {
    *PASSING,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.ENXIO,  # a pipe without a reader yet
    errno.EPIPE,
}
_offset: Final = attrgetter("offset")


class FileWriter:
    """Writer of one line an entry, which acks when the lines are on disk.

    In a regular file each line is there once, in order, however this
    process ends (with ``exact_after: power-cut`` also the machine): the file's length
    is stored with its offset, and bytes behind it are cut off at the next start. Several
    routes and processes may share a file, because each slice stays together. Standard
    output, pipes and devices have no length, so a slice may be repeated there.

    A replay appends redelivered entries again. Not promised: a parked entry
    that is being retried as the process ends may come twice. Not thread-safe.
    """

    Config: ClassVar[type[AdaptorConfig]] = FileWriterConfig

    def __init__(self, config: FileWriterConfig, disk: Disk | None = None) -> None:
        """Keep *config*. Files are opened by :meth:`open`, through *disk*."""
        self._config, self._disk = config, disk or Disk(mode_bits(config.mode))
        every = config.roll_every
        self._roll = Roll(config.roll_bytes, None if every is None else round(every * 1e6))
        self._sink: Output | Device | StandardOutput | None = None

    def open(self, context: WriterContext) -> StoredOffset | None:
        """Open the file, cut off bytes that were never acked, and return the stored offset.

        Raises:
            SinkUnavailable: The disk is full, or the pipe has no reader.
            SinkTimeout: Another writer holds it.
            RouteFault: It may not be written, or lines are missing from it.
        """
        try:
            return self._open(context)
        except OSError as error:
            raise self._translate_error(error) from error

    def write(self, batch: Entries, ack: Ack) -> None:
        """Append *batch* and wait until it is on disk."""
        try:
            if isinstance(self._sink, Output):
                self._append(self._sink, batch, ack)
            elif self._sink is not None:
                self._sink.write(self._text(batch, terminal=self._sink.is_terminal()))
                ack.all()
        except OSError as error:
            # A folder that disappears in the midst of a slice is waited for by the next one.
            ack.fail(self._translate_error(error, _PASSING | {errno.ENOENT}))
            if self._sink is not None:
                self._sink.close()  # A descriptor may fail for ever, although its path does not.
        except SinkError as error:
            ack.fail(error)

    def close(self) -> None:
        """Close the file. Safe to call twice. Standard output stays open."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()

    def probe(self) -> Iterable[Finding]:
        """Check that the file can be written, and report the room."""
        path = self._config.path
        yield Finding("standard output") if path == "-" else check_writable(path)

    def _open(self, context: WriterContext) -> StoredOffset | None:
        path = self._config.path
        if path == "-":
            self._sink = StandardOutput()
            return None
        if not has_length(path, self._disk):
            if self._config.has_numbered_files:
                raise RouteFault(
                    f"{path}: is not a regular file and cannot roll: name a regular file"
                )
            self._sink = Device(path, context.deadline)
            return None
        self._sink = output = Output(self._config, context, self._disk)
        output.open()
        with output.exclusive_lock():
            return output.state().stored_for(context)

    def _append(self, output: Output, batch: Entries, ack: Ack) -> None:
        if not len(batch):
            ack.all()
            return
        lines = self._groups(batch) if output.is_numbered else self._text(batch)
        with output.exclusive_lock():
            state = output.state()
            output.check_epoch(state)
            there = output.offset_after_failure(state, batch.generation)
            if there is not None:
                count = bisect_right(batch.offsets, there)
                ack(batch.offsets[:count])
                batch = replace(batch, batch=batch.batch.slice(count))
                lines = self._groups(batch) if output.is_numbered else self._text(batch)
            for part in self._parts(lines, batch, state):
                if part.fresh:
                    state = output.begin_next_file(state)
                state = output.commit(state, part, batch.generation)
                ack(part.offsets)

    def _parts(
        self, lines: bytes | list[RolledGroup], batch: Entries, state: FileState
    ) -> Iterable[RolledPart]:
        if not len(batch):
            return []
        if isinstance(lines, bytes):
            return [RolledPart(lines, tuple(batch.offsets))]
        return self._roll.divide(lines, state.length, state.period)

    def _groups(self, batch: Entries) -> list[RolledGroup]:
        groups: list[RolledGroup] = []
        for offset, same in groupby(batch, _offset):
            rows = list(same)
            lines = [*map(self._line, rows), b""]
            groups.append(RolledGroup(offset, rows[0].logged_at, b"\n".join(lines)))
        return groups

    def _text(self, batch: Entries, *, terminal: bool = False) -> bytes:
        if self._config.format == "data" and not terminal:
            # As in _line. Without an object for each entry it takes a tenth of the time.
            return b"".join([b"%b\n" % (data or b"") for data in batch.batch["data"].to_pylist()])
        return b"".join(self._line(entry, terminal=terminal) + b"\n" for entry in batch)

    def _line(self, entry: Entry, *, terminal: bool = False) -> bytes:
        if self._config.format == "json":
            return json_line(entry)
        return data_line(entry, terminal=terminal)

    def _translate_error(self, error: OSError, passing: AbstractSet[int] = _PASSING) -> SinkError:
        place = "standard output" if self._config.path == "-" else self._config.path
        text = f"{place}: {error.strerror or error}"
        if error.errno in passing:
            return SinkUnavailable(text)
        return RouteFault(f"{text}: check the file and its rights")

"""A disk that ends the file writer at any call, and the engine's part beside it."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transporter_adaptors.file.disk import Disk
from transporter_adaptors.file.writer import FileWriter

from transporter.adaptor import WriterContext
from transporter.message import Message
from transporter.testing import RecordingAck, entries

if TYPE_CHECKING:
    import random

    from transporter.errors import SinkError

Moment = Literal["before", "within", "after", "full"]
MOMENTS: tuple[Moment, ...] = ("before", "within", "after")
FIRST = WriterContext("log-1", "route", 0)
LOG_TIME = 1_700_000_000_123_456
"""Log time of every entry that ``transporter.testing.entries`` makes."""


class Killed(BaseException):
    """A kill seen from inside: only descriptors are closed."""


@dataclass
class EndingDisk(Disk):
    """Ends the writer at the ``at``-th call that changes something, or refuses it as full.

    ``within`` leaves half of an append. Syncs do nothing, because a kill leaves the page cache as
    it is.
    """

    at: int = 0
    moment: Moment = "before"
    calls: int = 0
    boot: str = "first run"  # type: ignore[assignment]

    def open(self, path: Path, flags: int) -> int:
        self._call(last=False)
        descriptor = super().open(path, flags)
        try:
            self._done()
        except Killed:
            os.close(descriptor)
            raise
        return descriptor

    def append(self, descriptor: int, text: memoryview) -> int:
        self._call(last=False, half=lambda: os.write(descriptor, text[: (len(text) + 1) // 2]))
        written = super().append(descriptor, text)
        self._done()
        return written

    def write_at(self, descriptor: int, text: bytes, byte: int) -> None:
        self._call(last=False)
        super().write_at(descriptor, text, byte)
        self._done()

    def truncate(self, descriptor: int, length: int) -> None:
        self._call(last=False)
        super().truncate(descriptor, length)
        self._done()

    def sync(self, descriptor: int) -> None:
        self._call(last=True)

    def sync_folder(self, folder: Path) -> None:
        self._call(last=True)

    def _call(self, *, last: bool, half: Any = None) -> None:
        self.calls += 1
        if self.calls != self.at:
            return
        if self.moment in ("within", "full") and half is not None:
            half()
        if self.moment == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if last or self.moment != "after":
            raise Killed

    def _done(self) -> None:
        if self.calls == self.at and self.moment == "after":
            raise Killed


@dataclass
class Engine:
    """Delivers numbered entries as the engine does, and keeps the sink's required content.

    A slice that was ended by a kill is unconfirmed. Delivery goes on behind the offset that was
    settled, or that the sink has stored.
    """

    path: Path
    settings: dict[str, Any] = field(default_factory=dict)
    context: WriterContext = FIRST
    total: int = 40
    next: int = 1
    last: int | None = None
    delivered: list[int] = field(default_factory=list)
    failures: list[SinkError] = field(default_factory=list)
    writer: FileWriter | None = None

    def start(self, disk: Disk | None = None) -> None:
        """Open a writer and settle the entries that the sink has stored."""
        self.context = replace(self.context, epoch=self.context.epoch + 1)
        settings = {"path": self.path, "format": "data", **self.settings}
        self.writer = FileWriter(FileWriter.Config(**settings), disk or EndingDisk())
        stored = self.writer.open(self.context)
        if stored is not None and stored.generation == self.context.generation:
            self.settle(min(stored.offset, self.end))

    @property
    def end(self) -> int:
        """The last offset of the replay, or of the log."""
        return self.total if self.last is None else self.last

    def settle(self, offset: int) -> None:
        """Record everything up to *offset* as delivered."""
        self.delivered += range(self.next, offset + 1)
        self.next = max(self.next, offset + 1)

    def deliver(self, count: int) -> bool:
        """Deliver up to *count* entries. Return true if all of them arrived."""
        assert self.writer is not None
        rows = range(self.next, min(self.next + count, self.end + 1))
        batch = entries([Message("n", line(n)) for n in rows], self.next)
        batch = replace(batch, generation=self.context.generation)
        ack = RecordingAck(batch)
        self.writer.write(batch, ack)
        self.failures += [error for error, _ in ack.failures]
        if ack.prefix:
            self.settle(ack.prefix[-1])
        return ack.complete

    def replay(self, first: int, last: int) -> None:
        """Deliver a range that was delivered before again, in the next generation."""
        self.context = replace(self.context, generation=self.context.generation + 1)
        self.next, self.last = first, last

    def end_replay(self, go_on: int) -> None:
        """Go on with the log at *go_on*."""
        self.next, self.last = go_on, None

    def stop(self) -> None:
        """Close everything, as the end of a process does."""
        if self.writer is not None:
            self.writer.close()
        self.writer = None

    def finish(self, size: int = 7, disk: Disk | None = None) -> None:
        """Start with a sound disk, deliver the remaining entries and stop."""
        self.start(disk)
        while self.next <= self.end:
            assert self.deliver(size)
        self.stop()

    def expected(self) -> bytes:
        """Return all delivered entries, as lines."""
        return b"".join(line(n) + b"\n" for n in self.delivered)


def run(engine: Engine, slices: tuple[int, ...], disk: Disk) -> bool:
    """Start and deliver slices of these sizes. Return true if the disk let all of it happen."""
    try:
        engine.start(disk)
        for size in slices:
            engine.deliver(size)
    except Killed:
        return False
    finally:
        engine.stop()
    return True


def line(number: int) -> bytes:
    """Return the line of an entry. Lines differ in length."""
    return b"%d-" % number + b"x" * (number * 7 % 23)


def held(folder: Path, pattern: str = "out*.jsonl") -> dict[str, bytes]:
    """Return the contents of the files of lines, in the order of their names."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob(pattern))}


def aside(folder: Path) -> list[bytes]:
    """Return the bytes that were copied aside."""
    return [path.read_bytes() for path in sorted(folder.glob("*.cut-*"))]


class PowerDisk(Disk):
    """Keeps the durable state that survives a power cut, and mixes the rest at random.

    Sync decides: a file's bytes and length are durable when it was synced itself, its name when its
    folder was.
    """

    boot = "first run"  # type: ignore[assignment]

    def __init__(self, at: int, folder: Path) -> None:
        """Cut the power at the *at*-th call that changes something. *folder* is durable so far."""
        self._at, self._calls = at, 0
        there = folder.iterdir() if folder.exists() else ()
        self._durable = {path: path.read_bytes() for path in there}
        self._names = set(self._durable)

    def open(self, path: Path, flags: int) -> int:
        self._call()
        return super().open(path, flags)

    def append(self, descriptor: int, text: memoryview) -> int:
        self._call()
        return super().append(descriptor, text)

    def write_at(self, descriptor: int, text: bytes, byte: int) -> None:
        self._call()
        super().write_at(descriptor, text, byte)

    def truncate(self, descriptor: int, length: int) -> None:
        self._call()
        super().truncate(descriptor, length)

    def sync(self, descriptor: int) -> None:
        self._call()
        path = path_of(descriptor)
        self._durable[path] = path.read_bytes()

    def sync_folder(self, folder: Path) -> None:
        self._call()
        self._names |= set(folder.iterdir())

    def fall(self, folder: Path, chance: random.Random) -> None:
        """Turn *folder* into one of the states that the cut may have left."""
        for path in folder.iterdir():
            if path not in self._names and chance.random() < 0.5:
                path.unlink()
                continue
            left = _left(self._durable.get(path, b""), path.read_bytes(), chance)
            with path.open("r+b") as file:  # the same inode
                file.truncate(0)
                file.write(left)

    def _call(self) -> None:
        self._calls += 1
        if self._calls == self._at:
            raise Killed


def path_of(descriptor: int) -> Path:
    """Return the path of an open file."""
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def _left(durable: bytes, current: bytes, chance: random.Random) -> bytes:
    """Mix two states of a file, sector by sector, with a length of either or between."""
    low, high = sorted((len(durable), len(current)))
    length = chance.choice((len(durable), len(current), chance.randint(low, high)))
    sectors = []
    for at in range(0, length, 512):
        old, new = durable[at : at + 512], current[at : at + 512]
        sector = new if old == new else chance.choice((old, new))
        sectors.append(sector.ljust(512, b"\0"))
    return b"".join(sectors)[:length]

"""Shared tools for tests of damage: logs as left behind, every kind of damage, and the sweep.

A judge goes the ways that users go (look, read, open, append, stop, open again) and raises
``AssertionError`` for any forbidden result. A :func:`sweep` collects the judges' complaints, so
that a mutation control can check that there are some.
"""

from __future__ import annotations

import os
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from log_tools import crash, small, unsynced

from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.meta import read_meta
from transporter.log.segment import Segment, segment_bases, segment_name
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import OffsetLog, proved_offset
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.filesystem import File
    from transporter.log.format import FrameHeader
MAX_READ = 64 << 20
"""Bytes that one read may request, even if a damaged frame records more (Invariant 17)."""
LOCK = "lock"
ROUTE = "out"


class Damage(NamedTuple):
    """One flipped bit, or, without a bit, the byte from which on everything is gone."""

    byte: int
    bit: int | None = None

    def of(self, data: bytes) -> bytes:
        """Return *data* with this damage."""
        if self.bit is None:
            return data[: self.byte]
        hurt = bytearray(data)
        hurt[self.byte] ^= 1 << self.bit
        return bytes(hurt)


def every_damage(data: bytes) -> list[Damage]:
    """Return every bit flip and every truncation of *data*."""
    flips = [Damage(byte, bit) for byte, bit in product(range(len(data)), range(8))]
    return flips + [Damage(byte) for byte in range(len(data))]


class Watched(RealFileSystem):
    """The real disk. Keeps the names that were changed, and the largest read request."""

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self.most = 0

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        if create and not path.exists():
            self.changed.add(path.name)
        return _WatchedFile(self, path.name, super().open(path, write=write, create=create))

    def rename(self, source: Path, target: Path) -> None:
        self.changed |= {source.name, target.name}
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self.changed.add(path.name)
        super().remove(path)


class _WatchedFile:
    def __init__(self, files: Watched, name: str, file: File) -> None:
        self._files, self._name, self._file = files, name, file
        self.size, self.sync, self.close = file.size, file.sync, file.close
        self.is_at = file.is_at

    def pread(self, size: int, byte: int) -> bytes:
        self._files.most = max(self._files.most, size)
        return self._file.pread(size, byte)

    def pread_into(self, buffer: memoryview, byte: int) -> int:
        found = self.pread(len(buffer), byte)
        buffer[: len(found)] = found
        return len(found)

    def pwrite(self, data: bytes, byte: int) -> None:
        self._files.changed.add(self._name)
        self._file.pwrite(data, byte)

    def truncate(self, size: int) -> None:
        self._files.changed.add(self._name)
        self._file.truncate(size)

    def allocate(self, byte: int, size: int) -> None:
        self._files.changed.add(self._name)
        self._file.allocate(byte, size)


class Kept(NamedTuple):
    """A written frame: its segment, header, entries, and its reader's position."""

    base: int
    frame: FrameHeader
    entries: pa.RecordBatch
    position: tuple[str, str]


@dataclass(frozen=True)
class Left:
    """A log as a process left it, with all facts needed to judge the effect of damage.

    ``base`` is that of the last segment, ``begin`` the byte of its first frame, ``proved`` the
    offset that ``meta`` and the offset logs prove durable.
    """

    content: dict[str, bytes]
    frames: tuple[Kept, ...]
    base: int
    begin: int
    proved: int

    @property
    def segment(self) -> str:
        """The name of the last segment's file."""
        return segment_name(self.base)

    @property
    def last(self) -> int:
        """The last offset."""
        return self.frames[-1].frame.last

    @property
    def tail(self) -> list[Kept]:
        """The frames of the last segment."""
        return [kept for kept in self.frames if kept.base == self.base]


@dataclass(frozen=True)
class Kind:
    """The history of a log that is left: its entries, and how it ends.

    A frame has ``rows`` rows of ``size`` bytes. The last ``loose`` frames were never synced. An
    offset log proves the offsets up to ``settled``. ``zeros`` reserved bytes stay. With ``fill``,
    as many frames are written as fit, and zeros up to that length.

    ``end`` is ``killed``, ``closed`` or ``sealed`` (killed behind the trailer). ``before`` it there
    is nothing, a sealed segment (``rolled``), or one that recovery cut and copied (``recovered``).
    """

    name: str
    end: str = "killed"
    before: str = ""
    rows: int = 1
    size: int = 100
    frames: int = 12
    loose: int = 0
    settled: int = -1
    zeros: int = 0
    fill: int = 0
    stride: int = 1 << 20
    compression: str | None = None

    def messages(self, number: int) -> pa.RecordBatch:
        """Return the messages of a frame. Every second one is too small to be compressed."""
        return some_messages(
            number, self.rows, 40 if self.compression and number % 2 else self.size
        )


def some_messages(number: int, rows: int = 1, size: int = 100) -> pa.RecordBatch:
    """Return a batch unique to its number, with something in every column."""
    return messages_to_batch(
        [
            Message(
                "orders.placed",
                b'{"n":%d,"row":%d,"x":"%s"}' % (number, row, b"ab" * (size // 2)),
                b"k%d" % (row % 3),
                timestamp=number,
                source_id=f"t/{number}-{row}",
                headers=(("trace", b"%d" % number),),
            )
            for row in range(rows)
        ]
    )


def leave(directory: Path, kind: Kind) -> Left:
    """Make a log of *kind* in *directory*, leave it, and return its description."""
    with small(kind.stride):
        _before(directory, kind)
        log = _open(directory, compression=kind.compression)
        for number in range(kind.frames - kind.loose):
            log.append(kind.messages(number), "ab"[number % 2], str(number))
        for number in range(kind.frames, _fitting(log, kind)):
            log.append(kind.messages(number), "ab"[number % 2], str(number))
        if kind.settled >= 0:
            with OffsetLog(directory, ROUTE) as offsets:
                offsets.settle(Range(0, kind.settled), log.durable, {"orders.placed": 1})
        for number in range(kind.frames - kind.loose, kind.frames):
            unsynced(log, kind.messages(number), "ab"[number % 2], str(number))
        _end(log, kind)
        return describe(directory)


def content_of(directory: Path) -> dict[str, bytes]:
    """Return every file of the log in *directory* but the lock, routes' with their folders."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != LOCK
    }


def _fitting(log: CommitLog, kind: Kind) -> int:
    """Return how many frames the segment can hold below ``fill``, with some room to spare."""
    return kind.frames * (kind.fill - 1000) // log._active.byte


def describe(directory: Path) -> Left:
    """Return the description of the undamaged log in *directory*."""
    frames = _kept(directory)
    base = frames[-1].base
    with closing(Segment(RealFileSystem(), directory / segment_name(base))) as segment:
        begin = segment.first_byte
    meta = read_meta(RealFileSystem(), directory)
    assert meta is not None
    return Left(
        content=content_of(directory),
        frames=frames,
        base=base,
        begin=begin,
        proved=max(meta.proved, proved_offset(directory)),
    )


def _before(directory: Path, kind: Kind) -> None:
    if kind.before == "rolled":
        with _open(directory, segment_bytes=1) as log:
            log.append(some_messages(100), "a", "100")
            log.append(some_messages(101), "b", "101")
    elif kind.before == "recovered":
        log = _open(directory)
        for number in range(3):
            log.append(some_messages(100 + number), "a", str(100 + number))
        kept = unsynced(log, some_messages(103), "a", "103")
        unsynced(log, some_messages(104, 3), "a", "104")
        crash(log)
        path = directory / segment_name(0)
        path.write_bytes(Damage(kept.end + 150, 0).of(path.read_bytes()))


def _open(directory: Path, **how: Any) -> CommitLog:
    how = {"compression": None, "clock": lambda: 1_700_000_000_000_000} | how
    return CommitLog.open(directory, proved=lambda: proved_offset(directory), **how)


def _end(log: CommitLog, kind: Kind) -> None:
    if kind.end == "closed":
        log.close()
        return
    path, end = log._active.path, log._active.byte
    if kind.end == "sealed":
        log._active.seal()
    crash(log)
    if kind.end == "killed":
        os.truncate(path, end)
        os.truncate(path, max(end + kind.zeros, kind.fill))


def _kept(directory: Path) -> tuple[Kept, ...]:
    """Return every whole frame of the log, read segment by segment."""
    files, kept = RealFileSystem(), []
    bases = segment_bases(files, directory)
    for base in bases:
        with closing(Segment(files, directory / segment_name(base))) as segment:
            for frame in segment.frames():
                source = segment.source(frame)
                assert source is not None
                entries = segment.entries(frame)
                kept.append(Kept(base, frame, entries, (source.reader, str(source.position))))
    # Frames that recovery has cut or copied are still in the file before the copy.
    return tuple(
        each for each in kept if not any(each.base < base <= each.frame.last for base in bases)
    )


@dataclass
class Place:
    """A folder that holds *content* again and again, each time damaged elsewhere."""

    directory: Path
    content: dict[str, bytes]
    files: Watched = field(default_factory=Watched)

    def __post_init__(self) -> None:
        for name, data in self.content.items():
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    @contextmanager
    def damaged(self, name: str, damage: Damage) -> Iterator[Watched]:
        """Hold the log with *damage* in its file *name* for the length of a ``with`` block."""
        self.files = Watched()
        path = self.directory / name
        path.write_bytes(damage.of(self.content[name]))
        try:
            yield self.files
        finally:
            self._restore(path)

    def unchanged(self, name: str, damage: Damage) -> None:
        """Check that nothing but the lock was touched since the damage was done."""
        assert not self.files.changed - {LOCK}, f"changed: {self.files.changed}"
        if damage.byte % 16 == 0:
            found = {path: (self.directory / path).read_bytes() for path in self._names()}
            assert found == self.content | {name: damage.of(self.content[name])}

    def _restore(self, damaged: Path) -> None:
        damaged.write_bytes(self.content[str(damaged.relative_to(self.directory))])
        if not self.files.changed:
            return
        for name in self._names() | self.content.keys():
            if name not in self.content:
                (self.directory / name).unlink()
            elif name.rpartition("/")[2] in self.files.changed:
                (self.directory / name).write_bytes(self.content[name])

    def _names(self) -> set[str]:
        """Return the names of all files but the lock, those of routes with their folders."""
        found = set()
        for folder, _, names in os.walk(self.directory):
            start = (
                ""
                if folder == str(self.directory)
                else f"{folder[len(str(self.directory)) + 1 :]}/"
            )
            found |= {start + name for name in names if name != LOCK}
        return found


def sweep(
    place: Place,
    judge: Callable[[Place, str, Damage], None],
    damages: Iterable[tuple[str, Damage]],
    most: int = 5,
) -> list[str]:
    """Return the complaints of *judge* about *damages*, up to *most*."""
    said: list[str] = []
    for name, damage in damages:
        with place.damaged(name, damage):
            try:
                judge(place, name, damage)
                assert place.files.most <= MAX_READ, f"asked for {place.files.most} bytes"
            except Exception as error:  # noqa: BLE001 - a traceback is a finding like any other
                said.append(f"{name} {damage}: {type(error).__name__}: {error}")
                if len(said) >= most:
                    break
    return said

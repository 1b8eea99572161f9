"""Shared tools for tests of the log: a disk that records and fails, crashes, plain reading."""

from __future__ import annotations

import os
import tempfile
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.format import FrameHeader, Source
from transporter.log.inspection import inspect
from transporter.log.reader import LogReader
from transporter.log.segment import Segment, segment_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from transporter.log.filesystem import File, FileSystem


class Disk(RealFileSystem):
    """The real disk, recording every call and failing the calls that a test names."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.failing: dict[str, OSError] = {}
        self.failing_at: tuple[str, str, OSError] | None = None

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        return _Recorded(self, path.name, super().open(path, write=write, create=create))

    def rename(self, source: Path, target: Path) -> None:
        self.called("rename", target.name)
        super().rename(source, target)

    def sync_directory(self, directory: Path) -> None:
        self.called("sync_directory", directory.name)
        super().sync_directory(directory)

    def called(self, name: str, file: str) -> None:
        self.calls.append((name, file))
        if name in self.failing:
            raise self.failing[name]
        if self.failing_at is not None and self.failing_at[:2] == (name, file):
            raise self.failing_at[2]


class _Recorded:
    def __init__(self, disk: Disk, name: str, file: File) -> None:
        self._disk, self._name, self._file = disk, name, file

    def __getattr__(self, operation: str) -> Any:
        inner = getattr(self._file, operation)

        def call(*arguments: Any) -> Any:
            if self._name.endswith((".log", ".tmp", ".offsets", "reserve")):
                self._disk.called(operation, self._name)
            return inner(*arguments)

        return call


@contextmanager
def small(stride: int = 900) -> Iterator[None]:
    """Make reserves, index strides and offset files tiny, and skip syncs: no machine dies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda _: None)
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr("transporter.log.active_segment.PREALLOCATION", 4096)
        patch.setattr("transporter.log.index.STRIDE", stride)
        patch.setattr("transporter.log.reserve.RESERVE_BYTES", 64)
        patch.setattr("transporter.offsets.offset_log.FILE_BYTES", 1024)
        yield


@contextmanager
def small_log() -> Iterator[Path]:
    """Hold a folder for a log whose files are :func:`small`."""
    with small(), tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "log"


def held_in(directory: Path, last: int, files: FileSystem | None = None) -> dict[int, bytes]:
    """Return the data at every offset up to *last*, which must be in order."""
    with LogReader(directory, files) as reader:
        return held(reader, last)


def held(reader: LogReader, last: int) -> dict[int, bytes]:
    """Return the data at every offset up to *last*, which must be in order."""
    pairs = [
        (offset, data)
        for batch in reader.read(reader.first_offset(), last)
        for offset, data in zip(
            batch.column("offset").to_pylist(), batch.column("data").to_pylist(), strict=True
        )
    ]
    assert all(one < other for (one, _), (other, _) in pairwise(pairs))
    return dict(pairs)


def hurt(data: bytes, how: str, where: float) -> bytes | None:
    """Flip a bit of *data*, cut it, or clear a block of it. Return ``None`` when it is removed."""
    hurt, byte = bytearray(data), int(where * len(data))
    if how == "remove" or not data:
        return None
    if how == "flip":
        hurt[byte] ^= 0x20
    elif how == "cut":
        del hurt[byte:]
    elif how == "clear":
        hurt[byte : byte + 200] = bytes(len(data[byte : byte + 200]))
    return bytes(hurt)


def crash(log: CommitLog) -> None:
    """Leave *log* as a killed process does: only the lock is released."""
    log._active.close()
    log._durable_mark.close()
    if log._lock is not None:
        log._lock.release()


def offsets_of(directory: Path) -> list[int]:
    """Return every offset that can be read from the log in *directory*."""
    found = inspect(directory)
    with LogReader(directory) as reader:
        return [
            offset
            for batch in reader.read(found.first, found.last)
            for offset in batch.column("offset").to_pylist()
        ]


def unsynced(
    log: CommitLog, messages: pa.RecordBatch, reader: str = "r", position: str | None = None
) -> FrameHeader:
    """Write a frame as an append does before its sync. Return its header."""
    active = log._active
    byte = active.byte
    active.write(messages, Source(reader, position), 0, log.durable)
    with closing(Segment(log.files, active.path)) as segment:
        frame = segment.frame_at(byte)
    assert frame is not None
    return frame


def leave_moved_frame(directory: Path, messages: pa.RecordBatch) -> None:
    """Make a log whose recovery has moved its second frame, and whose first file has parts of it.

    A power cut after a recovery leaves that: the old file was cut, which no sync made durable.
    """
    log = CommitLog.open(directory, compression=None)
    log.append(messages, "r", "kept")
    moved = unsynced(log, messages, position="moved")
    crash(log)
    old = {each: each.read_bytes() for each in directory.glob(f"{0:020d}.*")}
    CommitLog.open(directory, compression=None).close()
    for path, data in old.items():
        path.write_bytes(data)
    damage(directory, moved.extension_byte + 2)


def damage(directory: Path, byte: int, base: int = 0) -> None:
    """Change one bit at *byte* of the segment at *base*."""
    path = directory / segment_name(base)
    data = bytearray(path.read_bytes())
    data[byte] ^= 0x40
    path.write_bytes(data)


def descriptors(directory: Path, *, removed: bool = False) -> int:
    """Count open descriptors in *directory*, or with *removed* those of removed files."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            name = str(each.readlink())
        except FileNotFoundError:
            continue
        found += str(directory) in name and (name.endswith("(deleted)") or not removed)
    return found

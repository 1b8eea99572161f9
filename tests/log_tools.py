"""What tests of the log share: a disk that records and fails, crashes, plain reading."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from transporter.log.filesystem import RealFileSystem
from transporter.log.format import FrameHeader, Source
from transporter.log.inspect import inspect
from transporter.log.reader import LogReader
from transporter.log.segment import Segment, segment_name

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.commit_log import CommitLog
    from transporter.log.filesystem import File


class Disk(RealFileSystem):
    """The real disk, recording every call and failing those that a test names."""

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


def crash(log: CommitLog) -> None:
    """Leave *log* as a killed process does: the lock is gone, nothing else was done."""
    log._active.close()
    log._published.close()
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
    """Write a frame as an append does whose sync has not come yet; return its header."""
    active = log._active
    byte = active.byte
    active.write(messages, Source(reader, position), 0, log.durable)
    with closing(Segment(log._files, active.path)) as segment:
        frame = segment.frame_at(byte)
    assert frame is not None
    return frame


def damage(directory: Path, byte: int, base: int = 0) -> None:
    """Change one bit at *byte* of the segment at *base*."""
    path = directory / segment_name(base)
    data = bytearray(path.read_bytes())
    data[byte] ^= 0x40
    path.write_bytes(data)

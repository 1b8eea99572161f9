"""What tests of the log share: a disk that records and fails, crashes, plain reading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transporter.log.filesystem import RealFileSystem
from transporter.log.inspect import inspect
from transporter.log.reader import LogReader

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.log.commit_log import CommitLog
    from transporter.log.filesystem import File


class Disk(RealFileSystem):
    """The real disk, recording every call and failing those that a test names."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.failing: dict[str, OSError] = {}

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


class _Recorded:
    def __init__(self, disk: Disk, name: str, file: File) -> None:
        self._disk, self._name, self._file = disk, name, file

    def __getattr__(self, operation: str) -> Any:
        inner = getattr(self._file, operation)

        def call(*arguments: Any) -> Any:
            if self._name.endswith(".log") or self._name.endswith(".tmp"):
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

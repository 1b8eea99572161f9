"""A disk that refuses the N-th call, wrapped around another one: the real or a simulated one."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from transporter.log.filesystem import File, FileSystem

SYNCS: Final = frozenset({"sync", "sync_directory"})
SPACE: Final = frozenset({"pwrite", "allocate", "create_directory"})
"""The calls that a full disk refuses."""
KINDS: Final = frozenset(
    {"pread", "pwrite", "size", "truncate", "allocate", "open", "rename", "remove"}
    | {"names", "is_directory", "create_directory", "remove_directory"}
    | SYNCS
)
"""Every call of the seam but ``close``, whose result no code checks."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the seam, with the name of its file or folder."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Fault:
    """The ``at``-th call of ``kinds`` (from 1) fails with ``errno``.

    Before that it does ``part`` of its work, if it writes or reserves. With ``lasts`` all later
    ones fail, too, until the disk is healed.
    """

    at: int
    errno: int
    kinds: frozenset[str] = KINDS
    part: float = 0.0
    lasts: bool = False


class FaultyDisk:
    """A ``FileSystem`` that counts the calls to *inner* and fails as *fault* says. Thread-safe."""

    def __init__(self, inner: FileSystem, fault: Fault | None = None) -> None:
        """Begin to count."""
        self.calls: list[Call] = []
        self.struck: list[Call] = []
        self._inner, self._fault = inner, fault
        self._seen = 0
        self._lock = threading.Lock()
        self._files: set[_FaultyFile] = set()

    @property
    def failed_syncs(self) -> int:
        """Number of failed syncs so far."""
        return sum(call.kind in SYNCS for call in self.struck)

    def strike(self, fault: Fault) -> None:
        """Fail according to *fault* from now on, counting its calls from here."""
        with self._lock:
            self._fault, self._seen = fault, 0

    def heal(self) -> None:
        """Stop failing."""
        self._fault = None

    def kill(self) -> None:
        """Close every open file, as the end of a process does, without a sync."""
        for file in list(self._files):
            file.close()

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open *path* on the inner disk."""
        self.called("open", path.name)
        file = _FaultyFile(self, path.name, self._inner.open(path, write=write, create=create))
        self._files.add(file)
        return file

    def closed(self, file: _FaultyFile) -> None:
        """Record that *file* is closed."""
        self._files.discard(file)

    def rename(self, source: Path, target: Path) -> None:
        """Replace *target* by *source*."""
        self.called("rename", target.name)
        self._inner.rename(source, target)

    def remove(self, path: Path) -> None:
        """Remove *path*."""
        self.called("remove", path.name)
        self._inner.remove(path)

    def names(self, directory: Path) -> list[str]:
        """List *directory*."""
        self.called("names", directory.name)
        return self._inner.names(directory)

    def is_directory(self, path: Path) -> bool:
        """Check *path*."""
        self.called("is_directory", path.name)
        return self._inner.is_directory(path)

    def is_file(self, path: Path) -> bool:
        """Check *path*."""
        self.called("is_file", path.name)
        return self._inner.is_file(path)

    def create_directory(self, directory: Path) -> None:
        """Create *directory*."""
        self.called("create_directory", directory.name)
        self._inner.create_directory(directory)

    def remove_directory(self, directory: Path) -> None:
        """Remove *directory*."""
        self.called("remove_directory", directory.name)
        self._inner.remove_directory(directory)

    def sync_directory(self, directory: Path) -> None:
        """Sync *directory*."""
        self.called("sync_directory", directory.name)
        with self.noticing("sync_directory", directory.name):
            self._inner.sync_directory(directory)

    def free_bytes(self, directory: Path) -> int:
        """Return the inner disk's free space."""
        self.called("free", directory.name)
        return self._inner.free_bytes(directory)

    def called(self, kind: str, name: str, first: Callable[[float], object] | None = None) -> None:
        """Count one call. When it is to fail, do *first* with the part of its work, and raise."""
        call = Call(kind, name)
        with self._lock:
            self.calls.append(call)
            fault = self._due(kind)
            if fault is None:
                return
            self.struck.append(call)
        if first is not None:
            first(fault.part)
        raise OSError(fault.errno, os.strerror(fault.errno))

    @contextmanager
    def noticing(self, kind: str, name: str) -> Iterator[None]:
        """Count a call among the failed ones when it is the inner disk that fails it."""
        try:
            yield
        except OSError:
            self.struck.append(Call(kind, name))
            raise

    def _due(self, kind: str) -> Fault | None:
        fault = self._fault
        if fault is None or kind not in fault.kinds:
            return None
        self._seen += 1
        due = self._seen >= fault.at if fault.lasts else self._seen == fault.at
        return fault if due else None


class _FaultyFile:
    def __init__(self, disk: FaultyDisk, name: str, file: File) -> None:
        self._disk, self._name, self._file = disk, name, file

    def pread(self, size: int, byte: int) -> bytes:
        self._disk.called("pread", self._name)
        return self._file.pread(size, byte)

    def pread_into(self, buffer: memoryview, byte: int) -> int:
        found = self.pread(len(buffer), byte)
        buffer[: len(found)] = found
        return len(found)

    def pwrite(self, data: bytes, byte: int) -> None:
        def some(part: float) -> None:
            self._file.pwrite(data[: int(len(data) * part)], byte)

        self._disk.called("pwrite", self._name, some)
        self._file.pwrite(data, byte)

    def size(self) -> int:
        self._disk.called("size", self._name)
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._disk.called("truncate", self._name)
        self._file.truncate(size)

    def allocate(self, byte: int, size: int) -> None:
        def some(part: float) -> None:
            if some_bytes := int(size * part):
                self._file.allocate(byte, some_bytes)

        self._disk.called("allocate", self._name, some)
        self._file.allocate(byte, size)

    def sync(self) -> None:
        self._disk.called("sync", self._name)
        with self._disk.noticing("sync", self._name):
            self._file.sync()

    def is_at(self, path: Path) -> bool:
        self._disk.called("is_at", self._name)
        return self._file.is_at(path)

    def close(self) -> None:
        self._disk.closed(self)
        self._file.close()

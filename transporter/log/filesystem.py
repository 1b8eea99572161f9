"""The only access to the disk: nothing else in ``log`` and ``offsets`` touches files.

Independent of formats. Every call either completes or raises ``OSError``. Short reads
and writes are handled here.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, TypeVar

from transporter.errors import DiskUnavailable, EnvironmentFault, LogFull, LogPoisoned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

T = TypeVar("T")

TEMPORARY: Final = ".tmp"
"""Suffix of a file that is not yet complete."""
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
FULL_TABLE: Final = (errno.EMFILE, errno.ENFILE)
"""No descriptor is left, so nothing was done and the call may be repeated as it is."""
BACK_PRESSURE: Final = (*NO_SPACE, *FULL_TABLE)
TRANSIENT: Final = (
    *FULL_TABLE,
    *(errno.EIO, errno.EAGAIN, errno.EINTR, errno.ENOMEM, errno.ENOBUFS),
    *(errno.ESTALE, errno.ETIMEDOUT),
)
"""Errors after which the same read may succeed."""


class SyncFailed(OSError):
    """A failed sync: the disk's content is unknown even if a later one succeeds (Invariant 13)."""


class File(Protocol):
    """One open file. Reads are thread-safe. The owner serialises everything else."""

    def pread(self, size: int, byte: int) -> bytes:
        """Return up to *size* bytes at *byte*, and fewer only at the end of the file."""

    def pread_into(self, buffer: memoryview, byte: int) -> int:
        """Fill *buffer* from *byte* on. Return the number read, less only at the file's end."""

    def pwrite(self, data: bytes, byte: int) -> None:
        """Write all of *data* at *byte*, in the page cache only."""

    def size(self) -> int:
        """Return the length in bytes."""

    def truncate(self, size: int) -> None:
        """Cut or extend (with zeros) to *size* bytes."""

    def allocate(self, byte: int, size: int) -> None:
        """Reserve *size* zeroed bytes from *byte* on, so that writing there needs no new blocks."""

    def sync(self) -> None:
        """Make the data and the length durable. A failure is final (Invariant 13)."""

    def is_at(self, path: Path) -> bool:
        """Return whether *path* still names this file, which may be removed or replaced."""

    def close(self) -> None:
        """Release the descriptor without a sync."""


class FileSystem(Protocol):
    """Directories and the opening of files. Thread-safe."""

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open *path*. ``create`` makes it empty if absent, which is not durable."""

    def rename(self, source: Path, target: Path) -> None:
        """Replace *target* by *source* atomically. Durable after ``sync_directory``."""

    def remove(self, path: Path) -> None:
        """Remove a file if it exists."""

    def names(self, directory: Path) -> list[str]:
        """Return the sorted names in *directory*, or none when it does not exist."""

    def is_directory(self, path: Path) -> bool:
        """Return whether *path* is a directory."""

    def is_file(self, path: Path) -> bool:
        """Return whether *path* is a regular file, or a link to one."""

    def create_directory(self, directory: Path) -> None:
        """Create *directory* in a parent that exists, if it is absent. Durable after a sync."""

    def remove_directory(self, directory: Path) -> None:
        """Remove *directory*, which is empty."""

    def sync_directory(self, directory: Path) -> None:
        """Make creations, renames and removals in *directory* durable."""

    def free_bytes(self, directory: Path) -> int:
        """Return the bytes that this user may still write to the disk of *directory*."""


class _RealFile:
    """An open descriptor, closed by :meth:`close` or with its last reference.

    Once closed, every call fails. It never uses its former descriptor, which may belong to
    another file by then.
    """

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor

    def __del__(self) -> None:
        self.close()

    def pread(self, size: int, byte: int) -> bytes:
        found = os.pread(self._fd, size, byte)
        if len(found) in (0, size):
            return found
        parts = [found]
        got = len(found)
        while got < size and (found := os.pread(self._fd, size - got, byte + got)):
            parts.append(found)
            got += len(found)
        return b"".join(parts)

    def pread_into(self, buffer: memoryview, byte: int) -> int:
        got = 0
        while got < len(buffer) and (found := os.preadv(self._fd, [buffer[got:]], byte + got)):
            got += found
        return got

    def pwrite(self, data: bytes, byte: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, byte)
            view = view[written:]
            byte += written

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def allocate(self, byte: int, size: int) -> None:
        try:
            os.posix_fallocate(self._fd, byte, size)
        except OSError as error:
            # Some file systems cannot preallocate. A write then finds the space, or not.
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise

    def sync(self) -> None:
        # fdatasync makes a changed length durable too, and no other metadata is needed.
        os.fdatasync(self._fd)

    def is_at(self, path: Path) -> bool:
        try:
            named = os.stat(path)  # noqa: PTH116 - a PathLike's own stat is slower
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # nothing was found out
        return os.path.samestat(named, os.fstat(self._fd))

    def close(self) -> None:
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)


class RealFileSystem:
    """The operating system's files, by ``pread`` and ``pwrite`` (never mmap)."""

    close_idle: ClassVar[Callable[[], bool]] = lambda: False
    """Closes files that are open only to save time, and returns whether there were any."""

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open *path* with close-on-exec, so that no child keeps it."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC
        flags |= os.O_CREAT if create else 0
        return _RealFile(self._with_descriptor(lambda: os.open(path, flags, 0o600)))

    def rename(self, source: Path, target: Path) -> None:
        """Replace *target* by *source*."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Remove *path* if it is there."""
        with suppress(FileNotFoundError):
            path.unlink()

    def names(self, directory: Path) -> list[str]:
        """List *directory*, sorted."""
        try:
            return sorted(self._with_descriptor(lambda: os.listdir(directory)))  # noqa: PTH208 - names are wanted, not paths
        except (FileNotFoundError, NotADirectoryError):
            return []

    def is_directory(self, path: Path) -> bool:
        """Check *path* on the disk."""
        return path.is_dir()

    def is_file(self, path: Path) -> bool:
        """Check *path* on the disk."""
        return path.is_file()

    def create_directory(self, directory: Path) -> None:
        """Create *directory* for this user only."""
        directory.mkdir(mode=0o700, exist_ok=True)

    def remove_directory(self, directory: Path) -> None:
        """Remove the empty *directory*."""
        directory.rmdir()

    def sync_directory(self, directory: Path) -> None:
        """Sync the directory's own entries."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        descriptor = self._with_descriptor(lambda: os.open(directory, flags))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, directory: Path) -> int:
        """Return the free space of the file system that holds *directory*."""
        found = os.statvfs(directory)
        return found.f_bavail * found.f_frsize

    @classmethod
    def _with_descriptor(cls, call: Callable[[], T]) -> T:
        """Return the result of *call*. If descriptors run out, close idle files and repeat it."""
        try:
            return call()
        except OSError as error:
            if error.errno not in FULL_TABLE or not cls.close_idle():
                raise
            return call()


def sync(file: File) -> None:
    """Sync *file*, turning every failure into :class:`SyncFailed`."""
    try:
        file.sync()
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror) from error


def sync_directory(files: FileSystem, directory: Path) -> None:
    """Sync *directory*, turning every failure into :class:`SyncFailed`.

    A full descriptor table is the exception. No sync was tried then, so the caller may
    repeat the whole operation.
    """
    try:
        files.sync_directory(directory)
    except OSError as error:
        if error.errno in FULL_TABLE:
            raise
        raise SyncFailed(error.errno, error.strerror) from error


def no_room_error(place: Path, error: OSError) -> LogFull:
    """Return the back-pressure error for *place*: no space, or no descriptor (Invariant 14)."""
    if error.errno in FULL_TABLE:
        return LogFull(f"{place}: no free file descriptor ({error.strerror}); see 'ulimit -n'")
    return LogFull(f"{place}: no space left on the device")


@contextmanager
def translate_os_errors(place: Path, *, reading: bool = False) -> Iterator[None]:
    """Turn operating system errors about *place* into errors of this project.

    With *reading*, a transient error becomes :class:`DiskUnavailable`. Otherwise only a full
    descriptor table does, because a write that has failed must not be repeated blindly.
    """
    try:
        yield
    except SyncFailed as error:
        raise LogPoisoned(
            f"{place}: a sync failed ({error.strerror}); restart the engine"
        ) from error
    except OSError as error:
        if error.errno in NO_SPACE:
            raise no_room_error(place, error) from error
        if error.errno in (TRANSIENT if reading else FULL_TABLE):
            raise DiskUnavailable(f"{place}: {error.strerror}") from error
        raise EnvironmentFault(f"{place}: {error.strerror}") from error


@contextmanager
def open_file(
    files: FileSystem, path: Path, *, write: bool = False, create: bool = False
) -> Iterator[File]:
    """Open *path* for the length of a ``with`` block."""
    file = files.open(path, write=write, create=create)
    try:
        yield file
    finally:
        file.close()


def replace_durably(files: FileSystem, path: Path, parts: Iterable[bytes]) -> None:
    """Write exactly *parts* to *path*: after a crash it holds the old bytes or the new ones.

    Temporary file, sync, rename, directory sync: each of the four is needed.
    """
    _write_temporary(files, path, parts)
    files.rename(_temporary_path(path), path)
    sync_directory(files, path.parent)


def replace_all_durably(files: FileSystem, folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write *contents* to the files in *folder*, as :func:`replace_durably` does one by one.

    No file gets its name before all of them are complete, so an error before that replaces
    nothing. One directory sync serves all of them.
    """
    paths = [folder / name for name in contents]
    try:
        for path, data in zip(paths, contents.values(), strict=True):
            _write_temporary(files, path, [data])
    except OSError:
        for path in paths:
            files.remove(_temporary_path(path))
        raise
    for path in paths:
        files.rename(_temporary_path(path), path)
    sync_directory(files, folder)


def _temporary_path(path: Path) -> Path:
    return path.with_name(path.name + TEMPORARY)


def _write_temporary(files: FileSystem, path: Path, parts: Iterable[bytes]) -> None:
    with open_file(files, _temporary_path(path), write=True, create=True) as file:
        file.truncate(0)
        byte = 0
        for part in parts:
            file.pwrite(part, byte)
            byte += len(part)
        sync(file)


def make_directory(files: FileSystem, directory: Path) -> None:
    """Create *directory* and its missing parents from the top. Its entry is durable on return.

    The parent of an existing directory is synced as well, because a process that was killed
    may have created the directory without syncing its parent.
    """
    missing = []
    while not files.is_directory(directory):
        missing.append(directory)
        directory = directory.parent
    # This user may not be allowed to read the parent. Then it did not create the directory.
    with suppress(PermissionError):
        files.sync_directory(directory.parent)
    for path in reversed(missing):
        files.create_directory(path)
        sync_directory(files, path.parent)


def remove_tree(files: FileSystem, directory: Path) -> None:
    """Remove *directory* and its content, durably on return.

    Its name is removed first, so that a crash leaves all of it or none.
    """
    doomed = directory.with_name(f".{directory.name}.removed")
    _remove_recursively(files, doomed)
    files.rename(directory, doomed)
    sync_directory(files, directory.parent)
    _remove_recursively(files, doomed)


def _remove_recursively(files: FileSystem, directory: Path) -> None:
    if not files.is_directory(directory):
        return
    for path in (directory / name for name in files.names(directory)):
        if files.is_directory(path):
            _remove_recursively(files, path)
        else:
            files.remove(path)
    files.remove_directory(directory)

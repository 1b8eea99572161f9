"""The system calls of the file writer, in one place."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from transporter.errors import SinkTimeout
from transporter_adaptors.rights import make_folder, open_file

if TYPE_CHECKING:
    from collections.abc import Iterator

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_LOCK_LOOK_SECONDS: Final = 0.01


class Disk:
    """Files of the operating system. Each method is one system call that changes one.

    Tests derive from it to kill a writer, or refuse a call, at any of them. ``mode`` is
    that of the files and folders it makes.
    """

    mode: int = 0o600

    def __init__(self, mode: int = 0o600) -> None:
        """Make files with *mode*."""
        self.mode = mode

    @cached_property
    def boot(self) -> str:
        """Name of this run of the machine, empty where the system has none."""
        with suppress(OSError):
            return _BOOT.read_text(encoding="ascii").strip()
        return ""

    def open(self, path: Path, flags: int) -> int:
        """Return a descriptor of *path* that no child process inherits."""
        return open_file(path, flags, self.mode)

    def make_folder(self, path: Path) -> None:
        """Make *path* and the missing folders above it."""
        make_folder(path, self.mode)

    def status(self, path: Path) -> os.stat_result | None:
        """Return the status of *path*, or ``None`` when nothing has that name."""
        with suppress(FileNotFoundError):
            return path.stat()
        return None

    def read(self, descriptor: int, size: int, byte: int) -> bytes:
        """Return up to *size* bytes at *byte*, fewer only at the end of the file."""
        return os.pread(descriptor, size, byte)

    def append(self, descriptor: int, text: memoryview) -> int:
        """Write some of *text* at the end, and return how much."""
        return os.write(descriptor, text)

    def write_at(self, descriptor: int, text: bytes, byte: int) -> None:
        """Write *text*, which is small, at *byte*."""
        if os.pwrite(descriptor, text, byte) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def truncate(self, descriptor: int, length: int) -> None:
        """Make the file *length* bytes long."""
        os.ftruncate(descriptor, length)

    def sync(self, descriptor: int) -> None:
        """Wait until the file's bytes and its length are on disk."""
        os.fdatasync(descriptor)

    def sync_folder(self, folder: Path) -> None:
        """Wait until the names in *folder* are on disk."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def append_all(disk: Disk, descriptor: int, text: bytes) -> None:
    """Write all of *text* at the end of the file."""
    view = memoryview(text)
    while view:
        view = view[disk.append(descriptor, view) :]


@contextmanager
def exclusive_lock(descriptor: int, seconds: float, place: object) -> Iterator[None]:
    """Block other writers of *place*, whose lock is that of *descriptor*.

    Raises:
        SinkTimeout: Another writer holds the lock for *seconds*.
    """
    deadline = time.monotonic() + seconds
    pause = threading.Event()  # never set, because flock has no deadline of its own
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise SinkTimeout(
                    f"{place}: another writer held the lock for {seconds:g} s"
                ) from None
            pause.wait(_LOCK_LOOK_SECONDS)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)

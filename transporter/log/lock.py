"""The lock of a log directory: one engine per directory (Invariant 12)."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from transporter.errors import EnvironmentFault, LogLocked

if TYPE_CHECKING:
    from pathlib import Path

LOCK: Final = "lock"
_PATIENCE: Final = 0.5
"""Seconds: longer than the check by a read-only command, shorter than a user's patience."""


class DirectoryLock:
    """An exclusive lock, held until :meth:`release` or the death of this process.

    The descriptor is close-on-exec, and this project never forks without exec. A child
    therefore cannot keep the lock alive.
    """

    def __init__(self, directory: Path) -> None:
        """Take the lock, or raise :class:`LogLocked` with the pid of the owner."""
        self._path = str(directory / LOCK)
        while True:
            self._fd = _open_lock_file(directory)
            try:
                self._acquire(directory)
            except BaseException:
                os.close(self._fd)
                raise
            if self.is_held():
                break
            # Replaced between the two calls: a lock on the former file excludes no other engine.
            os.close(self._fd)
        # The pid only informs other processes, so a full disk is not a reason to fail. It is
        # overwritten before it is cut, which needs no new block.
        with suppress(OSError):
            pid = f"{os.getpid()}\n".encode()
            os.pwrite(self._fd, pid, 0)
            os.ftruncate(self._fd, len(pid))

    def _acquire(self, directory: Path) -> None:
        # flock has no timeout. The only other holders are brief checks by owner_of().
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                owner = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
                raise LogLocked(
                    f"{directory}: in use by the process with pid {owner}; "
                    "stop it first, or give this pipeline its own log.dir"
                ) from None
            except OSError as error:
                problem = f"{directory}: cannot lock the log directory: {error.strerror}"
                raise EnvironmentFault(problem) from error
            return

    def is_held(self) -> bool:
        """Return whether the locked file is still the one that other processes would lock.

        Once it was removed or replaced, another engine can own the directory.
        """
        try:
            named = os.stat(self._path)  # noqa: PTH116 - twice as fast as the path's own
            return os.path.samestat(named, os.fstat(self._fd))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # nothing was found out

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock."""
        os.close(self._fd)


def _open_lock_file(directory: Path) -> int:
    try:
        return os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EnvironmentFault(
            f"{directory}: cannot create the lock file: {error.strerror}; "
            "the engine needs a log directory that it may write to"
        ) from error


def owner_of(directory: Path) -> str | None:
    """Return the pid of the process that holds the lock, or ``None`` if it is free."""
    try:
        descriptor = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        return os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
    finally:
        os.close(descriptor)

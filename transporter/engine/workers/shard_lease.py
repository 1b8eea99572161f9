"""The lease of a shard: one worker at a time, also where no lock reaches both of them.

A worker that sees the log holds an flock on the shard's lock file. One that does not is
bounded by time: it begins nothing without an answer of the engine, and its watchdog ends it
``slice_timeout`` after its request. The time of the engine's last answer thus bounds that
worker's further actions.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from transporter.log.filesystem import RealFileSystem, sync_directory, translate_os_errors

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.engine.workers.worker_connection import WorkerConnection

_MARGIN: Final = 1.0
"""Seconds for a process to end, and for two clocks that do not run alike."""
_LONGEST: Final = 32


@dataclass(slots=True)
class _LastWorker:
    """The worker that began last, with the reports about its end."""

    attempt: int
    connection: WorkerConnection | None = None
    """``None``: it holds the lock itself."""
    timeout: float = 0.0
    gone: bool | None = None
    """``None``: no report of Spark. ``False``: Spark has lost its executor."""


class ShardLease:
    """Lets a worker of one shard begin when no other one can be delivering.

    For a worker that does not see the log the engine itself holds the lock. It records
    durably in the lock file how long such a worker may continue alone. An engine that finds
    the record, because the last one was killed, waits as long from its own start. Belongs to
    the route's thread, except for :meth:`record_end`.
    """

    def __init__(self, path: Path, now: float) -> None:
        """Guard the shard whose lock file is *path*. *now* is the time of the engine's start.

        Raises:
            EnvironmentFault: the lock file cannot be used.

        """
        self._path = path
        with translate_os_errors(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            left = os.pread(self._descriptor, _LONGEST, 0)
        self._until = now + _seconds(left)
        self._last: _LastWorker | None = None
        self._is_locked = False

    def close(self, now: float) -> None:
        """Release the lock. The record stays there while a worker may still deliver."""
        if self.remaining(now) == 0:
            self._write(b"")
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def record_end(self, attempt: int, *, gone: bool) -> None:
        """Record Spark's report that the task of worker *attempt* has ended.

        Without *gone* Spark has lost the executor, on which the worker may still run.
        """
        if self._last is not None and self._last.attempt == attempt:
            self._last.gone = gone

    @property
    def is_last_reported(self) -> bool:
        """Whether nothing more is to be expected of Spark about the last worker."""
        return self._last is None or self._last.gone is not None

    @property
    def was_lost(self) -> bool:
        """Whether the last worker was lost rather than ended by itself, as far as Spark reports."""
        return self._last is not None and not self._last.gone

    def remaining(self, now: float) -> float:
        """Return the seconds for which the last worker may still deliver; 0 if it cannot."""
        last = self._last
        if last is None or last.connection is None:
            return max(0.0, self._until - now)
        # Its process has ended, or two independent reports say so.
        if last.gone or (last.gone is False and last.connection.closed_by_worker):
            return 0.0
        return max(0.0, last.connection.last_sent_at + last.timeout + _MARGIN - now)

    def acquire(self) -> bool:
        """Take the lock in place of a worker; false while another process has it."""
        if not self._is_locked:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            self._is_locked = True
        return True

    def grant(self, connection: WorkerConnection, attempt: int, timeout: float) -> None:
        """Answer for a worker without a lock, from now on, as whose :meth:`acquire` was true."""
        # Before any answer to the worker: a power cut must not undo this.
        self._write(f"{timeout + _MARGIN:.3f}\n".encode())
        self._last = _LastWorker(attempt, connection, timeout)

    def release(self, attempt: int) -> None:
        """Leave the lock to a worker that takes it itself."""
        self._write(b"")
        self._last, self._until = _LastWorker(attempt), 0.0
        if self._is_locked:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._is_locked = False

    def _write(self, text: bytes) -> None:
        with translate_os_errors(self._path):
            if os.pread(self._descriptor, _LONGEST, 0) == text:
                return
            # Overwritten before it is truncated, so that this works on a full disk.
            os.pwrite(self._descriptor, text, 0)
            os.ftruncate(self._descriptor, len(text))
            os.fsync(self._descriptor)
            sync_directory(RealFileSystem(), self._path.parent)


def _seconds(text: bytes) -> float:
    """Return the seconds that an engine has recorded in the lock file, or 0."""
    with suppress(ValueError):
        return float(text)
    return 0.0

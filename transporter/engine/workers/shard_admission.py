"""Admission of the workers of a shard: one at a time, also where no lock reaches both of them.

A worker that sees the log holds an flock on the shard's lock file. One that does not is
bounded by time: it begins nothing without an answer of the engine, and its watchdog ends it
``slice_timeout`` after its request. The time of the engine's last answer thus bounds that
worker's further actions.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from transporter.engine.workers.frame_server import FrameServer
from transporter.engine.workers.worker_connection import WorkerConnection
from transporter.log.filesystem import RealFileSystem, sync_directory, translate_os_errors
from transporter.worker.shard_lock import lock_path
from transporter.worker.user_modules import pack_modules

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from transporter.engine.events import Observer
    from transporter.protocol.channel import EngineChannel
    from transporter.protocol.messages import Begin, Hello, WorkerEnded, WorkerSpec

_LOCK_RETRY: Final = 0.05
"""Seconds between two tries for a lock that another process holds: flock sends no event."""
_REPORTED_WAIT: Final = 1.0
"""Seconds of waiting that are reported to operators."""
_MARGIN: Final = 1.0
"""Seconds for a process to end, and for two clocks that do not run alike."""
_LONGEST: Final = 32
_Key = tuple[str, int]


class Admission:
    """Lets no worker of a shard begin while another one may be delivering. Thread-safe.

    Each shard belongs to one thread, its route's.
    """

    def __init__(self, changed: threading.Condition, observe: Observer) -> None:
        """Wait on *changed*, which the supervisor notifies of every change."""
        self._changed, self._observe = changed, observe
        self._began = time.monotonic()
        self._leases: dict[_Key, ShardLease] = {}
        self._closed = False

    def admit(
        self, begin: Begin, hello: Hello, caller: EngineChannel, stopping: Callable[[], bool]
    ) -> WorkerConnection | None:
        """Return the line to the worker that sent *hello*; ``None`` once *stopping* returns true.

        It receives *begin*, with the modules beside the pipeline file if it does not see them.

        Raises:
            HostFailed: the modules beside the pipeline file cannot be sent.
            LogFull: the disk has no room to record that such a worker runs.
            EnvironmentFault: the shard's lock file cannot be used.
            ConnectionError: the worker is gone again.

        """
        spec = begin.spec
        with ExitStack() as stack:
            stack.callback(caller.close)
            lease = self._lease(spec)
            if not self._wait_for_last(lease, spec, stopping):
                return None
            if not hello.remote:
                lease.release(spec.attempt)
                connection = WorkerConnection(caller)
            else:
                if not self._wait_for_lock(lease, stopping):
                    return None
                connection = WorkerConnection(
                    caller, FrameServer(Path(spec.log_directory), spec.route)
                )
                begin = replace(begin, modules=pack_modules(Path(spec.folder)))
                lease.grant(connection, spec.attempt, spec.slice_timeout)
            connection.send(begin)
            stack.pop_all()
        return connection

    def wait_for_vacancy(self, spec: WorkerSpec, stopping: Callable[[], bool]) -> bool:
        """Wait for a worker without a lock that an earlier engine had; false once *stopping*.

        The rest is up to the lock, which a worker on this host takes itself.

        Raises:
            EnvironmentFault: the shard's lock file cannot be used.

        """
        lease = self._lease(spec)
        if self._wait_for_last(lease, spec, stopping):
            lease.release(spec.attempt)
            return True
        return False

    def record_end(self, ended: WorkerEnded) -> None:
        """Take note of the end of a task, as whose *changed* is held."""
        lease = self._leases.get((ended.route, ended.shard))
        if lease is not None:
            lease.record_end(ended.attempt, gone=ended.gone)

    def was_lost(self, route: str, shard: int) -> bool:
        """Return whether the last worker was lost rather than ended, as far as is known."""
        lease = self._leases.get((route, shard))
        return lease is not None and lease.was_lost

    def wait_for_reports(self, patience: float) -> None:
        """Wait up to *patience* seconds until Spark has reported the end of every worker."""
        with self._changed:
            leases = self._leases.values()
            self._changed.wait_for(lambda: all(each.is_last_reported for each in leases), patience)

    def forget(self, route: str) -> None:
        """Give the locks of *route* back, whose folder may be removed now."""
        with self._changed:
            gone = [self._leases.pop(key) for key in [*self._leases] if key[0] == route]
            if gone:
                # Should the route come back, its last worker may still deliver, counted from here.
                self._began = time.monotonic()
        for lease in gone:
            lease.close(time.monotonic())

    def close(self) -> None:
        """Release every lock. No further worker is admitted."""
        with self._changed:
            self._closed = True
            leases = [*self._leases.values()]
            self._leases.clear()
        for lease in leases:
            lease.close(time.monotonic())

    def _lease(self, spec: WorkerSpec) -> ShardLease:
        key = (spec.route, spec.shard)
        if (lease := self._leases.get(key)) is None:
            lease = ShardLease(lock_path(spec, Path(spec.log_directory)), self._began)
            with self._changed:
                if self._closed:
                    lease.close(time.monotonic())  # its route was removed, and is late
                else:
                    self._leases[key] = lease
        return lease

    def _wait_for_last(
        self, lease: ShardLease, spec: WorkerSpec, stopping: Callable[[], bool]
    ) -> bool:
        wait = lease.remaining(time.monotonic())
        if wait > _REPORTED_WAIT:
            self._observe(
                "worker-held-back", route=spec.route, shard=spec.shard, seconds=round(wait, 1)
            )
        with self._changed:
            while (wait := lease.remaining(time.monotonic())) and not stopping():
                self._changed.wait(wait)
            return not stopping()

    def _wait_for_lock(self, lease: ShardLease, stopping: Callable[[], bool]) -> bool:
        with self._changed:
            while not (taken := lease.acquire()) and not stopping():
                self._changed.wait(_LOCK_RETRY)
            return taken


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

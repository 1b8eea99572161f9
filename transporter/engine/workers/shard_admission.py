"""Admission of remote workers: when they may begin, and with which settings."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from transporter.engine.workers.frame_server import FrameServer
from transporter.engine.workers.shard_lease import ShardLease
from transporter.engine.workers.worker_connection import WorkerConnection
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

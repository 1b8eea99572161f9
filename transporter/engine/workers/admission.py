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

_LOCK: Final = 0.05
"""Seconds between two tries for a lock that another process holds: flock sends no event."""
_NOTABLE: Final = 1.0
"""Seconds of waiting that an operator hears of."""
_Key = tuple[str, int]


class Admission:
    """Lets no worker of a shard begin while another one may be delivering. Thread-safe.

    Each shard belongs to one thread, its route's.
    """

    def __init__(self, changed: threading.Condition, observe: Observer) -> None:
        """Wait on *changed*, which the carrier notifies of whatever happens."""
        self._changed, self._observe = changed, observe
        self._began = time.monotonic()
        self._fences: dict[_Key, ShardLease] = {}

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
            fence = self._fence(spec)
            if not self._await_the_last(fence, spec, stopping):
                return None
            if not hello.remote:
                fence.give_back(spec.attempt)
                line = WorkerConnection(caller)
            else:
                if not self._await_the_lock(fence, stopping):
                    return None
                line = WorkerConnection(caller, FrameServer(Path(spec.log_directory), spec.route))
                begin = replace(begin, modules=pack_modules(Path(spec.folder)))
                fence.lend(line, spec.attempt, spec.slice_timeout)
            line.send(begin)
            stack.pop_all()
        return line

    def vacate(self, spec: WorkerSpec, stopping: Callable[[], bool]) -> bool:
        """Wait for a worker without a lock that an earlier engine had; false once *stopping*.

        The rest is up to the lock, which a worker on this host takes itself.

        Raises:
            EnvironmentFault: the shard's lock file cannot be used.

        """
        fence = self._fence(spec)
        if self._await_the_last(fence, spec, stopping):
            fence.give_back(spec.attempt)
            return True
        return False

    def told(self, ended: WorkerEnded) -> None:
        """Take note of the end of a task, as whose *changed* is held."""
        fence = self._fences.get((ended.route, ended.shard))
        if fence is not None:
            fence.told(ended.attempt, gone=ended.gone)

    def lost(self, route: str, shard: int) -> bool:
        """Return whether the last worker was lost rather than ended, as far as is known."""
        fence = self._fences.get((route, shard))
        return fence is not None and fence.lost

    def await_news(self, patience: float) -> None:
        """Wait up to *patience* seconds until Spark has reported the end of every worker."""
        with self._changed:
            fences = self._fences.values()
            self._changed.wait_for(lambda: all(each.told_of for each in fences), patience)

    def forget(self, route: str) -> None:
        """Give the locks of *route* back, whose folder may be removed now."""
        with self._changed:
            gone = [self._fences.pop(key) for key in [*self._fences] if key[0] == route]
        for fence in gone:
            fence.close(time.monotonic())

    def close(self) -> None:
        """Release every lock. No further worker is admitted."""
        for fence in self._fences.values():
            fence.close(time.monotonic())
        self._fences.clear()

    def _fence(self, spec: WorkerSpec) -> ShardLease:
        key = (spec.route, spec.shard)
        if (known := self._fences.get(key)) is None:
            known = ShardLease(lock_path(spec, Path(spec.log_directory)), self._began)
            with self._changed:
                self._fences[key] = known
        return known

    def _await_the_last(
        self, fence: ShardLease, spec: WorkerSpec, stopping: Callable[[], bool]
    ) -> bool:
        wait = fence.wait(time.monotonic())
        if wait > _NOTABLE:
            self._observe(
                "worker-held-back", route=spec.route, shard=spec.shard, seconds=round(wait, 1)
            )
        with self._changed:
            while (wait := fence.wait(time.monotonic())) and not stopping():
                self._changed.wait(wait)
            return not stopping()

    def _await_the_lock(self, fence: ShardLease, stopping: Callable[[], bool]) -> bool:
        with self._changed:
            while not (taken := fence.take()) and not stopping():
                self._changed.wait(_LOCK)
            return taken

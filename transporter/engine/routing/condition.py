"""The condition of a route: its state, what is wrong, its waits, and requests of operators."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from transporter.engine.backoff import Backoff
from transporter.engine.events import State
from transporter.engine.routing.failure_policy import Action
from transporter.errors import EngineUnreachable, LogFull

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.engine.backoff import BackoffWait
    from transporter.engine.events import Observer
    from transporter.engine.meters import RouteMeter
    from transporter.engine.routing.failure_policy import Decision
    from transporter.offsets.halt_reason import HaltReason
    from transporter.offsets.offset_log import OffsetLog
    from transporter.pipeline.config import RouteConfig


class RouteCondition:
    """Applies decisions of the failure policy: the route continues, waits, or halts.

    Belongs to the route's thread. Any thread may read, and call :meth:`wake`.
    """

    def __init__(
        self,
        config: RouteConfig,
        offsets: OffsetLog,
        meter: RouteMeter,
        observe: Observer,
        stopping: threading.Event,
        halt_reason: HaltReason,
    ) -> None:
        """Start the route of *config*. It waits for nothing once *stopping* is set."""
        self.config = config
        self._halt_reason = halt_reason
        self._offsets, self._meter, self._observe = offsets, meter, observe
        self._stopping, self._wake_event = stopping, threading.Event()
        self.state, self.problem = State.STARTING, ""
        self.outdated = False
        """Whether the worker has settings that have changed since."""
        self.paused = False
        """Whether an operator's pause has stopped deliveries."""
        self.has_opened = False
        """Whether the newest worker has opened its writer."""
        self.awaits_spark = False
        """Whether the route cannot move before Spark has started a worker."""
        self.not_before = 0.0
        """Monotonic time of the next delivery, as the sink has requested it."""
        self._backoff = Backoff(*config.retry.backoff)
        # Starting a worker is Spark's work, however eagerly the sink is tried again.
        self._start_backoff = Backoff()

    @property
    def halted(self) -> bool:
        """Whether the route waits for an operator."""
        return self.state is State.STOPPED

    @property
    def current_wait(self) -> BackoffWait | None:
        """The wait for the next attempt, if one failed."""
        return self._backoff.current_wait() or self._start_backoff.current_wait()

    def is_blocked(self) -> bool:
        """Return whether delivery is blocked: the route has halted, or is paused."""
        state = self._offsets.state
        limit = state.delivery_limit()
        self.paused = limit is not None and limit < state.next_offset()
        return self.halted or self.paused

    def configure(self, config: RouteConfig) -> None:
        """Continue with other settings, and therefore a new worker."""
        self.config = config
        self._backoff = Backoff(*config.retry.backoff)
        self.outdated = True

    def revive(self) -> None:
        """Continue if the route waits for an operator or for its next attempt."""
        if self.halted:
            self.outdated = self.outdated or self.config.writer.is_outdated()
            self.state, self.problem = State.STARTING, ""
        self._backoff.reset()
        self.not_before = 0.0

    def note_opened(self) -> None:
        """Take note that the worker has opened its writer."""
        self._start_backoff.reset()
        self.has_opened, self.state, self.problem = True, State.RUNNING, ""
        self._halt_reason.clear()

    def fail(self, error: BaseException) -> None:
        """Take note that the route's thread has failed."""
        self.state, self.problem = State.STOPPED, str(error)

    def wake(self) -> None:
        """End every wait, so that the route reconsiders its next action."""
        self._wake_event.set()

    def wait(self, seconds: float) -> None:
        """Wait for a request, at most *seconds*."""
        self._wake_event.wait(seconds)
        # Cleared before the state is checked again, so that no call is missed.
        self._wake_event.clear()

    def apply(self, decision: Decision) -> None:
        """Apply the decision of the failure policy."""
        match decision.action:
            case Action.GO:
                self.state, self.problem = State.RUNNING, ""
                if self._backoff.failures:
                    self._backoff.reset()
            case _ if self.config.writer.is_outdated():
                # The sink may have refused a secret that was replaced since: a new worker.
                self.outdated = True
                self.retry_later(decision.problem)
            case Action.WAIT:
                self.not_before = time.monotonic() + decision.wait
                self.retry_later(decision.problem, least=decision.wait)
            case Action.HALT:
                self._halt(decision)

    def _halt(self, decision: Decision) -> None:
        """Wait for an operator, visibly (Invariant 15)."""
        with suppress(LogFull):
            self._offsets.sync()
        offset, problem = decision.offset, decision.problem
        place = f"offset {offset}: " if offset is not None else ""
        self.state, self.problem = State.STOPPED, f"{place}{problem}"
        self._halt_reason.record(self.problem, self._offsets.state.next_offset())
        self.report("route-stopped", offset=offset, problem=problem)

    def retry_later(self, problem: str, least: float = 0.0) -> None:
        """Wait for the next attempt, at least *least* seconds."""
        self._wait_after(problem, self._backoff, least)

    def start_later(self, problem: str) -> None:
        """Wait for the next start of a worker."""
        self._wait_after(problem, self._start_backoff)

    def _wait_after(self, problem: str, backoff: Backoff, least: float = 0.0) -> None:
        if self._stopping.is_set():
            return
        self.state, self.problem = State.RETRYING, problem
        delay = backoff.next(least)
        self.report("route-retrying", problem=problem, retry_in=round(delay, 2))
        self.wait(delay)

    def report(self, event: str, **details: object) -> None:
        """Report *event* with the route's progress."""
        progress = {
            "watermark": self._offsets.state.watermark,
            "delivered": self._meter.delivered,
        }
        self._observe(event, route=self.config.name, **details, **progress)


T = TypeVar("T")


class Mailbox:
    """A queue of calls. Filled from any thread, run by the thread that owns the queue."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """Call *wake* whenever there is something to do."""
        self._wake = wake
        self._lock = threading.Lock()
        self._calls: deque[tuple[Future[Any] | None, Callable[[], object]]] = deque()
        self._closed = False

    def __bool__(self) -> bool:
        return bool(self._calls)

    @property
    def closed(self) -> bool:
        """Whether the owner has ended."""
        return self._closed

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Schedule *call*. A caller that no longer wants to wait cancels the future.

        Raises:
            EngineUnreachable: the owner has ended.

        """
        future: Future[Any] = Future()
        self._add(future, call)
        return future

    def post(self, call: Callable[[], object]) -> None:
        """Schedule *call* without a result. Its errors are raised to the owner.

        Raises:
            EngineUnreachable: the owner has ended.

        """
        self._add(None, call)

    def _add(self, future: Future[Any] | None, call: Callable[[], object]) -> None:
        with self._lock:
            if self._closed:
                raise EngineUnreachable("the engine is stopping; try again when it has ended")
            self._calls.append((future, call))
        self._wake()

    def run(self) -> None:
        """Run all scheduled calls. Their errors go to the callers that wait."""
        while self._calls:
            future, call = self._calls.popleft()
            if future is None:
                call()
            elif future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except Exception as error:  # noqa: BLE001 - it is the asker's
                    future.set_exception(error)

    def close(self) -> None:
        """Run no more calls, and cancel those that wait."""
        with self._lock:
            self._closed = True
            waiting, self._calls = self._calls, deque()
        for future, _ in waiting:
            if future is not None:
                future.cancel()

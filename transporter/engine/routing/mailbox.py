"""Calls that a route runs on its own thread, between two slices."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from transporter.errors import EngineUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable

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

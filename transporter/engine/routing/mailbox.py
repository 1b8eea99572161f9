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
        self._waiting: deque[tuple[Future[Any] | None, Callable[[], object]]] = deque()
        self._over = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def over(self) -> bool:
        """Whether the owner has ended."""
        return self._over

    def ask(self, do: Callable[[], T]) -> Future[T]:
        """Schedule *do*. A caller that no longer wants to wait cancels the future.

        Raises:
            EngineUnreachable: the owner has ended.

        """
        answer: Future[Any] = Future()
        self._add(answer, do)
        return answer

    def order(self, do: Callable[[], object]) -> None:
        """Schedule *do* without a result. Its errors are raised to the owner.

        Raises:
            EngineUnreachable: the owner has ended.

        """
        self._add(None, do)

    def _add(self, answer: Future[Any] | None, do: Callable[[], object]) -> None:
        with self._lock:
            if self._over:
                raise EngineUnreachable("the engine is stopping; try again when it has ended")
            self._waiting.append((answer, do))
        self._wake()

    def run(self) -> None:
        """Run all scheduled calls. Their errors go to the callers that wait."""
        while self._waiting:
            answer, do = self._waiting.popleft()
            if answer is None:
                do()
            elif answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(do())
                except Exception as error:  # noqa: BLE001 - it is the asker's
                    answer.set_exception(error)

    def end(self) -> None:
        """Run no more calls, and cancel those that wait."""
        with self._lock:
            self._over = True
            waiting, self._waiting = self._waiting, deque()
        for answer, _ in waiting:
            if answer is not None:
                answer.cancel()

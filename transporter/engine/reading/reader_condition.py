"""The condition of a reader: its state, the problem, its waits, and requests of operators."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from transporter.engine.backoff import Backoff
from transporter.engine.events import State

if TYPE_CHECKING:
    from transporter.engine.events import Observer
    from transporter.pipeline.config import ReaderConfig

_ROOM_RETRY: Final = 1.0
"""Seconds between two tries while the log is full, at most: room may be there at any moment."""


class ActionGate:
    """Admits appends and acknowledgements until the reader's thread is abandoned. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held during an append or an acknowledgement."""
        self.is_closed = False

    def close(self) -> None:
        """Admit nothing from now on. An action that is under way continues."""
        self.is_closed = True

    def try_close(self) -> bool:
        """Admit nothing from now on, unless an action is under way. Returns whether it closed."""
        if not self.lock.acquire(blocking=False):
            return False
        self.is_closed = True
        self.lock.release()
        return True


class ReaderCondition:
    """The state of the reader of ``config``, and the waits of its thread.

    Belongs to that thread. Any thread may read, make a request, and call :meth:`wake`.
    """

    def __init__(self, config: ReaderConfig, observe: Observer, *, paused: bool) -> None:
        """Start with the reader of *config*, whose events *observe* receives."""
        self.config = config
        self._new_config: ReaderConfig | None = None
        self._observe = observe
        self._wake_event, self._backoff = threading.Event(), Backoff()
        self.paused, self.must_reopen = paused, False
        self.state, self.problem = State.STARTING, ""

    def pause(self) -> None:
        """Request that the reader is closed and stays so."""
        self.paused = True
        self.wake()

    def resume(self) -> None:
        """Request the end of a pause, or of the wait for a source that is away."""
        self.paused = False
        self.wake()

    def reopen(self) -> None:
        """Request that the reader is closed in order and opened again."""
        self.must_reopen = True
        self.wake()

    def configure(self, config: ReaderConfig) -> None:
        """Request other settings from the next open on."""
        self._new_config = config

    @property
    def has_new_config(self) -> bool:
        """Whether new settings are still to be applied."""
        return self._new_config is not None

    def begin_open(self) -> None:
        """Apply what was requested for the next open."""
        if self.must_reopen:
            self.must_reopen = False
            self.begin()
        if (config := self._new_config) is not None:
            self.config = config
            if self._new_config is config:  # or newer ones have come
                self._new_config = None

    def begin(self) -> None:
        """Take note that the reader is to be opened, without a failure before."""
        self.state, self.problem = State.STARTING, ""
        self._backoff.reset()

    def note_running(self) -> None:
        """Take note that the reader runs."""
        self.state, self.problem = State.RUNNING, ""

    def note_success(self) -> None:
        """Begin the next row of failures with the shortest delay."""
        if self._backoff.failures:
            self._backoff.reset()

    def note_paused(self) -> None:
        """Take note that an operator has paused the reader."""
        self.state, self.problem = State.PAUSED, ""
        self.report("reader-paused")

    def fail(self, problem: str) -> None:
        """Take note that the reader has failed and waits for an operator (Invariant 15)."""
        # In this order: with the state, an operator finds the reason.
        self.problem = self.config.secrets.hide(problem)
        self.state = State.STOPPED
        self.report("reader-stopped", problem=self.problem)

    def retry_later(self, error: BaseException) -> None:
        """Wait for the next attempt, or until a request arrives."""
        self.state, self.problem = State.RETRYING, self.config.secrets.hide(str(error))
        delay = self._backoff.next()
        self.report("reader-unavailable", problem=self.problem, retry_in=round(delay, 2))
        self.wait(delay)

    def note_full(self, error: BaseException) -> float:
        """Take note that the log is full. Returns the seconds until the next try."""
        self.state, self.problem = State.WAITING, str(error)
        self.report("log-full", problem=self.problem)
        return min(self._backoff.next(), _ROOM_RETRY)

    def wake(self) -> None:
        """End every wait, so that the reader's thread looks at the requests again."""
        self._wake_event.set()

    def wait(self, seconds: float) -> None:
        """Wait up to *seconds*, or until a request arrives."""
        self._wake_event.wait(seconds)
        # Cleared before anything is looked at again, so no call is missed.
        self._wake_event.clear()

    def report(self, event: str, **details: object) -> None:
        """Report *event* of the reader."""
        self._observe(event, reader=self.config.name, **details)

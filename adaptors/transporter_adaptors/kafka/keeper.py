"""A thread that keeps the membership in a consumer group while the reader is not polled."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BEAT: Final = 1.0
"""Seconds between two calls of *keep*."""


class Keeper:
    """A thread that calls *keep* each second once its owner has been away for a while.

    A reader is not polled while the log has no room. Its member would then answer
    no rebalance, which blocks the whole group, and would be removed in the end.

    Owner and thread never run at the same time. The owner works inside of
    :meth:`pause`, which waits for a call of *keep* that is under way, and
    raises the exception that the last one raised. Made and closed by one thread.
    """

    def __init__(self, patience: float, keep: Callable[[], None]) -> None:
        """Start the thread. The owner counts as away after *patience* seconds."""
        self._patience, self._keep = patience, keep
        self._changed = threading.Condition()
        self._last_seen = monotonic()
        self._closing = False
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kafka-keeper")
        self._thread.start()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Block the thread for the length of a ``with`` block."""
        with self._changed:
            if self._problem is not None:
                raise self._problem
            try:
                yield
            finally:
                self._last_seen = monotonic()

    @contextmanager
    def try_pause(self) -> Iterator[bool]:
        """Block the thread for the length of a ``with`` block, if that needs no wait.

        Yields whether it needs none. The owner still counts as away.
        """
        free = self._changed.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                self._changed.release()

    def close(self) -> None:
        """End the thread and wait for it."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._closing and self._problem is None:
                left = self._last_seen + self._patience - monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                try:
                    self._keep()
                except BaseException as error:  # noqa: BLE001 - raised later in the owner
                    self._problem = error
                else:
                    self._changed.wait(_BEAT)

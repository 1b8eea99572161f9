"""Heartbeats of threads that work in a loop, so that a thread that hangs can be found."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

HUNG_AFTER: Final = 300.0
"""Seconds without a heartbeat after which a thread hangs. Its own waits take a second at most."""


class Heartbeat:
    """The time at which a thread last came through its loop. It beats, and any thread may read.

    It is suspended before the thread begins, and while it waits for something that has limits
    of its own, or none.
    """

    def __init__(self) -> None:
        """Begin suspended."""
        self._last: float | None = None

    def beat(self) -> None:
        """Take note that the thread works."""
        self._last = time.monotonic()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Expect no heartbeat for the length of a block."""
        self._last = None
        try:
            yield
        finally:
            self.beat()

    @property
    def is_overdue(self) -> bool:
        """Whether the thread hangs."""
        last = self._last
        return last is not None and time.monotonic() - last > HUNG_AFTER

"""The retention gate: entries are given up, and holds go back, one at a time.

Whoever removes entries enters the gate, looks at the holds a last time, and acts
before leaving it: retention for each segment, a compaction for each switch of files.
Whatever makes a hold go back registers inside it: today only a replay. So a replay
that began is seen by whoever removes, and one that begins later finds what is left
(Invariant 11). Commands without an engine hold the log's lock instead.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator


class RetentionGate:
    """A lock of one log directory, which the same thread may enter again.

    ``removed`` is the last offset that retention has removed, ``rewritten`` the number of
    segments that compaction has replaced. ``registered`` counts how often a hold may have
    gone back: as long as it stays the same, a hold that was looked at before still bounds
    the present one from below.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.removed = -1
        self.rewritten = 0
        self.registered = 0

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @contextmanager
    def registering(self) -> Iterator[None]:
        """Let the body make a hold go back."""
        with self._lock:
            try:
                yield
            finally:
                self.registered += 1

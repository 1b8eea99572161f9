"""The retention gate: serialises the removal of entries and the moving back of holds.

Code that removes entries enters the gate, checks the holds a last time, and acts before
it leaves. Retention does so for each segment, a compaction for each switch of files.
Code that moves a hold back, today only a replay, registers inside the gate. A replay
that has begun is therefore visible to the removal, and one that begins later finds the
remaining entries (Invariant 11). Commands without an engine hold the log's lock instead.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator


class RetentionGate:
    """A re-entrant lock of one log directory.

    Attributes:
        removed_through: the last offset that retention has removed.
        rewrite_count: the number of segments that compaction has replaced.
        hold_count: the number of times a hold may have moved back. While it is unchanged,
            an earlier hold is still a lower bound of the present one.

    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.removed_through = -1
        self.rewrite_count = 0
        self.hold_count = 0

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @contextmanager
    def register_hold(self) -> Iterator[None]:
        """Run the body, which may move a hold back, inside the gate."""
        with self._lock:
            try:
                yield
            finally:
                self.hold_count += 1

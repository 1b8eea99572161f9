"""Group commit: the writes of the next sync, their limit, and the waiting for a sync.

Independent of files: the log chooses the file to sync. Every method requires the log's
lock, which is released while a sync runs or is waited for.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

GROUP_BYTES: Final = 8 << 20
"""Most bytes that one sync covers. Recovery may have to copy two such groups: the one that is
being synced and the one that gathers behind it (Invariant 13)."""
_SHARE: Final = 4
"""Divisor of the last sync's duration that gives the longest wait for more writes."""


class SyncGroup:
    """The writes that no sync has covered yet, and the running sync, if any."""

    def __init__(self, condition: threading.Condition) -> None:
        """Guard all state by *condition*, which is notified whenever a waiter may continue."""
        self._condition = condition
        self.syncing = False
        self._bytes = self._writes = 0
        self._expected_writes = 0
        self._sync_seconds = 0.0

    def add_write(self, size: int) -> None:
        """Add a write of *size* bytes to those that the next sync covers."""
        self._bytes += size
        self._writes += 1
        if self.syncing and self._writes == self._expected_writes:
            self._condition.notify_all()

    def size_with(self, size: int) -> int:
        """Return the bytes of the group after *size* more."""
        return self._bytes + size

    def has_room(self, size: int, limit: int) -> bool:
        """Return whether *size* bytes fit into a group of *limit* bytes. An empty one takes all."""
        return not self._bytes or self._bytes + size <= limit

    def clear(self) -> None:
        """Clear the group, because a sync covers its writes."""
        self._bytes = self._writes = 0

    def gather_writes(self) -> None:
        """Wait briefly for the callers of the last sync, so that the next sync serves all of them.

        Otherwise they miss each sync that begins as the last one ends, and two halves take
        turns. A single caller does not wait.
        """
        self.syncing = True
        try:
            self._condition.wait_for(
                lambda: self._writes >= self._expected_writes, self._sync_seconds / _SHARE
            )
        finally:
            self.syncing = False

    @contextmanager
    def sync(self) -> Iterator[None]:
        """Run the body, which syncs everything written so far, without the lock."""
        self.syncing = True
        served = self._writes
        self.clear()
        self._condition.release()
        began = time.monotonic()
        try:
            yield
        finally:
            self._condition.acquire()
            self.syncing = False
            self._sync_seconds, self._expected_writes = (
                time.monotonic() - began,
                served + self._writes,
            )
            # Also after an error of any kind: each waiter for this sync now runs its own.
            self._condition.notify_all()

"""Group commit: which writes the next sync covers, how many may join them, and who waits for whom.

Knows nothing of files: the log says what to sync. Every method needs the log's
lock held, which is given up while a sync runs or is waited for.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

GROUP_BYTES: Final = 8 << 20
"""Bytes that one sync ever covers at most. Two such groups, the one that is being synced and
the one that gathers behind it, are what recovery may have to copy (Invariant 13)."""
_SHARE: Final = 4
"""What fraction of the last sync's time a sync may wait for company."""


class SyncGroup:
    """The writes that no sync has covered yet, and the sync that is under way, if any."""

    def __init__(self, state: threading.Condition) -> None:
        """Guard everything by *state*, which is told whenever somebody may go on."""
        self._state = state
        self.syncing = False
        self._bytes = self._writes = 0
        self._company = 0
        self._took = 0.0

    def joined(self, size: int) -> None:
        """Count a write of *size* bytes among those that the next sync covers."""
        self._bytes += size
        self._writes += 1
        if self.syncing and self._writes == self._company:
            self._state.notify_all()

    def with_room_for(self, size: int) -> int:
        """Return the bytes that the group would have with *size* more."""
        return self._bytes + size

    def has_room(self, size: int, most: int) -> bool:
        """Tell whether *size* bytes more may join one of at most *most*; an empty one takes all."""
        return not self._bytes or self._bytes + size <= most

    def covered(self) -> None:
        """Forget the writes: a sync covers them."""
        self._bytes = self._writes = 0

    def gather(self) -> None:
        """Give those whom the last sync served a moment to come back, so that the next serves all.

        Otherwise they miss each sync that begins as the last one ends, and two
        halves take turns. One caller alone waits for nobody.
        """
        self.syncing = True
        try:
            self._state.wait_for(lambda: self._writes >= self._company, self._took / _SHARE)
        finally:
            self.syncing = False

    @contextmanager
    def sync(self) -> Iterator[None]:
        """Run the body, which syncs what was written so far, without the lock."""
        self.syncing = True
        served = self._writes
        self.covered()
        self._state.release()
        began = time.monotonic()
        try:
            yield
        finally:
            self._state.acquire()
            self.syncing = False
            self._took, self._company = time.monotonic() - began, served + self._writes
            # Also after an error of any kind: whoever waits for this sync now runs his own.
            self._state.notify_all()

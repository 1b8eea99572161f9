"""Open segments, shared by every reader of a process: few descriptors for many routes.

Independent of offsets. A segment is closed with its last reference, so a reader that
is still reading one keeps it open, even if it is dropped here.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from transporter.log.filesystem import RealFileSystem
from transporter.log.segment import Segment

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.log.filesystem import FileSystem

MOST: Final = 64
"""Segments that one process keeps open."""
SWEEP: Final = 20.0
"""Seconds after which open segments are checked again, because some may have been removed."""


class OpenSegments:
    """The most recently read segments of one file system. Thread-safe.

    A segment that was removed or replaced takes up disk space while it is open.
    :meth:`sweep` closes such segments. Every :meth:`get` does so too when the last sweep was
    :data:`SWEEP` seconds ago.
    """

    def __init__(self, files: FileSystem) -> None:
        """Open nothing yet."""
        self._files = files
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, Segment] = OrderedDict()
        self._user_count = 0
        self._swept_at = time.monotonic()

    def __len__(self) -> int:
        return len(self._open)

    def add_user(self) -> None:
        """Add a user. Open segments are kept until the last user has left."""
        with self._lock:
            self._user_count += 1

    def remove_user(self) -> None:
        """Remove a user."""
        with self._lock:
            self._user_count -= 1
            if not self._user_count:
                self._open.clear()

    def get(self, path: Path) -> Segment:
        """Return the segment at *path*.

        Raises:
            FileNotFoundError: it was removed.
            Corrupt: its header is damaged.

        """
        self.sweep_if_due()
        with self._lock:
            if (segment := self._open.get(path)) is not None:
                self._open.move_to_end(path)
                return segment
        segment = Segment(self._files, path)
        with self._lock:
            if self._user_count:
                self._open[path] = segment
            while len(self._open) > MOST:
                self._open.popitem(last=False)
        return segment

    def clear(self) -> bool:
        """Close the segments that no reader is using, and return whether any was kept here."""
        with self._lock:
            kept = bool(self._open)
            self._open.clear()
        return kept

    def drop(self, path: Path) -> None:
        """Close the segment at *path*, which was removed or replaced."""
        with self._lock:
            self._open.pop(path, None)

    def sweep_if_due(self) -> None:
        """Sweep if the last sweep was :data:`SWEEP` seconds ago."""
        if time.monotonic() - self._swept_at >= SWEEP:
            self.sweep()

    def sweep(self) -> None:
        """Close every segment that was removed or replaced."""
        with self._lock:
            self._swept_at = time.monotonic()
            found = list(self._open.items())
        for path, segment in found:
            if not segment.is_in_place:
                with self._lock:
                    if self._open.get(path) is segment:
                        del self._open[path]


_SHARED: Final = OpenSegments(RealFileSystem())
RealFileSystem.close_idle = _SHARED.clear


def open_segments(files: FileSystem) -> OpenSegments:
    """Return the open segments of *files*. All users of the real disk share them."""
    return _SHARED if type(files) is RealFileSystem else OpenSegments(files)


def sweep_open_segments() -> None:
    """Close the segments of this process that were removed or replaced.

    For processes that may read nothing for long. Their next read would do the same.
    """
    _SHARED.sweep()


def drop_open_segment(path: Path) -> None:
    """Close the segment at *path*, which this process has removed or replaced."""
    _SHARED.drop(path)

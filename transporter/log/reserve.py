"""Disk space kept for a recovery on a full disk (Invariant 13).

A start after an unclean stop must copy the frames above the floor before it can continue.
On a full disk it finds the room here. The room that it then frees in the old file allows
a new reserve. The reserve covers two of the largest groups ever written, so a log of
small appends sets little aside.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from transporter.log.filesystem import NO_SPACE, open_file
from transporter.log.group_commit import GROUP_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.log.filesystem import FileSystem

RESERVE: Final = "reserve"
RESERVE_BYTES: Final = 20 << 20
"""Two groups of 8 MiB that no later frame has proved, with their positions and a header."""
_HALVINGS: Final = (4, 2, 0)
"""Halvings of that for each possible size of a reserve: 1.25, 5 and 20 MiB."""


class Reserve:
    """The reserve of an open log, which grows with the groups that are written."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        """Start with the reserve that :func:`ensure_reserve` has made."""
        self._files, self._path = files, directory / RESERVE
        self._bytes = 0
        with suppress(FileNotFoundError), open_file(files, self._path) as file:
            self._bytes = file.size()
        self.covered_bytes = self._covered_bytes()
        """The largest size of a group such that recovery finds room for two of them.

        If there was no room for the least reserve, the size is the same as with it.
        """

    def grow(self, group_bytes: int) -> None:
        """Grow the reserve to fit two groups of *group_bytes*, up to its maximum size.

        Raises:
            OSError: there is no room. The reserve is as large as before.

        """
        while self.covered_bytes < min(group_bytes, GROUP_BYTES):
            sizes = (RESERVE_BYTES >> halvings for halvings in _HALVINGS)
            self._allocate(next(size for size in sizes if size > max(self._bytes, _least_size())))

    def _allocate(self, size: int) -> None:
        with open_file(self._files, self._path, write=True, create=True) as file:
            try:
                file.allocate(self._bytes, size - self._bytes)
            except OSError:
                with suppress(OSError):
                    file.truncate(self._bytes)
                raise
        self._bytes = size
        self.covered_bytes = self._covered_bytes()

    def _covered_bytes(self) -> int:
        return max(self._bytes, _least_size()) * GROUP_BYTES // RESERVE_BYTES


def ensure_reserve(files: FileSystem, directory: Path) -> None:
    """Make the reserve if it is missing. If there is no room, the next start tries again."""
    path = directory / RESERVE
    try:
        with open_file(files, path, write=True, create=True) as file:
            if file.size() < _least_size():
                file.allocate(0, _least_size())
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        free_reserve(files, directory)


def free_reserve(files: FileSystem, directory: Path) -> None:
    """Return the reserve's room to the disk."""
    with suppress(FileNotFoundError):
        files.remove(directory / RESERVE)


def _least_size() -> int:
    return RESERVE_BYTES >> _HALVINGS[0]

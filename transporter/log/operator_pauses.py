"""The readers that an operator has paused: a small file that outlives engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from transporter.log import checksummed_file
from transporter.log.filesystem import (
    RealFileSystem,
    open_file,
    replace_durably,
    translate_os_errors,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transporter.log.filesystem import FileSystem

PAUSED: Final = "paused-readers"
_MOST: Final = 1 << 20
_REMEDY: Final = "remove the file, then pause the readers again"


def read_paused(directory: Path, files: FileSystem | None = None) -> frozenset[str]:
    """Return the readers that are paused in the log *directory*. Takes no lock.

    Raises:
        Corrupt: the file is damaged.
        UnknownFormat: another version wrote it.

    """
    path = directory / PAUSED
    with translate_os_errors(path, reading=True):
        try:
            with open_file(files or RealFileSystem(), path) as file:
                data = file.pread(_MOST, 0)
        except FileNotFoundError:
            return frozenset()
    return checksummed_file.decode(
        data, str(path), "the list of paused readers", _REMEDY, _parse_names
    )


def _parse_names(fields: dict[str, Any]) -> frozenset[str]:
    names = fields["readers"]
    if type(names) is not list or not {*map(type, names)} <= {str}:
        raise TypeError
    return frozenset(names)


class PausedReaders:
    """The paused readers of a log, with its lock held. Changed by one thread at a time."""

    def __init__(
        self,
        directory: Path,
        files: FileSystem | None = None,
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        """Read the file. *guard* raises ``LockLost`` once it may be another engine's."""
        self._path, self._files = directory / PAUSED, files or RealFileSystem()
        self._guard = guard
        self.names = read_paused(directory, self._files)

    def set_paused(self, reader: str, *, paused: bool) -> None:
        """Record whether *reader* is paused, durably on return.

        Raises:
            LogFull: there is no room. Nothing has changed.
            LogPoisoned: a sync failed (Invariant 13).

        """
        names = self.names | {reader} if paused else self.names - {reader}
        if names != self.names:
            self._guard()  # Invariant 12
            with translate_os_errors(self._path):
                content = checksummed_file.encode({"readers": sorted(names)})
                replace_durably(self._files, self._path, [content])
            self.names = names

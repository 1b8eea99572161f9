"""Long states of readers that rarely change, in files beside the log.

A position goes into every frame, so it has to be short. What a reader needs besides, such as the
definitions of a thousand tables, is in a file that is written before a position names it, and
never changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from transporter.errors import Corrupt, EnvironmentFault
from transporter.log import checksummed_file
from transporter.log.filesystem import (
    TEMPORARY,
    RealFileSystem,
    make_directory,
    open_file,
    replace_durably,
    sync_directory,
    translate_os_errors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from transporter.log.filesystem import FileSystem

FOLDER: Final = "readers"
_REMEDY: Final = "put the log's latest backup back, or have the reader begin again"


def check_states(directory: Path, files: FileSystem) -> Iterator[Corrupt]:
    """Yield what is wrong with each damaged state of a reader of the log in *directory*."""
    for reader in files.names(directory / FOLDER):
        for name in files.names(directory / FOLDER / reader):
            if not name.endswith(TEMPORARY):
                try:
                    ReaderStates(directory, reader, files).read(name)
                except Corrupt as error:
                    yield error


class ReaderStates:
    """The states of one reader of a log. Used by one thread at a time."""

    def __init__(
        self,
        directory: Path,
        reader: str,
        files: FileSystem | None = None,
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        """Look at the log in *directory*. *guard* raises ``LockLost`` once it is another's."""
        self._folder, self._files = directory / FOLDER / reader, files or RealFileSystem()
        self._guard = guard

    def names(self) -> list[str]:
        """Return the names of the states."""
        return self._files.names(self._folder)

    def keep(self, name: str, text: str) -> None:
        """Write the state *text* by its *name*, durably on return, unless it is there.

        Raises:
            LogFull: there is no room. Nothing has changed.
            LogPoisoned: a sync failed (Invariant 13).

        """
        self._guard()  # Invariant 12
        with translate_os_errors(self._folder):
            make_directory(self._files, self._folder)
            if name not in self.names():
                content = checksummed_file.encode({"state": text})
                replace_durably(self._files, self._folder / name, [content])

    def read(self, name: str) -> str:
        """Return the state of this *name*.

        Raises:
            EnvironmentFault: it is missing.
            Corrupt: it is damaged.
            UnknownFormat: another version wrote it.

        """
        path = self._folder / name
        with translate_os_errors(path, reading=True):
            try:
                with open_file(self._files, path) as file:
                    data = file.pread(file.size(), 0)
            except FileNotFoundError:
                raise EnvironmentFault(
                    f"{path}: the reader's state is missing; {_REMEDY}"
                ) from None
        return checksummed_file.decode(data, str(path), "the reader's state", _REMEDY, _parse)

    def drop_others(self, name: str) -> None:
        """Remove every state but *name*: a durable position names it, and no other counts."""
        self._guard()  # Invariant 12
        with translate_os_errors(self._folder):
            others = {*self.names()} - {name}
            for each in others:
                self._files.remove(self._folder / each)
            if others:
                sync_directory(self._files, self._folder)


def _parse(fields: dict[str, Any]) -> str:
    if type(state := fields["state"]) is not str:
        raise TypeError
    return state

"""Reads JSON lines from files."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, BinaryIO, ClassVar, Final

from adaptors.file.config import FileReaderConfig
from adaptors.file.lines import Lines, Origin, batch_of, read_lines
from transporter.adaptor import Batch, EndOfSource
from transporter.errors import EnvironmentFault, SourceUnavailable

if TYPE_CHECKING:
    from transporter.adaptor import AdaptorConfig, Resume

_LOOK_SECONDS: Final = 0.1
"""How often the end of a followed file is looked at; no portable call waits for it."""


@dataclass(frozen=True, slots=True)
class Place:
    """A byte in a file; the inode tells a file from another that took its name."""

    file: str
    byte: int
    inode: int


class FileReader:
    """Reads the lines of one file, or of several in the order of their names, as messages.

    ``data`` is the line, byte for byte. Blank lines are passed over; a line that
    is not JSON becomes a message with an error header. A file that was replaced
    or cut short is read from its beginning.

    With ``follow`` a file is left when one with a later name, or another one
    with its own name, is there and its end has been reached: what is appended
    to it after that is not read. A last line without an end is read when its
    file is left, or ends.
    """

    Config: ClassVar[type[AdaptorConfig]] = FileReaderConfig

    def __init__(self, config: FileReaderConfig) -> None:
        """Read what *config* names."""
        self._config = config
        self._file: BinaryIO | None = None
        self._name = ""
        self._pause = threading.Event()  # never set: waiting on it is a bounded pause

    def open(self, resume: Resume) -> None:
        """Go on at the newest logged position, in the file that holds it.

        :raises SourceUnavailable: when no file is there, and none is waited for.
        :raises EnvironmentFault: when it may not be read.
        """
        names = self._names()
        if not names and not self._config.follow:
            raise SourceUnavailable(f"{self._config.path}: there is no such file")
        if resume.position is not None:
            place = Place(**json.loads(resume.position))
            self._name = place.file
            if place.file in names:
                self._enter(place)

    def poll(self, timeout: float) -> Batch:
        """Return the next lines, waiting up to *timeout* seconds for one when following."""
        deadline = time.monotonic() + timeout
        while True:
            if batch := self._read():
                return batch
            if self._advance():
                continue
            if not self._config.follow:
                raise EndOfSource
            left = deadline - time.monotonic()
            if left <= 0:
                return Batch([])
            self._pause.wait(min(left, _LOOK_SECONDS))

    def commit(self, position: str) -> None:
        """Nothing is forgotten: the files stay as they are."""

    def close(self) -> None:
        """Close the file; safe to call twice."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _read(self) -> Batch | None:
        """Return the next lines of the open file, if there are any to return."""
        if self._file is None:
            return None
        lines = self._lines(self._file, partial=False)
        if not lines and (not self._config.follow or self._next() is not None):
            lines = self._lines(self._file, partial=True)
        if not lines:
            return None
        status = os.fstat(self._file.fileno())
        place = Place(self._name, self._file.tell(), status.st_ino)
        namespace = self._config.namespace or self._name.rsplit(".", 1)[0] or self._name
        origin = Origin(namespace, self._name, status.st_mtime_ns // 1000, self._config.key)
        return Batch(batch_of(lines, origin), json.dumps(asdict(place)))

    def _lines(self, file: BinaryIO, *, partial: bool) -> Lines:
        config = self._config
        return read_lines(
            file, config.batch_rows, config.batch_bytes, config.max_line_bytes, partial=partial
        )

    def _advance(self) -> bool:
        """Leave the file, whose end was reached, if there is another to go on with."""
        following = self._next()
        if following is None:
            return False
        self.close()
        self._name = following
        self._enter(None)
        return True

    def _next(self) -> str | None:
        """Return the name of the file to go on with behind the end of the open one."""
        names = self._names()
        if self._file is not None and self._name in names and self._replaced(self._file):
            return self._name
        later = [name for name in names if name > self._name]
        return later[0] if later else None

    def _replaced(self, file: BinaryIO) -> bool:
        mine = os.fstat(file.fileno())
        try:
            named = (self._config.path.parent / self._name).stat()
        except FileNotFoundError:
            return False  # Gone since it was listed; the next look sees what took its place.
        return (mine.st_dev, mine.st_ino) != (named.st_dev, named.st_ino) or (
            mine.st_size < file.tell()
        )

    def _enter(self, place: Place | None) -> None:
        path = self._config.path.parent / self._name
        try:
            self._file = path.open("rb")
        except FileNotFoundError as error:
            raise SourceUnavailable(f"{path}: it has just gone away") from error
        except OSError as error:
            raise EnvironmentFault(f"{path}: {error.strerror}: let it be read") from error
        status = os.fstat(self._file.fileno())
        if place and place.inode == status.st_ino and place.byte <= status.st_size:
            self._file.seek(place.byte)

    def _names(self) -> list[str]:
        path = self._config.path
        if path.exists():
            return [path.name]
        return sorted(found.name for found in path.parent.glob(path.name) if found.is_file())

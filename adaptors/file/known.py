"""Which files are there, and how far each is known to be read."""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from transporter.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

HEAD_BYTES: Final = 1024
"""How much of a file's beginning, as far as it was read, tells it from another one."""

_DIGITS: Final = re.compile("([0-9]+)")


class Found(NamedTuple):
    """A file that is there; *id* is its inode, with the device if that is not the folder's."""

    name: str
    path: Path
    id: str
    size: int
    changed: int


class Known(NamedTuple):
    """How far a file was read, and a digest of its beginning up to there."""

    byte: int
    head: str


@dataclass(slots=True)
class Place:
    """The reader's position: the file being read, and all files that were read.

    *file* is the name under which it was begun, which stays when it is renamed.
    """

    file: str = ""
    id: str = ""
    files: dict[str, Known] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = {"file": self.file, "id": self.id, "files": self.files}
        return json.dumps(shown, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what ``str`` has written; raise ``SourceError`` for anything else."""
        try:
            found = json.loads(text)
            files = {each: Known(int(at), str(head)) for each, (at, head) in found["files"].items()}
            file_id = str(found["id"])
            # The file that is being read is among them.
            files = {file_id: files[file_id]} | files
            return cls(str(found["file"]), file_id, files)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise SourceError(
                f"the log holds the position {text[:100]!r} for this reader, which this file "
                "reader has not written; give the reader another name"
            ) from error


def in_order(name: str) -> tuple[list[str | int], str]:
    """Return by what names are sorted: numbers in them count as numbers."""
    parts = _DIGITS.split(name)
    return [int(part) if index % 2 else part for index, part in enumerate(parts)], name


def matching(path: Path) -> list[Found]:
    """Return the files whose names *path* means, in natural order."""
    folder = path.parent
    names = [path.name] if path.exists() else _files(folder, path.name)
    return list(_found(folder, sorted(names, key=in_order)))


def renamed(folder: Path, file_id: str) -> Iterator[Found]:
    """Yield the files of *folder* that have *file_id*, whatever their names are."""
    return (each for each in _found(folder, _files(folder, "*")) if each.id == file_id)


def left_behind(found: Iterable[Found]) -> set[str]:
    """Return the ids of those files in natural order that are left: a later one was changed since.

    A file that is rotated to a later name is older, and does not count.
    """
    left, latest = set(), -1
    for each in reversed(list(found)):
        if each.changed <= latest:
            left.add(each.id)
        latest = max(latest, each.changed)
    return left


def head_of(descriptor: int, byte: int) -> str:
    """Return a digest of the first :data:`HEAD_BYTES` of a file, but of none behind *byte*."""
    text = os.pread(descriptor, min(HEAD_BYTES, byte), 0)
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def is_same(descriptor: int, known: Known) -> bool:
    """Tell whether an open file is still the one of which *known* was read, and not shorter."""
    return (
        os.fstat(descriptor).st_size >= known.byte and head_of(descriptor, known.byte) == known.head
    )


def _files(folder: Path, pattern: str) -> list[str]:
    return [found.name for found in folder.glob(pattern) if found.is_file()]


def _found(folder: Path, names: list[str]) -> Iterator[Found]:
    # The device may have another number after each start of the machine.
    device = folder.stat().st_dev if names else 0
    for name in names:
        path = folder / name
        with suppress(FileNotFoundError):
            status = path.stat()
            own = status.st_dev == device
            file_id = str(status.st_ino) if own else f"{status.st_dev}:{status.st_ino}"
            yield Found(name, path, file_id, status.st_size, status.st_mtime_ns)

"""The files in the folder, and the progress in each file that was read."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, Self

from transporter.errors import SourceError, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

HEAD_BYTES: Final = 1024
"""Bytes of a file's beginning, as far as it was read, that distinguish it from another one."""

_LINK: Final = "it is a symbolic link; name the file itself, or set follow_links"
_IRREGULAR: Final = "it is not a regular file"
_DIGITS: Final = re.compile("([0-9]+)")


class ExistingFile(NamedTuple):
    """An existing file. *id* is its inode, with the device if that is not the folder's."""

    name: str
    path: Path
    id: str
    size: int
    changed: int


class FileProgress(NamedTuple):
    """The progress in a file, and a digest of its beginning up to there."""

    byte: int
    head: str


@dataclass(slots=True)
class ReadPosition:
    """The reader's position: the file being read, and all files that were read.

    *file* is the name under which it was begun, which stays when it is renamed.
    """

    file: str = ""
    id: str = ""
    files: dict[str, FileProgress] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = {"file": self.file, "id": self.id, "files": self.files}
        return json.dumps(shown, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text that ``str`` wrote, or raise ``SourceError`` for anything else."""
        try:
            found = json.loads(text)
            files = {
                each: FileProgress(int(at), str(head))
                for each, (at, head) in found["files"].items()
            }
            file_id = str(found["id"])
            # The file that is being read is among them.
            files = {file_id: files[file_id]} | files
            return cls(str(found["file"]), file_id, files)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise SourceError(
                f"the log holds the position {text[:100]!r} for this reader, which was not "
                "written by this file reader; give the reader another name"
            ) from error


def natural_key(name: str) -> tuple[list[str | int], str]:
    """Return a sort key for *name* in which numbers count as numbers."""
    parts = _DIGITS.split(name)
    return [int(part) if index % 2 else part for index, part in enumerate(parts)], name


def matching_files(path: Path, *, links: bool) -> tuple[list[ExistingFile], dict[str, str]]:
    """Return the files whose names match *path*, in natural order, and why others are refused.

    Only regular files are read, and no link unless *links* are. Otherwise a user with rights to
    the folder could choose files elsewhere for the reader, or block it with a pipe.
    """
    names = [path.name] if os.path.lexists(path) else _matching_names(path.parent, path.name)
    return _list_files(path.parent, sorted(names, key=natural_key), links=links)


def find_renamed(folder: Path, file_id: str, *, links: bool) -> list[ExistingFile]:
    """Return the files of *folder* that have *file_id*, whatever their names are."""
    found, _ = _list_files(folder, _matching_names(folder, "*"), links=links)
    return [each for each in found if each.id == file_id]


def open_regular(path: Path, *, links: bool) -> BinaryIO:
    """Open the regular file at *path*, without waiting for a pipe, or following links by default.

    Raises:
        SourceUnavailable: It is something else by now.
        OSError: It may not be read.
    """
    # Opening a pipe would wait for its writer. O_NONBLOCK has no effect on a regular file.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    flags |= 0 if links else os.O_NOFOLLOW
    try:
        file = open(os.open(path, flags), "rb")  # noqa: PTH123, SIM115 - the caller closes it
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:
            raise SourceUnavailable(f"{path}: it has just been replaced") from error
        raise
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise SourceUnavailable(f"{path}: it has just been replaced")


def abandoned_ids(found: Iterable[ExistingFile]) -> set[str]:
    """Return the ids of files that are left, because a later one in natural order changed since.

    A file that is rotated to a later name is older, and does not count.
    """
    left, latest = set(), -1
    for each in reversed(list(found)):
        if each.changed <= latest:
            left.add(each.id)
        latest = max(latest, each.changed)
    return left


def head_digest(descriptor: int, byte: int) -> str:
    """Return a digest of the first :data:`HEAD_BYTES` of a file, but of none behind *byte*."""
    text = os.pread(descriptor, min(HEAD_BYTES, byte), 0)
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def is_same_file(descriptor: int, known: FileProgress) -> bool:
    """Return whether an open file is still the one of *known*, and not shorter than that."""
    return (
        os.fstat(descriptor).st_size >= known.byte
        and head_digest(descriptor, known.byte) == known.head
    )


def _matching_names(folder: Path, pattern: str) -> list[str]:
    return [found.name for found in folder.glob(pattern)]


def _list_files(
    folder: Path, names: list[str], *, links: bool
) -> tuple[list[ExistingFile], dict[str, str]]:
    # The device's number may differ after each start of the machine.
    device = folder.stat().st_dev if names else 0
    found: list[ExistingFile] = []
    refused: dict[str, str] = {}
    for name in names:
        path = folder / name
        with suppress(FileNotFoundError):
            status = path.stat(follow_symlinks=links)
            if not stat.S_ISREG(status.st_mode):
                refused[name] = _LINK if stat.S_ISLNK(status.st_mode) else _IRREGULAR
                continue
            own = status.st_dev == device
            file_id = str(status.st_ino) if own else f"{status.st_dev}:{status.st_ino}"
            found.append(ExistingFile(name, path, file_id, status.st_size, status.st_mtime_ns))
    return found, refused

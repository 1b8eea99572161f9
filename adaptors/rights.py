"""Files and folders that a writer makes: with the rights of its setting, whatever the umask is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

FileMode = Literal["0600", "0640", "0644", "0660", "0664"]
"""Who may read and write a file, as ``chmod`` takes it. Its owner always may do both."""


def bits(mode: FileMode) -> int:
    """Return *mode* as system calls take it."""
    return int(mode, 8)


def open_file(path: Path, flags: int, mode: int) -> int:
    """Return a descriptor of *path* that no child process keeps; a file made now has *mode*.

    One that was there keeps its own rights.
    """
    flags |= os.O_CLOEXEC
    if not flags & os.O_CREAT:
        return os.open(path, flags)
    try:
        descriptor = os.open(path, flags | os.O_EXCL, mode)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
        # Through a link to nowhere a file is still made here, with less than *mode* at worst.
        return os.open(path, flags, mode)
    # The umask may have taken some of it away.
    os.fchmod(descriptor, mode)
    return descriptor


def make_folder(path: Path, mode: int) -> None:
    """Make *path* and the missing folders above it, open to those who may read files of *mode*.

    What is there keeps its rights.
    """
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent, mode)
    # Readers enter it, and those who may write a file may also make one beside it.
    rights = mode | (mode & 0o444) >> 2
    try:
        path.mkdir(mode=rights)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(rights)

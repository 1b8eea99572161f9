"""Files and folders made by writers, with the rights of the settings whatever the umask is.

A check finds in advance whether they can be made.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, WithJsonSchema

from transporter.adaptor import Finding

if TYPE_CHECKING:
    from pathlib import Path

_Mode = Literal["0600", "0640", "0644", "0660", "0664"]


def _quote_mode(value: Any) -> Any:  # noqa: ANN401 - whatever a pipeline file holds
    """Return the mode that was written without quotes: YAML 1.2 reads ``0640`` as 640."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:04d}" if whole else value


FileMode = Annotated[
    _Mode,
    BeforeValidator(_quote_mode),
    WithJsonSchema({"enum": [*get_args(_Mode), *map(int, get_args(_Mode))]}),
]
"""Permissions to read and write a file, as ``chmod`` takes them. Its owner always has both."""


def mode_bits(mode: str) -> int:
    """Return *mode* in the form that system calls take."""
    return int(mode, 8)


def open_file(path: Path, flags: int, mode: int) -> int:
    """Open *path* and return a descriptor that no child process inherits.

    A file created by this call has *mode*. An existing file keeps its own rights.
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
    # The umask may have removed some bits of *mode*.
    os.fchmod(descriptor, mode)
    return descriptor


def make_folder(path: Path, mode: int) -> None:
    """Make *path* and its missing parents, open to those who may read files of *mode*.

    Existing folders keep their rights.
    """
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent, mode)
    # Readers may enter the folder. Those who may write a file may also make one beside it.
    rights = mode | (mode & 0o444) >> 2
    try:
        path.mkdir(mode=rights)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(rights)


def check_writable(path: Path) -> Finding:
    """Report whether *path*, which may not exist yet, can be written, and the room left there."""
    nearest = next(each for each in (path, *path.parents) if os.path.lexists(each))
    if nearest != path and not nearest.is_dir():
        return Finding(f"{path}: {nearest} is not a directory", "problem")
    if not os.access(nearest, os.W_OK | (os.X_OK if nearest.is_dir() else 0)):
        who = f"this user (id {os.geteuid()})"
        return Finding(f"{path}: {who} may not write {nearest}", "problem")
    state = "exists" if nearest == path else "does not exist yet"
    room = shutil.disk_usage(nearest if nearest.is_dir() else nearest.parent).free
    return Finding(f"{path}: {state}, may be written; {room / 2**30:.1f} GiB free")

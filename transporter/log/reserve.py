"""Room kept aside for a recovery on a full disk (Invariant 13).

A start after an unclean stop must copy the frames above the floor before it can
go on; on a full disk it finds the room here. What it frees in the old file
afterwards lets the reserve be made again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from transporter.log.filesystem import NO_SPACE, opened

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.log.filesystem import FileSystem

RESERVE: Final = "reserve"
RESERVE_BYTES: Final = 20 << 20
"""Two groups of 8 MiB that no later frame has proved, with their positions and a header."""


def keep_reserve(files: FileSystem, directory: Path) -> None:
    """Make the reserve if it is missing; where there is no room, the next start tries again."""
    path = directory / RESERVE
    try:
        with opened(files, path, write=True, create=True) as file:
            if file.size() < RESERVE_BYTES:
                file.allocate(0, RESERVE_BYTES)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        free_reserve(files, directory)


def free_reserve(files: FileSystem, directory: Path) -> None:
    """Give the reserve's room back to the disk."""
    with suppress(FileNotFoundError):
        files.remove(directory / RESERVE)

"""A reader as its log has it, read without the lock."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from transporter.change_source import LoggedReader
from transporter.errors import EnvironmentFault
from transporter.log.filesystem import RealFileSystem
from transporter.log.meta import read_meta
from transporter.log.reader import MAX_LISTINGS
from transporter.log.reader_states import ReaderStates
from transporter.log.recovery import walk_tail
from transporter.log.segment import Segment, segment_bases, segment_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transporter.log.filesystem import FileSystem
    from transporter.log.recovery import Walk

_Value = TypeVar("_Value")


def find_logged_reader(directory: Path, name: str) -> LoggedReader:
    """Return the reader *name* as the log in *directory* has it, which need not exist.

    An engine may run. Its position may then be one that is about to be synced.
    """
    files = RealFileSystem()
    meta = read_meta(files, directory) if files.is_directory(directory) else None
    positions = {} if meta is None else read_positions(directory, files)
    return LoggedReader(
        name,
        "" if meta is None else meta.log_id,
        positions.get(name),
        ReaderStates(directory, name, files).read,
    )


def read_positions(directory: Path, files: FileSystem | None = None) -> dict[str, str]:
    """Return the newest position of each reader in the log in *directory*.

    Raises:
        EnvironmentFault: the segments are removed faster than they can be read.

    """
    return _read_tail(directory, files, lambda walk, _: walk.positions, {})


def read_last_offset(directory: Path, files: FileSystem | None = None) -> int:
    """Return the last offset written to the log in *directory*, or -1.

    It may be one that is about to be synced. A position read before is at most at this offset.

    Raises:
        EnvironmentFault: the segments are removed faster than they can be read.

    """
    return _read_tail(directory, files, lambda walk, segment: walk.last_offset(segment), -1)


def _read_tail(
    directory: Path,
    files: FileSystem | None,
    read: Callable[[Walk, Segment], _Value],
    default: _Value,
) -> _Value:
    """Return the result of *read* for the last frames, or *default* without a segment."""
    files = files or RealFileSystem()
    for _ in range(MAX_LISTINGS):
        # An engine that starts meanwhile may roll and remove the last segment: try again.
        with suppress(FileNotFoundError):
            bases = segment_bases(files, directory)
            if not bases:
                return default
            segment = Segment(files, directory / segment_name(bases[-1]))
            try:
                return read(walk_tail(files, segment), segment)
            finally:
                segment.close()
    raise EnvironmentFault(
        f"{directory}: its segments are removed faster than they can be read; try again"
    )

"""Silent restoration of lost or damaged indexes of sealed segments.

An index is never synced, so each power cut may cost the one that was being written. Only
the length of a walk depends on it.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

from transporter.errors import Corrupt
from transporter.log.index import IndexWriter, index_path, nearest_byte
from transporter.log.retention_gate import RetentionGate
from transporter.log.segment import Segment, segment_bases, segment_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transporter.log.filesystem import FileSystem
    from transporter.log.format import FrameHeader

_END: Final = (1 << 63) - 1
_PAGE: Final = 4096
_STEP: Final = 64 * _PAGE


def reindex(
    files: FileSystem,
    directory: Path,
    progress: Callable[[int], None] = lambda _: None,
    gate: RetentionGate | None = None,
) -> int:
    """Complete the index of every sealed segment in *directory* and return the entries added.

    For the process that owns the log. A whole index costs a walk over its last stride, a
    missing one a walk over the segment's frame headers: seconds for each GiB. *progress* is
    therefore called with the number of further bytes read, and ends the work by raising.
    Retention may remove segments meanwhile. An index that cannot be written is not an error:
    it stays as it is.
    """
    entries, gate = 0, gate or RetentionGate()
    for base in segment_bases(files, directory)[:-1]:
        path = directory / segment_name(base)
        with suppress(OSError, Corrupt):
            try:
                entries += _complete_index(files, path, progress)
            finally:
                _remove_orphan(files, path, base, gate)
    return entries


def _complete_index(files: FileSystem, path: Path, progress: Callable[[int], None]) -> int:
    entries = 0
    walked = _PAGE
    with (
        closing(Segment(files, path)) as segment,
        closing(IndexWriter(files, segment)) as index,
    ):
        for frame in segment.frames(nearest_byte(files, segment, _END)):
            walked += min(frame.end - frame.byte, _PAGE)
            if walked >= _STEP:
                progress(walked)
                walked = 0
            if index.is_due(frame.byte) and _has_checkpoint(segment, frame):
                index.add(frame)
                entries += 1
    progress(walked)
    return entries


def _remove_orphan(files: FileSystem, path: Path, base: int, gate: RetentionGate) -> None:
    """Remove the index of a segment that retention has removed during the walk."""
    with gate:
        if base <= gate.removed_through:
            files.remove(index_path(path))


def _has_checkpoint(segment: Segment, frame: FrameHeader) -> bool:
    """Return whether a walk from *frame* finds all positions. Only such frames are entered."""
    source = segment.source(frame)
    return source is not None and source.checkpoint is not None

"""Sealed segments whose index was lost or damaged get it again, silently.

An index is never synced, so each power cut may cost the one that was being
written. Nothing depends on it but the length of a walk.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING

from transporter.errors import Corrupt
from transporter.log.index import IndexWriter, nearest
from transporter.log.segment import Segment, segment_bases, segment_name

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.log.filesystem import FileSystem
    from transporter.log.format import FrameHeader

_END = (1 << 63) - 1


def reindex(files: FileSystem, directory: Path) -> int:
    """Complete the index of every sealed segment in *directory*; return how many entries it took.

    For the process that owns the log. A whole index costs a walk over its last
    stride, a missing one a walk over the segment's frame headers. Whatever keeps
    an index from being written is no reason to fail: it stays as it is.
    """
    entries = 0
    for base in segment_bases(files, directory)[:-1]:
        with suppress(OSError, Corrupt):
            entries += _complete(files, directory / segment_name(base))
    return entries


def _complete(files: FileSystem, path: Path) -> int:
    entries = 0
    with (
        closing(Segment(files, path)) as segment,
        closing(IndexWriter(files, segment)) as index,
    ):
        for frame in segment.frames(nearest(files, segment, _END)):
            if index.due(frame.byte) and _has_checkpoint(segment, frame):
                index.note(frame)
                entries += 1
    return entries


def _has_checkpoint(segment: Segment, frame: FrameHeader) -> bool:
    """Tell whether a walk that begins at *frame* knows all positions; only such are entered."""
    source = segment.source(frame)
    return source is not None and source.checkpoint is not None

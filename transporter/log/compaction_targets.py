"""The segments chosen by a compaction, with the findings about each."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from transporter.errors import Corrupt
from transporter.log.sealed_segments import Chunk, SealedSegment, chunks_of, unreadable_as_damage
from transporter.log.segment_rewriter import FRAME_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from transporter.log.segment import Segment

MASK_ROWS: Final = 1 << 28
"""Offsets remembered at once, with a bit each: 32 MiB."""
_TINY: Final = 64
"""Frames per MiB of a segment above which joining them is worth a copy."""


@dataclass(slots=True)
class CompactionTarget:
    """A segment under compaction: its chunks, and the obsolete rows of each.

    ``deletes`` counts its entries with the operation ``delete``.
    """

    sealed: SealedSegment
    chunks: list[Chunk]
    obsolete: list[pa.BooleanArray]
    deletes: int = 0

    @property
    def rows(self) -> int:
        """Entries in the segment."""
        return sum(chunk.rows for chunk in self.chunks)

    def mark_obsolete(self, number: int, obsolete: pa.BooleanArray) -> None:
        """Mark the rows of one chunk that a pass found obsolete."""
        self.obsolete[number] = pc.or_(self.obsolete[number], obsolete)

    def keep_last_entry(self) -> None:
        """Keep the segment's last entry: it marks the end of its covered offsets."""
        last = self.obsolete[-1]
        end = pa.array([False])
        self.obsolete[-1] = pa.concat_arrays([last.slice(0, len(last) - 1), end])

    @property
    def dropped_entries(self) -> int:
        """Number of obsolete entries."""
        return sum(mask.true_count for mask in self.obsolete)

    @property
    def has_tiny_frames(self) -> bool:
        """Whether the frames are so small that joining them is worth a copy."""
        frames = sum(chunk.frames for chunk in self.chunks)
        return frames > _TINY * (1 + self.sealed.size // FRAME_BYTES)


def group_targets(targets: Sequence[SealedSegment]) -> Iterator[list[SealedSegment]]:
    """Split *targets* into groups so that the memory for one group's rows is bounded."""
    group: list[SealedSegment] = []
    rows = 0
    for each in targets:
        size = each.end - each.base + 1
        if group and rows + size > MASK_ROWS:
            yield group
            group, rows = [], 0
        group.append(each)
        rows += size
    if group:
        yield group


def undamaged_chunks(segment: Segment, end: int, progress: Callable[[int], None]) -> list[Chunk]:
    """Return the chunks before the first damage. *progress* is called with the bytes read."""
    found = []
    with suppress(Corrupt), unreadable_as_damage(segment):
        for chunk in chunks_of(segment, end):
            progress(chunk.walked_bytes)
            found.append(chunk)
    return found

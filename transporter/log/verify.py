"""Examination of a log for damage: reads every byte of every segment, changes nothing.

``log verify`` reports its result, and ``log repair`` acts on it.
"""

from __future__ import annotations

import uuid
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from transporter.errors import Corrupt
from transporter.log import format as layout
from transporter.log.recovery import proved_floor
from transporter.log.segment import MisplacedSegment, Segment, segment_bases, segment_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from transporter.log.filesystem import FileSystem

    Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Damage:
    """A place in a file that is not as it was written.

    Attributes:
        first: the first offset that cannot be read because of it.
        last: the last such offset. ``last < first`` means none: only a header or a reader's
            position is damaged.
        resume: the byte where intact frames continue, if any do.

    """

    file: str
    byte: int
    problem: str
    first: int
    last: int
    resume: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no entry is lost."""
        return self.last < self.first


@dataclass(frozen=True, slots=True)
class ExaminedSegment:
    """A segment and the damage in it or before it, in the order of offsets.

    Attributes:
        end: the last offset that it must hold, by the next header or the floor.
        is_salvaged: whether its own header is lost and ``header`` a makeshift.

    """

    path: Path
    header: layout.SegmentHeader
    end: int
    damages: tuple[Damage, ...]
    is_salvaged: bool = False

    def open(self, files: FileSystem) -> Segment:
        """Open the segment, even if its header is damaged."""
        return Segment(files, self.path, self.header if self.is_salvaged else None)


@dataclass(frozen=True, slots=True)
class Examination:
    """All segments of a log, the files that do not belong to it, and its proved floor."""

    segments: tuple[ExaminedSegment, ...]
    unusable: tuple[Damage, ...]
    floor: int

    @property
    def damages(self) -> tuple[Damage, ...]:
        """All damage in the log."""
        return (*self.unusable, *(each for part in self.segments for each in part.damages))


def examine(
    files: FileSystem,
    directory: Path,
    log_id: str,
    proved: int,
    progress: Progress = lambda _: None,
) -> Examination:
    """Examine every frame of every segment in *directory*.

    Args:
        files: the file system of the log.
        directory: the log's directory.
        log_id: the log's id, which every segment must name.
        proved: the highest proved offset.
        progress: called with the number of further bytes examined.

    """
    heads = [_read_head(files, directory, base, log_id) for base in segment_bases(files, directory)]
    useless = tuple(head for head in heads if isinstance(head, Damage))
    ours, replaced = _split_replaced([head for head in heads if not isinstance(head, Damage)])
    useless += replaced
    if not ours:
        return Examination((), useless, proved)
    with closing(ours[-1].open(files)) as last:
        floor = proved_floor(files, last, proved)
    ends = [*(after.header.previous for _, after in pairwise(ours)), floor]
    examined = [
        _examine_segment(files, head, end, progress) for head, end in zip(ours, ends, strict=True)
    ]
    return Examination(tuple(_pass_on_missing(examined)), useless, floor)


def replaced_segments(files: FileSystem, directory: Path, log_id: str) -> tuple[Damage, ...]:
    """Return the segments that another segment has replaced, reading only headers."""
    heads = [_read_head(files, directory, base, log_id) for base in segment_bases(files, directory)]
    return _split_replaced([head for head in heads if not isinstance(head, Damage)])[1]


def _split_replaced(
    heads: list[ExaminedSegment],
) -> tuple[list[ExaminedSegment], tuple[Damage, ...]]:
    """Separate the segments from those that an interrupted repair replaced but did not remove."""
    ours: list[ExaminedSegment] = []
    replaced = []
    for head in reversed(heads):
        base = head.header.base
        if ours and ours[-1].header.previous < base:
            problem = "another segment has replaced this one"
            replaced.append(Damage(str(head.path), 0, problem, base, base - 1))
        else:
            ours.append(head)
    return ours[::-1], tuple(replaced)


def _read_head(
    files: FileSystem, directory: Path, base: int, log_id: str
) -> ExaminedSegment | Damage:
    """Read or make up the header of a segment. Return damage if neither is possible."""
    path = directory / segment_name(base)
    makeshift = layout.SegmentHeader(uuid.UUID(log_id).bytes, 0, base, base - 1, base, 0, 0)
    try:
        with closing(Segment(files, path)) as segment:
            header = segment.header
    except MisplacedSegment as error:
        return Damage(str(path), 0, error.problem, base, base - 1)
    except Corrupt as error:
        return _salvage(files, path, makeshift, error.problem)
    if header.log_id != makeshift.log_id:
        return Damage(str(path), 16, "this segment belongs to another log", base, base - 1)
    return ExaminedSegment(path, header, base - 1, ())


def _salvage(
    files: FileSystem, path: Path, makeshift: layout.SegmentHeader, problem: str
) -> ExaminedSegment | Damage:
    base = makeshift.base
    try:
        with closing(Segment(files, path, makeshift)) as segment:
            bad = Damage(str(path), 0, problem, base, base - 1, segment.first_byte)
    except Corrupt as error:
        return Damage(str(path), 0, error.problem, base, base - 1)
    return ExaminedSegment(path, makeshift, base - 1, (bad,), is_salvaged=True)


def _examine_segment(
    files: FileSystem, head: ExaminedSegment, end: int, progress: Progress
) -> ExaminedSegment:
    with closing(head.open(files)) as segment:
        found = _join_adjacent(_find_damage(segment, end, progress))
        return replace(head, end=end, damages=(*head.damages, *found))


def _find_damage(segment: Segment, end: int, progress: Progress) -> Iterator[Damage]:
    """Yield the damage among the offsets up to *end*, frame by frame."""
    byte, expected = segment.first_byte, segment.header.base
    while expected <= end:
        frame = segment.frame_at(byte)
        if frame is None or frame.first > _highest_following(segment, expected):
            behind = (later for later in segment.later_frames(byte) if later.first >= expected)
            frame = next(behind, None)
            last = end if frame is None else min(end, frame.first - 1)
            resume = None if frame is None else frame.byte
            problem = "no valid frame where one was written"
            yield Damage(str(segment.path), byte, problem, expected, last, resume)
            if frame is None:
                return
        yield from _frame_damage(segment, frame)
        progress(frame.end - byte)
        byte, expected = frame.end, frame.last + 1


def _join_adjacent(damages: Iterable[Damage]) -> Iterator[Damage]:
    """Join adjacent damage, with nothing intact in between, into one gap."""
    before: Damage | None = None
    for damage in damages:
        if before is None:
            before = damage
        elif damage.first == before.last + 1 and not (damage.is_empty or before.is_empty):
            before = replace(before, last=damage.last, resume=damage.resume)
        else:
            yield before
            before = damage
    if before is not None:
        yield before


def _highest_following(segment: Segment, expected: int) -> int:
    """Return the highest offset that may follow. Behind moved frames, some offsets are unused."""
    return max(expected, segment.header.next_offset)


def _frame_damage(segment: Segment, frame: layout.FrameHeader) -> Iterator[Damage]:
    file = str(segment.path)
    try:
        segment.entries(frame)
    except Corrupt as error:
        place = frame.payload_byte
        yield Damage(file, place, error.problem, frame.first, frame.last, frame.end)
        return
    try:
        segment.source(frame)
    except Corrupt as error:
        place = frame.extension_byte
        yield Damage(file, place, error.problem, frame.first, frame.first - 1, frame.byte)


def _pass_on_missing(segments: Iterable[ExaminedSegment]) -> Iterator[ExaminedSegment]:
    """Move missing offsets at the end of a segment to the next one, whose header declares them."""
    before: ExaminedSegment | None = None
    for part in segments:
        missing: tuple[Damage, ...] = ()
        if before is not None:
            own, missing = _split_undeclarable(before)
            yield replace(before, damages=own)
        before = replace(part, damages=(*missing, *part.damages))
    if before is not None:
        yield before


def _split_undeclarable(part: ExaminedSegment) -> tuple[tuple[Damage, ...], tuple[Damage, ...]]:
    """Separate the damage of a segment from the damage that it cannot declare itself."""
    own = tuple(each for each in part.damages if each.is_empty or each.last < part.end)
    missing = part.damages[len(own) :]
    if missing and missing[0].first <= part.header.base:
        # Nothing of this segment is left. The missing offsets before it move along, and so
        # does the gap that its header declares, because one header can declare one gap only.
        own, (foremost, *others) = (), part.damages
        first = min(foremost.first, part.header.previous + 1)
        missing = (replace(foremost, first=first), *others)
    # Nothing intact of this file follows them, and anything later belongs to the next segment.
    return own, tuple(replace(each, resume=None) for each in missing)

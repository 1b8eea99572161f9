"""Recovery: the survey of the last segment after a stop, and the move of its tail.

docs/design/log.md, "Recovery", has the argument. Everything at or below the *floor* was proved
durable, so damage there is corruption and refused. Everything above it was never
promised, so damage there is a torn tail and cut. A file left by an unclean stop is never
extended. Its whole frames above the floor are copied into a new segment (Invariants 2, 3,
4 and 13).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from transporter.errors import Corrupt
from transporter.log import format as layout
from transporter.log.filesystem import open_file
from transporter.log.index import nearest_byte
from transporter.log.segment import Segment, SegmentEnd, Stop, write_segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from transporter.log.filesystem import FileSystem
    from transporter.log.meta import CleanMark

_LAST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Walk:
    """A walk over a segment's last frames.

    ``positions`` are the readers' newest positions behind the walked frames.
    """

    frames: list[layout.FrameHeader]
    positions: dict[str, str]
    stop: Stop

    def last_offset(self, segment: Segment) -> int:
        """Return the last offset that the walk found, or the one before the segment."""
        return self.frames[-1].last if self.frames else segment.header.base - 1


@dataclass(frozen=True, slots=True)
class TailSurvey:
    """Findings about the last segment.

    Attributes:
        floor: the floor, rounded up to the end of the frame that holds it.
        tail: the whole frames above the floor, in order.
        tail_byte: the place where the tail begins.
        next_offset: beyond every offset that was ever assigned.
        stop: the end of the frames, and its kind.

    """

    floor: int
    tail: list[layout.FrameHeader]
    tail_byte: int
    positions: dict[str, str]
    next_offset: int
    stop: Stop
    last: int
    clean: bool


def survey(files: FileSystem, segment: Segment, proved: int, clean: CleanMark | None) -> TailSurvey:
    """Find the floor of *segment* and the whole frames above it. Changes nothing.

    Args:
        files: the file system of the segment.
        segment: the last segment of the log.
        proved: the highest offset that ``meta`` and the offset logs prove durable.
        clean: the mark of a clean stop, if ``meta`` holds one.

    Raises:
        Corrupt: a frame at or below the floor is damaged or missing.

    """
    walk, cut = _frames_and_cut(segment, walk_tail(files, segment))
    floor = _highest_proof(segment, proved, walk, cut)
    if walk.frames and walk.frames[0].first > floor:
        # The index led beyond unproved frames, or right behind the floor. The frame that holds
        # the floor must exist before the frames behind it are moved.
        walk, cut = _frames_and_cut(segment, _walk(files, segment, floor))
    if walk.last_offset(segment) < floor:
        raise Corrupt(
            f"the log ends at offset {walk.last_offset(segment)}, but offset {floor} was proved "
            "durable; restore the file, or see 'transporter log repair'",
            str(segment.path),
            walk.stop.byte,
            walk.last_offset(segment) + 1,
        )
    return _survey_above(files, segment, floor, walk, cut, clean)


def proved_floor(files: FileSystem, segment: Segment, proved: int) -> int:
    """Return the floor from *segment*, the log's last, and *proved*, even if it is damaged."""
    walk, cut = _frames_and_cut(segment, walk_tail(files, segment))
    floor = _highest_proof(segment, proved, walk, cut)
    return next((f.last for f in (*walk.frames, *cut) if f.first <= floor <= f.last), floor)


def _highest_proof(
    segment: Segment, proved: int, walk: Walk, cut: Iterable[layout.FrameHeader]
) -> int:
    proofs = (frame.durable for frame in (*walk.frames, *cut))
    return max(proved, segment.header.base - 1, *proofs)


def _frames_and_cut(segment: Segment, walk: Walk) -> tuple[Walk, list[layout.FrameHeader]]:
    """Return *walk* and the valid frames behind the damage that ended it, if any."""
    bad = walk.stop.end is SegmentEnd.BAD
    return walk, list(segment.later_frames(walk.stop.byte)) if bad else []


def walk_tail(files: FileSystem, segment: Segment) -> Walk:
    """Walk the last frames of *segment*, from the last index entry that it confirms."""
    return _walk(files, segment, _LAST)


def last_covered_offset(files: FileSystem, segment: Segment) -> int | None:
    """Return the last offset that *segment* holds, by its trailer or else by its frames.

    ``None`` if damage ends the frames. The route that needs them will find it.
    """
    trailer = segment.trailer()
    if trailer is not None:
        return trailer.last
    walk = walk_tail(files, segment)
    return None if walk.stop.end is SegmentEnd.BAD else walk.last_offset(segment)


def _walk(files: FileSystem, segment: Segment, offset: int) -> Walk:
    """Walk from the nearest index entry below *offset* to the end of the frames."""
    start = nearest_byte(files, segment, offset)
    frames: list[layout.FrameHeader] = []
    positions = dict(segment.header.positions)
    expected, byte = segment.header.base, start
    for frame in segment.frames(start):
        if frame.first < expected:
            break
        source = source_of(segment, frame)
        if not frames and start != segment.first_byte:
            if source is None or source.checkpoint is None:
                return _walk(files, segment, frame.first - 1)
            positions = dict(source.checkpoint)
        _advance(positions, source)
        frames.append(frame)
        expected, byte = frame.last + 1, frame.end
    return Walk(frames, positions, segment.stop_at(byte))


def source_of(segment: Segment, frame: layout.FrameHeader) -> layout.Source | None:
    """Return the source of *frame*, or ``None`` if it is damaged.

    An unreadable position only makes its reader go back further.
    """
    with suppress(Corrupt):
        return segment.source(frame)
    return None


def _advance(positions: dict[str, str], source: layout.Source | None) -> None:
    if source is not None and source.position is not None:
        positions[source.reader] = source.position


def _survey_above(
    files: FileSystem,
    segment: Segment,
    floor: int,
    walk: Walk,
    cut: list[layout.FrameHeader],
    clean: CleanMark | None,
) -> TailSurvey:
    floor = next((f.last for f in walk.frames if f.first <= floor <= f.last), floor)
    above = [frame for frame in walk.frames if frame.first > floor]
    whole = _intact_frames(segment, above)
    lost = [*above[len(whole) :], *cut]
    ends = [walk.last_offset(segment), floor, *(frame.last for frame in lost)]
    is_clean = (
        clean is not None
        and clean.file == segment.path.name
        and clean.end == walk.stop.byte == segment.size()
        and not above
    )
    return TailSurvey(
        floor=floor,
        tail=whole,
        tail_byte=_byte_behind(walk, floor),
        positions=_positions_at(files, segment, walk, floor),
        next_offset=max(segment.header.next_offset, 1 + max(ends)),
        stop=walk.stop,
        last=whole[-1].last if whole else floor,
        clean=is_clean,
    )


def _byte_behind(walk: Walk, floor: int) -> int:
    """Return the place where the first frame above the *floor* begins, or would begin."""
    behind = (frame.byte for frame in walk.frames if frame.first > floor)
    return next(behind, walk.stop.byte)


def _intact_frames(
    segment: Segment, frames: Iterable[layout.FrameHeader]
) -> list[layout.FrameHeader]:
    """Return the frames before the first one whose bytes do not match their checksums."""
    whole = []
    for frame in frames:
        if not segment.is_intact(frame):
            break
        whole.append(frame)
    return whole


def _positions_at(files: FileSystem, segment: Segment, walk: Walk, floor: int) -> dict[str, str]:
    """Return the readers' newest positions at *floor*, before the frames above it."""
    if not walk.frames or walk.frames[-1].last <= floor:
        return walk.positions
    positions = dict(segment.header.positions)
    for frame in _walk(files, segment, floor).frames:
        if frame.last > floor:
            # A checkpoint from here on names positions of frames that may be cut.
            break
        source = source_of(segment, frame)
        if source is not None and source.checkpoint is not None:
            positions = dict(source.checkpoint)
        _advance(positions, source)
    return positions


def copy_tail(
    files: FileSystem,
    segment: Segment,
    findings: TailSurvey,
    *,
    segment_id: int,
    epoch: int,
    created_at: int,
) -> Path:
    """Copy the whole frames above the floor into a new segment, durably on return.

    If nothing of the last segment lies at or below the floor, the copy takes its place: it
    has the same base, so the rename replaces that file. Otherwise the copied frames are cut
    from the old file, and its remaining bytes behind the floor are never read again.
    """
    old, base = segment.header, findings.floor + 1
    header = layout.SegmentHeader(
        log_id=old.log_id,
        segment_id=segment_id,
        base=base,
        previous=old.previous if base == old.base else findings.floor,
        next_offset=max(findings.next_offset, base),
        epoch=epoch,
        created_at=created_at,
        positions=findings.positions,
        lost=old.lost and base == old.base,
    )
    if findings.stop.end is SegmentEnd.CLEAN:
        # Cut preallocated zeros, because the copy may need their room.
        _truncate(files, segment, findings.stop.byte)
    path = write_segment(
        files, segment.path.parent, header, _moved_frames(segment, findings, header)
    )
    if path != segment.path:
        _truncate(files, segment, findings.tail_byte)
    return path


def _truncate(files: FileSystem, segment: Segment, byte: int) -> None:
    with open_file(files, segment.path, write=True) as file:
        file.truncate(byte)


def _moved_frames(
    segment: Segment, findings: TailSurvey, header: layout.SegmentHeader
) -> Iterator[bytes]:
    place = len(header.encode())
    for frame in findings.tail:
        extension, payload = segment.read_raw(frame)
        moved = replace(
            frame,
            segment_id=header.segment_id,
            byte=place,
            # Only the proof of the old file counts: this copy is not durable yet.
            durable=min(frame.durable, findings.floor),
        )
        yield layout.encode_frame(moved, extension, payload)
        place = moved.end

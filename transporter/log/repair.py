"""Repair of a damaged log: keeps intact entries and declares lost ones.

Nothing is deleted: each file is first copied into ``quarantine/``. The header of the
segment behind a gap of lost entries declares it. Routes that had not passed the gap halt
there until an operator has acked it.

The frames behind damage move into a segment of their own, the last part first. Only then
is the old file cut or removed. After a crash, a second repair therefore brings the log to
the same end.
"""

from __future__ import annotations

import secrets
import uuid
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count, pairwise
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from transporter.errors import Corrupt
from transporter.log import format as layout
from transporter.log.filesystem import make_directory, open_file, replace_durably, sync_directory
from transporter.log.index import index_path
from transporter.log.meta import META, Meta, read_meta, write_meta
from transporter.log.recovery import source_of, walk_tail
from transporter.log.segment import Segment, segment_bases, segment_name, write_segment
from transporter.log.verify import replaced_segments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.log.filesystem import File, FileSystem
    from transporter.log.verify import Examination, ExaminedSegment

QUARANTINE: Final = "quarantine"
_BLOCK: Final = 1 << 20
_NO_END: Final = (1 << 63) - 1


class Quarantine:
    """A folder of one repair for copies of the files as found. Created with the first file."""

    def __init__(self, files: FileSystem, directory: Path, now: int) -> None:
        """Choose a free name below *directory* from the time *now* (µs UTC)."""
        stamp = datetime.fromtimestamp(now / 1e6, UTC).strftime("%Y%m%dT%H%M%SZ")
        taken = files.names(directory / QUARANTINE)
        names = (f"{stamp}-{number}" if number else stamp for number in count())
        self.folder = directory / QUARANTINE / next(name for name in names if name not in taken)
        self.kept: list[str] = []
        self._files, self._directory = files, directory

    def keep_copy(self, path: Path) -> None:
        """Copy *path* here, durably on return. A missing file needs no copy."""
        name = "-".join(path.relative_to(self._directory).parts)
        if name in self.kept:
            return
        with suppress(FileNotFoundError), open_file(self._files, path) as file:
            make_directory(self._files, self.folder)
            replace_durably(self._files, self.folder / name, _read_blocks(file))
            self.kept.append(name)


def _read_blocks(file: File) -> Iterator[bytes]:
    return (file.pread(_BLOCK, byte) for byte in range(0, file.size(), _BLOCK))


def log_id_of(files: FileSystem, directory: Path) -> str:
    """Return the id of the log in *directory*, from ``meta`` or from most of its segments.

    Raises:
        Corrupt: neither can be read.

    """
    with suppress(Corrupt):
        if (meta := read_meta(files, directory)) is not None:
            return meta.log_id
    ids = Counter(header.log_id for header in _read_headers(files, directory))
    if not ids:
        raise Corrupt("neither meta nor any segment header can be read", str(directory))
    return str(uuid.UUID(bytes=ids.most_common(1)[0][0]))


def _read_headers(files: FileSystem, directory: Path) -> Iterator[layout.SegmentHeader]:
    for base in segment_bases(files, directory):
        with (
            suppress(Corrupt),
            closing(Segment(files, directory / segment_name(base))) as segment,
        ):
            yield segment.header


def repair_meta(files: FileSystem, directory: Path, quarantine: Quarantine) -> Meta:
    """Return the log's meta, made again from its segments if it is damaged or missing."""
    with suppress(Corrupt):
        if (meta := read_meta(files, directory)) is not None:
            return meta
    quarantine.keep_copy(directory / META)
    epochs = [header.epoch for header in _read_headers(files, directory)]
    with suppress(Corrupt, IndexError):
        last = directory / segment_name(segment_bases(files, directory)[-1])
        with closing(Segment(files, last)) as segment:
            epochs.extend(frame.epoch for frame in segment.later_frames(0))
    meta = Meta(log_id_of(files, directory), max(epochs, default=0), proved=-1)
    write_meta(files, directory, meta)
    return meta


def repair_segments(
    files: FileSystem, directory: Path, examination: Examination, quarantine: Quarantine
) -> None:
    """Repair every segment. The log's lock must be held.

    Args:
        files: the file system of the log.
        directory: the log's directory.
        examination: the result of an examination under this lock.
        quarantine: keeps copies of the changed files.

    """
    meta = repair_meta(files, directory, quarantine)
    for damage in examination.damages:
        quarantine.keep_copy(directory / damage.file.rpartition("/")[2])
    for damage in examination.unusable:
        _remove(files, directory / damage.file.rpartition("/")[2])
    if not examination.segments:
        _write_empty(files, directory, meta, examination.floor)
    befores = [None, *examination.segments]
    for before, part in reversed(list(zip(befores, examination.segments, strict=False))):
        if part.damages:
            quarantine.keep_copy(part.path)
            _SegmentRepair(files, part, before, meta.epoch, examination.floor).run(
                is_last=part is examination.segments[-1]
            )
    for damage in replaced_segments(files, directory, meta.log_id):
        _remove(files, directory / damage.file.rpartition("/")[2])


def _remove(files: FileSystem, path: Path) -> None:
    files.remove(path)
    files.remove(index_path(path))
    sync_directory(files, path.parent)


def _write_empty(files: FileSystem, directory: Path, meta: Meta, floor: int) -> None:
    """Begin again behind the *floor* in a log that has lost all its segments."""
    header = layout.SegmentHeader(
        log_id=uuid.UUID(meta.log_id).bytes,
        segment_id=secrets.randbits(63),
        base=floor + 1,
        previous=-1,
        next_offset=floor + 1,
        epoch=meta.epoch,
        created_at=0,
        lost=floor >= 0,
    )
    write_segment(files, directory, header)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A future segment: its place among the offsets, and the place of its frames."""

    base: int
    previous: int
    lost: bool
    resume: int | None
    stop: int


class _SegmentRepair:
    """The repair of one examined segment."""

    def __init__(
        self,
        files: FileSystem,
        part: ExaminedSegment,
        before: ExaminedSegment | None,
        epoch: int,
        floor: int,
    ) -> None:
        """Prepare the repair of *part*, which follows *before*."""
        self._files, self._part, self._before = files, part, before
        self._epoch, self._floor = epoch, floor
        base = part.header.base
        self._leading = [damage for damage in part.damages if damage.first <= base]
        self._inner = part.damages[len(self._leading) :]

    def run(self, *, is_last: bool) -> None:
        """Write a segment for each intact part, then cut the old one behind its first part."""
        with closing(self._part.open(self._files)) as segment:
            pieces = [*self._first_piece(segment), *self._inner_pieces()]
            ends = [after.previous for _, after in pairwise(pieces)]
            end = _NO_END if is_last else self._part.end
            for piece, stop in reversed(list(zip(pieces, [*ends, end], strict=True))):
                self._write(segment, replace(piece, stop=stop), is_last=stop == _NO_END)
        if not self._leading:
            self._truncate(self._inner[0].byte)

    def _first_piece(self, segment: Segment) -> Iterator[_Piece]:
        """Yield the replacement of the segment itself, if damage reaches its beginning."""
        if not self._leading:
            return
        old, leading = self._part.header, self._leading
        own = [damage for damage in leading if damage.file == str(self._part.path)]
        yield _Piece(
            base=max(old.base, *(damage.last + 1 for damage in leading)),
            previous=min(old.previous, *(damage.first - 1 for damage in leading)),
            lost=old.lost or not all(damage.is_empty for damage in leading),
            resume=own[-1].resume if own else segment.first_byte,
            stop=_NO_END,
        )

    def _inner_pieces(self) -> Iterator[_Piece]:
        for damage in self._inner:
            base, previous = damage.last + 1, damage.first - 1
            yield _Piece(base, previous, not damage.is_empty, damage.resume, _NO_END)

    def _write(self, segment: Segment, piece: _Piece, *, is_last: bool) -> None:
        old = self._part.header
        following = max(piece.base, min(old.next_offset, piece.stop + 1))
        if is_last:
            used = (frame.last for frame in segment.later_frames(0))
            following = 1 + max(piece.base - 1, self._floor, old.next_offset - 1, *used)
        header = layout.SegmentHeader(
            log_id=old.log_id,
            segment_id=secrets.randbits(63),
            base=piece.base,
            previous=piece.previous,
            next_offset=following,
            epoch=self._epoch,
            created_at=old.created_at,
            positions=self._positions_at(segment, piece.resume),
            lost=piece.lost,
        )
        kept = () if piece.resume is None else _moved_frames(segment, piece, header)
        write_segment(self._files, self._part.path.parent, header, kept)

    def _positions_at(self, segment: Segment, byte: int | None) -> dict[str, str]:
        """Return the readers' newest positions before *byte*, as far as they can be read."""
        positions = dict(segment.header.positions)
        if self._part.is_salvaged and self._before is not None:
            with closing(self._before.open(self._files)) as before:
                positions = walk_tail(self._files, before).positions
        end = segment.size() if byte is None else byte
        for frame in segment.later_frames(0):
            source = source_of(segment, frame)
            if frame.byte > end or source is None:
                continue
            positions = dict(source.checkpoint or positions)
            if frame.byte < end and source.position is not None:
                positions[source.reader] = source.position
        return positions

    def _truncate(self, byte: int) -> None:
        # Bytes behind the end that the next header declares are never read: no sync is needed.
        with open_file(self._files, self._part.path, write=True) as file:
            file.truncate(byte)


def _moved_frames(segment: Segment, piece: _Piece, header: layout.SegmentHeader) -> Iterator[bytes]:
    """Yield the whole frames of *piece* as frames of the segment that *header* begins."""
    place, expected = len(header.encode()), piece.base
    allowed = max(segment.header.next_offset, piece.base)
    for frame in segment.frames(piece.resume):
        extension, payload = segment.read_raw(frame)
        torn = frame.first > max(expected, allowed) or crc32c(payload) != frame.payload_crc
        if frame.first > piece.stop or torn:
            return
        try:
            segment.source(frame)
        except Corrupt:
            extension = b""
        moved = replace(
            frame,
            segment_id=header.segment_id,
            byte=place,
            extension_length=len(extension),
            extension_crc=crc32c(extension),
        )
        yield layout.encode_frame(moved, extension, payload)
        place, expected = moved.end, frame.last + 1

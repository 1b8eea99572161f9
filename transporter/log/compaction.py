"""Compaction: sealed segments lose the entries that later ones made obsolete (Invariant 11).

Each segment is replaced by one of the same base that covers the same offsets. Original
offsets stay. An entry is obsoleted only by a later one that itself lies in a sealed
segment below the least watermark. Some entries are always kept: the last entry of each
namespace, and the last entry of each segment, which marks its end. With ``keep: key`` the
last entry of each key and every keyless entry are kept, too.

A compaction may read for hours and blocks nothing. Segments may be removed and replays
begun meanwhile. Only the switch of two files is done in the retention gate.
"""

from __future__ import annotations

from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from transporter.errors import Corrupt
from transporter.log import format as layout
from transporter.log.compaction_targets import CompactionTarget, group_targets, undamaged_chunks
from transporter.log.filesystem import RealFileSystem, translate_os_errors
from transporter.log.key_history import BackwardPass, Keep, NewestOffsets, keys_of
from transporter.log.retention_gate import RetentionGate
from transporter.log.sealed_segments import (
    SealedSegment,
    StoredFrame,
    chunks_of,
    entries_of,
    iter_sealed,
    read_frames,
    unreadable_as_damage,
)
from transporter.log.segment import Segment
from transporter.log.segment_rewriter import FRAME_BYTES, Replacement, refuse_without_room
from transporter.log.wall_times import WallTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from transporter.log.filesystem import FileSystem

_LONG: Final = 1 << 16
_SECOND: Final = 1_000_000
_STEP: Final = 256 << 10
"""Bytes read between two checks that the segment still exists."""


class _SegmentGone(Exception):
    """Raised when retention has removed the segment."""


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """Settings of a compaction.

    Attributes:
        after: seconds since its newest entry was logged after which a segment is compacted.
        keep: the unit of which the last entry is kept.
        tombstones: further seconds for which a tombstone that is the last of its key is kept
            (``keep: key`` only).
        compression: that of rewritten frames.

    """

    after: float = 7 * 86400.0
    keep: Keep = "namespace"
    tombstones: float = 86400.0
    compression: str | None = "lz4"


@dataclass(frozen=True, slots=True)
class Compacted:
    """Result for one segment. *after* is ``None`` in a dry run, which changes nothing."""

    name: str
    entries: int
    kept: int
    before: int
    after: int | None


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a compaction or of its preview.

    Attributes:
        looked_at: the number of segments that it could choose from.
        segments: the segments that it replaced.
        problems: the segments that were left unchanged because they are damaged.
        through: the last offset of the processed segments, -1 without any. Segments behind
            it became needed meanwhile.

    """

    looked_at: int
    segments: tuple[Compacted, ...] = ()
    problems: tuple[str, ...] = ()
    through: int = -1

    @property
    def dropped_entries(self) -> int:
        """Number of entries dropped."""
        return sum(each.entries - each.kept for each in self.segments)

    @property
    def freed_bytes(self) -> int:
        """Bytes freed."""
        return sum(each.before - each.after for each in self.segments if each.after is not None)


def compact(
    directory: Path,
    files: FileSystem | None = None,
    *,
    watermark: Callable[[], int],
    settings: CompactionSettings,
    now: int,
    progress: Callable[[int], None] = lambda _: None,
    gate: RetentionGate | None = None,
) -> Report:
    """Compact the log in *directory*. Safe beside its engine, its readers and retention.

    Args:
        directory: the log's. The caller owns it, by its lock.
        files: the file system, the real one by default.
        watermark: returns the last offset that no route needs any more, durably so. Called
            again in the gate before each replacement takes a segment's place.
        settings: the settings of the compaction.
        now: the wall time, µs UTC.
        progress: called with the number of further bytes read. An exception that it raises
            ends the compaction and leaves the current segment unchanged.
        gate: the gate of the log's engine.

    Raises:
        Corrupt: a segment's header is damaged.
        LogFull: there was no room for a replacement. The segment is unchanged.
        LogPoisoned: a sync failed (Invariant 13).

    """
    files = files or RealFileSystem()
    with translate_os_errors(directory):
        run = _Compaction(files, watermark, settings, now, progress, gate or RetentionGate())
        return run.compact(directory)


def preview(
    directory: Path,
    files: FileSystem | None = None,
    *,
    watermark: int,
    settings: CompactionSettings,
    now: int,
) -> Report:
    """Return the report that :func:`compact` would give. Changes nothing and needs no lock.

    Raises:
        Corrupt: a segment's header is damaged.

    """
    files = files or RealFileSystem()
    with translate_os_errors(directory):
        run = _Compaction(files, lambda: watermark, settings, now, lambda _: None, RetentionGate())
        return run.preview(directory)


@dataclass(slots=True)
class _Compaction:
    """One compaction."""

    files: FileSystem
    watermark: Callable[[], int]
    settings: CompactionSettings
    now: int
    progress: Callable[[int], None]
    gate: RetentionGate
    problems: list[str] = field(default_factory=list)
    damaged: set[int] = field(default_factory=set)
    """The first offsets of damaged segments, which are left as they are."""
    end_keys: list[bytes] = field(default_factory=list)
    """The keys of the last entries of the segments that were passed, obsolete or not."""
    older_compacted: bool = True
    """Whether every older segment is compacted. Otherwise a tombstone may hide older entries."""
    first_needed: int | None = None
    """The first offset of a segment that became needed meanwhile."""
    times: WallTimes | None = None

    def preview(self, directory: Path) -> Report:
        sealed, targets = self._choose_segments(directory)
        found = [
            Compacted(
                target.sealed.path.name,
                target.rows,
                target.rows - target.dropped_entries,
                target.sealed.size,
                None,
            )
            for group in group_targets(targets)
            for target in self._find_obsolete(group, sealed)[0]
        ]
        told = tuple(each for each in found if each.kept < each.entries)
        return Report(len(targets), told, tuple(self.problems))

    def compact(self, directory: Path) -> Report:
        sealed, targets = self._choose_segments(directory)
        refuse_without_room(self.files, directory, max((each.size for each in targets), default=0))
        done = []
        for group in group_targets(targets):
            targets_of_group, newest = self._find_obsolete(group, sealed)
            for target in targets_of_group:
                found = self._replace(target, newest)
                if found is not None:
                    done.append(found)
        through = max((each.end for each in targets if not self._is_needed(each)), default=-1)
        return Report(len(targets), tuple(done), tuple(self.problems), through)

    def _is_needed(self, sealed: SealedSegment) -> bool:
        return self.first_needed is not None and sealed.end >= self.first_needed

    def _choose_segments(self, directory: Path) -> tuple[list[SealedSegment], list[SealedSegment]]:
        """Return the segments that may obsolete entries, and the oldest, which may lose some."""
        least = self.watermark()
        found = iter_sealed(self.files, directory)
        below = list(takewhile(lambda each: each.end <= least, found))
        oldest = self.now - round(self.settings.after * _SECOND)
        times = self.times = WallTimes(self.files, directory, self.now)
        return below, list(takewhile(lambda each: times.newest_time(each) < oldest, below))

    def _find_obsolete(
        self, group: Sequence[SealedSegment], sealed: Sequence[SealedSegment]
    ) -> tuple[list[CompactionTarget], NewestOffsets]:
        """Find the obsolete entries of *group*, in as many passes as memory requires."""
        targets = {each.base: target for each in group if (target := self._make_target(each))}
        newest = NewestOffsets()
        lower, first = None, True
        while first or lower is not None:
            backward_pass = BackwardPass(lower)
            for each in reversed([one for one in sealed if one.base >= group[0].base]):
                self._scan(each, targets.get(each.base), backward_pass, newest if first else None)
            lower, first = backward_pass.finish(), False
        for target in targets.values():
            target.keep_last_entry()
        return list(targets.values()), newest

    def _make_target(self, sealed: SealedSegment) -> CompactionTarget | None:
        """Return the segment with nothing obsolete yet, or ``None`` if it is damaged or gone."""
        chunks = []
        try:
            with self._open(sealed) as segment, unreadable_as_damage(segment):
                for chunk in chunks_of(segment, sealed.end):
                    self._count_read(sealed, chunk.walked_bytes)
                    chunks.append(chunk)
        except Corrupt as error:
            self._note_damage(sealed, error)
            return None
        except _SegmentGone:
            return None
        nothing = [pa.repeat(pa.scalar(value=False), chunk.rows) for chunk in chunks]
        return CompactionTarget(sealed, chunks, nothing)

    @contextmanager
    def _open(self, sealed: SealedSegment) -> Iterator[Segment]:
        self._refuse_gone(sealed)
        try:
            segment = Segment(self.files, sealed.path)
        except FileNotFoundError:
            raise _SegmentGone from None
        with closing(segment):
            yield segment

    def _count_read(self, sealed: SealedSegment, size: int) -> None:
        """Count *size* bytes of *sealed* as read. Stop if it is gone: its room is needed now."""
        for start in range(0, size, _STEP):
            self._refuse_gone(sealed)
            self.progress(min(_STEP, size - start))

    def _refuse_gone(self, sealed: SealedSegment) -> None:
        if sealed.end <= self.gate.removed_through:
            raise _SegmentGone

    def _note_damage(self, sealed: SealedSegment, error: Corrupt) -> None:
        self.older_compacted = False
        self.damaged.add(sealed.base)
        if str(error) not in self.problems:
            self.problems.append(str(error))

    def _scan(
        self,
        sealed: SealedSegment,
        target: CompactionTarget | None,
        backward_pass: BackwardPass,
        newest: NewestOffsets | None,
    ) -> None:
        """Scan a segment backwards and mark the obsolete rows of *target*.

        The first pass also notes the *newest* entry of each namespace.
        """
        # A segment that is gone obsoletes nothing: all segments before it are gone too.
        with suppress(_SegmentGone), self._open(sealed) as segment:
            spend = partial(self._count_read, sealed)
            chunks = target.chunks if target else undamaged_chunks(segment, sealed.end, spend)
            for number in reversed(range(len(chunks))):
                spend(chunks[number].size)
                try:
                    with unreadable_as_damage(segment):
                        found = entries_of(segment, read_frames(segment, chunks[number]))
                except Corrupt as error:
                    # Unreadable entries obsolete nothing.
                    self._note_damage(sealed, error)
                    continue
                keys = keys_of(found, self.settings.keep)
                backward_pass.add(
                    keys, partial(target.mark_obsolete, number) if target else _ignore
                )
                if newest is not None and self.settings.keep == "key":
                    newest.add(found.column("namespace"), found.column("offset"))
                    if target is not None:
                        target.deletes += _count_deletes(found)

    def _replace(self, target: CompactionTarget, newest: NewestOffsets) -> Compacted | None:
        """Replace *target* by its remaining entries. Return ``None`` if it stays as it is."""
        sealed = target.sealed
        try:
            if self._is_held(sealed) or sealed.base in self.damaged:
                return None
            with self._open(sealed) as segment:
                worthwhile = target.dropped_entries or target.has_tiny_frames
                if worthwhile or (target.deletes and self._is_cold(sealed)):
                    return self._rewrite(segment, target, newest)
                last = read_frames(segment, target.chunks[-1])[-1]
                self._note_last_key(entries_of(segment, [last]))
        except Corrupt as error:
            self._note_damage(sealed, error)
        except _SegmentGone:
            # None of its entries can come back, and the incomplete file is removed.
            pass
        return None

    def _is_held(self, sealed: SealedSegment) -> bool:
        """Return whether *sealed* is needed by now, because a replay has begun (Invariant 11)."""
        held = self.watermark() < sealed.end
        if held:
            self.older_compacted = False
            self.first_needed = sealed.base if self.first_needed is None else self.first_needed
        return held

    def _rewrite(
        self, segment: Segment, target: CompactionTarget, newest: NewestOffsets
    ) -> Compacted | None:
        sealed, settings = target.sealed, self.settings
        refuse_without_room(self.files, sealed.path.parent, sealed.size)
        replacement = Replacement(self.files, sealed.path, segment.header, settings.compression)
        try:
            kept = self._copy(segment, target, replacement, newest)
            if kept == target.rows and replacement.size > sealed.size // 2:
                replacement.abandon()
                return None
            replacement.finish(sealed.end, segment.header.created_at)
            if not self._switch(sealed, segment, replacement):
                replacement.abandon()
                return None
        except BaseException:
            replacement.abandon()
            raise
        return Compacted(sealed.path.name, target.rows, kept, sealed.size, replacement.size)

    def _switch(self, sealed: SealedSegment, segment: Segment, replacement: Replacement) -> bool:
        """Replace *segment* by *replacement*. Return false if the segment is needed by now.

        Runs in the gate from the last check to the rename. No replay begins in between, and a
        segment that was removed is not brought back.
        """
        with self.gate, self._open(sealed) as there:
            if there.header.segment_id != segment.header.segment_id:
                raise _SegmentGone
            if self._is_held(sealed):
                return False
            replacement.switch()
            self.gate.rewrite_count += 1
            return True

    def _is_cold(self, sealed: SealedSegment) -> bool:
        """Return whether this segment is old enough for its tombstones to be dropped."""
        settings = self.settings
        grace = round((settings.after + settings.tombstones) * _SECOND)
        return settings.keep == "key" and self.older_compacted and self._is_older(sealed, grace)

    def _is_older(self, sealed: SealedSegment, age: int) -> bool:
        return self.times is not None and self.times.newest_time(sealed) < self.now - age

    def _note_last_key(self, entries: pa.Table) -> None:
        key = keys_of(entries.slice(entries.num_rows - 1), "key")[0].as_py()
        if key is not None:
            # Invariant 17: a key that is too long to remember keeps all tombstones behind it.
            self.older_compacted = self.older_compacted and len(key) <= _LONG
            self.end_keys.append(key[:_LONG])

    def _copy(
        self,
        segment: Segment,
        target: CompactionTarget,
        replacement: Replacement,
        newest: NewestOffsets,
    ) -> int:
        """Copy every frame of *segment* to *replacement*. Return the number of kept entries."""
        kept = 0
        for chunk, obsolete in zip(target.chunks, target.obsolete, strict=True):
            self._count_read(target.sealed, chunk.size)
            found = read_frames(segment, chunk)
            rows = entries_of(segment, found).combine_chunks()
            mask = pc.invert(pc.or_(obsolete, self._droppable_tombstones(rows, target, newest)))
            for each, part, left in _split_rows(found, rows, mask):
                self._copy_frame(segment, each, part, left, replacement)
            kept += mask.true_count
        self._note_last_key(rows)
        return kept

    def _copy_frame(
        self,
        segment: Segment,
        stored: StoredFrame,
        rows: pa.RecordBatch,
        kept: pa.BooleanArray,
        replacement: Replacement,
    ) -> None:
        source = segment.source(stored.frame) or layout.Source("")
        if not kept.true_count:
            replacement.drop(stored.frame, source)
        elif kept.true_count < len(kept):
            replacement.add(stored.frame, rows.filter(kept), source)
        elif stored.frame.entries_bytes < FRAME_BYTES // 2:
            replacement.add(stored.frame, rows, source)
        else:
            replacement.keep(stored, source)

    def _droppable_tombstones(
        self, rows: pa.Table, target: CompactionTarget, newest: NewestOffsets
    ) -> pa.BooleanArray:
        """Return a mask of the unneeded tombstones in *rows*, if they are the last of their key.

        A tombstone is unneeded when it is old enough and no older segment holds an entry of its
        key, which would otherwise come back to life.
        """
        if not self._is_cold(target.sealed) or not newest.is_complete:
            return pa.repeat(pa.scalar(value=False), rows.num_rows)
        keys = keys_of(rows, "key")
        offsets = rows.column("offset").combine_chunks()
        kept = pa.concat_arrays([newest.offsets(), pa.array([target.sealed.end])])
        spared = pc.or_(
            pc.is_in(offsets, value_set=kept),
            pc.is_in(keys, value_set=pa.array(self.end_keys, pa.binary())),
        )
        gone = pc.and_(_tombstone_mask(rows), pc.is_valid(keys))
        return pc.and_(gone, pc.invert(spared))


def _split_rows(
    stored: Sequence[StoredFrame], rows: pa.Table, mask: pa.BooleanArray
) -> Iterator[tuple[StoredFrame, pa.RecordBatch, pa.BooleanArray]]:
    """Yield each frame of a chunk with its own part of *rows* and of *mask*."""
    whole = rows.to_batches()[0]
    start = 0
    for each in stored:
        count = each.frame.count
        yield each, whole.slice(start, count), mask.slice(start, count)
        start += count


def _ignore(_: pa.BooleanArray) -> None:
    """Drop nothing of a segment that is not compacted."""


def _count_deletes(rows: pa.Table) -> int:
    return int(pc.sum(pc.equal(rows.column("op"), "delete")).as_py() or 0)


def _tombstone_mask(rows: pa.Table) -> pa.BooleanArray:
    deleted = pc.equal(rows.column("op").combine_chunks(), pa.scalar("delete"))
    return pc.or_(deleted, pc.is_null(rows.column("data").combine_chunks()))

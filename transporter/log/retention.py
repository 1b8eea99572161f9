"""Retention: removal of whole sealed segments, oldest first, once no route needs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from transporter.log.filesystem import RealFileSystem, sync_directory, translate_os_errors
from transporter.log.index import index_path
from transporter.log.inspection import segments_size
from transporter.log.open_segments import drop_open_segment
from transporter.log.retention_gate import RetentionGate
from transporter.log.sealed_segments import iter_sealed
from transporter.log.wall_times import WallTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from transporter.log.filesystem import FileSystem
    from transporter.log.sealed_segments import SealedSegment

_SECOND: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """Limits of the log: *bytes* of segment files, *age* in seconds. ``None`` is for no limit."""

    bytes: int | None = None
    age: float | None = None


@dataclass(frozen=True, slots=True)
class RemovedSegment:
    """A removed segment: its file name, the last offset that it covered, its bytes."""

    name: str
    end: int
    size: int


def apply_retention(
    directory: Path,
    files: FileSystem | None = None,
    *,
    watermark: Callable[[], int],
    settings: RetentionSettings,
    now: int,
    size: int | None = None,
    gate: RetentionGate | None = None,
) -> Iterator[RemovedSegment]:
    """Remove what exceeds *settings* from the log in *directory*, yielding each removed segment.

    The last segment stays, and so does every segment that the *watermark* still protects
    (Invariant 11). Each is removed inside the *gate*, durably, one after the other, so that a
    crash leaves no hole.

    Args:
        directory: the log's directory.
        files: the file system, the real one by default.
        watermark: returns the last offset that is not needed any more.
        settings: the limits.
        now: the wall time, µs UTC.
        size: the log's size if the caller has a better value than the sum of its files. The
            last file is longer than the bytes written to it.
        gate: the gate of the log's engine.

    Raises:
        Corrupt: a segment's header is damaged.
        LogPoisoned: a sync failed (Invariant 13).

    """
    files, holds = files or RealFileSystem(), _HoldCache(watermark, gate or RetentionGate())
    with translate_os_errors(directory):
        size = segments_size(directory, files) if size is None else size
        times = WallTimes(files, directory, now)
        for each in iter_sealed(files, directory):
            if not _exceeds(size, each, settings, times):
                return
            with holds.gate:
                if holds.is_needed(each.end):
                    return
                _remove_segment(files, directory, each)
                holds.gate.removed_through = each.end
            size -= each.size
            yield RemovedSegment(each.path.name, each.end, each.size)


class _HoldCache:
    """Cache of the last offset that is not needed, looked up only when necessary.

    A look-up costs a sync of each offset log, and many segments may be removed at once.
    """

    def __init__(self, watermark: Callable[[], int], gate: RetentionGate) -> None:
        self._watermark, self.gate = watermark, gate
        self._through, self._registered = -1, gate.hold_count

    def is_needed(self, end: int) -> bool:
        """Return whether any offset up to *end* is needed. To be called inside the gate."""
        if end > self._through or self._registered != self.gate.hold_count:
            self._registered = self.gate.hold_count
            self._through = self._watermark()
        return end > self._through


def last_excess_offset(
    directory: Path,
    size: int,
    limit: int,
    files: FileSystem | None = None,
    *,
    through: int = (1 << 63) - 1,
) -> int | None:
    """Return the last offset to remove so that *limit* bytes are left of *size*.

    ``None`` if the log is within the limit already, or has nothing to remove up to *through*.
    """
    files = files or RealFileSystem()
    end = None
    with translate_os_errors(directory):
        for each in iter_sealed(files, directory):
            if size <= limit or each.end > through:
                break
            end, size = each.end, size - each.size
    return end


def _exceeds(
    size: int, oldest: SealedSegment, settings: RetentionSettings, times: WallTimes
) -> bool:
    if settings.bytes is not None and size > settings.bytes:
        return True
    # Computed only if it counts, because it may have to read later headers.
    return settings.age is not None and times.age(oldest) > round(settings.age * _SECOND)


def _remove_segment(files: FileSystem, directory: Path, segment: SealedSegment) -> None:
    # The index first: without its segment it would never be found again.
    files.remove(index_path(segment.path))
    files.remove(segment.path)
    # An open file takes up disk space as long as it is open.
    drop_open_segment(segment.path)
    # Before the next removal: a log without its second segment could not be opened.
    sync_directory(files, directory)

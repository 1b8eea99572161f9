"""Wall times of sealed segments, for their age. Log time alone may be ahead of every clock.

Log time never goes back (Invariant 16). A single append with a clock that is a century
ahead therefore gives all later entries that time, and no segment would ever be old. The
header of a segment states the wall time at which it was begun. Everything logged before
is older than that, and the least of the later headers counts.
"""

from __future__ import annotations

from contextlib import closing, suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from transporter.log.clocks import AHEAD
from transporter.log.segment import Segment, segment_bases, segment_name

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.log.filesystem import FileSystem
    from transporter.log.sealed_segments import SealedSegment

_AHEAD: Final = round(AHEAD * 1_000_000)


class WallTimes:
    """The times of the last append to segments, as of one moment.

    Headers are read only if a segment's log time is ahead of the wall clock.
    """

    def __init__(self, files: FileSystem, directory: Path, now: int) -> None:
        """Start for the log in *directory* at the wall time *now*, µs UTC."""
        self._files, self._directory, self._now = files, directory, now
        self._least_times: dict[int, int] | None = None

    def newest_time(self, segment: SealedSegment) -> int:
        """Return the latest possible time at which *segment*'s newest entry was logged, µs UTC.

        That is its log time, unless it is more than an hour ahead of the wall clock.
        """
        if segment.newest <= self._now + _AHEAD:
            return segment.newest
        if self._least_times is None:
            self._least_times = self._least_later_times()
        return min(segment.newest, self._least_times.get(segment.base, segment.newest))

    def age(self, segment: SealedSegment) -> int:
        """Return the time since the last append to *segment*, µs."""
        return self._now - self.newest_time(segment)

    def _least_later_times(self) -> dict[int, int]:
        """Return for each segment the least time at which a later one was begun."""
        bases = segment_bases(self._files, self._directory)
        # A header that a repair made states no time.
        begun = [self._creation_time(base) or (1 << 63) - 1 for base in reversed(bases[1:])]
        return dict(zip(reversed(bases[:-1]), accumulate(begun, min), strict=True))

    def _creation_time(self, base: int) -> int:
        path = self._directory / segment_name(base)
        with suppress(FileNotFoundError), closing(Segment(self._files, path)) as segment:
            return segment.header.created_at
        return 0

"""Search for entries by time, by namespace, by key, by contents, and for the last N.

For processes beside a running engine or without one. Takes no lock and holds one frame at
a time (Invariant 17). Continues when segments are replaced or removed meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import closing
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from transporter.errors import Corrupt, EnvironmentFault, OffsetRefused
from transporter.log.filesystem import RealFileSystem, translate_os_errors
from transporter.log.index import confirmed_entries
from transporter.log.segment import Segment, SegmentEnd, segment_bases, segment_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from transporter.log.filesystem import FileSystem
    from transporter.log.reader import LocatedFrame, LogReader

END: Final = (1 << 63) - 1
"""Beyond every offset and every time."""
RETRIES: Final = 20
"""Most retries to find a frame, because its segment may be replaced or removed each time."""


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """A filter of entries, which accepts all by default.

    Attributes:
        namespace: a regular expression in RE2 syntax, which may match anywhere unless anchored.
        key: the exact bytes.
        since: the least log time in µs UTC, included.
        until: the greatest log time in µs UTC, included.
        contains: bytes that the data, the key or the value of a header has anywhere.

    Raises:
        ValueError: RE2 cannot read the pattern, which the message does not repeat.

    """

    namespace: str = ""
    key: bytes | None = None
    since: int = 0
    until: int = END
    contains: bytes | None = None

    def __post_init__(self) -> None:
        if self.namespace:
            self._namespace_mask(pa.array([""]))  # an empty array would not compile the pattern

    @property
    def accepts_all(self) -> bool:
        """Whether all entries are accepted."""
        return self == EntryFilter()

    def apply(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Return the *entries* that match."""
        if self.accepts_all or not entries.num_rows:
            return entries
        import pyarrow.compute as pc  # noqa: PLC0415 - 60 ms that most commands do without

        masks = list(self._masks(entries))
        return entries.filter(reduce(pc.and_, masks)) if masks else entries

    def _masks(self, entries: pa.RecordBatch) -> Iterator[pa.BooleanArray]:
        import pyarrow.compute as pc  # noqa: PLC0415 - see of()

        times = entries.column("logged_at")
        if self.since > 0:
            yield pc.greater_equal(times, pa.scalar(self.since, type=times.type))
        if self.until < END:
            yield pc.less_equal(times, pa.scalar(self.until, type=times.type))
        if self.key is not None:
            yield pc.equal(entries.column("key"), pa.scalar(self.key, type=pa.binary()))
        if self.namespace:
            yield self._namespace_mask(entries.column("namespace"))
        if self.contains is not None:
            yield _contents_mask(entries, self.contains)

    def _namespace_mask(self, column: pa.Array) -> pa.BooleanArray:
        import pyarrow.compute as pc  # noqa: PLC0415 - see of()

        try:
            return pc.match_substring_regex(column, pattern=self.namespace)
        except pa.ArrowInvalid as error:
            # RE2's reason is followed by a piece of the pattern, which may hold a secret.
            reason = str(error).removeprefix("Invalid regular expression: ").partition(": ")[0]
            raise ValueError(f"is not a regular expression that RE2 reads: {reason}") from error


def _contents_mask(entries: pa.RecordBatch, wanted: bytes) -> pa.BooleanArray:
    """Return which *entries* have the bytes *wanted* in data, key or the value of a header."""
    import pyarrow.compute as pc  # noqa: PLC0415 - see of()

    found = [
        pc.fill_null(pc.match_substring(entries.column(name), pattern=wanted), fill_value=False)
        for name in ("data", "key")
    ]
    headers = entries.column("headers")
    values = pc.struct_field(pc.list_flatten(headers), "value")
    rows = pc.list_parent_indices(headers).filter(pc.match_substring(values, pattern=wanted))
    numbers = pa.array(range(entries.num_rows), rows.type)
    return reduce(pc.or_, [*found, pc.is_in(numbers, rows)])


def frames_with_retry(reader: LogReader, first: int, last: int) -> Iterator[LocatedFrame]:
    """Yield the frames from *first* to *last* as :meth:`LogReader.frames` does, with retries.

    If a segment was replaced or removed under the *reader*, the frame is looked up again. A
    frame that is still missing then is an ordinary error.

    Raises:
        OffsetRefused: the log does not hold the next offset any more.

    """
    wanted, tries = first, 0
    while wanted <= last:
        try:
            for found in reader.frames(wanted, last):
                yield found
                wanted, tries = found.frame.last + 1, 0
        except (Corrupt, EnvironmentFault):
            tries += 1
            if tries > RETRIES:
                raise
            reader.clear_cache()
        else:
            return


def matching_entries(
    reader: LogReader,
    first: int,
    last: int,
    entry_filter: EntryFilter,
    progress: Callable[[int], object] = lambda _: None,
) -> Iterator[pa.RecordBatch]:
    """Yield the entries from *first* to *last* that match *entry_filter*, in order.

    *progress* is called with each offset up to which the log has been read.
    """
    for found in frames_with_retry(reader, first, last):
        entries = found.entries_within(first, last)
        if entries.num_rows and entries.column("logged_at")[0].value > entry_filter.until:
            return
        yield entry_filter.apply(entries)
        progress(found.frame.last)


def first_offset_since(reader: LogReader, time: int, last: int) -> int:
    """Return the first offset up to *last* that was logged at *time* (µs UTC) or later.

    Raises:
        OffsetRefused: everything in the log is older.

    """
    begin = max(reader.first_offset(), offsets_around(reader.directory, time, reader.files)[0])
    for entries in matching_entries(reader, begin, last, EntryFilter(since=time)):
        if entries.num_rows:
            return int(entries.column("offset")[0].as_py())
    raise OffsetRefused(f"{reader.directory}: nothing was logged at or after that time")


def offset_behind_older(reader: LogReader, time: int, first: int, last: int) -> int:
    """Return the offset behind the last entry logged before *time* (µs UTC), by default *first*.

    Entries dropped between that and the next entry may have been logged at *time* or later.
    """
    begin = max(
        first, reader.first_offset(), offsets_around(reader.directory, time, reader.files)[0]
    )
    for entries in matching_entries(reader, begin, last, EntryFilter(until=time - 1)):
        if entries.num_rows:
            begin = int(entries.column("offset")[entries.num_rows - 1].as_py()) + 1
    return begin


def offset_before_newer(reader: LogReader, time: int, first: int, last: int) -> int:
    """Return the offset before the first entry logged after *time* (µs UTC), by default *last*.

    Entries dropped between that and the entry before may have been logged at *time* or earlier.
    """
    begin = max(
        first, reader.first_offset(), offsets_around(reader.directory, time + 1, reader.files)[0]
    )
    for entries in matching_entries(reader, begin, last, EntryFilter(since=time + 1)):
        if entries.num_rows:
            return int(entries.column("offset")[0].as_py()) - 1
    return last


def start_of_last(
    reader: LogReader, first: int, last: int, count: int, entry_filter: EntryFilter
) -> int:
    """Return the offset from which up to *last* there are *count* entries that match.

    That is *first*, or the oldest offset, if there are fewer. Searches from the newest entry
    backwards and keeps no entry, so the found entries are read again, in order.
    """
    missing = count
    try:
        for found in reader.frames_backwards(last):
            frame = found.frame
            if frame.last < first:
                break
            whole = entry_filter.accepts_all and first <= frame.first and frame.last <= last
            if whole and frame.count < missing:
                missing -= frame.count
                continue
            offsets = entry_filter.apply(found.entries_within(first, last)).column("offset")
            if len(offsets) >= missing:
                return int(offsets[len(offsets) - missing].as_py())
            missing -= len(offsets)
    except EnvironmentFault as error:
        # The oldest segments were removed meanwhile: the log begins at that point now.
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        reader.clear_cache()
    return max(first, reader.first_offset())


def take_entries(
    batches: Iterable[pa.RecordBatch],
    count: int,
    report_last: Callable[[int], object] = lambda _: None,
) -> Iterator[pa.RecordBatch]:
    """Yield the first *count* entries of *batches*, and read no further.

    *report_last* is called with the offset of the last one, unless there are fewer.
    """
    missing = count
    for batch in batches:
        part = batch.slice(0, missing)
        missing -= part.num_rows
        if not missing:
            report_last(int(part.column("offset")[-1].as_py()))
        yield part
        if not missing:
            return


def offsets_around(directory: Path, time: int, files: FileSystem | None = None) -> tuple[int, int]:
    """Return two offsets that enclose *time*.

    All entries before the first offset were logged before *time*, all beyond the second were
    not. Both are bounds of frames, so the entries in between must be checked one by one. Log
    time never goes back (Invariant 16), so only a few frames of one segment are read.
    """
    files = files or RealFileSystem()
    with translate_os_errors(directory, reading=True):
        while True:
            try:
                return _search_segments(files, directory, segment_bases(files, directory), time)
            except FileNotFoundError:
                continue  # a segment was removed meanwhile: there are fewer at each turn


def _search_segments(
    files: FileSystem, directory: Path, bases: list[int], time: int
) -> tuple[int, int]:
    at = bisect_left(bases, time, key=lambda base: _first_time(files, directory, base))
    behind = END
    if at < len(bases):
        with closing(Segment(files, directory / segment_name(bases[at]))) as segment:
            frame = segment.frame_at(segment.first_byte)
            behind = frame.last if frame is not None else END
    if at == 0:
        return (bases[0] if bases else 0), behind
    with closing(Segment(files, directory / segment_name(bases[at - 1]))) as segment:
        return _search_segment(files, segment, time, behind)


def _first_time(files: FileSystem, directory: Path, base: int) -> int:
    """Return the log time of the first entry of a segment, or beyond all if it holds none."""
    with closing(Segment(files, directory / segment_name(base))) as segment:
        frame = segment.frame_at(segment.first_byte)
        if frame is not None:
            return frame.logged_at
        trailer = segment.trailer()
        if trailer is not None:
            return trailer.oldest
        empty = segment.stop_at(segment.first_byte).end is SegmentEnd.CLEAN
        return END if empty else segment.header.created_at


def _search_segment(files: FileSystem, segment: Segment, time: int, behind: int) -> tuple[int, int]:
    """Search the last segment that begins before *time*. *behind* ends the frame after it."""
    known = confirmed_entries(files, segment)
    at = bisect_left(known, time, key=lambda mark: _time_at(segment, mark.byte)) - 1
    before = segment.header.base
    for frame in segment.frames(known[at].byte if at >= 0 else None):
        if frame.logged_at >= time:
            return before, frame.last
        before = frame.first
    return before, behind


def _time_at(segment: Segment, byte: int) -> int:
    frame = segment.frame_at(byte)
    return frame.logged_at if frame is not None else 0

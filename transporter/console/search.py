"""A bounded search for entries: it ends after some time or bytes, and reports how far it came."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from transporter.control.request_arguments import parse_offset
from transporter.errors import ConfigError, Corrupt, EnvironmentFault, OffsetRefused
from transporter.log.reader import LogReader
from transporter.log.search import END, RETRIES, EntryFilter, frames_with_retry, offsets_around
from transporter.log.time_spec import parse_time
from transporter.message import Entries, batch_bytes
from transporter.offsets.offset_log import inspect_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.inspection import LogInfo
    from transporter.log.reader import LocatedFrame
    from transporter.message import Entry

SECONDS: Final = 2.0
BYTES: Final = 512 << 20
KEPT: Final = 32 << 20
"""Bytes of found entries after which a search ends, because a page holds all of them."""
ROWS: Final = 100
Direction = Literal["newest", "oldest"]


class Limits(NamedTuple):
    """The end of a search that is not finished, and the entries that it returns at most."""

    rows: int = ROWS
    seconds: float = SECONDS
    size: int = BYTES


@dataclass(frozen=True, slots=True)
class Query:
    """A search as a form has it. Times and offsets are text, as on the command line."""

    start: str = ""
    end: str = ""
    namespace: str = ""
    key: str = ""
    contains: str = ""
    direction: Direction = "newest"

    @property
    def reads_payloads(self) -> bool:
        """Whether the result depends on keys, headers or data."""
        return bool(self.key or self.contains)


@dataclass(frozen=True, slots=True)
class Span:
    """The entries that a query selects: offsets and filter."""

    first: int
    last: int
    entry_filter: EntryFilter


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search.

    Attributes:
        entries: in the order of the search.
        looked_from: the first offset that was looked at, in ascending order.
        looked_to: the last one; below ``looked_from`` if nothing was looked at.
        finished: whether everything that the query selects was looked at.
        lost: the ranges in it that a repair could not save.
        problem: the damage that ended the search, if any.

    """

    entries: tuple[Entry, ...]
    looked_from: int
    looked_to: int
    size: int
    seconds: float
    finished: bool
    lost: tuple[tuple[int, int], ...] = ()
    problem: str = ""


@dataclass(slots=True)
class _Progress:
    """The part of a search that is done."""

    entries: list[Entry] = field(default_factory=list)
    at: int = -1
    size: int = 0
    kept: int = 0
    ended: bool = False

    def is_over(self, limits: Limits, seconds: float) -> bool:
        """Return whether the search ends here, finished or not."""
        spent = seconds >= limits.seconds or self.size >= limits.size or self.kept >= KEPT
        return self.ended or spent or len(self.entries) >= limits.rows


def select_span(query: Query, log: LogInfo, now: datetime) -> Span:
    """Return the entries that *query* selects in *log*.

    Raises:
        ConfigError: a field of the query cannot be parsed.

    """
    first, since = _bound(query.start, "from", now, log, end=False)
    last, until = _bound(query.end, "to", now, log, end=True)
    try:
        wanted = EntryFilter(
            query.namespace,
            query.key.encode() or None,
            since,
            until,
            contains=query.contains.encode() or None,
        )
    except ValueError as error:
        raise ConfigError(f"namespace: {error}") from error
    return Span(max(first, log.first), min(last, log.last), wanted)


def _bound(text: str, name: str, now: datetime, log: LogInfo, *, end: bool) -> tuple[int, int]:
    """Return the offset and the time at which a query ends on one side."""
    offset, moment = (log.last, END) if end else (log.first, 0)
    text = text.strip()
    if not text or text == "now":
        return offset, moment
    try:
        if text.isdecimal():
            return parse_offset(text), moment
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
    try:
        moment = parse_time(text, now).microseconds
    except ValueError as error:
        raise ConfigError(f"{name}: {text!r} {error}") from error
    around = offsets_around(log.directory, moment + end)
    return around[1] if end else around[0], moment


def search(
    directory: Path,
    span: Span,
    direction: Direction = "newest",
    limits: Limits | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    """Search the log in *directory* for the entries of *span*, without the lock."""
    limits = limits or Limits()
    begun, problem = clock(), ""
    done = _Progress(at=span.last + 1 if direction == "newest" else span.first - 1)
    with LogReader(directory) as reader:
        try:
            for located in _walk(reader, span, direction, done):
                _look_at(located, span, direction, limits.rows, done)
                if done.is_over(limits, clock() - begun):
                    break
            else:
                done.ended = True
        except (Corrupt, EnvironmentFault, OffsetRefused) as error:
            problem = str(error)
        low, high = (done.at, span.last) if direction == "newest" else (span.first, done.at)
        if done.ended and not problem:
            low, high = span.first, span.last
        lost = tuple(_lost_ranges(reader, low, high))
    return Found(
        tuple(done.entries), low, high, done.size, clock() - begun, done.ended, lost, problem
    )


def _walk(
    reader: LogReader, span: Span, direction: Direction, done: _Progress
) -> Iterator[LocatedFrame]:
    """Return the frames of *span* in the order of the search."""
    if direction == "oldest":
        return frames_with_retry(reader, span.first, span.last)
    return _walk_back(reader, span, done)


def _walk_back(reader: LogReader, span: Span, done: _Progress) -> Iterator[LocatedFrame]:
    """Yield the frames of *span*, newest first. A segment that is replaced is opened again."""
    for tries in range(RETRIES + 1):
        try:
            for located in reader.frames_backwards(done.at - 1):
                if located.frame.last < span.first:
                    return
                yield located
        except (Corrupt, EnvironmentFault):
            if tries == RETRIES:
                raise
            reader.clear_cache()
        else:
            return


def _look_at(
    located: LocatedFrame, span: Span, direction: Direction, rows: int, done: _Progress
) -> None:
    """Add the matching entries of one frame, up to *rows* in all."""
    frame = located.frame
    batch = located.entries_within(span.first, span.last)
    done.size += frame.entries_bytes
    missing = rows - len(done.entries)
    matching = span.entry_filter.apply(batch)
    is_newest = direction == "newest"
    is_cut = matching.num_rows > missing
    if is_cut:
        start = matching.num_rows - missing if is_newest else 0
        matching = matching.slice(start, missing)
    found = list(Entries(matching))
    done.kept += batch_bytes(matching) if found else 0
    done.entries += reversed(found) if is_newest else found
    if is_cut:
        done.at = done.entries[-1].offset
    else:
        done.at = max(frame.first, span.first) if is_newest else min(frame.last, span.last)
        done.ended = _is_beyond(batch, span.entry_filter, is_newest=is_newest)


def _is_beyond(batch: pa.RecordBatch, wanted: EntryFilter, *, is_newest: bool) -> bool:
    """Return whether all entries further on are outside the times that are *wanted*."""
    if not batch.num_rows:
        return False
    times = batch.column("logged_at")
    if is_newest:
        return bool(times[0].value < wanted.since)
    return bool(times[batch.num_rows - 1].value > wanted.until)


def _lost_ranges(reader: LogReader, first: int, last: int) -> Iterator[tuple[int, int]]:
    try:
        while first <= last and (gap := reader.lost_gap(first, last)) is not None:
            yield max(first, gap.first), min(last, gap.last)
            first = gap.last + 1
    except EnvironmentFault:
        return


def read_entry(directory: Path, offset: int) -> Entry | None:
    """Return the entry at *offset*, or ``None`` if compaction has dropped it or it was lost.

    Raises:
        OffsetRefused: the log does not hold this offset.

    """
    log = inspect_log(directory)
    if not log.first <= offset <= log.last:
        raise OffsetRefused(
            f"{directory}: offset {offset} is not in the log, which holds {log.first}..{log.last}"
        )
    found = search(directory, Span(offset, offset, EntryFilter()), "oldest", Limits(rows=1))
    if found.problem:
        raise EnvironmentFault(found.problem)
    return found.entries[0] if found.entries else None


def neighbours(directory: Path, entry: Entry) -> tuple[int | None, int | None]:
    """Return the offsets of the entries of the same key around *entry*, as far as a look goes."""
    if entry.message.key is None:
        return None, None
    log = inspect_log(directory)
    wanted = EntryFilter(key=entry.message.key)
    limits = Limits(rows=1, seconds=0.3, size=BYTES // 4)
    before = search(directory, Span(log.first, entry.offset - 1, wanted), "newest", limits)
    after = search(directory, Span(entry.offset + 1, log.last, wanted), "oldest", limits)
    return tuple(found.entries[0].offset if found.entries else None for found in (before, after))  # type: ignore[return-value]

"""Selection of a command's entries by offset, time, namespace, key and contents."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from transporter.cli.entry_output import note, note_dropped, note_lost
from transporter.cli.log_target import offset_range
from transporter.control.request_arguments import parse_offset
from transporter.log.time_spec import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.inspection import LogInfo
    from transporter.log.reader import LogReader
    from transporter.log.search import EntryFilter

Offsets = Annotated[
    str | None,
    typer.Argument(help="Offset, or range of offsets.", metavar="X..Y", show_default=False),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TIME|OFFSET",
        help="First entry: ISO 8601 (local time without a zone), a duration ago such as 10m, "
        "or an offset.",
    ),
]
To = Annotated[
    str | None, typer.Option("--to", metavar="TIME|OFFSET", help="Last entry, inclusive.")
]
NamespaceFilter = Annotated[
    str,
    typer.Option("--namespace", metavar="REGEX", help="Only namespaces that match (RE2 syntax)."),
]
KeyFilter = Annotated[str | None, typer.Option("--key", help="Only entries with exactly this key.")]
ContentFilter = Annotated[
    str | None,
    typer.Option(
        "--contains",
        metavar="TEXT",
        help="Only entries with this text in data, key or a header's value.",
    ),
]


@dataclass(frozen=True, slots=True)
class EntrySelection:
    """Selected entries: those from ``first`` to ``last`` that match ``filters``."""

    first: int
    last: int
    filters: EntryFilter


def inspect_log(directory: Path) -> LogInfo:
    """Inspect the log in *directory*, up to the offset proved durable."""
    from transporter.offsets import offset_log  # noqa: PLC0415 - imports pyarrow

    return offset_log.inspect_log(directory)


def parse_filters(namespace: str, key: str | None, contains: str | None = None) -> EntryFilter:
    """Parse the filters of a command line."""
    if contains == "":
        raise typer.BadParameter("--contains is empty, which every entry has; give a text")
    from transporter.log.search import EntryFilter  # noqa: PLC0415 - imports pyarrow

    try:
        # The bytes as typed, because a key and data need not be text.
        typed = [None if each is None else os.fsencode(each) for each in (key, contains)]
        return EntryFilter(namespace, typed[0], contains=typed[1])
    except ValueError as error:
        raise typer.BadParameter(f"--namespace {error}") from error


def select_entries(
    found: LogInfo,
    end: int,
    offsets: str | None,
    start: str | None,
    to: str | None,
    wanted: EntryFilter,
) -> EntrySelection:
    """Select entries of the log *found* up to *end*, by *offsets* or by *start* and *to*."""
    if offsets and (start or to):
        raise typer.BadParameter("give an offset range, or --from and --to, not both")
    first, last = offset_range(offsets) if offsets else (found.first, end)
    if start:
        first, wanted = _apply_from(found, start, wanted)
    if to:
        last, wanted = _apply_to(found, to, wanted)
    if first < found.first:
        note(f"offsets {first}..{found.first - 1} are gone: the log is retained from {found.first}")
    return EntrySelection(max(first, found.first), min(last, end), wanted)


@contextmanager
def open_selection(
    found: LogInfo, chosen: EntrySelection, last: int | None = None, only_first: int | None = None
) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield the *chosen* entries of the log *found*: all, the *last* or the *only_first* ones.

    Lost entries, and those that compaction dropped, are reported after the block.
    """
    from transporter.log import search  # noqa: PLC0415 - imports pyarrow
    from transporter.log.reader import LogReader  # noqa: PLC0415

    first, end, wanted = chosen.first, chosen.last, chosen.filters
    with LogReader(found.directory) as reader:
        if last is not None:
            first = search.start_of_last(reader, first, end, last, wanted)
        batches, ends = search.matching_entries(reader, first, end, wanted), [end]
        yield (
            batches if only_first is None else search.take_entries(batches, only_first, ends.append)
        )
        note_missing(reader, replace(chosen, first=first, last=ends[-1]))


def note_missing(reader: LogReader, chosen: EntrySelection) -> None:
    """Report the *chosen* offsets that were lost, or dropped by compaction."""
    from transporter.log import search  # noqa: PLC0415 - imports pyarrow

    first, last, wanted = chosen.first, chosen.last, chosen.filters
    while first <= last and (gap := reader.lost_gap(first, last)) is not None:
        note_lost(gap)
        first = gap.last + 1
    first = chosen.first
    if wanted.since > 0:
        first = search.offset_behind_older(reader, wanted.since, first, last)
    if wanted.until < search.END:
        last = search.offset_before_newer(reader, wanted.until, first, last)
    note_dropped(reader.count_dropped(first, last), first, last)


def parse_moment(text: str, now: datetime) -> int:
    """Parse *text* into a time in µs UTC: ISO 8601, or a duration before *now*.

    ISO 8601 without a zone counts as local time, which a note reports.
    """
    try:
        time, local = parse_time(text, now)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} {error}") from error
    if local is not None:
        note(f"{text} is taken as local time: {local.isoformat()}")
    return time


def offset_bound(text: str) -> int:
    """Parse *text*, which is digits, into the offset of ``--from`` or ``--to``."""
    try:
        return parse_offset(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _apply_from(found: LogInfo, text: str, wanted: EntryFilter) -> tuple[int, EntryFilter]:
    from transporter.log.search import offsets_around  # noqa: PLC0415 - imports pyarrow

    if text.isdecimal():
        return offset_bound(text), wanted
    time = parse_moment(text, datetime.now(UTC))
    # A time can only select entries that are retained.
    first = max(found.first, offsets_around(found.directory, time)[0])
    return first, replace(wanted, since=time)


def _apply_to(found: LogInfo, text: str, wanted: EntryFilter) -> tuple[int, EntryFilter]:
    from transporter.log.search import offsets_around  # noqa: PLC0415 - imports pyarrow

    if text.isdecimal():
        return offset_bound(text), wanted
    time = parse_moment(text, datetime.now(UTC))
    return offsets_around(found.directory, time + 1)[1], replace(wanted, until=time)

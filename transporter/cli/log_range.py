"""Which entries a ``log`` command means: offsets, times, namespace, key."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from transporter.cli.log_entries import note, note_dropped, note_lost
from transporter.cli.target import offset_range
from transporter.log.moments import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.inspect import LogInfo
    from transporter.log.reader import LogReader
    from transporter.log.search import Wanted

Offsets = Annotated[
    str | None, typer.Argument(help="An offset, or a range.", metavar="[X..Y]", show_default=False)
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TIME|OFFSET",
        help="Begin here: ISO 8601 (local time where no zone is given), 10m ago, or an offset.",
    ),
]
To = Annotated[
    str | None, typer.Option("--to", metavar="TIME|OFFSET", help="End here, this one included.")
]
NamespaceFilter = Annotated[
    str,
    typer.Option("--namespace", metavar="REGEX", help="Only namespaces that it matches (RE2)."),
]
KeyFilter = Annotated[str | None, typer.Option("--key", help="Only entries of exactly this key.")]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What to read: what is ``wanted`` of the offsets ``first`` to ``last``."""

    first: int
    last: int
    wanted: Wanted


def look(directory: Path) -> LogInfo:
    """Look at the log in *directory*."""
    from transporter.log.inspect import inspect  # noqa: PLC0415 - imports pyarrow
    from transporter.offsets.offset_log import proved_offset  # noqa: PLC0415

    return inspect(directory, proved_offset(directory))


def wanted_of(namespace: str, key: str | None) -> Wanted:
    """Read the filters."""
    from transporter.log.search import Wanted  # noqa: PLC0415 - imports pyarrow

    try:
        # As the bytes that were typed: a key need not be text.
        return Wanted(namespace, os.fsencode(key) if key is not None else None)
    except ValueError as error:
        raise typer.BadParameter(f"--namespace {error}") from error


def choose(
    found: LogInfo, end: int, offsets: str | None, start: str | None, to: str | None, wanted: Wanted
) -> Chosen:
    """Find what is meant in the log *found*, of which all up to *end* may be read."""
    if offsets and (start or to):
        raise typer.BadParameter("give a range of offsets, or --from and --to, not both")
    first, last = offset_range(offsets) if offsets else (found.first, end)
    if start:
        first, wanted = _from(found, start, wanted)
    if to:
        last, wanted = _to(found, to, wanted)
    if first < found.first:
        note(f"offsets {first}..{found.first - 1} are gone: the log is retained from {found.first}")
    return Chosen(max(first, found.first), min(last, end), wanted)


@contextmanager
def reading(
    found: LogInfo, chosen: Chosen, last: int | None = None, only_first: int | None = None
) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield the *chosen* entries of the log *found*: all, the *last* or the *only_first* ones.

    What of it was lost, or dropped by compaction, is reported after the block.
    """
    from transporter.log import search  # noqa: PLC0415 - imports pyarrow
    from transporter.log.reader import LogReader  # noqa: PLC0415

    first, end, wanted = chosen.first, chosen.last, chosen.wanted
    with LogReader(found.directory) as reader:
        if last is not None:
            first = search.start_of_last(reader, first, end, last, wanted)
        if only_first is not None:
            end = search.end_of_first(reader, first, end, only_first, wanted)
        yield search.matching(reader, first, end, wanted)
        note_gone(reader, replace(chosen, first=first, last=end))


def note_gone(reader: LogReader, chosen: Chosen) -> None:
    """Report what of the *chosen* offsets was lost, or dropped by compaction."""
    from transporter.log import search  # noqa: PLC0415 - imports pyarrow

    first, last, wanted = chosen.first, chosen.last, chosen.wanted
    while first <= last and (gap := reader.lost_gap(first, last)) is not None:
        note_lost(gap)
        first = gap.last + 1
    first = chosen.first
    if wanted.since > 0:
        first = search.behind_older(reader, wanted.since, first, last)
    if wanted.until < search.END:
        last = search.before_newer(reader, wanted.until, first, last)
    note_dropped(reader.count_dropped(first, last), first, last)


def moment(text: str, now: datetime) -> int:
    """Return the time in µs UTC that *text* names: ISO 8601, or a duration before *now*.

    Where ISO 8601 names no zone the local one is meant, and that is said.
    """
    try:
        time, local = parse_time(text, now)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} {error}") from error
    if local is not None:
        note(f"{text} is taken as local time: {local.isoformat()}")
    return time


def _from(found: LogInfo, text: str, wanted: Wanted) -> tuple[int, Wanted]:
    from transporter.log.search import around  # noqa: PLC0415 - imports pyarrow

    if text.isdecimal():
        return int(text), wanted
    time = moment(text, datetime.now(UTC))
    # What is retained is all that a time can mean.
    first = max(found.first, around(found.directory, time)[0])
    return first, replace(wanted, since=time)


def _to(found: LogInfo, text: str, wanted: Wanted) -> tuple[int, Wanted]:
    from transporter.log.search import around  # noqa: PLC0415 - imports pyarrow

    if text.isdecimal():
        return int(text), wanted
    time = moment(text, datetime.now(UTC))
    return around(found.directory, time + 1)[1], replace(wanted, until=time)

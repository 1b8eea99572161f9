"""Command ``transporter log tail``: the newest entries, and new ones as they are logged."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from transporter.cli.entry_output import (
    RowPrinter,
    entries_of,
    entry_row,
    note,
    note_lost,
)
from transporter.cli.entry_selection import (
    ContentFilter,
    KeyFilter,
    NamespaceFilter,
    inspect_log,
    parse_filters,
)
from transporter.cli.log_target import AsJson, Target, log_directory
from transporter.cli.output import ignore_closed_stdout, reader_left_within, write
from transporter.control.entry_values import entry_json

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.follow import Follower, RemovedOffsets
    from transporter.log.inspection import LogInfo
    from transporter.log.reader import Gap
    from transporter.log.search import EntryFilter

POLL: Final = 0.1
"""Seconds between two polls, because no event crosses from the engine's process to ours."""


def tail(
    target: Target,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new entries until Ctrl-C.")
    ] = False,
    count: Annotated[
        int, typer.Option("--lines", "-n", help="Start with the last N entries.", min=0)
    ] = 10,
    namespace: NamespaceFilter = "",
    key: KeyFilter = None,
    contains: ContentFilter = None,
    as_json: AsJson = False,
) -> None:
    """Show the newest entries, and follow the log.

    Each confirmed entry is one line. With -f it also shows new entries until Ctrl-C,
    and waits for an engine if none runs. Every entry appears once. A note reports
    entries that were removed before they could be shown. With --json each line is one
    object.

    Example:
        transporter log tail pipeline.yaml -f --namespace ^orders
    """
    from transporter.log.follow import Follower  # noqa: PLC0415 - imports pyarrow

    directory, wanted = log_directory(target), parse_filters(namespace, key, contains)
    found = inspect_log(directory) if not follow or _log_exists(directory) else None
    first = _first_offset(found, count, wanted) if found else 0
    confirmed = found.confirmed if found else -1
    screen = TailPrinter(wanted, as_json=as_json)
    with ExitStack() as stack:
        follower = stack.enter_context(Follower(directory, first, confirmed))
        stack.enter_context(ignore_closed_stdout())
        screen.write_news(follower)
        if follow and (found is None or found.owner is None):
            note(f"{directory}: no engine runs here; waiting for one")
        while follow and not reader_left_within(POLL):
            screen.write_news(follower)


class TailPrinter:
    """Printer of a log's news: entries to stdout, remarks to stderr."""

    def __init__(self, wanted: EntryFilter, *, as_json: bool) -> None:
        """Print entries that match *wanted*, as lines or as JSON objects."""
        self._wanted, self._as_json, self._lines = wanted, as_json, RowPrinter()

    def write_news(self, follower: Follower) -> None:
        """Print all that *follower* has at the moment."""
        from transporter.log.follow import RemovedOffsets  # noqa: PLC0415 - imports pyarrow
        from transporter.log.reader import Gap  # noqa: PLC0415

        for news in follower.poll():
            if isinstance(news, RemovedOffsets):
                self._write_removed(news)
            elif isinstance(news, Gap):
                self._write_lost(news)
            else:
                self._write_entries(self._wanted.apply(news))
        sys.stdout.flush()

    def _write_entries(self, batch: pa.RecordBatch) -> None:
        for entry in entries_of([batch]):
            if self._as_json:
                _write_object(entry_json(entry, confirmed=entry.offset))
            else:
                self._lines.write(entry_row(entry, entry.offset))

    def _write_removed(self, missing: RemovedOffsets) -> None:
        first, last = missing
        if self._as_json:
            _write_object({"retained_from": last + 1, "missing": [first, last]})
        else:
            note(f"offsets {first}..{last} are gone: the log is retained from {last + 1}")

    def _write_lost(self, gap: Gap) -> None:
        if self._as_json:
            _write_object({"lost": [gap.first, gap.last]})
        else:
            note_lost(gap)


def _log_exists(directory: Path) -> bool:
    from transporter.log.filesystem import RealFileSystem  # noqa: PLC0415 - only here
    from transporter.log.meta import read_meta  # noqa: PLC0415 - imports pyarrow

    return read_meta(RealFileSystem(), directory) is not None


def _first_offset(found: LogInfo, count: int, wanted: EntryFilter) -> int:
    from transporter.log.reader import LogReader  # noqa: PLC0415 - imports pyarrow
    from transporter.log.search import start_of_last  # noqa: PLC0415

    if not count:
        return found.confirmed + 1
    with LogReader(found.directory) as reader:
        return start_of_last(reader, found.first, found.confirmed, count, wanted)


def _write_object(content: dict[str, Any]) -> None:
    write(json.dumps(content))

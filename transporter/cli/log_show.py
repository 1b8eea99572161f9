"""Commands ``transporter log show`` and ``log tail``: a choice of entries, and the newest ones."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from transporter.cli.action_options import perform_request
from transporter.cli.entry_output import (
    RowPrinter,
    entries_of,
    entry_row,
    note,
    note_dropped,
    note_lost,
    write_raw,
    write_rows,
)
from transporter.cli.entry_selection import (
    ContentFilter,
    From,
    KeyFilter,
    NamespaceFilter,
    Offsets,
    To,
    inspect_log,
    open_selection,
    parse_filters,
    select_entries,
)
from transporter.cli.log_target import AsJson, Target, log_directory, offset_range
from transporter.cli.output import (
    ignore_closed_stdout,
    reader_left_within,
    write,
    write_json,
    write_json_list,
    write_table,
)
from transporter.control.entry_values import entry_json, time_text
from transporter.control.requests import LogMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.follow import Follower, RemovedOffsets
    from transporter.log.inspection import LogInfo
    from transporter.log.reader import Gap
    from transporter.log.search import EntryFilter

_LAST: Final = 10
"""Number of entries shown by default."""
_POLL: Final = 0.1
"""Seconds between two polls, because no event crosses from the engine's process to ours."""


def show(  # noqa: PLR0913 - one argument an option
    target: Target,
    offsets: Offsets = None,
    *,
    last: Annotated[
        int | None, typer.Option("--last", help="Only the last N entries.", metavar="N", min=1)
    ] = None,
    only_first: Annotated[
        int | None, typer.Option("--first", help="Only the first N entries.", metavar="N", min=1)
    ] = None,
    start: From = None,
    end: To = None,
    namespace: NamespaceFilter = "",
    key: KeyFilter = None,
    contains: ContentFilter = None,
    raw: Annotated[bool, typer.Option("--raw", help="Write the raw bytes of the data.")] = False,
    metadata: Annotated[
        bool,
        typer.Option(
            "--metadata",
            help="Only metadata, without keys and data; for users who may not read the log.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Show entries of the log.

    Select them by offset, time, namespace, key or contents. By default it shows the last
    ten.

    Examples:
        transporter log show pipeline.yaml 120..140
        transporter log show pipeline.yaml --from 10m --namespace ^orders
        transporter log show pipeline.yaml --contains ACME --last 5
    """
    _check_raw(raw=raw, as_json=as_json)
    if last and only_first:
        raise typer.BadParameter("--first and --last exclude one another")
    if metadata:
        if raw or start or end or namespace or key or contains or only_first:
            raise typer.BadParameter(
                "--metadata can be combined with offsets, --last and --json only"
            )
        _write_metadata(target, offsets, last, as_json=as_json)
        return 0
    found = inspect_log(log_directory(target))
    wanted = parse_filters(namespace, key, contains)
    chosen = select_entries(found, found.last, offsets, start, end, wanted)
    if last is None and not (offsets or start or end or only_first):
        last = _LAST
    with ignore_closed_stdout(), open_selection(found, chosen, last, only_first) as batches:
        return _write_entries(batches, found.confirmed, raw=raw, as_json=as_json)
    return 0


def _write_metadata(target: Path, offsets: str | None, last: int | None, *, as_json: bool) -> None:
    """Show metadata from the running engine, for users who may not read the log.

    Without an engine they are read from the disk.
    """
    first, end = offset_range(offsets) if offsets else (0, 1 << 62)
    # All that are named. More than one request may return are refused.
    most = last or (end - first + 1 if offsets else _LAST)
    found = perform_request(target, LogMetadata(first, end, most))
    if "dropped" in found:
        note_dropped(found["dropped"], found["first"], found["last"])
    entries = found["entries"]
    for each in entries:
        each["logged_at"] = time_text(each["logged_at"])
    if as_json:
        write_json(entries)
    else:
        columns = ("offset", "logged_at", "namespace", "op", "phase", "size")
        heads = [column.replace("_", " ") for column in columns]
        write_table(heads, [[each[column] for column in columns] for each in entries])


def _check_raw(*, raw: bool, as_json: bool) -> None:
    if raw and as_json:
        raise typer.BadParameter("--raw and --json exclude one another")
    if raw and sys.stdout.isatty():
        raise typer.BadParameter(
            "--raw writes bytes that may control a terminal; redirect them to a file or a program"
        )


def _write_entries(
    batches: Iterable[pa.RecordBatch], confirmed: int, *, raw: bool, as_json: bool
) -> int:
    if raw:
        write_raw(batches)
        return 0
    entries = entries_of(batches)
    if as_json:
        return write_json_list(entry_json(entry, confirmed=confirmed) for entry in entries)
    write_rows(entry_row(entry, confirmed) for entry in entries)
    return 0


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
    screen = _TailPrinter(wanted, as_json=as_json)
    with ExitStack() as stack:
        follower = stack.enter_context(Follower(directory, first, confirmed))
        stack.enter_context(ignore_closed_stdout())
        screen.write_news(follower)
        if follow and (found is None or found.owner is None):
            note(f"{directory}: no engine runs here; waiting for one")
        while follow and not reader_left_within(_POLL):
            screen.write_news(follower)


class _TailPrinter:
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

"""Command ``transporter log show``: entries by offset, time, namespace, key and contents."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from transporter.cli.action_options import perform_request
from transporter.cli.entry_output import (
    entries_of,
    entry_row,
    note_dropped,
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
from transporter.cli.output import ignore_closed_stdout, write_json, write_json_list, write_table
from transporter.control.entry_values import entry_json, time_text
from transporter.control.requests import LogMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa

LAST: Final = 10
"""Number of entries shown by default."""


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
        last = LAST
    with ignore_closed_stdout(), open_selection(found, chosen, last, only_first) as batches:
        return _write_entries(batches, found.confirmed, raw=raw, as_json=as_json)
    return 0


def _write_metadata(target: Path, offsets: str | None, last: int | None, *, as_json: bool) -> None:
    """Show metadata from the running engine, for users who may not read the log.

    Without an engine they are read from the disk.
    """
    first, end = offset_range(offsets) if offsets else (0, 1 << 62)
    # All that are named. More than one request may return are refused.
    most = last or (end - first + 1 if offsets else LAST)
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

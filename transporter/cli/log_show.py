"""``transporter log show``: entries by offset, time, namespace and key."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from transporter.cli.acting import act
from transporter.cli.log_entries import (
    entries_of,
    entry_json,
    note_dropped,
    row_of,
    time_text,
    write_raw,
    write_rows,
)
from transporter.cli.log_range import (
    From,
    KeyFilter,
    NamespaceFilter,
    Offsets,
    To,
    choose,
    look,
    reading,
    wanted_of,
)
from transporter.cli.output import table, until_closed, write_json, write_json_list
from transporter.cli.target import AsJson, Target, log_directory, offset_range
from transporter.control.requests import LogMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa

LAST: Final = 10
"""Entries that are shown when nothing says which."""


def show(  # noqa: PLR0913 - one argument an option
    target: Target,
    offsets: Offsets = None,
    *,
    last: Annotated[
        int | None, typer.Option("--last", help="Only the last N of them.", metavar="N", min=1)
    ] = None,
    only_first: Annotated[
        int | None, typer.Option("--first", help="Only the first N of them.", metavar="N", min=1)
    ] = None,
    start: From = None,
    end: To = None,
    namespace: NamespaceFilter = "",
    key: KeyFilter = None,
    raw: Annotated[bool, typer.Option("--raw", help="Write the data bytes as they are.")] = False,
    metadata: Annotated[
        bool, typer.Option("--metadata", help="Nothing of what they hold; who may only look.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Show entries by offset, time, namespace and key; by default the last ten.

    Example: transporter log show pipeline.yaml --from 10m --namespace ^orders --key k17
    """
    _check_raw(raw=raw, as_json=as_json)
    if last and only_first:
        raise typer.BadParameter("--first and --last exclude one another")
    if metadata:
        if raw or start or end or namespace or key or only_first:
            raise typer.BadParameter("--metadata goes with offsets, --last and --json only")
        _show_metadata(target, offsets, last, as_json=as_json)
        return 0
    found = look(log_directory(target))
    chosen = choose(found, found.last, offsets, start, end, wanted_of(namespace, key))
    if last is None and not (offsets or start or end or only_first):
        last = LAST
    with until_closed(), reading(found, chosen, last, only_first) as batches:
        return _write(batches, found.confirmed, raw=raw, as_json=as_json)
    return 0


def _show_metadata(target: Path, offsets: str | None, last: int | None, *, as_json: bool) -> None:
    """Ask the running engine, as this user may not read the log; without one, the disk."""
    first, end = offset_range(offsets) if offsets else (0, 1 << 62)
    # As many as are named; more than one request is told of are refused.
    most = last or (end - first + 1 if offsets else LAST)
    found = act(target, LogMetadata(first, end, most))
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
        table(heads, [[each[column] for column in columns] for each in entries])


def _check_raw(*, raw: bool, as_json: bool) -> None:
    if raw and as_json:
        raise typer.BadParameter("--raw and --json exclude one another")
    if raw and sys.stdout.isatty():
        raise typer.BadParameter(
            "--raw writes bytes that a terminal may obey; send them to a file or a program"
        )


def _write(batches: Iterable[pa.RecordBatch], confirmed: int, *, raw: bool, as_json: bool) -> int:
    if raw:
        write_raw(batches)
        return 0
    entries = entries_of(batches)
    if as_json:
        return write_json_list(entry_json(entry, confirmed=confirmed) for entry in entries)
    write_rows(row_of(entry, confirmed) for entry in entries)
    return 0

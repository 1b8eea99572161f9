"""``transporter log show``: entries by offset, time, namespace and key."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from transporter.cli.log_entries import entries_of, entry_json, row_of, write_raw, write_rows
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
from transporter.cli.output import until_closed, write_json_list
from transporter.cli.target import AsJson, Target, log_directory

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    start: From = None,
    end: To = None,
    namespace: NamespaceFilter = "",
    key: KeyFilter = None,
    raw: Annotated[bool, typer.Option("--raw", help="Write the data bytes as they are.")] = False,
    as_json: AsJson = False,
) -> int:
    """Show entries by offset, time, namespace and key; by default the last ten.

    Example: transporter log show pipeline.yaml --from 10m --namespace ^orders --key k17
    """
    _check_raw(raw=raw, as_json=as_json)
    found = look(log_directory(target))
    chosen = choose(found, found.last, offsets, start, end, wanted_of(namespace, key))
    if last is None and not (offsets or start or end):
        last = LAST
    with until_closed(), reading(found, chosen, last) as batches:
        return _write(batches, found.confirmed, raw=raw, as_json=as_json)
    return 0


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

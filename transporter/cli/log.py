"""``transporter log``: look into a log, beside a running engine or without one."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transporter.cli import repair
from transporter.cli.output import printable, table, write, write_json
from transporter.cli.target import AsJson, Target, log_directory, offset_range

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.log.inspect import LogInfo
    from transporter.message import Entry

_SHOWN = 120
"""Characters of data shown of an entry where people read."""


def build() -> typer.Typer:
    """Put the group together."""
    group = typer.Typer(help="Look into a commit log.", no_args_is_help=True)
    group.command("info")(info)
    group.command("show")(show)
    group.command("verify")(repair.verify)
    group.command("repair")(repair.repair)
    return group


def info(target: Target, *, as_json: AsJson = False) -> None:
    """Show the segments, offsets, times and bytes of a log."""
    found = _inspect(log_directory(target))
    result = {
        "directory": found.directory,
        "log_id": found.log_id,
        "epoch": found.epoch,
        "first": found.first,
        "last": found.last,
        "confirmed": found.confirmed,
        "bytes": found.size,
        "engine_pid": found.owner,
        "segments": [
            {
                "file": each.name,
                "base": each.base,
                "bytes": each.size,
                "created_at": time_text(each.created_at),
            }
            for each in found.segments
        ],
    }
    if as_json:
        write_json(result)
        return
    for name, value in list(result.items())[:-1]:
        write(f"{name.replace('_', ' '):<12}{'none' if value is None else printable(value)}")
    write()
    rows = [(s.name, s.base, f"{s.size:,}", time_text(s.created_at)) for s in found.segments]
    table(("segment", "base", "bytes", "created at"), rows)


def show(
    target: Target,
    offsets: Annotated[
        str | None, typer.Argument(help="An offset, or a range.", metavar="[X..Y]")
    ] = None,
    *,
    last: Annotated[int, typer.Option("--last", help="The last N entries.", min=1)] = 10,
    as_json: AsJson = False,
) -> None:
    """Show entries by offset; by default the last ten.

    Example: transporter log show pipeline.yaml 9..15
    """
    found = _inspect(log_directory(target))
    first, end = offset_range(offsets) if offsets else (found.last - last + 1, found.last)
    first, end = max(first, found.first), min(end, found.last)
    entries = _entries(found, first, end)
    if as_json:
        write_json([entry_json(entry, confirmed=found.confirmed) for entry in entries])
        return
    table(
        ("offset", "logged at", "namespace", "op", "key", "data"),
        [_row(entry, found.confirmed) for entry in entries],
    )


def entry_json(entry: Entry, *, confirmed: int) -> dict[str, Any]:
    """Return *entry* as plain values; bytes that are not UTF-8 become ``{"base64": …}``."""
    message = entry.message
    return {
        "offset": entry.offset,
        "logged_at": time_text(entry.logged_at),
        "unconfirmed": entry.offset > confirmed,
        "namespace": message.namespace,
        "op": message.op,
        "phase": message.phase,
        "key": _text(message.key),
        "timestamp": time_text(message.timestamp),
        "source_id": message.source_id,
        "content_type": message.content_type,
        "headers": [[name, _text(value)] for name, value in message.headers],
        "data": _text(message.data),
    }


def _row(entry: Entry, confirmed: int) -> tuple[str, ...]:
    message = entry.message
    data = _plain(message.data)
    return (
        f"{entry.offset}{' unconfirmed' if entry.offset > confirmed else ''}",
        time_text(entry.logged_at),
        message.namespace,
        message.op,
        _plain(message.key),
        data if len(data) <= _SHOWN else f"{data[: _SHOWN - 1]}…",
    )


def _inspect(directory: Path) -> LogInfo:
    from transporter.log.inspect import inspect  # noqa: PLC0415 - imports pyarrow
    from transporter.offsets.offset_log import proved_offset  # noqa: PLC0415

    return inspect(directory, proved_offset(directory))


def _entries(found: LogInfo, first: int, last: int) -> Iterator[Entry]:
    from transporter.log.reader import LogReader  # noqa: PLC0415 - imports pyarrow
    from transporter.message import Entries  # noqa: PLC0415

    with LogReader(found.directory) as reader:
        for batch in reader.read(first, last):
            yield from Entries(batch, found.log_id)


def time_text(microseconds: int) -> str:
    """Return a time in µs UTC as text."""
    return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec="milliseconds")


def _plain(data: bytes | None) -> str:
    text = _text(data)
    return "null" if text is None else text if isinstance(text, str) else json.dumps(text)


def _text(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}

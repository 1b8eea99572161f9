"""Formats of entries for people: rows of a table, lines."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Final

from transporter.bytes_as_json import text_or_base64
from transporter.cli.output import printable, write, write_table
from transporter.control.entry_values import time_text
from transporter.errors import TransporterError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from transporter.log.reader import Gap
    from transporter.message import Entry

COLUMNS: Final = ("offset", "logged at", "namespace", "op", "key", "data")
TABLE_ROWS: Final = 200
"""Entries that form one table. If there are more, rows are written as they come."""
_SHOWN: Final = 120
"""Characters of a value in text for people."""
_WIDTH: Final = 40
"""Maximum width of a column when rows are written as they come."""


def entry_row(entry: Entry, confirmed: int) -> tuple[str, ...]:
    """Return *entry* as a row under :data:`COLUMNS`, with long values truncated."""
    message = entry.message
    cells = (
        f"{entry.offset}{' unconfirmed' if entry.offset > confirmed else ''}",
        time_text(entry.logged_at),
        message.namespace,
        message.op,
        display_text(message.key),
        display_text(message.data),
    )
    return tuple(map(_truncate, cells))


def _truncate(cell: str) -> str:
    return cell if len(cell) <= _SHOWN else f"{cell[: _SHOWN - 1]}…"


class RowPrinter:
    """Printer of single rows to stdout, with columns that grow as needed."""

    def __init__(self) -> None:
        """Start with the widths of the headings, which are not written."""
        self._widths = [len(column) for column in COLUMNS]

    def write(self, row: Sequence[str]) -> None:
        """Write *row* with its cells made printable."""
        cells = [printable(cell) for cell in row]
        self._widths = [
            max(width, min(len(cell), _WIDTH))
            for width, cell in zip(self._widths, cells, strict=True)
        ]
        padded = (cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True))
        write("  ".join(padded).rstrip())


def write_rows(rows: Iterable[Sequence[str]]) -> None:
    """Print *rows* under :data:`COLUMNS`: a few as one table, many as they come (Invariant 17).

    Rows before an error are printed before the error is raised.
    """
    held: list[Sequence[str]] = []
    iterator = iter(rows)
    try:
        for row in iterator:
            held.append(row)
            if len(held) == TABLE_ROWS:
                break
    except TransporterError:
        write_table(COLUMNS, held)
        raise
    if len(held) < TABLE_ROWS:
        write_table(COLUMNS, held)
        return
    lines = RowPrinter()
    lines.write([column.upper() for column in COLUMNS])
    for many in (held, iterator):
        for row in many:
            lines.write(row)


def write_raw(batches: Iterable[pa.RecordBatch]) -> None:
    """Write the raw data of each entry to stdout, followed by a newline."""
    sys.stdout.flush()
    for batch in batches:
        values = batch.column("data").to_pylist()
        sys.stdout.buffer.write(b"".join(b"%s\n" % (value or b"") for value in values))


def entries_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Entry]:
    """Yield the entries of *batches* one by one."""
    from transporter.message import Entries  # noqa: PLC0415 - imports pyarrow

    for batch in batches:
        yield from Entries(batch)


def note(text: str) -> None:
    """Write a remark beside the results: a line on stderr."""
    sys.stderr.write(f"{printable(text)}\n")


def note_lost(gap: Gap) -> None:
    """Report entries that a repair could not save."""
    note(f"offsets {gap.first}..{gap.last} were lost: a repair could not save them")


def note_dropped(count: int, first: int, last: int) -> None:
    """Report the number of entries from *first* to *last* that compaction has dropped, if any."""
    from transporter.log.reader import dropped_text  # noqa: PLC0415 - imports pyarrow

    if count:
        note(f"offsets {first}..{last}: {dropped_text(count)}")


def display_text(data: bytes | None) -> str:
    """Return *data* as text for people, truncated if it is long."""
    text = text_or_base64(data)
    return _truncate(
        "null" if text is None else text if isinstance(text, str) else json.dumps(text)
    )

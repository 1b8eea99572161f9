"""Command ``transporter log export``, which writes entries into a file for other tools."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from transporter.cli.entry_output import note
from transporter.cli.entry_selection import (
    ContentFilter,
    EntrySelection,
    From,
    KeyFilter,
    NamespaceFilter,
    To,
    inspect_log,
    note_missing,
    parse_filters,
    select_entries,
)
from transporter.cli.log_target import AsJson, Target, log_directory
from transporter.cli.output import count_text, printable, write, write_json
from transporter.control.entry_values import entry_json
from transporter.errors import OffsetRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa


_TRIES: Final = 5
File = Annotated[Path, typer.Argument(help="File to write; replaced if it exists.", metavar="FILE")]


class Format(StrEnum):
    """File format of an export."""

    PARQUET = "parquet"
    JSONL = "jsonl"


def export(  # noqa: PLR0913 - one argument an option
    target: Target,
    file: File,
    *,
    kind: Annotated[
        Format | None,
        typer.Option("--format", help="File format; by default the ending of the file's name."),
    ] = None,
    start: From = None,
    end: To = None,
    namespace: NamespaceFilter = "",
    key: KeyFilter = None,
    contains: ContentFilter = None,
    as_json: AsJson = False,
) -> None:
    """Export entries to Parquet or JSON lines.

    The file holds confirmed entries only. It is written completely or not at all.

    Example:
        transporter log export pipeline.yaml orders.parquet --from 24h
    """
    from transporter.log.export import export as write_file  # noqa: PLC0415 - imports pyarrow

    directory = log_directory(target)
    kind = kind or _format_by_name(file)
    _check_place(directory, file)
    wanted = parse_filters(namespace, key, contains)
    for tries_left in reversed(range(_TRIES)):
        found = inspect_log(directory)
        chosen = select_entries(found, found.confirmed, None, start, end, wanted)
        count = _EntryCounter()
        try:
            write_file(file, _file_parts(kind, directory, chosen, count, found.confirmed))
            break
        except OffsetRefused:
            if not tries_left:
                raise
            note("retention has removed entries meanwhile: the export begins again")
    result = {"file": file, "format": kind, "entries": count.rows, "bytes": file.stat().st_size}
    if as_json:
        write_json(result)
    else:
        entries = count_text(count.rows, "entry", "entries")
        write(f"{entries}, {result['bytes']:,} bytes: {printable(file)}")


class _EntryCounter:
    """Counter of the entries that pass through it."""

    rows = 0

    def count(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield *batches* and count their rows."""
        for batch in batches:
            self.rows += batch.num_rows
            yield batch


def _file_parts(
    kind: Format, directory: Path, chosen: EntrySelection, count: _EntryCounter, confirmed: int
) -> Iterable[bytes]:
    from transporter.log.export import (  # noqa: PLC0415 - imports pyarrow
        json_lines,
        parquet_bytes,
        text_columns,
    )

    batches = count.count(_read_entries(directory, chosen, "export"))
    if kind is Format.PARQUET:
        # A column has one type in a file, so all entries are read before any is written.
        return parquet_bytes(batches, text_columns(_read_entries(directory, chosen, "types")))
    return json_lines(batches, partial(entry_json, confirmed=confirmed))


def _read_entries(directory: Path, chosen: EntrySelection, doing: str) -> Iterator[pa.RecordBatch]:
    from transporter.log.reader import LogReader  # noqa: PLC0415 - imports pyarrow
    from transporter.log.search import matching_entries  # noqa: PLC0415

    with LogReader(directory) as reader, _progress(doing, chosen.first, chosen.last) as seen:
        yield from matching_entries(reader, chosen.first, chosen.last, chosen.filters, seen)
        if doing == "export":
            note_missing(reader, chosen)


@contextmanager
def _progress(doing: str, first: int, last: int) -> Iterator[Callable[[int], object]]:
    """Show the progress of *doing* on a terminal. Yield a function to call with each offset."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 - only on a terminal
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(doing, total=max(0, last - first + 1))
        yield lambda offset: bar.update(task, completed=offset - first + 1)


def _format_by_name(file: Path) -> Format:
    try:
        return Format(file.suffix.removeprefix("."))
    except ValueError as error:
        raise typer.BadParameter(f"{file}: add --format parquet or --format jsonl") from error


def _check_place(directory: Path, file: Path) -> None:
    if file.exists() and not file.is_file():
        raise typer.BadParameter(f"{file}: an export can replace regular files only")
    if file.absolute().parent.resolve().is_relative_to(directory.resolve()):
        raise typer.BadParameter(f"{file}: an export cannot be written into the log directory")

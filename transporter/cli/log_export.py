"""``transporter log export``: entries as a file that other tools read."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transporter.cli.log_entries import entry_json
from transporter.cli.log_range import (
    Chosen,
    From,
    KeyFilter,
    NamespaceFilter,
    To,
    choose,
    look,
    note_gone,
    wanted_of,
)
from transporter.cli.output import printable, write, write_json
from transporter.cli.target import AsJson, Target, log_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa


File = Annotated[Path, typer.Argument(help="The file to write; replaced if it exists.")]


class Format(StrEnum):
    """What an export is written as."""

    PARQUET = "parquet"
    JSONL = "jsonl"


def export(  # noqa: PLR0913 - one argument an option
    target: Target,
    file: File,
    *,
    kind: Annotated[
        Format | None, typer.Option("--format", help="By default what the file's name ends with.")
    ] = None,
    start: From = None,
    end: To = None,
    namespace: NamespaceFilter = "",
    key: KeyFilter = None,
    as_json: AsJson = False,
) -> None:
    """Write confirmed entries into a Parquet file, or as JSON lines, whole or not at all.

    Example: transporter log export pipeline.yaml orders.parquet --from 24h --namespace ^orders
    """
    from transporter.log.export import export as write_file  # noqa: PLC0415 - imports pyarrow

    directory = log_directory(target)
    kind = kind or _by_name(file)
    _check_place(directory, file)
    found = look(directory)
    wanted = wanted_of(namespace, key)
    chosen = choose(found, found.confirmed, None, start, end, wanted)
    count = _Count()
    write_file(file, _parts(kind, directory, chosen, count, found.confirmed))
    result = {"file": file, "format": kind, "entries": count.rows, "bytes": file.stat().st_size}
    if as_json:
        write_json(result)
    else:
        write(f"{count.rows:,} entries, {result['bytes']:,} bytes: {printable(file)}")


class _Count:
    """How many entries have gone by."""

    rows = 0

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass *batches* on."""
        for batch in batches:
            self.rows += batch.num_rows
            yield batch


def _parts(
    kind: Format, directory: Path, chosen: Chosen, count: _Count, confirmed: int
) -> Iterable[bytes]:
    from transporter.log.export import (  # noqa: PLC0415 - imports pyarrow
        json_lines,
        parquet,
        text_columns,
    )

    batches = count.of(_read(directory, chosen, "export"))
    if kind is Format.PARQUET:
        # A file has one type for a column, so all is looked at before any of it is written.
        return parquet(batches, text_columns(_read(directory, chosen, "types")))
    return json_lines(batches, partial(entry_json, confirmed=confirmed))


def _read(directory: Path, chosen: Chosen, doing: str) -> Iterator[pa.RecordBatch]:
    from transporter.log.reader import LogReader  # noqa: PLC0415 - imports pyarrow
    from transporter.log.search import matching  # noqa: PLC0415

    with LogReader(directory) as reader, _progress(doing, chosen.first, chosen.last) as seen:
        yield from matching(reader, chosen.first, chosen.last, chosen.wanted, seen)
        if doing == "export":
            note_gone(reader, chosen)


@contextmanager
def _progress(doing: str, first: int, last: int) -> Iterator[Callable[[int], object]]:
    """Show on a terminal how far *doing* has come; give what is told each offset."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 - only on a terminal
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(doing, total=max(0, last - first + 1))
        yield lambda offset: bar.update(task, completed=offset - first + 1)


def _by_name(file: Path) -> Format:
    try:
        return Format(file.suffix.removeprefix("."))
    except ValueError as error:
        raise typer.BadParameter(f"{file}: say --format parquet or --format jsonl") from error


def _check_place(directory: Path, file: Path) -> None:
    if file.exists() and not file.is_file():
        raise typer.BadParameter(f"{file}: not a file that an export could replace")
    if file.absolute().parent.resolve().is_relative_to(directory.resolve()):
        raise typer.BadParameter(f"{file}: the log directory is not the place for an export")

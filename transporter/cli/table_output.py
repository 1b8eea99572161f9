"""The log as a table: the options that select a part of it, and the output of results."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from transporter.cli.output import write_json_list, write_table
from transporter.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from transporter.table.options import Options

TableOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="NAME=VALUE", help="Table option (see docs/spark.md); repeatable."
    ),
]
_TABLE_ROWS: Final = 1000


def parse_pairs(name: str, given: list[str] | None) -> dict[str, str]:
    """Parse the NAME=VALUE pairs *given* to the option *name*."""
    for text in given or ():
        if not text.partition("=")[0] or "=" not in text:
            raise typer.BadParameter(f"{name} {text!r}: use NAME=VALUE")
    return dict(text.split("=", 1) for text in given or ())


def table_options(
    directory: Path, start: str | None, end: str | None, namespace: str, others: list[str] | None
) -> tuple[dict[str, str], Options]:
    """Return the options of the table over the log in *directory*, as given and as parsed.

    Raises:
        ConfigError: one of them is wrong.

    """
    from transporter.table.options import read_options, refuse_options  # noqa: PLC0415 - imports pyarrow

    bounds = {"from": start, "to": end, "namespace": namespace}
    options = {name: value for name, value in bounds.items() if value} | parse_pairs(
        "--option", others
    )
    found = read_options({"path": str(directory), **options}, datetime.now(UTC))
    refuse_options(options, streaming=False)
    return options, found


def write_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, as_json: bool) -> int:
    """Print a result as a table or as JSON while its rows arrive. Return the exit code."""
    if as_json:
        if repeated := [each for each, count in Counter(columns).items() if count > 1]:
            raise ConfigError(
                f"the result has several columns {', '.join(repeated)}, of which an object of "
                "--json can have one: give each a name of its own with AS"
            )
        return write_json_list(dict(zip(columns, row, strict=True)) for row in rows)
    cells = ([_cell_text(cell) for cell in row] for row in rows)
    # A long result becomes several tables (Invariant 17).
    write_table(columns, islice(cells, _TABLE_ROWS))
    while more := list(islice(cells, _TABLE_ROWS)):
        write_table(columns, more)
    return 0


def _cell_text(value: object) -> str:
    if value is None:
        return "null"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

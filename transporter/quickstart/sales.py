"""Summary of the shop's sales from its pipeline's Parquet, printed at the end of the demo."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.dataset as ds
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from transporter.errors import TransporterError
from transporter.pipeline.config import load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_RUN: Final = "run"
_ROUTE: Final = "sales"
_QUERY: Final = (
    "SELECT city, count(*) AS orders, sum(total_cents) / 100 AS euros "
    "FROM parquet.`{}` GROUP BY city ORDER BY euros DESC"
)
_CENTS: Final = 100


@dataclass(frozen=True, slots=True)
class Sold:
    """Sales to one city."""

    city: str
    orders: int
    cents: int


def show_sales(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Print the sales by city, and the command that queries the same with Spark.

    *command* is the one that has run: ``transporter run FILE``. Other commands, and pipelines
    without a route ``sales`` into files, are skipped. The output goes to stderr, because standard
    output belongs to the pipeline. Unreadable files are reported there and never raised.
    """
    try:
        folder = _sales_folder(command, environ)
        if folder is not None:
            _print_sales(read_sales(folder), folder, command)
    except (TransporterError, OSError, pa.ArrowException) as error:
        sys.stderr.write(f"shop: cannot show the sales: {error}\n")


def read_sales(folder: Path) -> list[Sold]:
    """Return the sales in the Parquet of *folder*, the city with the most first.

    Raises:
        OSError: If a file cannot be read.
        pyarrow.ArrowException: If a file has other columns, or is not Parquet.
    """
    if not folder.is_dir():
        return []
    # Readers skip names that start with _, which includes uncommitted files.
    data = ds.dataset(folder, format="parquet")
    if not data.files:
        return []
    rows = data.to_table(columns=["city", "total_cents"]).group_by("city")
    found = rows.aggregate([([], "count_all"), ("total_cents", "sum")])
    sold = [
        Sold(_printable_city(each["city"]), each["count_all"], each["total_cents_sum"] or 0)
        for each in found.to_pylist()
    ]
    return sorted(sold, key=lambda each: (-each.cents, each.city))


def _sales_folder(command: Sequence[str], environ: Mapping[str, str]) -> Path | None:
    """Return the sales folder of the pipeline that *command* has run, if it has one."""
    file = _pipeline_file(command)
    if file is None:
        return None
    routes = [each for each in load(file, environ).routes if each.name == _ROUTE]
    path = getattr(routes[0].writer.config, "path", None) if routes else None
    return Path(path) if path is not None else None


def _pipeline_file(command: Sequence[str]) -> Path | None:
    behind = command[command.index(_RUN) + 1 :] if _RUN in command else ()
    return next((Path(each) for each in behind if Path(each).is_file()), None)


def _print_sales(sold: Sequence[Sold], folder: Path, command: Sequence[str]) -> None:
    console = Console(stderr=True, highlight=False)
    place = _relative_path(folder)
    if not sold:
        console.print(
            f"\n{place}: the Parquet files hold no orders yet", markup=False, soft_wrap=True
        )
        return
    console.print(f"\nSales of the shop, from the Parquet in {place}:", markup=False)
    console.print(_sales_table(sold))
    console.print("The same by SQL on Spark:\n", markup=False)
    # One line at any width, so that it can be copied.
    console.print(f"  {_shell_command(command, folder)}\n", markup=False, soft_wrap=True)


def _sales_table(sold: Sequence[Sold]) -> Table:
    whole = Sold("all", sum(each.orders for each in sold), sum(each.cents for each in sold))
    made = Table(box=SIMPLE_HEAD, show_footer=True)
    made.add_column("city", whole.city)
    made.add_column("orders", f"{whole.orders:,}", justify="right")
    made.add_column("euros", _euros_text(whole), justify="right")
    for each in sold:
        made.add_row(Text(each.city), f"{each.orders:,}", _euros_text(each))
    return made


def _shell_command(command: Sequence[str], folder: Path) -> str:
    before, file = command[: command.index(_RUN)], _pipeline_file(command)
    # Both paths work from the same folders.
    is_absolute = file is not None and file.is_absolute()
    place = str(folder) if is_absolute else _relative_path(folder)
    query = _QUERY.format(place.replace("`", "``"))
    return shlex.join([*before, "shell", str(file), "-e", query])


def _relative_path(folder: Path) -> str:
    """Return *folder* relative to the current folder, if it is inside."""
    here = Path.cwd()
    return os.path.relpath(folder, here) if folder.is_relative_to(here) else str(folder)


def _euros_text(sold: Sold) -> str:
    return f"{sold.cents / _CENTS:,.2f}"


def _printable_city(city: str | None) -> str:
    """Return the name of a city without characters that would move the cursor."""
    return "".join(each for each in city or "?" if each.isprintable())

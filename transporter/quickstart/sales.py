"""What the shop has sold, as the Parquet of its pipeline has it: shown when the demo has ended."""

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
    """What was ordered from one city."""

    city: str
    orders: int
    cents: int


def show_sales(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Print what was sold, city by city, and the command that asks Spark for the same.

    *command* is the one that has run: ``transporter run FILE``. What is no such command, or has
    no route ``sales`` into files, is passed over. To stderr, as all that is for people here:
    standard output is the pipeline's. Never raises for what it cannot read; it says so instead.
    """
    try:
        folder = _folder(command, environ)
        if folder is not None:
            _print(sales(folder), folder, command)
    except (TransporterError, OSError, pa.ArrowException) as error:
        sys.stderr.write(f"shop: what was sold cannot be shown: {error}\n")


def sales(folder: Path) -> list[Sold]:
    """Return what the Parquet in *folder* tells, the city with the most first.

    Raises:
        OSError: a file cannot be read.
        pyarrow.ArrowException: a file has other columns, or is none of Parquet.

    """
    if not folder.is_dir():
        return []
    # Readers pass over what begins with _, and with it over what is not committed yet.
    data = ds.dataset(folder, format="parquet")
    if not data.files:
        return []
    rows = data.to_table(columns=["city", "total_cents"]).group_by("city")
    found = rows.aggregate([([], "count_all"), ("total_cents", "sum")])
    sold = [
        Sold(_plain(each["city"]), each["count_all"], each["total_cents_sum"] or 0)
        for each in found.to_pylist()
    ]
    return sorted(sold, key=lambda each: (-each.cents, each.city))


def _folder(command: Sequence[str], environ: Mapping[str, str]) -> Path | None:
    """Return where the pipeline that *command* has run keeps its sales, if it does."""
    file = _pipeline_file(command)
    if file is None:
        return None
    routes = [each for each in load(file, environ).routes if each.name == _ROUTE]
    path = getattr(routes[0].writer.config, "path", None) if routes else None
    return Path(path) if path is not None else None


def _pipeline_file(command: Sequence[str]) -> Path | None:
    behind = command[command.index(_RUN) + 1 :] if _RUN in command else ()
    return next((Path(each) for each in behind if Path(each).is_file()), None)


def _print(sold: Sequence[Sold], folder: Path, command: Sequence[str]) -> None:
    console = Console(stderr=True, highlight=False)
    place = _shown(folder)
    if not sold:
        console.print(f"\n{place}: no order has become Parquet yet", markup=False, soft_wrap=True)
        return
    console.print(f"\nWhat the shop has sold, from the Parquet in {place}:", markup=False)
    console.print(_table(sold))
    console.print("The same, asked for by SQL on Spark:\n", markup=False)
    # One line, whatever the width: it is there to be copied.
    console.print(f"  {_hint(command, place)}\n", markup=False, soft_wrap=True)


def _table(sold: Sequence[Sold]) -> Table:
    whole = Sold("all", sum(each.orders for each in sold), sum(each.cents for each in sold))
    made = Table(box=SIMPLE_HEAD, show_footer=True)
    made.add_column("city", whole.city)
    made.add_column("orders", f"{whole.orders:,}", justify="right")
    made.add_column("euros", _euros(whole), justify="right")
    for each in sold:
        made.add_row(Text(each.city), f"{each.orders:,}", _euros(each))
    return made


def _hint(command: Sequence[str], place: str) -> str:
    before = command[: command.index(_RUN)]
    query = _QUERY.format(place.replace("`", "``"))
    return shlex.join([*before, "shell", str(_pipeline_file(command)), "-e", query])


def _shown(folder: Path) -> str:
    """Return *folder* as it is seen from here, where that is shorter."""
    here = Path.cwd()
    return os.path.relpath(folder, here) if folder.is_relative_to(here) else str(folder)


def _euros(sold: Sold) -> str:
    return f"{sold.cents / _CENTS:,.2f}"


def _plain(city: str | None) -> str:
    """Return the name of a city without what would move the cursor."""
    return "".join(each for each in city or "?" if each.isprintable())

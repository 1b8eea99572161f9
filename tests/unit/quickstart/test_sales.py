"""Tests of the demo's final output: a query on the Parquet files of its pipeline."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from transporter.quickstart.sales import Sold, read_sales, show_sales

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = {
    "offset": [1, 2, 3, 4],
    "city": ["Oulu", "Leeds", "Oulu", "Malmö"],
    "total_cents": [1250, 123_456, 895, 490],
}
PIPELINE = """
log: {dir: log}
readers: [{name: in, adaptor: demo}]
routes:
  - {name: ROUTE, writer: {adaptor: spark, path: "${PLACE:-sales}"}}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a pipeline whose route ``sales`` goes into a folder beside it, and change to it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "p.yaml"
    path.write_text(PIPELINE.replace("ROUTE", "sales"), encoding="utf-8")
    return path


def write(folder: Path, columns: dict[str, list[object]], name: str = "slice-1.parquet") -> None:
    """Add a file to *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / name)


def test_sales_are_counted_by_city(tmp_path: Path) -> None:
    """All committed files count, and the city with the highest sales comes first."""
    write(tmp_path, ORDERS)
    write(tmp_path, {"city": ["Leeds", None], "total_cents": [4, 1]}, "slice-2.parquet")
    write(tmp_path / "_transporter" / "slice", ORDERS)
    assert read_sales(tmp_path) == [
        Sold("Leeds", 2, 123_460),
        Sold("Oulu", 2, 2145),
        Sold("Malmö", 1, 490),
        Sold("?", 1, 1),
    ]


def test_the_table_and_the_same_by_spark_are_shown(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The query can be copied: one line, quoted for a shell, with the folder's relative path."""
    write(file.parent / "a `b'" / "sales", ORDERS)
    show_sales(["bin/transporter", "run", "p.yaml"], {"PLACE": "a `b'/sales"})
    printed = capsys.readouterr()
    lines = [line.split() for line in printed.err.splitlines()]
    assert printed.out == ""
    assert ["Leeds", "1", "1,234.56"] in lines
    assert ["all", "4", "1,260.91"] in lines
    (hint,) = [line for line in printed.err.splitlines() if "SELECT" in line]
    command = shlex.split(hint)
    assert command[:4] == ["bin/transporter", "shell", "p.yaml", "-e"]
    assert "FROM parquet.`a ``b'/sales` GROUP BY city" in command[4]
    show_sales(["transporter", "run", str(file)], {"PLACE": "a `b'/sales"})
    (hint,) = [line for line in capsys.readouterr().err.splitlines() if "SELECT" in line]
    assert f"FROM parquet.`{file.parent}/a ``b'/sales`" in shlex.split(hint)[4]


@pytest.mark.parametrize("folder", [None, "sales", "sales/_transporter"])
def test_no_parquet_yet_is_said(
    folder: str | None, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A demo that ends before its first slice reports that, and shows no empty table."""
    if folder:
        (file.parent / folder).mkdir(parents=True)
    show_sales(["transporter", "run", "p.yaml"], {})
    assert capsys.readouterr().err == "\nsales: the Parquet files hold no orders yet\n"


def test_other_commands_and_pipelines_show_nothing(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that runs no pipeline, and a pipeline without sales, print nothing."""
    write(file.parent / "sales", ORDERS)
    for command in (["true"], ["transporter", "check", "p.yaml"], ["transporter", "run"]):
        show_sales(command, {})
    file.write_text(PIPELINE.replace("ROUTE", "daily"), encoding="utf-8")
    show_sales(["transporter", "run", "p.yaml"], {})
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("broken", ["columns", "file", "pipeline"])
def test_what_cannot_be_shown_is_said_in_a_line(
    broken: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other columns, an invalid Parquet file or an invalid pipeline are reported in one line."""
    write(file.parent / "sales", {"town": ["Oulu"]} if broken == "columns" else ORDERS)
    if broken == "file":
        (file.parent / "sales" / "slice-1.parquet").write_bytes(b"PAR1")
    if broken == "pipeline":
        file.write_text("routes: 7", encoding="utf-8")
    show_sales(["transporter", "run", "p.yaml"], {})
    assert capsys.readouterr().err.startswith("shop: cannot show the sales: ")


def test_a_city_moves_no_cursor(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Escapes and rich's markup in names, which come from data, have no effect."""
    write(file.parent / "sales", {"city": ["\x1b[2JOu[red]lu"], "total_cents": [100]})
    show_sales(["transporter", "run", "p.yaml"], {})
    printed = capsys.readouterr().err
    assert "\x1b" not in printed
    assert "[2JOu[red]lu" in printed

"""The queries of docs/steps.md, run on Spark."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from frame_tools import Delivering, route, session

from transporter.message import Message, messages_to_batch, with_offsets
from transporter.pipeline.yaml_document import parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "steps.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCES = [(kind, text.strip("\n")) for kind, text in FENCE.findall(PAGE.read_text())]
EXAMPLES = [
    (step, before, after)
    for (kind, step), (_, before), (_, after) in zip(FENCES, FENCES[1:], FENCES[2:], strict=False)
    if kind == "yaml" and step.startswith("sql:")
]
NAMED = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \| `([A-Z][^`]*)`", re.MULTILINE)

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Run Spark for every test of this module."""
    with session(tmp_path_factory.mktemp("spark")) as found:
        yield found


def _rows(
    folder: Path, spark: SparkSession, step: dict[str, Any], data: bytes
) -> list[dict[str, Any]]:
    """Return the rows that *step* makes of one message, as a Spark sink gets them."""
    made = Delivering(route(folder, [step], "spark", {"path": "out"}), spark, folder)
    try:
        batch = messages_to_batch([Message("orders.fr", data)])
        assert made.deliver(with_offsets(batch, 0, 1)).failure is None
    finally:
        made.close()
    found: list[dict[str, Any]] = (
        ds.dataset(folder / "out", format="parquet").to_table().to_pylist()
    )
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize(("step", "before", "after"), EXAMPLES)
def test_an_example_is_true(
    spark: SparkSession, folder: Path, step: str, before: str, after: str
) -> None:
    """Each query turns its input on the page into the rows on the page, as far as shown."""
    expected = [json.loads(line) for line in after.splitlines()]
    found = _rows(folder, spark, parse(step, "steps.md", {}).root, before.encode())
    shown = [
        {name: _plain(row[name]) for name in wanted}
        for row, wanted in zip(found, expected, strict=True)
    ]
    assert shown == expected


def _plain(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


def test_the_columns_are_those_of_the_page(spark: SparkSession, folder: Path) -> None:
    """The page's table names every column of ``entries``, with its type as text."""
    section = PAGE.read_text().partition("### The table `entries`")[2].partition("\n### ")[0]
    listed = {
        name: kind
        for names, kind in NAMED.findall(section)
        for name in re.findall(r"`(\w+)`", names)
    }
    (row,) = _rows(
        folder,
        spark,
        {"sql": f"SELECT offset, {_types(listed)} FROM entries"},
        b"{}",
    )
    row.pop("offset")
    assert row == {
        f"type_of_{name}": kind.replace(": ", ":").replace(" ", "").lower()
        for name, kind in listed.items()
    }


def _types(columns: dict[str, str]) -> str:
    return ", ".join(f"replace(typeof({name}), ' ', '') AS type_of_{name}" for name in columns)

"""The speeds that pages state are those of the page that the benchmarks have written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[3]
_FIGURE: Final = re.compile(r"((?:\d[\d. ]*\d|\d)(?: and [\d.]+)?) ((?:rows|messages)/s|ms)\b")
"""A figure, or two of them, and their unit."""
_RATIO: Final = re.compile(r"([\d.]+) times")


def _section(page: str, begin: str, end: str) -> str:
    """Return the text of *page* from the line *begin* to *end*."""
    text = (_ROOT / page).read_text()
    return text[text.index(begin) :].split(end, 1)[0]


def _medians(unit: str) -> set[str]:
    """Return the medians with *unit* on the page of the benchmarks."""
    page = (_ROOT / "docs/benchmarks.md").read_text()
    return set(re.findall(rf"([\d. ]*\d) \([\d. ]+-[\d. ]+\) {unit}", page))


@pytest.mark.parametrize(
    ("page", "begin", "end"),
    [
        ("README.md", "- **Fast.**", "\n- "),
        ("docs/comparison.md", "## Figures", "Bold figures"),
    ],
)
def test_stated_speeds_are_those_of_the_benchmarks(page: str, begin: str, end: str) -> None:
    """Find each stated speed among the medians of the page of the benchmarks."""
    stated = _FIGURE.findall(re.sub(r"\s+", " ", _section(page, begin, end)))
    assert len(stated) >= 2
    for figures, unit in stated:
        for figure in figures.split(" and "):
            assert figure in {each.strip() for each in _medians(unit)}, f"{figure} {unit}"


def test_the_stated_ratio_is_that_of_the_benchmarks() -> None:
    """Find the ratio in the row of the stated speed."""
    text = re.sub(r"\s+", " ", _section("README.md", "- **Fast.**", "\n- "))
    (ratio,) = _RATIO.findall(text)
    ours = _FIGURE.findall(text)[0][0]
    row = next(
        line for line in (_ROOT / "docs/benchmarks.md").read_text().splitlines() if ours in line
    )
    assert f"| {ratio} (" in row


def test_the_ratios_of_queries_are_those_of_the_benchmarks() -> None:
    """Find each ratio of the page about Spark in the benchmarks' row of that query."""
    stated = _rows(_section("docs/spark.md", "## How fast", "\n## "))[1:]
    measured = {
        row[0]: row for row in _rows(_section("docs/benchmarks.md", "## data-source", "\n## "))
    }
    assert len(stated) == 3
    for query, *ratios in stated:
        for ratio, columns in zip(ratios, ("every column", "the columns it needs"), strict=True):
            assert measured[f"{query}, {columns}"][3].split(" (")[0] == ratio, query


def _rows(text: str) -> list[list[str]]:
    """Return the cells of each line of the table in *text*, without the line below its head."""
    lines = (line for line in text.splitlines() if line.startswith("|") and "---" not in line)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]

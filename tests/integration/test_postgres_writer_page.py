"""The pipeline of docs/postgres-writer.md is the one that a test runs, and its tables are true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from transporter_adaptors.postgres.table import TableName
from transporter_adaptors.postgres_writer.append_mode import append_ddl
from transporter_adaptors.postgres_writer.config import PostgresWriterConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "postgres-writer.md").read_text()
README = (ROOT / "adaptors/transporter_adaptors/postgres_writer/README.md").read_text()


def test_the_pipeline_of_the_page() -> None:
    """The page shows pipelines/replicate.yaml as it is."""
    shown, *_ = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert shown == (ROOT / "pipelines" / "replicate.yaml").read_text()


def test_the_table_of_entries() -> None:
    """The README shows the table that mode: append creates."""
    made = append_ddl(TableName("events")).replace('"events"', "events")
    assert f"{made};" in README


def test_the_settings_of_the_readme() -> None:
    """The README has every setting, with its default."""
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", README.partition("## A slice")[0], re.MULTILINE)
    fields = PostgresWriterConfig.model_fields
    assert [name for name, _ in rows] == [*fields]
    for name, default in rows:
        if isinstance(fields[name].default, str):
            assert default == f"`{fields[name].default}`"


@pytest.mark.parametrize("page", [PAGE, README])
def test_lines_of_a_page(page: str) -> None:
    """Every table's rows have the same number of cells."""
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        assert len({line.replace("\\|", "").count("|") for line in table.splitlines()}) == 1

"""Settings of the PostgreSQL writer: tables, and what does not go together."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from transporter_adaptors.postgres.table import TableName
from transporter_adaptors.postgres_writer.config import PostgresWriterConfig, split_name


def config(**settings: Any) -> PostgresWriterConfig:
    """Return a config with these settings."""
    return PostgresWriterConfig.model_validate({"dsn": "dbname=x", **settings})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b", TableName("b", "a")),
        ("a.b.c", TableName("b.c", "a")),
        ("A", TableName("A")),
        (".a", TableName(".a")),
        ("a.", TableName("a.")),
        ('"a"."b"', TableName('"b"', '"a"')),
    ],
)
def test_names_are_split_at_the_first_dot(text: str, expected: TableName) -> None:
    """The schema is what is before the first dot, and nothing is quoted or folded."""
    assert split_name(text) == expected


def test_the_table_of_a_namespace() -> None:
    """A template makes the table, except for namespaces that are listed."""
    found = config(table="copy.{namespace}", tables={"public.a": "b.c"})
    assert found.table_of("public.x{}") == TableName("public.x{}", "copy")
    assert found.table_of("public.a") == TableName("c", "b")
    assert found.fixed_tables == (TableName("c", "b"),)
    assert config(table="t").fixed_tables == (TableName("t"),)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"table": "{table}"}, "unknown field {table}"),
        ({"table": "{namespace!r}"}, "unknown field"),
        ({"table": ""}, "at least 1 character"),
        ({"mode": "append", "key": ["a"]}, "has no use for key"),
        ({"mode": "append", "truncate": "ignore"}, "has no use for truncate"),
        ({"key": ["a", "a"]}, "twice"),
        ({"key": ["a", "b"], "key_format": "json"}, "always an array"),
        ({"delete": {"column": "a"}}, "mark"),
        ({"extra": {}}, "column"),
        ({"evolve": "drop"}, "'none', 'add' or 'create'"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], problem: str) -> None:
    """Settings without a meaning are errors that name the reason."""
    with pytest.raises(ValidationError, match="(?s)" + problem):
        config(**settings)


def test_upserts_are_overwritten_by_a_replay() -> None:
    """A replay into rows by key overwrites newer ones, which an operator is warned of."""
    assert config().upserts
    assert not config(mode="append").upserts

"""Names of the columns, in the reader's setting and in applications."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from pydantic import ValidationError
from transporter_adaptors.postgres.columns import ColumnsConfig, OutboxColumns
from transporter_adaptors.postgres.config import OutboxConfig
from transporter_adaptors.postgres.leaders import is_same_log, new_leader

from transporter.outbox import Columns as Stashed

DSN = "postgresql://app@127.0.0.1/shop"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("event_id", "event_id"),
        (" Event_ID ", "event_id"),
        ('"Event ID"', "Event ID"),
        ('"a""b.%s"', 'a"b.%s'),
        ('"größe"', "größe"),
    ],
)
def test_names_are_read_as_sql_reads_them(text: str, name: str) -> None:
    """Unquoted names fold, quoted ones stay, and readers and applications agree."""
    config = OutboxConfig(dsn=DSN, columns={"id": text})  # type: ignore[arg-type] # as YAML gives it
    assert config.columns.names == OutboxColumns(id=name)
    assert Stashed(id=text).quoted_names()["id"] == '"' + name.replace('"', '""') + '"'
    assert Stashed(**dict(config.columns)).quoted_names() == Stashed(id=text).quoted_names()


def test_nothing_said_is_the_usual_table() -> None:
    """Reader, application and the settings have the same defaults."""
    config = OutboxConfig(dsn=DSN)  # type: ignore[arg-type] # as YAML gives it
    assert config.columns.names == OutboxColumns()
    assert asdict(OutboxColumns()) == asdict(Stashed()) == dict(ColumnsConfig())


@pytest.mark.parametrize("name", ["", "a b", "a.b", '"a"."b"', "größe", '"open', "1st", "x; y"])
def test_what_is_no_name_is_refused(name: str) -> None:
    """Only a single column name is accepted, in the settings and in applications."""
    with pytest.raises(ValidationError, match="not a column name"):
        OutboxConfig(dsn=DSN, columns={"key": name})  # type: ignore[arg-type] # the point of it
    with pytest.raises(ValueError, match="not a column name"):
        Stashed(key=name)


@pytest.mark.parametrize("name", ["x" * 64, '"' + "é" * 32 + '"'])
def test_what_postgresql_would_cut_is_refused(name: str) -> None:
    """A name longer than 63 bytes is refused, because PostgreSQL would silently cut it."""
    with pytest.raises(ValidationError, match="longer than"):
        OutboxConfig(dsn=DSN, columns={"key": name})  # type: ignore[arg-type] # the point of it
    with pytest.raises(ValueError, match="longer than"):
        Stashed(key=name)


@pytest.mark.parametrize("name", ["kafka_value", "KAFKA_VALUE", '"kafka_value"'])
def test_no_two_columns_are_the_same(name: str) -> None:
    """A column with the name of another one, or its default name, is refused."""
    with pytest.raises(ValidationError, match="names one column for key and value"):
        OutboxConfig(dsn=DSN, columns={"key": name})  # type: ignore[arg-type] # the point of it
    with pytest.raises(ValueError, match="two columns are called"):
        Stashed(key=name)


def test_an_unknown_column_is_refused() -> None:
    """A misspelt key is an error, not a column with its default name."""
    with pytest.raises(ValidationError, match="header_key\n"):
        OutboxConfig(dsn=DSN, columns={"header_key": "x"})  # type: ignore[arg-type] # as above


def test_only_unusual_names_are_shown() -> None:
    """Only names that differ from their defaults are shown."""
    assert ColumnsConfig().model_dump() == {}
    assert ColumnsConfig(id='"Row"', key="kafka_key").model_dump() == {"id": '"Row"'}


def test_leaders_tell_their_log_and_nothing_else_is_the_same() -> None:
    """Leader ids of one log share a mark, those of two logs do not, and no two are equal."""
    one, again, other = new_leader("log-1"), new_leader("log-1"), new_leader("log-2")
    assert is_same_log(one, again)
    assert not is_same_log(one, other)
    assert len({new_leader("log-1") for _ in range(1000)}) == 1000
    assert (one.version, one.variant) == (4, other.variant)

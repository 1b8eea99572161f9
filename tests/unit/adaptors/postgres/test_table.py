"""Table names and settings of the outbox reader."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from transporter_adaptors.postgres.config import OutboxConfig
from transporter_adaptors.postgres.reader import OutboxReader
from transporter_adaptors.postgres.table import TableName

from transporter.errors import SourceError

DSN = "postgresql://app:hunter2@127.0.0.1/shop"


@pytest.mark.parametrize(
    ("text", "expected", "written"),
    [
        ("outbox", TableName("outbox"), "outbox"),
        ("Outbox", TableName("outbox"), "outbox"),
        ("shop.outbox", TableName("outbox", "shop"), "shop.outbox"),
        ('"Order Outbox"', TableName("Order Outbox"), '"Order Outbox"'),
        ('"a.b"."c""d"', TableName('c"d', "a.b"), '"a.b"."c""d"'),
    ],
)
def test_names_are_read_as_sql_reads_them(text: str, expected: TableName, written: str) -> None:
    """Unquoted parts fold to lower case, quoted ones stay, and both are written back."""
    assert TableName.parse(text) == expected
    assert str(expected) == written
    assert TableName.parse(written) == expected


@pytest.mark.parametrize("text", ["", "a.b.c", "outbox; drop table x", '"open', "a b", "1st"])
def test_what_is_no_name_is_refused(text: str) -> None:
    """Only a table name is accepted."""
    with pytest.raises(ValueError, match="not a table name"):
        TableName.parse(text)


def test_defaults() -> None:
    """A DSN is the only required setting."""
    config = OutboxConfig(dsn=DSN)  # type: ignore[arg-type] # as YAML gives it
    assert (config.table, config.batch_rows, config.batch_bytes) == ("outbox", 10_000, 8 << 20)
    assert (config.poll_interval, config.notify_channel) == (1.0, "outbox")


def test_units_are_read_as_in_a_pipeline_file() -> None:
    """Sizes and durations have units."""
    given = {"dsn": DSN, "batch_bytes": "1MiB", "poll_interval": "200ms"}
    config = OutboxConfig.model_validate(given)
    assert (config.batch_bytes, config.poll_interval) == (1024**2, 0.2)


@pytest.mark.parametrize(
    "change",
    [
        {"table": "a;b"},
        {"batch_rows": 0},
        {"batch_bytes": 0},
        {"poll_interval": 0},
        {"notify_channel": ""},
        {"notify_channel": "x" * 64},
        {"batch_row": 5},
    ],
)
def test_impossible_settings_are_refused(change: dict[str, object]) -> None:
    """A setting out of its range, or one that does not exist, is an error."""
    with pytest.raises(ValidationError):
        OutboxConfig(dsn=DSN, **change)  # type: ignore[arg-type] # the point of it


def test_a_broken_dsn_is_refused_without_quoting_it() -> None:
    """The error about a DSN shows neither the DSN nor the password in it (Invariant 20)."""
    with pytest.raises(ValidationError) as caught:
        OutboxConfig(dsn="password=hunter2 and nonsense")  # type: ignore[arg-type]
    assert "not a PostgreSQL connection string" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_dsn_does_not_show() -> None:
    """The printed settings do not show the password."""
    assert "hunter2" not in repr(OutboxConfig(dsn=DSN))  # type: ignore[arg-type]


def test_a_reader_that_is_not_open_says_so() -> None:
    """A poll before open is an error with a text, and close is always allowed."""
    reader = OutboxReader(OutboxConfig(dsn=DSN))  # type: ignore[arg-type]
    reader.close()
    with pytest.raises(SourceError, match="not open"):
        reader.poll(0)
    reader.close()

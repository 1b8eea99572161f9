"""Tests of the names of outbox tables, and of the SQL that creates one."""

from __future__ import annotations

import pytest
from transporter_adaptors.postgres.table import TableName

from transporter.outbox import outbox_sql
from transporter.outbox.table import quote_table


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("outbox", '"outbox"'),
        (" Outbox ", '"outbox"'),
        ("Shop.Outbox", '"shop"."outbox"'),
        ('"Order Outbox"', '"Order Outbox"'),
        ('"a.b"."c""d"', '"a.b"."c""d"'),
        ("order", '"order"'),
    ],
)
def test_names_are_read_as_sql_reads_them(name: str, expected: str) -> None:
    """Unquoted parts fold and quoted ones stay, also in the reader's setting."""
    assert quote_table(name) == expected == TableName.parse(name).identifier.as_string()


@pytest.mark.parametrize("name", ["", "a.b.c", "outbox; drop table x", '"open', "a b", "1st", '"'])
def test_what_is_no_name_is_refused(name: str) -> None:
    """A text that is not a name is refused, here and in the reader's setting."""
    with pytest.raises(ValueError, match="not a table name"):
        quote_table(name)
    with pytest.raises(ValueError, match="not a table name"):
        TableName.parse(name)


def test_every_name_is_quoted() -> None:
    """The SQL is valid for any names of table and channel."""
    text = outbox_sql('Shop."o""x{table}%"', channel="it's")
    assert 'CREATE TABLE IF NOT EXISTS "shop"."o""x{table}%" (' in text
    assert 'FUNCTION "shop"."o""x{table}%_notify"()' in text
    assert 'TRIGGER "o""x{table}%_notify" AFTER INSERT ON "shop"' in text
    assert "pg_notify('it''s', '')" in text
    assert "pg_notify( E'a\\\\''b', '')" in outbox_sql(channel="a\\'b")


@pytest.mark.parametrize("channel", ["", "x" * 64, "é" * 32, "a\0b"])
def test_what_is_no_channel_is_refused(channel: str) -> None:
    """A channel that NOTIFY would refuse at every insert is refused."""
    with pytest.raises(ValueError, match="is not a channel"):
        outbox_sql(channel=channel)

"""Columns and tables that follow the source: they are added, and nothing else is changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from transporter_adaptors.postgres_writer.session import fetch
from transporter_adaptors.postgres_writer.statements import quote, quote_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres.table import TableName
    from transporter_adaptors.postgres_writer.catalog import Catalog
    from transporter_adaptors.postgres_writer.changes import Change

_LONGEST_NAME: Final = 63
_TYPE: Final = "SELECT pg_catalog.to_regtype(%s) IS NOT NULL"
_SCHEMA: Final = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s)"


def follow_schema(
    connection: Connection, catalog: Catalog, name: TableName, change: Change, *, creates: bool
) -> None:
    """Add to the table *name* the columns that *change* lists, or create it.

    Columns that it does not list stay, and may be NULL then.

    Raises:
        psycopg.Error: The server refuses it.
        RouteFault: The table is there, and rows cannot be written to it.
        ValueError: The columns are not those of a table, or one has a type that is not here.
    """
    statements = list(_statements(connection, catalog, name, change.data, creates=creates))
    for statement in statements:
        connection.execute(statement, [])
    if statements:
        catalog.forget()


def check_schema(
    connection: Connection, catalog: Catalog, name: TableName, data: bytes, *, creates: bool
) -> None:
    """Raise as :func:`follow_schema` does for an entry with this *data*, and change nothing."""
    for _ in _statements(connection, catalog, name, data, creates=creates):
        pass


def _statements(
    connection: Connection, catalog: Catalog, name: TableName, data: bytes, *, creates: bool
) -> Iterator[str]:
    document = _parse(data)
    columns = _columns(document)
    table = catalog.find(name)
    if table is None:
        if creates:
            yield from _creation(connection, name, columns, document)
        return
    actions = [
        f"ADD COLUMN IF NOT EXISTS {quote(column['name'])} {_type(connection, name, column)}"
        for column in columns
        if column["name"] not in table.columns
    ]
    there = {column["name"] for column in columns}
    # New rows have no value for a column that is gone at the source.
    actions += [
        f"ALTER {quote(column.name)} DROP NOT NULL"
        for column in table.columns.values()
        if column.is_required and column.name not in there and column.name not in table.key
    ]
    if actions:
        yield f"ALTER TABLE {quote_table(name)} {', '.join(actions)}"


def _parse(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise ValueError("the entry is not a JSON object with the columns of a table")  # noqa: TRY004 - a bad entry
    return document


def _columns(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    columns = document.get("columns")
    if not (
        isinstance(columns, list)
        and columns
        and all(
            isinstance(each, dict) and _is_name(each.get("name")) and _is_text(each.get("type"))
            for each in columns
        )
    ):
        raise ValueError("the entry does not list the columns of a table")
    names = {column["name"] for column in columns}
    if len(names) < len(columns):
        raise ValueError("the entry lists a column twice")
    key = document.get("key") or []
    if not isinstance(key, list) or not all(_is_name(name) and name in names for name in key):
        raise ValueError("the entry names a key that is not of its columns")
    return columns


def _is_name(value: object) -> bool:
    """Return whether the server would take *value* as a name, and not cut it."""
    if not isinstance(value, str) or not _is_text(value):
        return False
    return 0 < len(value.encode()) <= _LONGEST_NAME


def _is_text(value: object) -> bool:
    """Return whether *value* is text that can be sent: without NUL and half characters."""
    if not isinstance(value, str) or "\0" in value:
        return False
    return not any("\ud800" <= each <= "\udfff" for each in value)


def _creation(
    connection: Connection,
    name: TableName,
    columns: Sequence[Mapping[str, Any]],
    document: Mapping[str, Any],
) -> Iterator[str]:
    key = document.get("key")
    if not key:
        raise ValueError(
            f"{name} has no key at its source: create the table here with one, and name its "
            "columns in key"
        )
    if name.schema is not None:
        ((exists,),) = fetch(connection, _SCHEMA, [name.schema])
        if not exists:
            yield f"CREATE SCHEMA IF NOT EXISTS {quote(name.schema)}"
    lines = [
        f"{quote(column['name'])} {_type(connection, name, column)}"
        + (" NOT NULL" if column.get("not_null") else "")
        for column in columns
    ]
    lines.append(f"PRIMARY KEY ({', '.join(map(quote, key))})")
    yield f"CREATE TABLE {quote_table(name)} ({', '.join(lines)})"


def _type(connection: Connection, name: TableName, column: Mapping[str, Any]) -> str:
    """Return the type of *column* for a statement, or raise ``ValueError``.

    The server parses the text as a type alone, so that nothing else can be in it.
    """
    text: str = column["type"]
    is_type = False
    if "--" not in text and "/*" not in text:
        ((is_type,),) = fetch(connection, _TYPE, [text])
    if not is_type:
        raise ValueError(
            f"{name}: the type {text} of column {column['name']} is not in this database: create "
            "the type, or the column with another type"
        )
    return text.replace("%", "%%")

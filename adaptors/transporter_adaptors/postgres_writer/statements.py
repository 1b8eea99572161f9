"""Statements for groups of changes. Values are converted by the server, by the table's types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from psycopg import sql

from transporter_adaptors.postgres.table import escape_percent
from transporter_adaptors.postgres_writer.changes import DELETE, UPDATE
from transporter_adaptors.postgres_writer.config import Mark, Rest
from transporter_adaptors.postgres_writer.session import RawJson

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transporter_adaptors.postgres.table import TableName
    from transporter_adaptors.postgres_writer.changes import Change
    from transporter_adaptors.postgres_writer.config import PostgresWriterConfig
    from transporter_adaptors.postgres_writer.folding import Group
    from transporter_adaptors.postgres_writer.rows import Shape
    from transporter_adaptors.postgres_writer.table import Table

LARGEST: Final = 16 * 1024**2
"""Bytes of the values of one statement, unless one row has more."""
_RECORDS: Final = "pg_catalog.json_to_recordset(%s) AS r ({columns})"
_EACH_RECORD: Final = (
    "pg_catalog.json_array_elements(%s) AS e (doc), "
    "LATERAL pg_catalog.json_to_record(e.doc) AS r ({columns})"
)

Statement = tuple[str, list[Any], int]
"""A statement, its parameters, and its number of rows."""


def quote(name: str) -> str:
    """Return *name* for a statement with parameters, where a per cent sign is doubled."""
    return escape_percent(sql.Identifier(name)).as_string()


def quote_table(name: TableName) -> str:
    """Return the name of a table for a statement with parameters."""
    return name.in_query.as_string()


def statements_of(group: Group, config: PostgresWriterConfig) -> Iterator[Statement]:
    """Yield the statements that apply *group*, each with :data:`LARGEST` bytes at most."""
    table, shape = group.table, group.shape
    text = table.statements.get(shape)
    if text is None:
        text = table.statements[shape] = _text(table, shape, config)
    for part in _split(group.changes):
        yield text, _parameters(part, table, shape, config), len(part)


def _split(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    size = begin = 0
    for place, change in enumerate(changes):
        size += len(change.data)
        if size > LARGEST and place > begin:
            yield changes[begin:place]
            begin, size = place, len(change.data)
    yield changes[begin:]


def _parameters(
    changes: Sequence[Change], table: Table, shape: Shape, config: PostgresWriterConfig
) -> list[Any]:
    if shape.kind != DELETE:
        rows = RawJson(b"[" + b",".join([change.data for change in changes]) + b"]")
        parameters: list[Any] = [[*shape.kept]] if shape.kept else []
        if shape.has_rest and isinstance(config.extra, Rest):
            parameters.append([name for name in table.columns if name != config.extra.column])
        return [*parameters, rows]
    keys = [change.key or b"" for change in changes]
    if not table.is_array_key:
        return [[key.decode() for key in keys]]
    arrays = [f"[{','.join(table.key_values(key))}]" for key in keys]
    return [RawJson(f"[{','.join(arrays)}]".encode())]


def _text(table: Table, shape: Shape, config: PostgresWriterConfig) -> str:
    if shape.kind == DELETE:
        return _delete(table, config)
    if shape.kind == UPDATE:
        return _update(table, shape, config)
    return _upsert(table, shape, config)


def _source(table: Table, shape: Shape) -> str:
    source = _EACH_RECORD if shape.has_rest else _RECORDS
    # An UPDATE compares a generated key, too.
    keys = [name for name in table.key if name not in shape.columns]
    return source.format(columns=typed_columns(table, [*shape.columns, *keys]))


def typed_columns(table: Table, names: Sequence[str]) -> str:
    """Return columns with their types. Others would be refused if their domain is NOT NULL."""
    types = ((name, table.columns[name].type.replace("%", "%%")) for name in names)
    return ", ".join(f"{quote(name)} {kind}" for name, kind in types)


def value_of(table: Table, name: str) -> str:
    """Return the new value of a column. JSON null in a column that has no NULL is JSON null."""
    column, value = table.columns[name], f"r.{quote(name)}"
    if column.is_json and column.not_null:
        return f"coalesce({value}, 'null'::{column.type})"
    return value


def _rest(table: Table, column: str, shape: Shape) -> str:
    kind, given = table.columns[column].type, "(e.doc::jsonb - %s::text[])"
    empty = "'{}'" if table.columns[column].not_null else "NULL"
    if not shape.kept:
        return f"{given if shape.has_rest else empty}::{kind}"
    old, kept = f"t.{quote(column)}", _kept_rest(column)
    value = (
        f"coalesce({kept}, '{{}}') || {given}" if shape.has_rest else f"coalesce({kept}, {empty})"
    )
    # The server stores a large rest again, unless it is the old value itself. The texts show
    # whether a number has got other digits, as 1.0 for 1.00.
    return (
        f"(SELECT CASE WHEN n.doc::text = {old}::text THEN {old} ELSE n.doc END "  # noqa: S608 - quoted
        f"FROM (SELECT ({value})::{kind} AS doc OFFSET 0) AS n)"
    )


def _kept_rest(column: str) -> str:
    """Return the fields of the row's rest whose names are a parameter, or NULL if it has none."""
    # This operator finds no field in an array or a scalar, and fails at none of them.
    value = f"t.{quote(column)}::jsonb -> k.name"
    return (
        f"(SELECT pg_catalog.jsonb_object_agg(k.name, {value}) "  # noqa: S608 - quoted
        f"FROM pg_catalog.unnest(%s::text[]) AS k (name) WHERE {value} IS NOT NULL)"
    )


def _values(table: Table, shape: Shape, config: PostgresWriterConfig) -> dict[str, str]:
    """Return the new values by column. That of the rest is the first, as its parameters are."""
    found: dict[str, str] = {}
    if isinstance(config.extra, Rest):
        found[config.extra.column] = _rest(table, config.extra.column, shape)
    found.update((name, value_of(table, name)) for name in shape.columns)
    return found


def _upsert(table: Table, shape: Shape, config: PostgresWriterConfig) -> str:
    values = _values(table, shape, config)
    names = list(values)
    if config.missing == "default":
        # EXCLUDED has their defaults.
        names += [
            name
            for name, column in table.columns.items()
            if name not in values and not column.is_generated
        ]
    changed = [f"{quote(name)} = EXCLUDED.{quote(name)}" for name in _settable(table, names)]
    if isinstance(config.delete, Mark):
        mark = config.delete.mark
        if mark not in values:
            cleared = "false" if table.columns[mark].type == "boolean" else "NULL"
            changed = [each for each in changed if not each.startswith(f"{quote(mark)} = ")]
            changed.append(f"{quote(mark)} = {cleared}")
    action = f"UPDATE SET {', '.join(changed)}" if changed else "NOTHING"
    return (
        f"INSERT INTO {quote_table(table.name)} ({', '.join(map(quote, values))}) "  # noqa: S608 - quoted
        f"OVERRIDING SYSTEM VALUE SELECT {', '.join(values.values())} "
        f"FROM {_source(table, shape)} "
        f"ON CONFLICT ({', '.join(map(quote, table.key))}) DO {action}"
    )


def _settable(table: Table, names: Sequence[str]) -> list[str]:
    """Return those of *names* that an UPDATE sets: of a key only what has several texts."""
    return [
        name
        for name in names
        if not table.columns[name].is_always_identity
        and (name not in table.key or not table.has_exact_key)
    ]


def _update(table: Table, shape: Shape, config: PostgresWriterConfig) -> str:
    values = _values(table, shape, config)
    names = [name for name in _settable(table, [*values]) if name not in table.key]
    # With nothing to set the row is still to be there.
    names = names or [name for name in table.key if not table.columns[name].is_always_identity]
    changed = [f"{quote(name)} = {values[name]}" for name in names]
    if not changed:
        return (
            f"SELECT FROM {quote_table(table.name)} AS t, {_source(table, shape)} "
            f"WHERE {_same_key(table)}"
        )
    return (
        f"UPDATE {quote_table(table.name)} AS t SET {', '.join(changed)} "  # noqa: S608 - quoted
        f"FROM {_source(table, shape)} WHERE {_same_key(table)}"
    )


def _same_key(table: Table) -> str:
    return " AND ".join(f"t.{quote(name)} = r.{quote(name)}" for name in table.key)


def literal(text: str) -> str:
    """Return a constant for a statement with parameters."""
    # Without backslashes as escapes, whatever standard_conforming_strings is.
    escaped = text.replace("\\", "\\\\").replace("'", "''").replace("%", "%%")
    return f"E'{escaped}'"


def _delete(table: Table, config: PostgresWriterConfig) -> str:
    name = quote_table(table.name)
    if table.is_array_key:
        parts = ", ".join(
            f"{literal(column)}, e.doc->{place}" for place, column in enumerate(table.key)
        )
        source = (
            "pg_catalog.json_array_elements(%s) AS e (doc), LATERAL "
            f"pg_catalog.json_to_record(pg_catalog.json_build_object({parts})) "
            f"AS r ({typed_columns(table, table.key)})"
        )
        condition = _same_key(table)
    else:
        (key,) = table.key
        source = "pg_catalog.unnest(%s::text[]) AS r (k)"
        kind = table.columns[key].type.replace("%", "%%")
        condition = f"t.{quote(key)} = r.k::{kind}"
    if isinstance(config.delete, Mark):
        mark = config.delete.mark
        value = "true" if table.columns[mark].type == "boolean" else "now()"
        action = f"UPDATE {name} AS t SET {quote(mark)} = {value} FROM"  # noqa: S608 - quoted
    else:
        action = f"DELETE FROM {name} AS t USING"  # noqa: S608 - quoted
    return f"{action} {source} WHERE {condition}"

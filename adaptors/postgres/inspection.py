"""Finds the outbox table and says what is missing before anything is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from adaptors.postgres.session import faults
from adaptors.postgres.table import TableName
from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adaptors.postgres.session import Connection

_INTEGERS: Final = frozenset({"int2", "int4", "int8"})
_TEXTS: Final = frozenset({"text", "varchar"})
_ARRAYS: Final = frozenset({"_text", "_varchar"})
_TYPES: Final = {
    "id": _INTEGERS,
    "create_time": frozenset({"timestamptz"}),
    "kafka_topic": _TEXTS,
    "kafka_key": _TEXTS,
    "kafka_value": _TEXTS,
    "kafka_header_keys": _ARRAYS,
    "kafka_header_values": _ARRAYS,
    "leader_id": frozenset({"uuid"}),
}
_FIND: Final = """
SELECT c.oid, n.nspname::text, c.relname::text,
       has_table_privilege(c.oid, 'SELECT'),
       has_any_column_privilege(c.oid, 'UPDATE'),
       has_table_privilege(c.oid, 'DELETE')
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = pg_catalog.to_regclass(%s)
"""
_ATTRIBUTES: Final = """
SELECT a.attname::text, t.typname::text
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
"""
_RIGHTS: Final = ("SELECT", "UPDATE", "DELETE")


def locate(connection: Connection, table: TableName, rights: Sequence[str] = _RIGHTS) -> TableName:
    """Return the full name of *table*, which is there, complete and may be used with *rights*.

    Raise ``EnvironmentFault`` otherwise, with the command or SQL that helps.
    """
    with faults(f"cannot look up the outbox table {table}"):
        found = connection.execute(_FIND, [table.identifier.as_string(connection)]).fetchone()
        if found is None:
            raise EnvironmentFault(
                f"there is no outbox table {table} in database {connection.info.dbname}; "
                "'transporter outbox init PIPELINE --run' creates it, and without --run prints "
                "the SQL for whoever may"
            )
        oid, schema, name, *granted = found
        full = TableName(name, schema)
        held = dict(zip(_RIGHTS, granted, strict=True))
        _check_rights(full, [(right, held[right]) for right in rights], connection.info.user)
        _check_columns(full, dict(connection.execute(_ATTRIBUTES, [oid]).fetchall()))
    return full


def _check_rights(table: TableName, needed: list[tuple[str, bool]], role: str) -> None:
    missing = [right for right, held in needed if not held]
    if missing:
        raise EnvironmentFault(
            f"the role {role} lacks {', '.join(missing)} on the outbox table {table}; "
            f"run GRANT {', '.join(right for right, _ in needed)} ON {table} TO {TableName(role)}"
        )


def _check_columns(table: TableName, present: dict[str, str]) -> None:
    wrong = [
        f"{name} is {present[name]}, not {' or '.join(sorted(types))}"
        if name in present
        else f"{name} is missing"
        for name, types in _TYPES.items()
        if present.get(name) not in types
    ]
    if wrong:
        raise EnvironmentFault(
            f"the table {table} is no outbox: {'; '.join(wrong)}. Name another one, or mend this "
            "one; 'transporter outbox init' prints the SQL of an outbox"
        )

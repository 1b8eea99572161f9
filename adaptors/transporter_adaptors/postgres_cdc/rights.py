"""Rights of a role on tables, and what it lacks to copy them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg.rows import class_row

from transporter_adaptors.postgres.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from transporter_adaptors.postgres.session import Connection

# A table or schema of the snapshot that was dropped meanwhile has NULL for a right.
_RIGHTS: Final = """
SELECT c.oid::bigint AS oid, n.nspname AS schema,
       coalesce(has_schema_privilege(%(role)s, n.oid, 'USAGE'), true) AS may_use_schema,
       coalesce(has_table_privilege(%(role)s, c.oid, 'SELECT'), true) AS may_select,
       pg_has_role(%(role)s, c.relowner, 'USAGE') AS is_owner,
       c.relrowsecurity AND row_security_active(c.oid) AS is_filtered
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY(%(oids)s) ORDER BY 2, c.relname
"""
_COLUMN_RIGHTS: Final = """
SELECT coalesce(bool_and(has_column_privilege(%s, a.attrelid, a.attnum, 'SELECT')), false)
FROM pg_attribute a WHERE a.attrelid = %s AND a.attname = ANY(%s)
"""


@dataclass(frozen=True, slots=True)
class TableRights:
    """A role's rights on a table. ``is_filtered`` is about row security, for our own role."""

    oid: int
    schema: str
    may_use_schema: bool
    may_select: bool
    is_owner: bool
    is_filtered: bool


def table_rights(connection: Connection, oids: Iterable[int], role: str) -> list[TableRights]:
    """Return the rights of *role* on the tables *oids*, by schema and name."""
    with connection.cursor(row_factory=class_row(TableRights)) as cursor:
        return cursor.execute(_RIGHTS, {"oids": [*oids], "role": role}).fetchall()


def may_select_columns(connection: Connection, oid: int, columns: Iterable[str], role: str) -> bool:
    """Return whether *role* may read all of *columns* of the table *oid*."""
    ((found,),) = connection.execute(_COLUMN_RIGHTS, [role, oid, [*columns]]).fetchall()
    return bool(found)


def owns_publication(connection: Connection, oid: int) -> bool:
    """Return whether we may alter the publication *oid*."""
    query = "SELECT pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE oid = %s"
    return connection.execute(query, [oid]).fetchall() == [(True,)]


def copy_problems(
    connection: Connection, role: str, tables: Mapping[int, tuple[TableName, Sequence[str]]]
) -> Iterator[tuple[int, str]]:
    """Yield why *role* cannot copy *tables*, each by its number with its name and columns.

    Without columns all of them are meant. A schema's problem is one of each of its tables.
    """
    found = table_rights(connection, tables, role)
    # Quoted as in SQL, where that is necessary.
    quoted = TableName(role)
    for each in found:
        if not each.may_use_schema:
            problem = (
                f"role {role} may not use the schema {each.schema}: run GRANT USAGE ON SCHEMA "
                f"{TableName(each.schema)} TO {quoted}"
            )
            yield each.oid, problem
    for each in found:
        name, columns = tables[each.oid]
        if not each.may_select and not may_select_columns(connection, each.oid, columns, role):
            problem = f"role {role} may not read {name}: run GRANT SELECT ON {name} TO {quoted}"
            yield each.oid, problem
        if each.is_filtered:
            problem = (
                f"row security filters {name} for {role}, so its copy would lack rows: "
                f"run ALTER ROLE {quoted} BYPASSRLS"
            )
            yield each.oid, problem

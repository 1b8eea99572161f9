"""The publications of a reader: which tables they have, and changes to that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg import sql
from psycopg.rows import class_row

from transporter.errors import EnvironmentFault
from transporter_adaptors.postgres.table import TableName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres_cdc.tables import Column

COLUMN_LISTS: Final = 150000
"""The first version with column lists and row filters."""
EVERYTHING: Final = "insert, update, delete, truncate"
INSERTS: Final = "insert, truncate"
"""The changes of tables of which only INSERT is published."""
_GENERATED: Final = 180000
"""The first version that may publish generated columns."""
_NOT_GENERATED: Final = """
ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid
      AND a.attname = ANY(t.attnames) AND a.attgenerated = '' ORDER BY a.attnum)
"""
"""The published columns. Older versions list generated ones, too, which they do not send."""
_COLUMN_LIST: Final = """
CASE WHEN r.prattrs IS NOT NULL THEN ARRAY(
  SELECT a.attname::text FROM pg_attribute a
  WHERE a.attrelid = c.oid AND a.attnum = ANY(r.prattrs) ORDER BY a.attnum) END
"""
"""The columns of the list with which a table was published, as they are called now."""
_PUBLICATION: Final = """
SELECT p.oid::bigint AS oid, p.pubname AS name,
       p.pubinsert AS inserts, p.pubupdate AS updates, p.pubdelete AS deletes,
       p.pubtruncate AS truncates, p.pubviaroot AS via_root, p.xmin::text::bigint AS version
FROM pg_publication p WHERE p.pubname = %s
"""
_MEMBERS: Final = """
SELECT c.oid::bigint AS oid, n.nspname AS schema, c.relname AS name,
       coalesce(r.oid::bigint, {schema}, 0) AS membership,
       r.oid IS NOT NULL AS is_listed,
       {columns} AS columns, {listed} AS column_list, {where} AS where
FROM {tables} t
JOIN pg_namespace n ON n.nspname = t.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
JOIN pg_publication p ON p.pubname = t.pubname
LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
WHERE t.pubname = %(publication)s ORDER BY c.oid
"""
_SCHEMA_MEMBERSHIP: Final = """
(SELECT s.oid::bigint FROM pg_publication_namespace s
 WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)
"""
_ALL_TABLES: Final = "pg_publication_tables"
_ONE_TABLE: Final = """
(SELECT p.pubname, n.nspname AS schemaname, c.relname AS tablename{lists}
 FROM pg_publication p
 JOIN pg_class c ON c.oid = %(table)s
 JOIN pg_namespace n ON n.oid = c.relnamespace
 LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
 WHERE p.puballtables OR r.oid IS NOT NULL OR {schema} IS NOT NULL OR EXISTS (
   SELECT FROM pg_publication_rel l JOIN pg_partition_ancestors(c.oid) a ON a.relid = l.prrelid
   WHERE l.prpubid = p.oid))
"""
"""One table as :data:`_ALL_TABLES` has it. Takes no lock of another.

That view opens every table of the publication. By a session that has a lock on one of them, that
would make a deadlock with a migration of two tables, and the server could end the migration.
"""
_LISTS: Final = """,
  ARRAY(SELECT a.attname FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        AND CASE WHEN r.prattrs IS NULL THEN {is_sent} ELSE a.attnum = ANY(r.prattrs) END
        ORDER BY a.attnum) AS attnames,
  CASE WHEN {schema} IS NULL THEN pg_get_expr(r.prqual, r.prrelid) END AS rowfilter
"""


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication. Its ``oid`` is another once it was dropped and created again.

    One that ``has_roots`` sends changes of partitions under the name of the partitioned table.
    """

    oid: int
    name: str
    inserts: bool
    updates: bool
    deletes: bool
    truncates: bool
    via_root: bool
    """Whether changes of partitions come as those of the partitioned table."""
    version: int
    """The transaction that has altered it last. Tables come and go without that."""


@dataclass(frozen=True, slots=True)
class Member:
    """A table in a publication.

    ``membership`` is another number once the table, or its published schema, has left and come
    back, and 0 where all tables are published. One that ``is_listed`` is published by its own name.
    ``columns`` are the published ones, ``None`` for all but the generated. ``column_list`` are
    those that were listed when it was published, ``None`` where there is no list.
    """

    oid: int
    schema: str
    name: str
    membership: int
    is_listed: bool
    columns: list[str] | None
    where: str | None
    column_list: list[str] | None = None

    @property
    def full_name(self) -> TableName:
        """The name with its schema, as the catalog has it now."""
        return TableName(self.name, self.schema)

    def published(self, columns: Iterable[Column]) -> list[Column]:
        """Return those of a table's *columns* that are published."""
        return published_columns(columns, self.columns)


def published_columns(columns: Iterable[Column], listed: Collection[str] | None) -> list[Column]:
    """Return those of *columns* that a publication has: the *listed* ones, or all not generated."""
    return [
        each
        for each in columns
        if (each.name in listed if listed is not None else not each.is_generated)
    ]


@dataclass(frozen=True, slots=True)
class WantedTable:
    """A table to publish, with its column list and its row filter as in the pipeline file.

    Of one with ``insert_only`` only INSERT and TRUNCATE are published.
    """

    name: TableName
    columns: tuple[str, ...] = ()
    where: str = ""
    insert_only: bool = False

    @property
    def clause(self) -> sql.Composable:
        """The table as in CREATE PUBLICATION … FOR TABLE."""
        parts: list[sql.Composable] = [self.name.identifier]
        if self.columns:
            names = sql.SQL(", ").join(map(sql.Identifier, self.columns))
            parts.append(sql.SQL(" ({})").format(names))
        if self.where:
            # As written by the pipeline's author, who may run any SQL with this role.
            parts.append(sql.SQL(" WHERE (" + self.where + ")"))
        return sql.Composed(parts)


def find_publication(connection: Connection, name: str) -> Publication | None:
    """Return the publication *name*, if there is one."""
    with connection.cursor(row_factory=class_row(Publication)) as cursor:
        return cursor.execute(_PUBLICATION, [name]).fetchone()


def find_members(connection: Connection, name: str, version: int) -> dict[int, Member]:
    """Return the tables of the publication *name* on a server of this *version*, by OID.

    There are none without such a publication. With ``publish_via_partition_root`` they are the
    roots of partitioned tables. Waits for each table that a migration has for itself.
    """
    found = _fetch_members(connection, version, _ALL_TABLES, {"publication": name})
    return {member.oid: member for member in found}


def find_member(connection: Connection, name: str, version: int, oid: int) -> Member | None:
    """Return the table *oid* of :func:`find_members`, as it is in the current snapshot.

    Returns ``None`` if it has left the publication. Waits for no other table.
    """
    found = _fetch_members(connection, version, _ONE_TABLE, {"publication": name, "table": oid})
    return found[0] if found else None


def _fetch_members(
    connection: Connection, version: int, tables: str, values: dict[str, Any]
) -> list[Member]:
    if version >= COLUMN_LISTS:
        columns = "t.attnames::text[]" if version >= _GENERATED else _NOT_GENERATED
        where, schema, given, lists = "t.rowfilter", _SCHEMA_MEMBERSHIP, _COLUMN_LIST, _LISTS
    else:
        columns, where, schema, lists = "NULL::text[]", "NULL::text", "NULL::bigint", ""
        given = columns
    is_sent = "a.attgenerated IN ('', p.pubgencols)" if version >= _GENERATED else "true"
    parts = {"schema": schema, "columns": columns, "listed": given, "where": where}
    lists = lists.format(schema=schema, is_sent=is_sent)
    query = _MEMBERS.format(tables=tables.format(schema=schema, lists=lists), **parts)
    with connection.cursor(row_factory=class_row(Member)) as cursor:
        return cursor.execute(query, values).fetchall()


def create_statement(name: str, tables: Sequence[WantedTable], publish: str) -> sql.Composed:
    """Return the statement that creates the publication *name* of *tables*.

    *publish* are the kinds of changes, such as :data:`EVERYTHING`.
    """
    return sql.SQL(
        "CREATE PUBLICATION {}{} WITH (publish = {}, publish_via_partition_root = true)"
    ).format(
        sql.Identifier(name),
        sql.SQL(" FOR TABLE {}").format(_listed(tables)) if tables else sql.SQL(""),
        sql.Literal(publish),
    )


def add_statement(name: str, tables: Sequence[WantedTable]) -> sql.Composed:
    """Return the statement that adds *tables* to the publication *name*."""
    statement = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}")
    return statement.format(sql.Identifier(name), _listed(tables))


def replace_statement(name: str, tables: Sequence[WantedTable]) -> sql.Composed:
    """Return the statements that publish *tables* of the publication *name* once more."""
    return sql.SQL("; ").join(
        part
        for table in tables
        for part in (_drop_statement(name, [table.name]), add_statement(name, [table]))
    )


def _drop_statement(name: str, tables: Iterable[TableName]) -> sql.Composed:
    names = sql.SQL(", ").join(table.identifier for table in tables)
    return sql.SQL("ALTER PUBLICATION {} DROP TABLE {}").format(sql.Identifier(name), names)


def _listed(tables: Sequence[WantedTable]) -> sql.Composed:
    return sql.SQL(", ").join(table.clause for table in tables)


def drop_tables(connection: Connection, name: str, tables: Iterable[TableName]) -> None:
    """Remove *tables* from the publication *name*."""
    connection.execute(_drop_statement(name, tables))


def check_publication(publication: Publication, publish: str, *, has_partitioned: bool) -> None:
    """Check that *publication* has the kinds of changes in *publish*.

    With *has_partitioned* a partitioned table is to be read.

    Raises:
        EnvironmentFault: some changes would be missing, or come under the names of partitions.

    """
    for problem in publication_problems(publication, publish, has_partitioned=has_partitioned):
        raise EnvironmentFault(problem)


def publication_problems(
    publication: Publication, publish: str, *, has_partitioned: bool
) -> Iterator[str]:
    """Yield every reason why changes would be missing in *publication*."""
    missing = [f"{kind}s" for kind in publish.split(", ") if not getattr(publication, f"{kind}s")]
    name = sql.Identifier(publication.name).as_string()
    if missing:
        yield (
            f"publication {publication.name} leaves out {', '.join(missing)}, so the log would "
            f"differ from the tables; run ALTER PUBLICATION {name} SET (publish = '{publish}')"
        )
    if has_partitioned and not publication.via_root:
        yield (
            f"publication {publication.name} sends changes of partitions under their own names; "
            f"run ALTER PUBLICATION {name} SET (publish_via_partition_root = true)"
        )

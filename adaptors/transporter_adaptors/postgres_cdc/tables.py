"""The tables of a database, as the catalog describes them: columns, keys, replica identity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg.rows import class_row

from transporter_adaptors.postgres.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transporter_adaptors.postgres.session import Connection

IS_IDENTITY: Final = """
CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
"""
"""Whether the valid index ``i`` of the table ``c`` is its replica identity.

The server's own function waits for a migration that has the table for itself.
"""
PARTS: Final = """
FROM unnest(%s::oid[]) AS w (oid) CROSS JOIN LATERAL (
  WITH RECURSIVE part (oid) AS (
    SELECT w.oid UNION SELECT i.inhrelid FROM part
    JOIN pg_class p ON p.oid = part.oid AND p.relkind = 'p'
    JOIN pg_inherits i ON i.inhparent = p.oid AND NOT i.inhdetachpending
  ) SELECT part.oid FROM part) m
JOIN pg_class c ON c.oid = m.oid
"""
"""The tables ``w``, each with itself and its partitions of any depth as ``c``. Takes no lock."""
# Every name is qualified or from pg_catalog, because search_path is empty.
_TABLES: Final = f"""
SELECT c.oid::bigint AS oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind,
       c.relpersistence::text AS persistence, c.relispartition AS is_partition,
       c.relreplident = 'f' AS has_full_identity,
       concat_ws(' ', c.relowner, c.relacl, n.nspacl, (
         SELECT string_agg(r.oid::text, ',' ORDER BY r.oid) FROM pg_publication_rel r
         WHERE r.prrelid = c.oid)) AS access,
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid
               AND i.indimmediate AND {IS_IDENTITY}) AS has_identity_index
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
ORDER BY 2, 3
"""  # noqa: S608 - of constants
_COLUMNS: Final = """
SELECT a.attname AS name, a.atttypid::bigint AS type_oid, a.atttypmod AS modifier,
       format_type(a.atttypid, a.atttypmod) AS full_type,
       format_type(a.atttypid, -1) || coalesce((
         SELECT format(' COLLATE %%I.%%I', n.nspname, l.collname)
         FROM pg_collation l JOIN pg_namespace n ON n.oid = l.collnamespace
         WHERE l.oid = a.attcollation AND l.collname <> 'default'), '') AS type,
       a.attnotnull AS not_null, a.attgenerated <> '' AS is_generated
FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
_KEYS: Final = f"""
SELECT {IS_IDENTITY} AS is_identity,
       array_agg(a.attname ORDER BY k.place)::text[] AS columns,
       bool_and(a.attnotnull) AS not_null
FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k (number, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
WHERE i.indrelid = %s AND i.indisvalid AND i.indimmediate AND (i.indisprimary OR {IS_IDENTITY})
  AND k.place <= i.indnkeyatts
GROUP BY i.indexrelid, i.indisprimary, i.indisreplident, c.relreplident
"""  # noqa: S608 - of constants
_FILES: Final = f"""
SELECT w.oid::bigint,
       coalesce(bit_xor(hashint8extended(pg_relation_filenode(c.oid)::bigint, 0)), 0) AS files,
       coalesce(bit_xor(hashint8extended(c.oid::bigint, 0))
                FILTER (WHERE c.oid <> w.oid AND c.relkind <> 'p'), 0) AS partitions
{PARTS} GROUP BY w.oid
"""
_NAMED: Final = 5
"""Names that an error lists."""


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A relation that could be read."""

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    is_partition: bool
    has_full_identity: bool
    access: str
    """Its owner, the rights of all roles on it and on its schema, and its memberships in
    publications. A table that was left out counts again at once when they change."""
    has_identity_index: bool

    @property
    def full_name(self) -> TableName:
        """The name with its schema."""
        return TableName(self.name, self.schema)

    @property
    def problem(self) -> str:
        """Why no change of it can be read, or an empty text."""
        kinds = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}
        if self.kind in kinds:
            return f"is {kinds[self.kind]}, whose changes are not in the server's log"
        if self.persistence != "p":
            kind = "unlogged" if self.persistence == "u" else "temporary"
            return f"is {kind}, so its changes are not in the server's log"
        return ""

    @property
    def identity_problem(self) -> str:
        """Why an UPDATE or DELETE would fail once the table is published, or an empty text."""
        if self.has_full_identity or self.has_identity_index:
            return ""
        return (
            "has no primary key and no replica identity: in a publication every UPDATE and DELETE "
            f"of it would fail in the application; run ALTER TABLE {self.full_name} "
            "REPLICA IDENTITY FULL, or USING INDEX with a unique index, or list it with insert_only"
        )


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    ``type`` is as in SQL, with its collation and without its modifier: no value is cut off by it,
    as one would be by ``character`` or ``bit``. ``full_type`` is the other way round.
    """

    name: str
    type_oid: int
    modifier: int
    full_type: str
    type: str
    not_null: bool
    is_generated: bool


@dataclass(frozen=True, slots=True)
class Key:
    """The columns of the primary key or of the identity's index, in the index's order."""

    is_identity: bool
    columns: list[str]
    not_null: bool


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """Columns and keys of one table, read in one snapshot."""

    columns: tuple[Column, ...]
    keys: tuple[Key, ...]

    def identity(self, table: FoundTable) -> tuple[str, ...]:
        """Return the columns of the replica identity, which a DELETE has."""
        if table.has_full_identity:
            return tuple(column.name for column in self.columns)
        return next((tuple(key.columns) for key in self.keys if key.is_identity), ())

    @property
    def copy_key(self) -> tuple[str, ...]:
        """Columns in whose order the table can be copied, or none."""
        usable = [key for key in self.keys if key.not_null]
        for key in sorted(usable, key=lambda each: not each.is_identity):
            return tuple(key.columns)
        return ()


def find_tables(connection: Connection) -> list[FoundTable]:
    """Return the relations outside of the system's schemas, by schema and name."""
    with connection.cursor(row_factory=class_row(FoundTable)) as cursor:
        return cursor.execute(_TABLES).fetchall()


def read_definition(connection: Connection, oid: int) -> TableDefinition:
    """Return the definition of the table *oid* in the current snapshot."""
    with connection.cursor(row_factory=class_row(Column)) as cursor:
        columns = cursor.execute(_COLUMNS, [oid]).fetchall()
    with connection.cursor(row_factory=class_row(Key)) as cursor:
        keys = cursor.execute(_KEYS, [oid]).fetchall()
    return TableDefinition(tuple(columns), tuple(keys))


@dataclass(frozen=True, slots=True)
class Files:
    """Hashes of the numbers of a table's files, and of its partitions (0 without any)."""

    files: int
    partitions: int


def find_files(connection: Connection, oids: Iterable[int]) -> dict[int, Files]:
    """Return the files of the tables *oids* as they are now; those that are gone are missing."""
    rows = connection.execute(_FILES, [sorted(oids)]).fetchall()
    return {oid: Files(files, partitions) for oid, files, partitions in rows}


def listed(names: Iterable[TableName]) -> str:
    """Return *names* for an error, the first few of them."""
    some = sorted(map(str, names))
    more = len(some) - _NAMED
    return ", ".join(some[:_NAMED]) + (f" and {more} more" if more > 0 else "")

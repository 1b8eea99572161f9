"""Tables of the target as the catalog describes them: columns, key, foreign keys, rights."""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from time import monotonic
from typing import TYPE_CHECKING, Final

from psycopg.rows import class_row

from transporter.errors import RouteFault
from transporter_adaptors.postgres.table import TableName
from transporter_adaptors.postgres_writer.session import fetch
from transporter_adaptors.postgres_writer.table import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres_writer.config import PostgresWriterConfig

_TABLE: Final = """
SELECT c.oid::bigint AS oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind,
       c.relpersistence = 'p' AS is_permanent, current_user::text AS role,
       ARRAY(SELECT r FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) r
             WHERE NOT has_any_column_privilege(c.oid, r)) AS no_columns,
       ARRAY(SELECT r FROM unnest(ARRAY['SELECT', 'INSERT', 'DELETE']) r
             WHERE NOT has_table_privilege(c.oid, r)) AS no_table
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = pg_catalog.to_regclass(%s)
"""
_COLUMNS: Final = """
SELECT a.attname AS name, format_type(a.atttypid, -1) AS type, a.attnotnull AS not_null,
       a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL AS has_default,
       a.attidentity = 'a' AS is_always_identity, a.attgenerated <> '' AS is_generated
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_KEYS: Final = """
SELECT i.indisprimary, (SELECT array_agg(a.attname ORDER BY k.place)::text[]
  FROM unnest(i.indkey) WITH ORDINALITY AS k (number, place)
  JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
  WHERE k.place <= i.indnkeyatts) AS columns
FROM pg_catalog.pg_index i
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL ORDER BY 1 DESC
"""
_PARENTS: Final = """
SELECT conrelid::bigint, confrelid::bigint FROM pg_catalog.pg_constraint
WHERE contype = 'f' AND conrelid = ANY(%(oids)s::oid[]) AND confrelid = ANY(%(oids)s::oid[])
  AND conrelid <> confrelid
"""
_CASCADES: Final = """
SELECT confrelid::bigint, conrelid::bigint FROM pg_catalog.pg_constraint
WHERE contype = 'f' AND confdeltype IN ('c', 'n', 'd')
"""
"""Foreign keys by which a delete of the parent changes the child."""
ENTRY_KEY: Final = ("log_id", "offset", "part")
"""The columns by which a row of the mode ``append`` comes once."""
_FIXED: Final = frozenset({*ENTRY_KEY, "namespace", "key", "op", "phase", "ts"})
"""The columns that have the same value if an entry is inserted again."""
_KINDS: Final = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "i": "an index",
    "S": "a sequence",
}


class Catalog:
    """The tables that were looked at. Belongs to one thread."""

    def __init__(
        self, connection: Connection, config: PostgresWriterConfig, *, reads_only: bool = False
    ) -> None:
        """Look tables up by *connection*, at the first use of each.

        With *reads_only* they need not be writable.
        """
        self._connection, self._config, self._reads_only = connection, config, reads_only
        self._tables: dict[TableName, Table] = {}
        self._ranks: dict[int, int] | None = None
        self._cascades: dict[int, set[int]] | None = None
        self._begun = monotonic()

    @property
    def age(self) -> float:
        """Seconds since every table was forgotten."""
        return monotonic() - self._begun

    def forget(self) -> None:
        """Look at every table again."""
        self._begun = monotonic()
        self._tables.clear()
        self._ranks = self._cascades = None

    def find(self, name: TableName) -> Table | None:
        """Return the table of this name, or ``None`` if there is none.

        Raises:
            psycopg.Error: The catalog cannot be read.
            RouteFault: Rows cannot be written to it.
        """
        if name not in self._tables:
            found = self._load(name)
            if found is None:
                return None
            self._tables[name], self._ranks = found, None
        return self._tables[name]

    def table(self, name: TableName) -> Table:
        """Return the table of this name.

        Raises:
            psycopg.Error: The catalog cannot be read.
            RouteFault: There is none, or rows cannot be written to it.
        """
        found = self.find(name)
        if found is None:
            raise RouteFault(
                f"table {name} does not exist: create it, or use evolve: create with a reader "
                "that logs columns (postgres-cdc with schema: entries)"
            )
        return found

    def rank(self, table: Table) -> int:
        """Return the place of *table* in an order in which parents come before children."""
        if self._ranks is None:
            oids = [each.oid for each in self._tables.values()]
            rows = fetch(self._connection, _PARENTS, {"oids": oids})
            self._ranks = rank_tables(oids, rows)
        return self._ranks[table.oid]

    def cascades(self) -> dict[int, set[int]]:
        """Return the tables whose rows change by a delete in another table, by the other's oid."""
        if self._cascades is None:
            is_off = self._config.constraints == "replica" or self._config.delete != "apply"
            rows = [] if is_off else fetch(self._connection, _CASCADES, [])
            self._cascades = follow_cascades(rows)
        return self._cascades

    def _load(self, name: TableName) -> Table | None:
        relations = fetch(self._connection, _TABLE, [str(name)], class_row(_Relation))
        if not relations or relations[0].name != name.name:  # A longer name was cut.
            return None
        relation: _Relation = relations[0]
        relation.check_kind()
        if self._reads_only:
            relation.check_readable()
        else:
            relation.check_writable(self._config)
        columns = fetch(self._connection, _COLUMNS, [relation.oid], class_row(Column))
        by_name = {column.name: column for column in columns}
        full_name = TableName(relation.name, relation.schema)
        keys = fetch(self._connection, _KEYS, [relation.oid])
        if self._config.mode == "upsert":
            key = choose_key(full_name, keys, self._config.key)
        else:
            key = choose_entry_key(keys)
        is_array = len(key) > 1 or self._config.key_format == "json"
        return Table(relation.oid, full_name, by_name, key, is_array)


@dataclass(frozen=True, slots=True)
class _Relation:
    oid: int
    schema: str
    name: str
    kind: str
    is_permanent: bool
    role: str
    no_columns: list[str]
    no_table: list[str]

    def check_kind(self) -> None:
        """Raise :class:`RouteFault` if it is not a table."""
        if self.kind not in {"r", "p"}:
            name = TableName(self.name, self.schema)
            raise RouteFault(f"{name} is {_KINDS.get(self.kind, 'not a table')}: name a table")

    def check_readable(self) -> None:
        """Raise :class:`RouteFault` if its rows cannot be read."""
        if "SELECT" in self.no_table:
            name = TableName(self.name, self.schema)
            raise RouteFault(
                f"role {self.role} may not read {name}: GRANT SELECT ON {name} TO "
                f"{TableName(self.role)}"
            )

    def check_writable(self, config: PostgresWriterConfig) -> None:
        """Raise :class:`RouteFault` if rows cannot be written to it."""
        name = TableName(self.name, self.schema)
        if not self.is_permanent:
            raise RouteFault(
                f"{name} is unlogged or temporary: its rows would be gone after a crash of the "
                f"server, and the stored offset would not; run ALTER TABLE {name} SET LOGGED"
            )
        missing = set(self.no_columns)
        if config.mode == "append":
            missing.discard("UPDATE")
        elif config.delete == "apply" and "DELETE" in self.no_table:
            missing.add("DELETE")
        if missing:
            rights = ", ".join(sorted(missing))
            raise RouteFault(
                f"role {self.role} may not write to {name}: "
                f"GRANT {rights} ON {name} TO {TableName(self.role)}"
            )


def choose_key(
    table: TableName, keys: Iterable[tuple[bool, list[str]]], wanted: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the columns of the key of *table*, which has these unique *keys*.

    Raises:
        RouteFault: There is no such key.
    """
    if wanted:
        if any(set(columns) == set(wanted) for _, columns in keys):
            return wanted
        names = ", ".join(str(TableName(name)) for name in wanted)
        raise RouteFault(
            f"{table} has no unique index on {names}: CREATE UNIQUE INDEX ON {table} ({names})"
        )
    for is_primary, columns in keys:
        if is_primary:
            return tuple(columns)
    raise RouteFault(
        f"{table} has no primary key: add one, or name the columns of a unique index in key"
    )


def choose_entry_key(keys: Iterable[tuple[bool, list[str]]]) -> tuple[str, ...]:
    """Return the one of these unique *keys* by which an entry comes once, or none."""
    for _, columns in keys:
        if set(ENTRY_KEY) <= set(columns) <= _FIXED:
            return tuple(columns)
    return ()


def follow_cascades(pairs: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    """Return, for each parent of *pairs*, its children, their children, and so on."""
    children: dict[int, set[int]] = {}
    for parent, child in pairs:
        children.setdefault(parent, set()).add(child)
    reached: dict[int, set[int]] = {}
    for parent in children:
        found, waiting = set[int](), [parent]
        while waiting:
            new = children.get(waiting.pop(), set()) - found
            found |= new
            waiting += new
        reached[parent] = found
    return reached


def rank_tables(oids: Iterable[int], parents: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return the place of each of *oids* in an order in which parents come before children.

    *parents* are pairs of child and parent. In a cycle some child comes before its parent.
    """
    graph: dict[int, set[int]] = {oid: set() for oid in oids}
    for child, parent in parents:
        graph[child].add(parent)
    while True:
        try:
            return {oid: place for place, oid in enumerate(TopologicalSorter(graph).static_order())}
        except CycleError as cycle:
            parent, child = cycle.args[1][:2]
            graph[child].discard(parent)

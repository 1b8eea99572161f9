"""Digests and keys of ranges of a table, computed by its server.

Every query is a transaction of its own that reads one snapshot, so no dead row is kept and no
lock but ACCESS SHARE is held for longer than a query.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from transporter_adaptors.postgres_writer.comparing.key_ranges import Digest
from transporter_adaptors.postgres_writer.statements import quote, quote_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres.table import TableName
    from transporter_adaptors.postgres_writer.comparing.key_ranges import Bound, Key

READ_ONLY: Final = "SET default_transaction_read_only = on"
_PASSING: Final = (psycopg.errors.LockNotAvailable, psycopg.errors.SerializationFailure)
_TRIES: Final = 30
_PAUSE: Final = 1.0


@dataclass(frozen=True, slots=True)
class ComparedColumns:
    """A table of one server, with the columns that are compared.

    Attributes:
        name: the table.
        is_partitioned: whether its rows are in partitions.
        key: the key's columns, in the order of an index of the expected side.
        key_types: their types, as in SQL.
        columns: the columns that both servers have, in one order.
        only_here: columns that the other server lacks, and has no values for.
        where: a condition for the rows, as in SQL with parameters.

    """

    name: TableName
    is_partitioned: bool
    key: tuple[str, ...]
    key_types: tuple[str, ...]
    columns: tuple[str, ...]
    only_here: tuple[str, ...] = ()
    where: str = ""

    @property
    def source(self) -> str:
        """The table in a FROM clause, as ``o``."""
        return f"{'' if self.is_partitioned else 'ONLY '}{quote_table(self.name)} AS o"

    @property
    def key_texts(self) -> str:
        """The key as an array of texts."""
        texts = (f"format('%%s', o.{quote(name)})" for name in self.key)
        return f"ARRAY[{', '.join(texts)}]"

    @property
    def key_parameters(self) -> str:
        """Parameters for the values of a key, which are texts."""
        casts = (f"%s::text::{kind.replace('%', '%%')}" for kind in self.key_types)
        return f"({', '.join(casts)})"

    @property
    def keys(self) -> str:
        """The columns of the key, with commas."""
        return ", ".join(f"o.{quote(name)}" for name in self.key)

    @property
    def hash(self) -> str:
        """The hash of a row."""
        values = _row_text(self.columns)
        if self.only_here:
            more = _row_text(self.only_here)
            is_null = f"{more.removesuffix('::text')} IS NULL"
            values = f"({values} || CASE WHEN {is_null} THEN '' ELSE {more} END)"
        return f'pg_catalog.hashtextextended({values} COLLATE "C", 0)'

    @property
    def conditions(self) -> list[str]:
        """The conditions that every query has."""
        return [f"({self.where})"] if self.where else []


def _row_text(names: Sequence[str]) -> str:
    return f"ROW({', '.join(f'o.{quote(name)}' for name in names)})::text"


class TableSide:
    """One of two compared tables. Implements :class:`.key_ranges.Side`."""

    def __init__(self, connection: Connection, table: ComparedColumns) -> None:
        """Read *table* by *connection*, which is in autocommit mode and read-only."""
        self.connection, self.table = connection, table

    def digest(self, low: Bound, high: Bound) -> Digest:
        """Return the digest of a range."""
        where, values = self._range(low, high)
        query = (
            f"SELECT count(*), coalesce(bit_xor({self.table.hash}), 0) "  # noqa: S608 - quoted
            f"FROM {self.table.source}{where}"
        )
        ((rows, found),) = self.fetch(query, values)
        return Digest(rows, found)

    def key_at(self, low: Bound, rows: int) -> Bound:
        """Return the key of the row at this place behind *low*, or ``None`` behind the last."""
        where, values = self._range(low, None)
        query = (
            f"SELECT {self.table.key_texts} FROM {self.table.source}{where} "  # noqa: S608 - quoted
            f"ORDER BY {self.table.keys} OFFSET %s LIMIT 1"
        )
        found = self.fetch(query, [*values, rows - 1])
        return tuple(found[0][0]) if found else None

    def split(self, low: Bound, high: Bound, rows: int) -> list[Key]:
        """Return each key of the range at a multiple of this number of rows."""
        where, values = self._range(low, high)
        query = (
            f"SELECT k FROM (SELECT {self.table.key_texts} AS k, "  # noqa: S608 - quoted
            f"row_number() OVER (ORDER BY {self.table.keys}) AS n "
            f"FROM {self.table.source}{where}) x WHERE n %% %s = 0 ORDER BY n"
        )
        return [tuple(key) for (key,) in self.fetch(query, [*values, rows])]

    def hashes(self, low: Bound, high: Bound, rows: int) -> dict[Key, int]:
        """Return the hash of each of the first *rows* rows of the range, in the key's order."""
        where, values = self._range(low, high)
        query = (
            f"SELECT {self.table.key_texts}, {self.table.hash} "  # noqa: S608 - quoted
            f"FROM {self.table.source}{where} ORDER BY {self.table.keys} LIMIT %s"
        )
        return {tuple(key): found for key, found in self.fetch(query, [*values, rows])}

    def fetch_by_keys(self, expressions: str, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        """Return *expressions* of the rows that have these *keys*, by key."""
        arrays = ", ".join("%s::text[]" for _ in self.table.key)
        names = ", ".join(f"c{place}" for place, _ in enumerate(self.table.key))
        same = " AND ".join(
            f"o.{quote(name)} = w.c{place}::{kind.replace('%', '%%')}"
            for place, (name, kind) in enumerate(
                zip(self.table.key, self.table.key_types, strict=True)
            )
        )
        where = " AND ".join([same, *self.table.conditions])
        query = (
            f"SELECT w.n, {expressions} FROM unnest({arrays}) WITH ORDINALITY AS w ({names}, n) "  # noqa: S608 - quoted
            f"JOIN {self.table.source} ON {where}"
        )
        found = self.fetch(query, [list(column) for column in zip(*keys, strict=True)])
        return {keys[place - 1]: tuple(rest) for place, *rest in found}

    def estimate_rows(self) -> int | None:
        """Return the number of rows by the server's statistics, or ``None`` without any."""
        query = """
            SELECT CASE WHEN bool_and(c.reltuples >= 0) THEN sum(c.reltuples)::bigint END
            FROM pg_catalog.pg_partition_tree(%s::text::regclass) p
            JOIN pg_catalog.pg_class c ON c.oid = p.relid WHERE p.isleaf
        """
        ((rows,),) = self.fetch(query, [str(self.table.name)])
        return rows  # type: ignore[no-any-return]

    def fetch(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the rows of *query*, also behind a migration that has the table for itself."""
        tries = _TRIES
        if self.connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            tries = 1
        while True:
            tries -= 1
            try:
                return self.connection.execute(query, values).fetchall()
            except _PASSING:
                if not tries:
                    raise
                time.sleep(_PAUSE)

    def _range(self, low: Bound, high: Bound) -> tuple[str, list[str]]:
        """Return a WHERE clause, and its parameters."""
        conditions, values = self.table.conditions, list[str]()
        for bound, operator in ((low, ">"), (high, "<=")):
            if bound is not None:
                conditions.append(f"({self.table.keys}) {operator} {self.table.key_parameters}")
                values += bound
        return (f" WHERE {' AND '.join(conditions)}" if conditions else ""), values

"""Tables of the sink, read for a comparison."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import psycopg

from transporter.errors import ActionRefused
from transporter_adaptors.postgres_writer.catalog import Catalog
from transporter_adaptors.postgres_writer.comparing.table_side import READ_ONLY, ComparedColumns
from transporter_adaptors.postgres_writer.config import Mark, Rest, split_name
from transporter_adaptors.postgres_writer.failures import sink_error
from transporter_adaptors.postgres_writer.session import connect
from transporter_adaptors.postgres_writer.statements import quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres.table import TableName
    from transporter_adaptors.postgres_writer.config import PostgresWriterConfig
    from transporter_adaptors.postgres_writer.table import Table

PATIENCE: Final = 120.0
"""Seconds that a query may take at most. The digest of a range takes less than one, usually."""
_SETTINGS: Final = (
    READ_ONLY,
    "SET lock_timeout = '2s'",
    "SET extra_float_digits = 1",
    "SET bytea_output = 'hex'",
    # Rows are looked up by their keys, some hundred at a time.
    "SET enable_hashjoin = off",
    "SET enable_mergejoin = off",
)
_IS_PARTITIONED: Final = "SELECT relkind = 'p' FROM pg_catalog.pg_class WHERE oid = %s"
_FULL_TYPES: Final = """
SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod) FROM pg_catalog.pg_attribute a
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
"""
_STORED: Final = """
SELECT shard, shards, generation, "offset" FROM {table} WHERE route = %s AND log_id = %s
"""


class SinkTables:
    """The sink of a route, in one session that only reads. Belongs to one thread."""

    def __init__(self, connection: Connection, config: PostgresWriterConfig) -> None:
        """Read by *connection* the tables of the writer with *config*."""
        self.connection, self.config = connection, config
        self.catalog = Catalog(connection, config, reads_only=True)

    def find(self, name: TableName) -> Table:
        """Return the table *name*.

        Raises:
            RouteFault: It is missing, may not be read, or has no key.
        """
        return self.catalog.table(name)

    def compared(
        self, table: Table, key: tuple[str, ...], columns: Sequence[str]
    ) -> ComparedColumns:
        """Return *table* with the *columns* that are compared, and its *key* in this order."""
        return ComparedColumns(
            table.name,
            self.connection.execute(_IS_PARTITIONED, [table.oid]).fetchone() == (True,),
            key,
            tuple(table.columns[name].type for name in key),
            tuple(columns),
            where=self._condition(table),
        )

    def full_types(self, table: Table) -> dict[str, str]:
        """Return the types of the columns with their modifiers, as in SQL."""
        return dict(self.connection.execute(_FULL_TYPES, [table.oid]).fetchall())

    def _condition(self, table: Table) -> str:
        """Return the condition for rows that are not marked as deleted, or an empty text."""
        if not isinstance(self.config.delete, Mark):
            return ""
        mark = self.config.delete.mark
        if mark not in table.columns:
            return ""
        is_boolean = table.columns[mark].type == "boolean"
        return f"o.{quote(mark)} IS {'NOT TRUE' if is_boolean else 'NULL'}"

    def writable_columns(self, table: Table) -> list[str]:
        """Return the columns that entries may have a value for."""
        own = {self.config.extra.column} if isinstance(self.config.extra, Rest) else set()
        if isinstance(self.config.delete, Mark):
            own.add(self.config.delete.mark)
        return [
            name
            for name, column in table.columns.items()
            if name not in own and (not column.is_generated or name in table.key)
        ]

    def stored_offsets(self, route: str, log_id: str) -> Mapping[int, tuple[int, int, int]]:
        """Return generation, number of shards and offset of each shard of *route*.

        Raises:
            ActionRefused: They may not be read, or there are none.
        """
        name = split_name(self.config.progress)
        query = _STORED.format(table=name.in_query.as_string())
        try:
            rows = self.connection.execute(query, [route, log_id]).fetchall()
        except psycopg.errors.InsufficientPrivilege as error:
            raise ActionRefused(
                f"the role may not read {name}, which has the offset up to which entries are in "
                f"the tables: GRANT SELECT ON {name}"
            ) from error
        except psycopg.errors.UndefinedTable as error:
            raise ActionRefused(
                f"there is no table {name}: the route has not written here yet"
            ) from error
        return {
            shard: (generation, shards, offset)
            for shard, shards, generation, offset in rows
            if offset is not None and shard < shards
        }


@contextmanager
def open_sink(config: PostgresWriterConfig) -> Iterator[SinkTables]:
    """Yield the tables of the sink of *config*, for a role that may only read them.

    Raises:
        SinkUnavailable: The database cannot be reached.
        RouteFault: It is behind a pooler that shares sessions.
    """
    # The role may not have the right to the settings of the writer.
    plain = config.model_copy(update={"constraints": "check"})
    connection = connect(plain, PATIENCE)
    try:
        for each in _SETTINGS:
            connection.execute(each)
        yield SinkTables(connection, config)
    except psycopg.Error as error:
        raise sink_error(error, "cannot read the sink") from error
    finally:
        connection.close()

"""The mode ``append``: a row for each entry, by its offset."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from transporter.bytes_as_json import text_or_base64
from transporter.errors import RouteFault
from transporter_adaptors.postgres_writer.catalog import ENTRY_KEY
from transporter_adaptors.postgres_writer.changes import unit_starts
from transporter_adaptors.postgres_writer.failures import is_stale
from transporter_adaptors.postgres_writer.guilty import ALONE
from transporter_adaptors.postgres_writer.statements import quote, quote_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transporter.message import Entries, Entry
    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres.table import TableName
    from transporter_adaptors.postgres_writer.catalog import Catalog
    from transporter_adaptors.postgres_writer.config import PostgresWriterConfig
    from transporter_adaptors.postgres_writer.table import Table

DDL: Final = """CREATE TABLE {table} (
    log_id    text NOT NULL,
    "offset"  bigint NOT NULL,
    part      integer NOT NULL,  -- of several rows that a step made of one entry
    namespace text NOT NULL,
    key       text,
    op        text NOT NULL,
    phase     text NOT NULL,
    ts        timestamptz NOT NULL,
    data      jsonb,
    headers   jsonb NOT NULL,
    PRIMARY KEY (log_id, "offset", part)
)"""
_COLUMNS: Final = {
    "log_id": "text",
    "offset": "bigint",
    "part": "integer",
    "namespace": "text",
    "key": "bytea",
    "op": "text",
    "phase": "text",
    "ts": "bigint",
    "data": "bytea",
    "headers": "text",
}
"""The columns of a row, and the types in which their values are sent."""


def append_ddl(name: TableName) -> str:
    """Return the statement that creates a table for entries, with a % as it is."""
    return DDL.format(table=name.identifier.as_string())


def check_columns(table: Table) -> None:
    """Check that *table* has the columns of a row, and a key by which a row comes once.

    Raises:
        RouteFault: It lacks some.
    """
    missing = [name for name in _COLUMNS if name not in table.columns]
    if missing:
        raise RouteFault(
            f"{table.name} has no column {', '.join(missing)}, which mode: append needs; create "
            f"a table by\n{append_ddl(table.name)};"
        )
    if not table.key:
        names = ", ".join(map(quote, ENTRY_KEY))
        raise RouteFault(
            f"{table.name} has no unique index on {names}, so an entry could come twice: "
            f"ALTER TABLE {table.name} ADD PRIMARY KEY ({names})"
        )


def append_statement(table: Table, rows: Sequence[list[Any]]) -> tuple[str, list[Any]]:
    """Return the statement and its parameters that insert *rows* of :func:`entry_row`."""
    text = table.statements.get("append")
    if text is None:
        values = ", ".join(_value(table, name) for name in _COLUMNS)
        sources = ", ".join(f"%b::{kind}[]" for kind in _COLUMNS.values())
        names = ", ".join(map(quote, _COLUMNS))
        # A conflict in another unique column is an error.
        keys = ", ".join(map(quote, table.key))
        text = table.statements["append"] = (
            f"INSERT INTO {quote_table(table.name)} ({names}) SELECT {values} "  # noqa: S608 - quoted
            f"FROM unnest({sources}) AS r ({names}) ON CONFLICT ({keys}) DO NOTHING"
        )
    return text, [list(column) for column in zip(*rows, strict=True)]


def _value(table: Table, name: str) -> str:
    """Return the value of a column, converted to its type. Bytes become text in UTF-8."""
    kind, value = table.columns[name].type.replace("%", "%%"), f"r.{quote(name)}"
    if _COLUMNS[name] == "bytea" and kind != "bytea":
        value = f"pg_catalog.convert_from({value}, 'UTF8')"
    if name == "ts":
        value = f"(timestamptz 'epoch' + {value} * interval '1 microsecond')"
    return f"{value}::{kind}"


def entry_row(entry: Entry, log_id: str, part: int) -> list[Any]:
    """Return the values of a row for *entry*, of which a step may have made several parts."""
    message = entry.message
    headers = [[name, text_or_base64(value)] for name, value in message.headers]
    return [
        log_id,
        entry.offset,
        part,
        message.namespace,
        message.key,
        message.op,
        message.phase,
        message.timestamp,
        message.data,
        json.dumps(headers),
    ]


class Appends:
    """The entries of one slice, of which parts are inserted. Belongs to one transaction."""

    can_reorder = False
    units = ALONE

    def __init__(
        self,
        connection: Connection,
        config: PostgresWriterConfig,
        catalog: Catalog,
        batch: Entries,
    ) -> None:
        """Insert entries of *batch* by *connection*, which is in pipeline mode then."""
        self._connection, self._config, self._catalog = connection, config, catalog
        self._entries, self._log_id = [*batch], batch.log_id
        offsets = batch.offsets
        self._starts = unit_starts(offsets)
        self.offsets = [offsets[start] for start in self._starts[:-1]]

    def apply(self, begin: int, end: int, *, in_order: bool) -> bool:  # noqa: ARG002 - one order
        """Send the statements for the entries from *begin* to *end*.

        Raises:
            psycopg.Error: The server refuses something.
            RouteFault: A table is missing, or cannot be written.
        """
        rows: dict[str, list[list[Any]]] = {}
        for start, stop in pairwise(self._starts[begin : end + 1]):
            for part, entry in enumerate(self._entries[start:stop]):
                namespace = entry.message.namespace
                rows.setdefault(namespace, []).append(entry_row(entry, self._log_id, part))
        for namespace, found in rows.items():
            table = self._table(self._config.table_of(namespace))
            self._connection.execute(*append_statement(table, found))
        return False

    def check(self) -> None:
        """Check nothing: no row has to be there."""

    def may_continue(self, begin: int) -> bool:  # noqa: ARG002 - of any entry
        """Return ``False``: no entry needs others."""
        return False

    def undo(self, error: Exception) -> None:
        """Forget tables that are rolled back, or that may be others by now."""
        if self._config.evolve == "create" or is_stale(error):
            self._catalog.forget()

    def _table(self, name: TableName) -> Table:
        if self._config.evolve == "create" and self._catalog.find(name) is None:
            self._connection.execute(append_ddl(name))
        table = self._catalog.table(name)
        check_columns(table)
        return table

"""Tables of a ``postgres-cdc`` reader's source, matched to those of the sink."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from transporter.errors import ActionRefused
from transporter_adaptors.postgres.session import translate_errors
from transporter_adaptors.postgres_cdc import server as servers
from transporter_adaptors.postgres_cdc.chunks import CopyColumn
from transporter_adaptors.postgres_cdc.lsn import parse_lsn
from transporter_adaptors.postgres_cdc.operating.logged import LoggedState
from transporter_adaptors.postgres_cdc.operating.progress import table_statuses
from transporter_adaptors.postgres_cdc.plan import find_plan
from transporter_adaptors.postgres_cdc.session import connect_queries
from transporter_adaptors.postgres_cdc.types import TypeCatalog
from transporter_adaptors.postgres_writer.comparing.row_check import VERSION
from transporter_adaptors.postgres_writer.comparing.sink_tables import PATIENCE
from transporter_adaptors.postgres_writer.comparing.table_side import (
    READ_ONLY,
    ComparedColumns,
    TableSide,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transporter.comparison import ComparedRoute
    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres.table import TableName
    from transporter_adaptors.postgres_cdc.config import CdcConfig, TableItem
    from transporter_adaptors.postgres_cdc.tables import TableDefinition
    from transporter_adaptors.postgres_writer.comparing.key_ranges import Key
    from transporter_adaptors.postgres_writer.comparing.sink_tables import SinkTables
    from transporter_adaptors.postgres_writer.table import Table

_INTEGERS: Final = frozenset({"smallint", "integer", "bigint"})
_TEXTS: Final = frozenset({"text", "character varying"})


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table of the source that the route copies.

    ``problem`` is the reason why it cannot be compared with the source, or an empty text.
    """

    oid: int
    name: TableName
    namespace: str
    item: TableItem
    definition: TableDefinition
    is_partitioned: bool
    problem: str = ""

    @property
    def columns(self) -> list[str]:
        """The columns that the reader publishes."""
        return [
            column.name
            for column in self.definition.columns
            if not column.is_generated
            and (not self.item.columns or column.name in self.item.columns)
        ]


class Source:
    """The database of one reader, in one session that only reads."""

    def __init__(self, reader: str, config: CdcConfig, connection: Connection) -> None:
        """Read the tables of *reader*, which has *config*, by *connection*."""
        self.reader, self.config, self.connection = reader, config, connection

    def find_tables(self, route: ComparedRoute) -> list[SourceTable]:
        """Return the tables whose entries *route* delivers."""
        server = servers.read_server(self.connection)
        if server.is_standby:
            raise ActionRefused("the source is a standby, whose log has no end to wait for")
        logged = LoggedState.parse(self.config, route.logged_reader(self.reader))
        if logged.position is not None and logged.position.system_id != server.system_id:
            raise ActionRefused(
                f"the server of reader {self.reader} is not the one that the log follows"
            )
        plan = find_plan(self.connection, self.config, server)
        phases = {each.name: each.phase for each in table_statuses(self.config, logged, {})}
        found = []
        for oid, (table, item, definition) in plan.tables.items():
            name = table.full_name
            namespace = self.config.namespace_of(name)
            if route.takes(namespace):
                problem = self._problem_of(item, phases.get(str(name)))
                is_partitioned = table.kind == "p"
                found.append(
                    SourceTable(oid, name, namespace, item, definition, is_partitioned, problem)
                )
        return found

    def _problem_of(self, item: TableItem, phase: str | None) -> str:
        if phase is None:
            return "the reader has not read it yet, or leaves it out"
        if phase not in {"in sync", "catching up"}:
            return f"its copy is not complete ({phase})"
        if item.insert_only:
            return "the reader follows only its inserts"
        if item.copy_where or not self.config.copies(item):
            return "the reader has not copied all of its rows"
        if self.config.truncate == "ignore":
            return "the reader does not follow TRUNCATE"
        return ""

    def read_lsn(self) -> int:
        """Return the end of the server's log, which is behind everything committed by now."""
        ((lsn,),) = self.connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()
        return parse_lsn(lsn)


class SourceRows:
    """The rows of one table of the source, beside the table of the sink."""

    def __init__(self, source: Source, table: SourceTable, sink: SinkTables, target: Table) -> None:
        """Match *table* to *target*.

        Raises:
            ActionRefused: Their keys do not match, so the rows cannot be compared.
        """
        key, kinds = _match_key(table, target)
        writable = sink.writable_columns(target)
        here = table.columns
        columns = tuple(name for name in here if name in writable)
        refuses_extra = sink.config.extra == "refuse"
        only_here = tuple(name for name in here if name not in target.columns)
        self.side = TableSide(
            source.connection,
            ComparedColumns(
                table.name,
                table.is_partitioned,
                key,
                kinds,
                columns,
                only_here if refuses_extra else (),
                table.item.where.replace("%", "%%"),
            ),
        )
        self.target = sink.compared(target, key, columns)
        self._document = _document(source.connection, table)

    def fetch(self, keys: Sequence[Key]) -> dict[Key, tuple[str, bytes]]:
        """Return version and JSON of the rows with these *keys*."""
        found = self.side.fetch_by_keys(f"{VERSION}, {self._document}", keys)
        return {key: (version, text.encode()) for key, (version, text) in found.items()}

    def fetch_versions(self, keys: Sequence[Key]) -> dict[Key, str]:
        """Return the versions of the rows with these *keys*."""
        return {key: row[0] for key, row in self.side.fetch_by_keys(VERSION, keys).items()}


def _match_key(table: SourceTable, target: Table) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns of the key in the order of the source's index, and their types."""
    wanted = {*target.key}
    key = next(
        (tuple(key.columns) for key in table.definition.keys if {*key.columns} == wanted), None
    )
    if key is None:
        raise ActionRefused(
            f"{target.name}: its key ({', '.join(target.key)}) is not that of {table.name}: "
            "compare with the log"
        )
    types = {column.name: column.type for column in table.definition.columns}
    for name in key:
        pair = types[name].partition(" COLLATE ")[0], target.columns[name].type
        if pair[0] != pair[1] and not any({*pair} <= kinds for kinds in (_INTEGERS, _TEXTS)):
            raise ActionRefused(
                f"{target.name}: {name}, a part of the key, is {pair[1]}, and {pair[0]} in "
                f"{table.name}: compare with the log"
            )
    return key, tuple(types[name] for name in key)


def _document(connection: Connection, table: SourceTable) -> str:
    """Return the expression of a row's JSON, as the reader logs it."""
    kinds = {column.name: column for column in table.definition.columns}
    types = TypeCatalog()
    types.load(connection, [kinds[name].type_oid for name in table.columns])
    columns = [
        CopyColumn(name, kinds[name].type, types.casts_to_json(kinds[name].type_oid)).selected
        for name in table.columns
    ]
    listed = sql.SQL(", ").join(columns).as_string()
    return f"(SELECT pg_catalog.row_to_json(x.*)::text FROM (SELECT {listed}) x)"  # noqa: S608 - quoted


@contextmanager
def open_source(reader: str, config: Any) -> Iterator[Source]:  # noqa: ANN401 - checked by its class
    """Yield the source of *reader*, for a role that may only read its tables.

    Raises:
        SourceError: The database cannot be reached or read.
        EnvironmentFault: It is a standby, or a right is missing.
    """
    connection = connect_queries(config.dsn, PATIENCE)
    try:
        with translate_errors("cannot read the source"):
            connection.execute(READ_ONLY)
            yield Source(reader, config, connection)
    finally:
        connection.close()


IS_CHANGED: Final = (
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.InvalidTableDefinition,
)
"""Errors about a table that has changed since its columns were read."""

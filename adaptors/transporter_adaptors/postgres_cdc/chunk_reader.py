"""One chunk of a table, read in a transaction of its own."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

import psycopg

from transporter.errors import EnvironmentFault
from transporter_adaptors.postgres.session import translate_errors
from transporter_adaptors.postgres_cdc import publication as pub
from transporter_adaptors.postgres_cdc.chunks import (
    CopyColumn,
    CopyPlan,
    count_fitting,
    find_edge,
    find_key_types,
    read_chunk,
)
from transporter_adaptors.postgres_cdc.columns import follow_renames
from transporter_adaptors.postgres_cdc.lsn import parse_lsn
from transporter_adaptors.postgres_cdc.server import end_of_log
from transporter_adaptors.postgres_cdc.snapshots import Snapshot
from transporter_adaptors.postgres_cdc.state import BEGIN_ANEW
from transporter_adaptors.postgres_cdc.table_states import logged_columns
from transporter_adaptors.postgres_cdc.tables import PARTS, read_definition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transporter_adaptors.postgres.session import BoundedConnection, Connection
    from transporter_adaptors.postgres_cdc.chunks import ChunkRows
    from transporter_adaptors.postgres_cdc.columns import LoggedColumn
    from transporter_adaptors.postgres_cdc.config import CdcConfig
    from transporter_adaptors.postgres_cdc.handover import Key, TableCopy
    from transporter_adaptors.postgres_cdc.plan import Names
    from transporter_adaptors.postgres_cdc.state import FollowedTable
    from transporter_adaptors.postgres_cdc.tables import TableDefinition
    from transporter_adaptors.postgres_cdc.types import TypeCatalog


_FUNCTION: Final = 160000
"""The first version with a function for that."""
_MAY_WRITE: Final = (
    "SELECT has_function_privilege('pg_catalog.pg_log_standby_snapshot()', 'EXECUTE')"
)
_WRITE: Final = "SELECT pg_catalog.pg_log_standby_snapshot()"
_INTERVAL: Final = 64 << 20
"""Bytes of the server's log between two points."""


class RestartPoints:
    """Requests restart points while a copy makes the server write its log. Belongs to one thread.

    A slot keeps the log from the newest restart point that is confirmed: a list of the running
    transactions. The server writes one each 15 seconds. The first reader of a page sets bits in
    it, and with data checksums the server logs that page as a whole. So a copy of rows that no one
    has read yet makes the slot keep hundreds of megabytes between two points.
    """

    def __init__(self, queries: Connection) -> None:
        """Request them by the session *queries*, if its server and its role allow that."""
        self._queries = queries
        self._last: int | None = None
        self._may_write: bool | None = None

    def request(self, end: int) -> None:
        """Request a point if one is due. The server's log has come to the LSN *end*."""
        if self._last is None:
            self._last = end
        if end - self._last < _INTERVAL:
            return
        self._last = end
        if self._may_write is None:
            self._may_write = self._find_right()
        if self._may_write:
            self._queries.execute(_WRITE)

    def _find_right(self) -> bool:
        if self._queries.info.server_version < _FUNCTION:
            return False
        row = self._queries.execute(_MAY_WRITE).fetchone()
        return bool(row and row[0])


_SNAPSHOT: Final = (
    "SELECT pg_current_snapshot()::text, (extract(epoch FROM now()) * 1000000)::bigint,"
    " %s::regclass::oid::bigint"
)
_SHAPE: Final = f"""
SELECT bool_or(c.oid = w.oid AND c.relkind = 'p'),
       coalesce(bool_or(pg_relation_size(c.reltoastrelid) > 0), false)
{PARTS}
"""
"""Whether a table is partitioned, and whether it has large values, which are stored apart.

As an aggregate it opens no other table.
"""
_MIGRATIONS: Final = (
    psycopg.errors.LockNotAvailable,  # one that waits for the table goes first
    psycopg.errors.DeadlockDetected,  # one that has locked a partition goes first
    psycopg.errors.UndefinedTable,
    psycopg.errors.InvalidSchemaName,  # the table's schema was dropped or renamed
)
"""Errors of a chunk because of a migration. A look at the tables finds out which one."""
_FLUSH_PATIENCE: Final = 1.0
"""Seconds until the server's log is made to be flushed, where nothing else does that."""
_FLUSH_LIMIT: Final = 10.0


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """A chunk that was read, and what the hand-over has to know of it.

    Attributes:
        rows: the rows.
        last: the copy's key of the last row that was looked at, if there is one.
        is_last: whether the table has none behind them.
        snapshot: what they were read in.
        end: an LSN behind every commit that the snapshot sees. The server's log is flushed to it.
        read_at: when they were read, µs UTC by the server's clock.
        definition: the table's.
        columns: those in the rows.
        seconds: how long it took, without the wait for the flush.

    """

    rows: ChunkRows
    last: Key | None
    is_last: bool
    snapshot: Snapshot
    end: int
    read_at: int
    definition: TableDefinition
    columns: tuple[LoggedColumn, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class _Reading:
    """The plan of a chunk by the catalog of its snapshot."""

    plan: CopyPlan
    definition: TableDefinition
    columns: tuple[LoggedColumn, ...]
    has_large: bool


class _NotNow(Exception):
    """The chunk has to wait."""


class ChunkReader:
    """Reads chunks by a session of its own. Belongs to one thread at a time."""

    def __init__(
        self, session: BoundedConnection, config: CdcConfig, types: TypeCatalog, names: Names
    ) -> None:
        """Read by *session* what the publications of *names* publish."""
        self._session, self._config, self._types, self._names = session, config, types, names
        self._restart_points = RestartPoints(session)
        encoding = session.info.parameter_status("server_encoding")
        # Bytes of a database without an encoding are fetched as they are.
        self._encoding = "SQL_ASCII" if encoding == "SQL_ASCII" else ""

    def read(
        self,
        table: FollowedTable,
        copy: TableCopy,
        rows: int,
        may_read: Callable[[Snapshot], bool] = lambda _: True,
    ) -> ReadChunk | None:
        """Return the next chunk of *copy*, at most *rows* rows, or ``None`` if it has to wait.

        It does where *may_read* refuses its snapshot. Of a table with filters at most *rows* rows
        are looked at, and none may pass.

        Raises:
            StatementTooSlow: fewer rows may do.
            SourceUnavailable: the session was lost.
            SourceError: the table cannot be read.

        """
        began = monotonic()
        with translate_errors(f"cannot copy {table.full_name}"):
            try:
                with self._snapshot(table, rows) as (snapshot, read_at, oid):
                    if oid != copy.oid or not may_read(snapshot):
                        return None  # Another table may have its name.
                    reading = self._plan(table, copy)
                    if reading.has_large:
                        size = self._config.copy_bytes
                        rows = count_fitting(self._session, reading.plan, copy.boundary, rows, size)
                    found, last, is_last = self._read_rows(reading.plan, copy.boundary, rows)
                end, seconds = end_of_log(self._session), monotonic() - began
                self._restart_points.request(end)
            except (_NotNow, *_MIGRATIONS):
                return None
            except psycopg.errors.InsufficientPrivilege as error:
                raise EnvironmentFault(
                    f"cannot copy {table.full_name}: {error.diag.message_primary}; "
                    "'transporter cdc check' has the statement that helps"
                ) from error
            except UnicodeError as error:
                raise EnvironmentFault(
                    f"cannot copy {table.full_name}: a value of its key is not UTF-8 in a database "
                    "with the encoding SQL_ASCII; leave the table out, or write copy: none in its "
                    "item of tables"
                ) from error
            if not self._is_flushed(end):
                return None
        return ReadChunk(
            rows=found,
            last=last,
            is_last=is_last,
            snapshot=snapshot,
            end=end,
            read_at=read_at,
            definition=reading.definition,
            columns=reading.columns,
            seconds=seconds,
        )

    def _read_rows(
        self, plan: CopyPlan, boundary: Key | None, rows: int
    ) -> tuple[ChunkRows, Key | None, bool]:
        """Return rows behind *boundary*, the last key looked at, and whether none is behind."""
        if not plan.has_filter:
            found = read_chunk(self._session, plan, boundary, rows)
            return found, found.last, len(found) < rows
        edge = find_edge(self._session, plan, boundary, rows)
        found = read_chunk(self._session, plan, boundary, rows, edge)
        return found, found.last if edge is None else edge, edge is None

    @contextmanager
    def _snapshot(self, table: FollowedTable, rows: int) -> Iterator[tuple[Snapshot, int, int]]:
        """Begin a transaction that reads *rows* rows of *table*.

        Yields its snapshot, its time (µs UTC), and the number of the table of that name.
        """
        with self._session.transaction():
            # The server ends a statement before we count it as silent: its scan would go on. One
            # row may be large, and its transfer takes as long as it goes on.
            limit = int(self._session.patience * 1000 / 2) if rows > 1 else 0
            self._session.execute(
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY;"
                f"SET LOCAL statement_timeout = {limit}"
            )
            # Before the snapshot, because neither a rewrite nor a TRUNCATE shows in it.
            lock = psycopg.sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE")
            self._session.execute(lock.format(table.full_name.identifier))
            name = table.full_name.identifier.as_string()
            row = self._session.execute(_SNAPSHOT, [name]).fetchone()
            assert row is not None  # noqa: S101 - a SELECT without FROM has a row
            yield Snapshot.parse(row[0]), int(row[1]), int(row[2])

    def _plan(self, table: FollowedTable, copy: TableCopy) -> _Reading:
        """Return the plan by the columns as they are in this snapshot.

        Raises:
            _NotNow: the table has left the publication, which the watch reports.

        """
        definition = read_definition(self._session, table.oid)
        version = self._session.info.server_version
        publication = self._names.publication_of(insert_only=table.insert_only)
        if (member := pub.find_member(self._session, publication, version, table.oid)) is None:
            raise _NotNow
        columns = member.published(definition.columns)
        self._types.load(self._session, [each.type_oid for each in columns])
        logged = logged_columns(definition, member)
        key = follow_renames(table.key, table.columns, logged)
        copy_key = follow_renames(table.copy_key, table.columns, logged)
        has_bounds = copy.boundary is not None
        types = find_key_types(self._session, table, definition, copy_key, has_bounds=has_bounds)
        if copy_key not in {tuple(each.columns) for each in definition.keys if each.not_null}:
            raise EnvironmentFault(
                f"cannot copy {table.full_name}: {', '.join(copy_key)} is no longer its primary "
                f"key or replica identity; {BEGIN_ANEW}"
            )
        if missing := {*key} - {each.name for each in columns}:
            raise EnvironmentFault(
                f"cannot copy {table.full_name}: its column {min(missing)}, which is part of its "
                f"key, is gone; {BEGIN_ANEW}"
            )
        ((is_partitioned, has_large),) = self._session.execute(_SHAPE, [[table.oid]]).fetchall()
        item = self._config.item_of(table.full_name)
        plan = CopyPlan(
            table=table.full_name,
            only=not is_partitioned,
            columns=tuple(
                CopyColumn(
                    each.name,
                    each.type,
                    as_text=self._types.casts_to_json(each.type_oid),
                    type_oid=each.type_oid,
                )
                for each in columns
            ),
            order=tuple(zip(copy_key, types, strict=True)),
            key=key,
            is_json_key=self._config.key == "json" or len(key) > 1,
            where=member.where or "",
            copy_where=item.copy_where if item else "",
            encoding=self._encoding,
        )
        return _Reading(plan, definition, logged, has_large)

    def see_snapshot(self) -> Snapshot:
        """Return a snapshot of now."""
        with translate_errors("cannot copy"):
            row = self._session.execute("SELECT pg_current_snapshot()::text").fetchone()
        assert row is not None  # noqa: S101 - a SELECT without FROM has a row
        return Snapshot.parse(row[0])

    def _is_flushed(self, end: int) -> bool:
        """Wait until the server's log is flushed up to *end*, in the session of the chunk."""
        return is_flushed(self._session, end)


def is_flushed(session: Connection, end: int) -> bool:
    """Wait until the server's log is flushed up to *end*, and return whether it is.

    What a query sees may not be: a crash would undo it.
    """
    begun, is_forced = monotonic(), False
    while monotonic() - begun < _FLUSH_LIMIT:
        row = session.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        if row is not None and parse_lsn(row[0]) >= end:
            return True
        if not is_forced and monotonic() - begun > _FLUSH_PATIENCE:
            is_forced = True
            with session.transaction():
                session.execute("SET LOCAL synchronous_commit = local")
                session.execute("SELECT pg_logical_emit_message(true, 'transporter.flush', '')")
        session.execute("SELECT pg_sleep(0.005)")
    return False

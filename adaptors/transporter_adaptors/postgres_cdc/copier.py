"""The copy of tables, chunk by chunk, between the transactions of the stream."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

import psycopg
import pyarrow as pa

from transporter.errors import EnvironmentFault
from transporter.message import JSON, MESSAGE_SCHEMA
from transporter_adaptors.postgres.session import translate_errors
from transporter_adaptors.postgres_cdc import publication as pub
from transporter_adaptors.postgres_cdc.chunks import (
    CopyColumn,
    CopyPlan,
    count_fitting,
    find_key_types,
    read_chunk,
)
from transporter_adaptors.postgres_cdc.columns import follow_renames
from transporter_adaptors.postgres_cdc.lsn import parse_lsn
from transporter_adaptors.postgres_cdc.opening import logged_columns
from transporter_adaptors.postgres_cdc.restart_points import RestartPoints
from transporter_adaptors.postgres_cdc.snapshots import Snapshot
from transporter_adaptors.postgres_cdc.tables import read_definition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter_adaptors.postgres.session import BoundedConnection
    from transporter_adaptors.postgres_cdc.chunks import ChunkRows
    from transporter_adaptors.postgres_cdc.columns import LoggedColumn
    from transporter_adaptors.postgres_cdc.config import CdcConfig
    from transporter_adaptors.postgres_cdc.handover import Handover, TableCopy
    from transporter_adaptors.postgres_cdc.opening import Names
    from transporter_adaptors.postgres_cdc.state import FollowedTable
    from transporter_adaptors.postgres_cdc.tables import TableDefinition
    from transporter_adaptors.postgres_cdc.types import TypeCatalog

_SNAPSHOT: Final = (
    "SELECT pg_current_snapshot()::text, (extract(epoch FROM now()) * 1000000)::bigint,"
    " %s::regclass::oid::bigint"
)
_SHAPE: Final = """
SELECT c.relkind = 'p', EXISTS (
         SELECT FROM pg_class l WHERE l.reltoastrelid <> 0 AND pg_relation_size(l.reltoastrelid) > 0
         AND l.oid IN (SELECT c.oid UNION ALL SELECT t.relid FROM pg_partition_tree(c.oid) t))
FROM pg_class c WHERE c.oid = %s
"""
"""Whether a table is partitioned, and whether it has large values, which are stored apart."""
_FIRST_ROWS: Final = 1000
_CHUNK_SECONDS: Final = 0.25
"""Seconds that a chunk should take: the stream waits meanwhile."""
_FLUSH_PATIENCE: Final = 1.0
"""Seconds until the server's log is made to be flushed, where nothing else does that."""
_FLUSH_LIMIT: Final = 10.0
_HEADROOM: Final = 512
"""Bytes of an entry besides data, key and namespace, at most."""
LARGEST: Final = 7 << 20
"""Bytes of one batch: it has to fit into one frame, together with its position."""


@dataclass(frozen=True, slots=True)
class CopiedChunk:
    """A chunk as messages, the copy with it, and its bytes.

    ``definition`` is the table's, and ``columns`` are those in the messages.
    """

    messages: pa.RecordBatch
    copy: TableCopy
    size: int
    definition: TableDefinition
    columns: tuple[LoggedColumn, ...]


@dataclass(frozen=True, slots=True)
class _Reading:
    """The plan of a chunk by the catalog of its snapshot."""

    plan: CopyPlan
    definition: TableDefinition
    columns: tuple[LoggedColumn, ...]
    has_large: bool


class _NotNow(Exception):
    """The chunk has to wait."""


class Copier:
    """Reads the next chunk when that is possible. Belongs to one thread."""

    def __init__(
        self, queries: BoundedConnection, config: CdcConfig, types: TypeCatalog, names: Names
    ) -> None:
        """Read by the session *queries* what the publications of *names* publish."""
        self._queries, self._config, self._types, self._names = queries, config, types, names
        self._rows = min(_FIRST_ROWS, config.copy_rows)
        self._restart_points = RestartPoints(queries)
        encoding = queries.info.parameter_status("server_encoding")
        # Bytes of a database without an encoding are fetched as they are.
        self._encoding = "SQL_ASCII" if encoding == "SQL_ASCII" else ""

    def read_next(
        self, handover: Handover, copy: TableCopy, table: FollowedTable, namespace: str
    ) -> CopiedChunk | None:
        """Return the next chunk of *copy*, or ``None`` if it has to wait (rules 1, 2 and 3).

        Raises:
            SourceUnavailable: the session was lost.
            SourceError: the table cannot be read.

        """
        began = monotonic()
        with translate_errors(f"cannot copy {table.full_name}"):
            try:
                with self._snapshot(table) as (snapshot, read_at, oid):
                    _check_turn(handover, copy, snapshot, oid)
                    reading = self._plan(table, copy)
                    rows = self._rows
                    if reading.has_large:
                        rows = count_fitting(
                            self._queries,
                            reading.plan,
                            copy.boundary,
                            rows,
                            self._config.copy_bytes,
                        )
                    found = read_chunk(self._queries, reading.plan, copy.boundary, rows)
                end = self._end_of_log()
                self._restart_points.request(end)
            except (_NotNow, psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
                return None  # A migration that waits for the table goes first.
            except UnicodeError as error:
                raise EnvironmentFault(
                    f"cannot copy {table.full_name}: a value of its key is not UTF-8 in a database "
                    "with the encoding SQL_ASCII; leave the table out, or write copy: none in its "
                    "item of tables"
                ) from error
        count = len(found)
        size = found.data.nbytes + found.keys.nbytes + count * (len(namespace) + _HEADROOM)
        if size > LARGEST and count > 1:
            self._rows = max(1, count * LARGEST // size // 2)
            return None
        is_last = count < rows
        self._adapt(monotonic() - began, size)
        if not self._is_flushed(end):
            return None
        made = handover.add_chunk(copy, snapshot, end, found.last, count, is_last=is_last)
        messages = _messages(found, namespace, read_at, copy)
        return CopiedChunk(messages, made, size, reading.definition, reading.columns)

    @contextmanager
    def _snapshot(self, table: FollowedTable) -> Iterator[tuple[Snapshot, int, int]]:
        """Begin a transaction that reads *table*.

        Yields its snapshot, its time (µs UTC), and the number of the table of that name.
        """
        with self._queries.transaction():
            self._queries.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            # Before the snapshot, because neither a rewrite nor a TRUNCATE shows in it.
            lock = psycopg.sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE")
            self._queries.execute(lock.format(table.full_name.identifier))
            name = table.full_name.identifier.as_string()
            row = self._queries.execute(_SNAPSHOT, [name]).fetchone()
            assert row is not None  # noqa: S101 - a SELECT without FROM has a row
            yield Snapshot.parse(row[0]), int(row[1]), int(row[2])

    def _plan(self, table: FollowedTable, copy: TableCopy) -> _Reading:
        """Return the plan by the columns as they are in this snapshot.

        Raises:
            _NotNow: the table has left the publication, which the watch reports.

        """
        definition = read_definition(self._queries, table.oid)
        version = self._queries.info.server_version
        publication = self._names.publication_of(insert_only=table.insert_only)
        members = pub.find_members(self._queries, publication, version, table.oid)
        if not members:
            raise _NotNow
        (member,) = members
        columns = member.published(definition.columns)
        self._types.load(self._queries, [each.type_oid for each in columns])
        logged = logged_columns(definition, member)
        key = follow_renames(table.key, table.columns, logged)
        copy_key = follow_renames(table.copy_key, table.columns, logged)
        has_bounds = copy.boundary is not None
        types = find_key_types(table, definition, copy_key, has_bounds=has_bounds)
        if missing := {*key} - {each.name for each in columns}:
            raise EnvironmentFault(
                f"cannot copy {table.full_name}: its column {min(missing)}, which is part of its "
                "key, is gone; raise copy_run, which copies every table again, by its present key"
            )
        row = self._queries.execute(_SHAPE, [table.oid]).fetchone()
        is_partitioned, has_large = row or (False, False)
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
            order=tuple(zip(copy_key, (kind for _, kind in types), strict=True)),
            key=key,
            is_json_key=self._config.key == "json" or len(key) > 1,
            where=member.where or "",
            copy_where=item.copy_where if item else "",
            encoding=self._encoding,
        )
        return _Reading(plan, definition, logged, has_large)

    def see_snapshot(self, handover: Handover) -> None:
        """Let *handover* forget transactions that are visible by now, while no chunk is read."""
        with translate_errors("cannot copy"):
            row = self._queries.execute("SELECT pg_current_snapshot()::text").fetchone()
        assert row is not None  # noqa: S101 - a SELECT without FROM has a row
        handover.see(Snapshot.parse(row[0]))

    def _end_of_log(self) -> int:
        row = self._queries.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None  # noqa: S101 - a SELECT without FROM has a row
        return parse_lsn(row[0])

    def _is_flushed(self, end: int) -> bool:
        """Wait until the server's log is flushed up to *end*, in the session of the chunk."""
        begun, is_forced = monotonic(), False
        with translate_errors("cannot copy"):
            while monotonic() - begun < _FLUSH_LIMIT:
                row = self._queries.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
                if row is not None and parse_lsn(row[0]) >= end:
                    return True
                if not is_forced and monotonic() - begun > _FLUSH_PATIENCE:
                    is_forced = True
                    with self._queries.transaction():
                        self._queries.execute("SET LOCAL synchronous_commit = local")
                        self._queries.execute(
                            "SELECT pg_logical_emit_message(true, 'transporter.flush', '')"
                        )
                self._queries.execute("SELECT pg_sleep(0.005)")
        return False

    def _adapt(self, seconds: float, size: int) -> None:
        """Let the next chunk take as long, and be as large, as chunks should."""
        factor = min(
            2.0,
            _CHUNK_SECONDS / max(seconds, 0.001),
            self._config.copy_bytes / max(size, 1),
        )
        self._rows = max(1, min(self._config.copy_rows, int(self._rows * factor)))


def _check_turn(handover: Handover, copy: TableCopy, snapshot: Snapshot, oid: int) -> None:
    """Raise ``_NotNow`` if no chunk of *copy* counts, or another table, *oid*, has its name."""
    if oid != copy.oid or not handover.accepts(copy, snapshot):
        raise _NotNow


def _messages(rows: ChunkRows, namespace: str, read_at: int, copy: TableCopy) -> pa.RecordBatch:
    """Return the rows of a chunk as messages. The texts are not copied row by row."""
    count = len(rows)
    first = f"copy/{copy.oid}/{copy.run}/"
    ids = [f"{first}{number}" for number in range(copy.rows, copy.rows + count)]
    columns = {
        "namespace": pa.repeat(pa.scalar(namespace, pa.string()), count),
        "op": pa.repeat(pa.scalar("insert", pa.string()), count),
        "phase": pa.repeat(pa.scalar("copy", pa.string()), count),
        "key": rows.keys,
        "timestamp": pa.repeat(pa.scalar(read_at, MESSAGE_SCHEMA.field("timestamp").type), count),
        "source_id": pa.array(ids, pa.string()),
        "data": rows.data,
        "content_type": pa.repeat(pa.scalar(JSON, pa.string()), count),
        "headers": pa.array([[]] * count, MESSAGE_SCHEMA.field("headers").type),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=MESSAGE_SCHEMA)

"""The copy of tables, chunk by chunk, between the transactions of the stream."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from time import monotonic
from typing import TYPE_CHECKING, Final

import psycopg
import pyarrow as pa

from transporter.message import JSON, MESSAGE_SCHEMA
from transporter_adaptors.postgres.session import translate_errors
from transporter_adaptors.postgres_cdc import publication as pub
from transporter_adaptors.postgres_cdc.chunks import CopyColumn, CopyPlan, read_chunk
from transporter_adaptors.postgres_cdc.lsn import parse_lsn
from transporter_adaptors.postgres_cdc.snapshots import Snapshot
from transporter_adaptors.postgres_cdc.tables import read_definition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres_cdc.config import CdcConfig
    from transporter_adaptors.postgres_cdc.handover import Handover, TableCopy
    from transporter_adaptors.postgres_cdc.state import FollowedTable
    from transporter_adaptors.postgres_cdc.types import TypeCatalog

_SNAPSHOT: Final = (
    "SELECT pg_current_snapshot()::text, (extract(epoch FROM now()) * 1000000)::bigint"
)
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
    """A chunk as messages, and the copy with it."""

    messages: pa.RecordBatch
    copy: TableCopy


class Copier:
    """Reads the next chunk when that is possible. Belongs to one thread."""

    def __init__(
        self, queries: Connection, config: CdcConfig, types: TypeCatalog, publication: str
    ) -> None:
        """Read by the session *queries* what *publication* publishes."""
        self._queries, self._config, self._types = queries, config, types
        self._publication = publication
        self._rows = min(_FIRST_ROWS, config.copy_rows)

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
                with self._snapshot(table) as (snapshot, read_at):
                    if not handover.accepts(copy, snapshot):
                        return None
                    plan = self._plan(table)
                    data, sizes, keys, key_sizes, last = read_chunk(
                        self._queries, plan, copy.boundary, self._rows
                    )
                end = self._end_of_log()
            except psycopg.errors.LockNotAvailable:
                return None  # A migration waits for the table, and goes first.
        size = len(data) + len(keys) + len(sizes) * (len(namespace) + _HEADROOM)
        if size > LARGEST and len(sizes) > 1:
            self._rows = max(1, len(sizes) * LARGEST // size // 2)
            return None
        is_last = len(sizes) < self._rows
        self._adapt(monotonic() - began, size)
        if not self._is_flushed(end):
            return None
        made = handover.add_chunk(copy, snapshot, end, last, len(sizes), is_last=is_last)
        messages = _messages(data, sizes, keys, key_sizes, namespace, read_at, copy)
        return CopiedChunk(messages, made)

    @contextmanager
    def _snapshot(self, table: FollowedTable) -> Iterator[tuple[Snapshot, int]]:
        """Begin a transaction that reads *table*; yield its snapshot and its time (µs UTC)."""
        with self._queries.transaction():
            self._queries.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            # Before the snapshot, because neither a rewrite nor a TRUNCATE shows in it.
            lock = psycopg.sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE")
            self._queries.execute(lock.format(table.full_name.identifier))
            row = self._queries.execute(_SNAPSHOT).fetchone()
            assert row is not None  # noqa: S101 - a SELECT without FROM has a row
            yield Snapshot.parse(row[0]), int(row[1])

    def _plan(self, table: FollowedTable) -> CopyPlan:
        """Return the plan by the columns as they are in this snapshot."""
        definition = read_definition(self._queries, table.oid)
        version = self._queries.info.server_version
        members = pub.find_members(self._queries, self._publication, version)
        member = next(each for each in members if each.oid == table.oid)
        listed = member.columns
        columns = [
            each
            for each in definition.columns
            if (each.name in listed if listed is not None else not each.is_generated)
        ]
        self._types.load(self._queries, [each.type_oid for each in columns])
        types = {each.name: each.type for each in columns}
        return CopyPlan(
            table=table.full_name,
            only=not self._is_partitioned(table),
            columns=tuple(
                CopyColumn(each.name, each.type, self._types.casts_to_json(each.type_oid))
                for each in columns
            ),
            order=tuple((name, types[name]) for name in table.copy_key),
            key=table.key,
            is_json_key=self._config.key == "json" or len(table.key) > 1,
            where=member.where or "",
        )

    def _is_partitioned(self, table: FollowedTable) -> bool:
        kind = "SELECT relkind = 'p' FROM pg_class WHERE oid = %s"
        row = self._queries.execute(kind, [table.oid]).fetchone()
        return bool(row and row[0])

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


def _messages(
    data: bytes,
    sizes: list[int],
    keys: bytes,
    key_sizes: list[int],
    namespace: str,
    read_at: int,
    copy: TableCopy,
) -> pa.RecordBatch:
    """Return the rows of a chunk as messages. The texts are not copied row by row."""
    count = len(sizes)
    ids = [f"copy/{copy.run}/{number}" for number in range(copy.rows, copy.rows + count)]
    columns = {
        "namespace": pa.repeat(pa.scalar(namespace, pa.string()), count),
        "op": pa.repeat(pa.scalar("insert", pa.string()), count),
        "phase": pa.repeat(pa.scalar("copy", pa.string()), count),
        "key": _packed(keys, key_sizes),
        "timestamp": pa.repeat(pa.scalar(read_at, MESSAGE_SCHEMA.field("timestamp").type), count),
        "source_id": pa.array(ids, pa.string()),
        "data": _packed(data, sizes),
        "content_type": pa.repeat(pa.scalar(JSON, pa.string()), count),
        "headers": pa.array([[]] * count, MESSAGE_SCHEMA.field("headers").type),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=MESSAGE_SCHEMA)


def _packed(data: bytes, sizes: list[int]) -> pa.Array:
    ends = pa.array(list(accumulate(sizes, initial=0)), pa.int32())
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(sizes), [None, ends.buffers()[1], pa.py_buffer(data)]
    )

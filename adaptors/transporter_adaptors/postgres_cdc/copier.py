"""The copy of tables, chunk by chunk, between the transactions of the stream.

While a chunk is on its way into the log, a thread reads the next one. It counts only if nothing has
come in between that it would have to contain.
"""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import psycopg
import pyarrow as pa

from transporter.message import JSON, MESSAGE_SCHEMA
from transporter_adaptors.postgres.session import StatementTooSlow
from transporter_adaptors.postgres_cdc.chunk_reader import ChunkReader
from transporter_adaptors.postgres_cdc.types import TypeCatalog

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter_adaptors.postgres.session import BoundedConnection
    from transporter_adaptors.postgres_cdc.chunk_reader import ReadChunk
    from transporter_adaptors.postgres_cdc.columns import LoggedColumn
    from transporter_adaptors.postgres_cdc.config import CdcConfig
    from transporter_adaptors.postgres_cdc.handover import Handover, TableCopy
    from transporter_adaptors.postgres_cdc.plan import Names
    from transporter_adaptors.postgres_cdc.state import FollowedTable
    from transporter_adaptors.postgres_cdc.tables import TableDefinition

_FIRST_ROWS: Final = 1000
_CHUNK_SECONDS: Final = 0.25
"""Seconds that a chunk should take: the stream waits meanwhile."""
_HEADROOM: Final = 160
"""Bytes of an entry besides data, key and namespace, at most."""
LARGEST: Final = 7 << 20
"""Bytes of one batch: it has to fit into one frame, together with its position."""
_SLOWER: Final = 10
"""The part of its rows that a chunk has after one that the server could not read in time."""
_ALONE: Final = 20
"""Chunks that are read without the next one, after one that was read in vain."""


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
class _Ahead:
    """A chunk that a thread reads, of this table and behind this copy's boundary."""

    table: FollowedTable
    copy: TableCopy
    chunk: Future[ReadChunk | None]

    def is_for(self, table: FollowedTable, copy: TableCopy) -> bool:
        """Return whether it is the next chunk of *copy*, with the columns of *table*."""
        same = (self.copy.begun, self.copy.run, self.copy.boundary, self.copy.rows)
        # A schema that was logged meanwhile makes no difference to the rows.
        read = replace(self.table, is_described=table.is_described)
        return read == table and same == (copy.begun, copy.run, copy.boundary, copy.rows)


class Copier:
    """Reads the next chunk when that is possible. Belongs to one thread."""

    def __init__(
        self, connect: Callable[[], BoundedConnection], config: CdcConfig, names: Names
    ) -> None:
        """Read what the publications of *names* publish, by sessions that *connect* opens."""
        self._connect, self._config, self._names = connect, config, names
        self._rows = min(_FIRST_ROWS, config.copy_rows)
        self._session: BoundedConnection | None = None
        self._reader: ChunkReader | None = None
        self._ahead: _Ahead | None = None
        self._alone = 0

    def read_next(
        self, handover: Handover, copy: TableCopy, table: FollowedTable, namespace: str
    ) -> CopiedChunk | None:
        """Return the next chunk of *copy*, or ``None`` if it has to wait (rules 1, 2 and 3).

        Raises:
            SourceUnavailable: the session was lost.
            SourceError: the table cannot be read.

        """
        try:
            chunk = self._take_ahead(handover, copy, table) or self._open_reader().read(
                table, copy, self._rows, lambda snapshot: handover.accepts(copy, snapshot)
            )
        except StatementTooSlow:
            self._shrink()
            return None
        if chunk is None:
            return None
        count = len(chunk.rows)
        size = chunk.rows.size + count * (len(namespace.encode()) + _HEADROOM)
        if size > LARGEST and count > 1:
            self._rows = max(1, count * LARGEST // size // 2)
            return None
        self._adapt(chunk.seconds, size)
        made = handover.add_chunk(
            copy, chunk.snapshot, chunk.end, chunk.last, count, is_last=chunk.is_last
        )
        if not made.is_complete:
            self._read_ahead(table, made)
        messages = _messages(chunk, namespace, copy)
        return CopiedChunk(messages, made, size, chunk.definition, chunk.columns)

    def see_snapshot(self, handover: Handover) -> None:
        """Let *handover* forget transactions that are visible by now, while no chunk is read."""
        # A chunk that was read before would not have them.
        try:
            self._drop_ahead()
        except StatementTooSlow:
            self._shrink()
        handover.see(self._open_reader().see_snapshot())

    def close(self) -> None:
        """End the session, until the next chunk is read. Safe to call twice."""
        session, ahead = self._session, self._ahead
        self._session = self._reader = self._ahead = None
        if session is not None and ahead is not None and not ahead.chunk.done():
            _hang_up(session)
            ahead.chunk.exception()
        if session is not None:
            session.close()

    def _open_reader(self) -> ChunkReader:
        if self._reader is None:
            self._session = self._connect()
            self._reader = ChunkReader(self._session, self._config, TypeCatalog(), self._names)
        return self._reader

    def _read_ahead(self, table: FollowedTable, copy: TableCopy) -> None:
        """Let a thread read the next chunk, where that is likely to help."""
        if self._alone:
            self._alone -= 1
            return
        if self._config.copy_rate is not None:
            return  # The chunk would be old when its time comes.
        read = partial(self._open_reader().read, table, copy, self._rows)
        self._ahead = _Ahead(table, copy, _in_thread(read))

    def _take_ahead(
        self, handover: Handover, copy: TableCopy, table: FollowedTable
    ) -> ReadChunk | None:
        """Return the chunk that was read ahead, if it still counts."""
        ahead, chunk = self._ahead, self._drop_ahead()
        if ahead is None or chunk is None:
            return None
        # No later snapshot has been seen, so what it does not have is not forgotten.
        if ahead.is_for(table, copy) and handover.accepts(copy, chunk.snapshot):
            return chunk
        self._alone = _ALONE
        return None

    def _drop_ahead(self) -> ReadChunk | None:
        """Wait for the chunk that is being read ahead, so that the session is free."""
        ahead, self._ahead = self._ahead, None
        return None if ahead is None else ahead.chunk.result()

    def _shrink(self) -> None:
        """Let the next chunk be much smaller, because the server has ended the last one."""
        self._rows = max(1, self._rows // _SLOWER)

    def _adapt(self, seconds: float, size: int) -> None:
        """Let the next chunk take as long, and be as large, as chunks should."""
        factor = min(
            2.0,
            _CHUNK_SECONDS / max(seconds, 0.001),
            self._config.copy_bytes / max(size, 1),
        )
        self._rows = max(1, min(self._config.copy_rows, int(self._rows * factor)))


def _in_thread(read: Callable[[], ReadChunk | None]) -> Future[ReadChunk | None]:
    """Return what *read* is going to return. Its thread holds up no end of the process."""
    found: Future[ReadChunk | None] = Future()

    def run() -> None:
        try:
            found.set_result(read())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found


def _hang_up(session: BoundedConnection) -> None:
    """Let the thread that waits for *session* find it lost."""
    with (
        suppress(psycopg.OperationalError, OSError),
        socket.socket(fileno=os.dup(session.pgconn.socket)) as ours,
    ):
        ours.shutdown(socket.SHUT_RDWR)


def _messages(chunk: ReadChunk, namespace: str, copy: TableCopy) -> pa.RecordBatch:
    """Return the rows of a chunk as messages. The texts are not copied row by row."""
    count = len(chunk.rows)
    data, keys = chunk.rows.split()
    first = f"copy/{copy.oid}/{copy.run}/"
    ids = [f"{first}{number}" for number in range(copy.rows, copy.rows + count)]
    columns = {
        "namespace": pa.repeat(pa.scalar(namespace, pa.string()), count),
        "op": pa.repeat(pa.scalar("insert", pa.string()), count),
        "phase": pa.repeat(pa.scalar("copy", pa.string()), count),
        "key": keys,
        "timestamp": pa.repeat(
            pa.scalar(chunk.read_at, MESSAGE_SCHEMA.field("timestamp").type), count
        ),
        "source_id": pa.array(ids, pa.string()),
        "data": data,
        "content_type": pa.repeat(pa.scalar(JSON, pa.string()), count),
        "headers": pa.array([[]] * count, MESSAGE_SCHEMA.field("headers").type),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=MESSAGE_SCHEMA)

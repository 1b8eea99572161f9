"""What tests of the ``postgres`` writer share: entries of rows, and a driver like the engine."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from transporter_adaptors.postgres_cdc.columns import SCHEMA_TYPE, schema_document
from transporter_adaptors.postgres_cdc.entries import UNCHANGED_HEADER, truncation
from transporter_adaptors.postgres_writer.writer import PostgresWriter

from transporter.adaptor import WriterContext
from transporter.errors import Rejected
from transporter.message import Entries, Message
from transporter.testing import RecordingAck, entries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.postgres import Database

    from transporter.errors import SinkError

CONTEXT: Final = WriterContext(log_id="log-1", route="route", epoch=3, deadline=20.0, run="run-3")


def row(table: str, key: object, op: str = "insert", **fields: Any) -> Message:
    """Return an entry of a row of ``public.<table>``, with its whole data."""
    return Message(f"public.{table}", json.dumps(fields).encode(), key_of(key), op)


def partial_row(table: str, key: object, unchanged: Sequence[str], **fields: Any) -> Message:
    """Return an update that lacks the *unchanged* columns."""
    headers = ((UNCHANGED_HEADER, json.dumps(unchanged).encode()),)
    return replace(row(table, key, "update", **fields), headers=headers)


def deletion(table: str, key: object) -> Message:
    """Return a delete."""
    return Message(f"public.{table}", None, key_of(key), "delete", content_type=None)


def truncation_entry(table: str, *, restart_identity: bool = False) -> Message:
    """Return a TRUNCATE."""
    data = truncation(restart_identity=restart_identity)
    return Message(f"public.{table}", data, None, "command")


def schema_entry(table: str, key: Sequence[str], **columns: str) -> Message:
    """Return an entry with the columns of a table. A type that ends in ``!`` is NOT NULL."""
    listed = [(name, kind.rstrip("!"), kind.endswith("!")) for name, kind in columns.items()]
    data = schema_document(listed, key, "public", table)
    return Message(f"public.{table}", data, None, "command", content_type=SCHEMA_TYPE)


def key_of(key: object) -> bytes:
    """Return the key of an entry: a text, or an array of several values."""
    return (json.dumps(key) if isinstance(key, list | tuple) else str(key)).encode()


@dataclass
class Driver:
    """One writer, driven as the engine drives it."""

    database: Database
    settings: dict[str, Any] = field(default_factory=dict)
    context: WriterContext = CONTEXT
    next_offset: int = 1
    parked: dict[int, str] = field(default_factory=dict)
    """The text of the error by offset."""
    _writer: PostgresWriter | None = None

    @property
    def writer(self) -> PostgresWriter:
        """The open writer."""
        if self._writer is None:
            config = {"dsn": self.database.dsn, **self.settings}
            writer = PostgresWriter(PostgresWriter.Config.model_validate(config))
            try:
                writer.open(self.context)
            except BaseException:
                writer.close()
                raise
            self._writer = writer
        return self._writer

    def close(self) -> None:
        """Close the writer."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def batch(self, messages: Sequence[Message], generation: int = 0) -> Entries:
        """Return the next slice."""
        made = entries(messages, self.next_offset, self.context.log_id)
        self.next_offset += len(messages)
        return replace(made, generation=generation)

    def write(self, batch: Entries) -> RecordingAck:
        """Write *batch* once."""
        ack = RecordingAck(batch)
        self.writer.write(batch, ack)
        return ack

    def deliver(self, *messages: Message) -> None:
        """Deliver one slice, all of which must be accepted."""
        ack = self.write(self.batch(messages))
        assert ack.complete, ack.failures

    def fail(self, *messages: Message) -> SinkError:
        """Deliver one slice, which must fail, and return the first error."""
        ack = self.write(self.batch(messages))
        return ack.failures[0][0]

    def park(self, *messages: Message) -> None:
        """Deliver one slice to its end. What is rejected is parked."""
        self.park_batch(self.batch(messages))

    def park_batch(self, batch: Entries) -> None:
        """Deliver *batch* to its end. What is rejected is parked."""
        begin = 0
        while begin < len(batch):
            rest = replace(batch, batch=batch.batch.slice(begin))
            ack = self.write(rest)
            begin += len(ack.prefix)
            if not ack.failures:
                assert begin == len(batch)
                return
            error, offset = ack.failures[0]
            assert isinstance(error, Rejected), error
            assert offset == batch.offsets[begin]
            alone = replace(batch, batch=batch.batch.slice(begin, 1))
            assert isinstance(self.write(alone).failures[0][0], Rejected)
            self.parked[batch.offsets[begin]] = str(error)
            begin += 1

    def rows(self, table: str, order: str = "1") -> list[tuple[Any, ...]]:
        """Return the rows of a table."""
        return self.database.execute(f"SELECT * FROM {table} ORDER BY {order}")

    def stored(self) -> list[tuple[Any, ...]]:
        """Return generation and offset of every writer."""
        query = 'SELECT generation, "offset" FROM transporter_progress ORDER BY owner, route, shard'
        return self.database.execute(query)

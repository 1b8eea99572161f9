"""The PostgreSQL writer keeps the contract, in both modes, on a real server."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from transporter_adaptors.postgres_writer.writer import PostgresWriter

from transporter.message import Entries, Message, messages_to_batch, with_offsets
from transporter.testing.contracts import (
    RefusingWriterContract,
    StoredOffsetContract,
    UnreachableWriterContract,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.postgres import Database

    from transporter.adaptor import Ack, StoredOffset, WriterContext

pytestmark = pytest.mark.postgres

APPENDED = """
CREATE TABLE entries (
    log_id text, "offset" bigint, part int, namespace text, key bytea, op text, phase text,
    ts timestamptz, data bytea CHECK (data <> 'refused'), headers json,
    PRIMARY KEY (log_id, "offset", part)
)
"""
ROWS = "CREATE TABLE rows (k text PRIMARY KEY, n bigserial, namespace text, data bytea)"


class PostgresContract(StoredOffsetContract, RefusingWriterContract, UnreachableWriterContract):
    """The common part of both modes."""

    @pytest.fixture(autouse=True)
    def _sink(self, postgres: Database) -> None:
        self.database = postgres
        postgres.execute(APPENDED)
        postgres.execute(ROWS)


class TestAppend(PostgresContract):
    """The mode append, with columns that keep bytes."""

    exact = ("namespace", "key", "data", "op", "phase")

    def make_writer(self) -> PostgresWriter:
        return PostgresWriter(
            PostgresWriter.Config(dsn=self.database.dsn, table="entries", mode="append")
        )

    def make_unreachable(self) -> PostgresWriter:
        return PostgresWriter(PostgresWriter.Config(dsn="host=/nowhere", mode="append"))

    def delivered(self) -> list[Message]:
        rows = self.database.execute(
            'SELECT namespace, data, key, op, phase FROM entries ORDER BY "offset", part'
        )
        return [Message(*row) for row in rows]

    def refused_message(self) -> Message:
        return Message("orders.placed", b"refused", b"k")


class AsRows:
    """Writes messages as rows, with their bytes in columns."""

    def __init__(self, writer: PostgresWriter) -> None:
        self.writer = writer

    def open(self, context: WriterContext) -> StoredOffset | None:
        return self.writer.open(context)

    def write(self, batch: Entries, ack: Ack) -> None:
        messages = [as_row(entry.message) for entry in batch]
        rows = with_offsets(messages_to_batch(messages), batch.offsets[0] if messages else 0, 0)
        self.writer.write(replace(batch, batch=rows), ack)

    def close(self) -> None:
        self.writer.close()


def row_key(message: Message) -> str:
    """Return the key of the row of *message*: its own as hexadecimal digits, or of its data."""
    return f"{message.namespace}/" + (
        message.key.hex() if message.key is not None else f"none/{message.data.hex()}"
    )


def as_row(message: Message) -> Message:
    """Return *message* with an object as data."""
    key = row_key(message)
    data = None
    if message.data is not None:
        row = {"k": key, "namespace": message.namespace, "data": f"\\x{message.data.hex()}"}
        data = json.dumps(row).encode()
    return Message("rows", data, key.encode(), message.op, message.phase)


class TestUpsert(PostgresContract):
    """The mode upsert: the newest row of each key."""

    exact = ("namespace", "data")

    def make_writer(self) -> AsRows:
        return AsRows(PostgresWriter(PostgresWriter.Config(dsn=self.database.dsn)))

    def make_unreachable(self) -> PostgresWriter:
        return PostgresWriter(PostgresWriter.Config(dsn="host=/nowhere"))

    def delivered(self) -> list[Message]:
        rows = self.database.execute('SELECT namespace, data FROM rows ORDER BY k COLLATE "C"')
        return [Message(*row) for row in rows]

    def held(self, messages: Sequence[Message]) -> list[Message]:
        latest = {row_key(message): message for message in messages}
        return [latest[key] for key in sorted(latest) if latest[key].data is not None]

    def refused_message(self) -> Message:
        return Message("zero\0character", b"{}", b"k")

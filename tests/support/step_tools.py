"""Shared tools for tests of steps: batches of entries, and their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.message import Entries, Entry, Message, messages_to_batch, with_offsets

if TYPE_CHECKING:
    import pyarrow as pa

LOGGED_AT = 5_000_000


def batch_of(*messages: Message) -> pa.RecordBatch:
    """Return *messages* as entries from offset 100 on."""
    return with_offsets(messages_to_batch(messages), 100, LOGGED_AT)


def rows_of(batch: pa.RecordBatch) -> list[Entry]:
    """Return the entries of *batch*, after checking that every column is whole."""
    batch.validate(full=True)
    assert batch.schema.equals(batch_of().schema)
    assert not any(
        column.null_count
        for field, column in zip(batch.schema, batch.columns, strict=True)
        if not field.nullable
    )
    return list(Entries(batch))

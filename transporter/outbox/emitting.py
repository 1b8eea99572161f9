"""Records as logical messages in the application's own transaction: an outbox without a table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from transporter.outbox.record import Record
from transporter.outbox.stashing import refuse_async

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transporter.outbox.stashing import Executes, ExecutesAsync

PREFIX: Final = "transporter"
"""The prefix of the messages, as the reader's ``messages`` name it by default."""
_EMIT: Final = "SELECT pg_catalog.pg_logical_emit_message(true, %s::text, %s::text)"


def emit(cursor: Executes, record: Record, *, prefix: str = PREFIX) -> None:
    """Write *record* into the server's log, in the current transaction of *cursor*.

    A ``postgres-cdc`` reader whose ``messages`` have *prefix* logs it exactly when that transaction
    commits. No table is written, so nothing has to be purged, and nothing can be read again from
    the database. The function itself does not commit. It is as thread-safe as the cursor, and
    raises the driver's errors unchanged.

    Args:
        cursor: A cursor or connection of the application.
        record: The event.
        prefix: The prefix of the message.
    """
    refuse_async(cursor.execute(_EMIT, (prefix, _document(record))), "emit")


def emit_many(cursor: Executes, records: Iterable[Record], *, prefix: str = PREFIX) -> int:
    """Write *records* in order, as :func:`emit` does, and return their number."""
    count = 0
    for record in records:
        refuse_async(cursor.execute(_EMIT, (prefix, _document(record))), "emit_many")
        count += 1
    return count


async def emit_async(cursor: ExecutesAsync, record: Record, *, prefix: str = PREFIX) -> None:
    """Write *record* into the server's log, in the current transaction of the async *cursor*.

    It has the same guarantees as :func:`emit`.
    """
    await cursor.execute(_EMIT, (prefix, _document(record)))


async def emit_many_async(
    cursor: ExecutesAsync, records: Iterable[Record], *, prefix: str = PREFIX
) -> int:
    """Write *records* in order, as :func:`emit_async` does, and return their number."""
    count = 0
    for record in records:
        await cursor.execute(_EMIT, (prefix, _document(record)))
        count += 1
    return count


def _document(record: Record) -> str:
    if not isinstance(record, Record):
        raise TypeError(f"emit takes a transporter.outbox.Record, not {type(record).__name__}")
    fields = {
        "namespace": record.topic,
        "key": record.key,
        # As a text, so that it arrives byte by byte.
        "value": record.value,
        "headers": record.pairs,
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))

"""Messages that no append takes, and the entries that stand in for them."""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa

from transporter.errors import MessageTooLarge
from transporter.log.commit_log import MAX_APPEND, split_for_append
from transporter.message import ERROR_HEADER, JSON, MESSAGE_SCHEMA, batch_bytes, headers_of

MAX_KEY: Final = 64 * 1024
"""Bytes of a key that a stand-in keeps, so that later entries of the key wait behind it."""

_SIZED_COLUMNS: Final = ("key", "data")


def split_to_loggable(messages: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Cut *messages* into batches for one append each, with as many rows in all.

    A message that is too large on its own is replaced by one without its data, whose
    ``transporter-error`` header names where the original is and how large it is: every
    route that accepts it parks it, and the reader goes on.

    Raises:
        MessageTooLarge: even the rest of a message is too large.

    """
    try:
        return list(split_for_append(messages))
    except MessageTooLarge:
        if messages.num_rows == 1:
            return list(split_for_append(_create_stand_in(messages)))
    half = messages.num_rows // 2
    return [*split_to_loggable(messages.slice(0, half)), *split_to_loggable(messages.slice(half))]


def _create_stand_in(message: pa.RecordBatch) -> pa.RecordBatch:
    sizes = {name: _byte_length(message.column(name)[0]) for name in _SIZED_COLUMNS}
    (headers,) = headers_of(message.column("headers"))
    sizes["headers"] = sum(len(name.encode()) + len(value or b"") for name, value in headers)
    origin = message.column("source_id")[0].as_py()
    place = f"its source id is {origin}" if origin is not None else "it has no source id"
    reason = (
        f"the message is too large: {batch_bytes(message)} bytes, and one append to the log takes "
        f"at most {MAX_APPEND} bytes; its data and headers are not in the log ({place}): "
        "deliver it by other means"
    )
    made = {name: message.column(name) for name in MESSAGE_SCHEMA.names}
    if sizes["key"] > MAX_KEY:
        made["key"] = _single_value("key", None)
    made["data"] = _single_value("data", json.dumps({"source_id": origin, "bytes": sizes}).encode())
    made["content_type"] = _single_value("content_type", JSON)
    made["headers"] = _single_value("headers", [(ERROR_HEADER, reason.encode())])
    return pa.RecordBatch.from_arrays(
        [column.cast(MESSAGE_SCHEMA.field(name).type) for name, column in made.items()],
        schema=MESSAGE_SCHEMA,
    )


def _byte_length(cell: pa.Scalar) -> int:
    return cell.as_buffer().size if cell.is_valid else 0


def _single_value(column: str, value: object) -> pa.Array:
    return pa.array([value], MESSAGE_SCHEMA.field(column).type)

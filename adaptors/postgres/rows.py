"""Rows of the outbox as messages: columns in, one Arrow record batch out.

Text arrives as the bytes that the server sent, times as microseconds since
2000, PostgreSQL's own count: no row can make the driver fail, and no
:class:`~transporter.message.Message` is built on the way.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import accumulate, chain
from json import dumps
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from transporter.message import ERROR_HEADER, HEADERS_TYPE, JSON, MESSAGE_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
EPOCH_MICROSECONDS: Final = 946_684_800_000_000
"""PostgreSQL's epoch, 2000, in ours."""
EARLIEST: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
"""Year 1: with :data:`LATEST`, year 9999, what every later step and sink can express."""
LATEST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_INFINITY: Final = {2**63 - 1: "infinity", -(2**63): "-infinity"}

Texts = list[bytes | None]


class Row(NamedTuple):
    """One row of the outbox, in the order in which the statements name the columns."""

    id: int
    create_time: int
    topic: bytes | None
    key: bytes | None
    value: bytes | None
    header_keys: Texts | None
    header_values: Texts | None


COLUMNS: Final = (
    "id",
    "create_time",
    "kafka_topic",
    "kafka_key",
    "kafka_value",
    "kafka_header_keys",
    "kafka_header_values",
)


def to_batch(rows: Sequence[Sequence[Any]], table: str) -> pa.RecordBatch:
    """Turn *rows* of *table* into messages, one each, in the same order.

    A row's first cells are those of :class:`Row`; further ones are ignored. A
    row that is no message (see :func:`flaw`) becomes one whose data are its raw
    columns and whose ``transporter-error`` header says what is wrong.
    """
    try:
        return _assembled(rows, table)
    except (TypeError, ValueError, pa.ArrowException):
        cells = [Row(*row[: len(COLUMNS)]) for row in rows]
        sound = [row if (why := flaw(row)) is None else _marked(row, why, table) for row in cells]
        return _assembled(sound, table)


def _assembled(rows: Sequence[Sequence[Any]], table: str) -> pa.RecordBatch:
    """Build the batch by columns; raise when any row has a flaw."""
    ids, times, topics, keys, values, names, contents, *_ = zip(*rows, strict=True)
    if min(times) < EARLIEST or max(times) > LATEST or None in topics:
        raise ValueError("a time or a topic is not as it must be")
    count = len(ids)
    columns = {
        "namespace": pa.array(topics, pa.string()),
        "op": pa.array(["delete" if value is None else "insert" for value in values]),
        "phase": pa.array(["sync"] * count),
        "key": pa.array(keys, pa.binary()),
        "timestamp": pa.array(
            [time + EPOCH_MICROSECONDS for time in times], MESSAGE_SCHEMA.field("timestamp").type
        ),
        "source_id": pa.array([f"{table}/{number}" for number in ids]),
        "data": pa.array(values, pa.binary()),
        "content_type": pa.array([JSON] * count),
        "headers": _headers(names, contents),
    }
    return pa.RecordBatch.from_pydict(columns, schema=MESSAGE_SCHEMA)


def _headers(names: Sequence[Texts], values: Sequence[Texts]) -> pa.Array:
    lengths = list(map(len, names))
    flat = list(chain.from_iterable(names))
    if lengths != list(map(len, values)) or None in flat:
        raise ValueError("a header has no name or no value")
    name, value = HEADERS_TYPE.value_type
    pairs = pa.StructArray.from_arrays(
        [pa.array(flat, name.type), pa.array(chain.from_iterable(values), value.type)],
        fields=[name, value],
    )
    ends = pa.array([0, *accumulate(lengths)], pa.int32())
    return pa.ListArray.from_arrays(ends, pairs, type=HEADERS_TYPE)


def flaw(row: Row) -> str | None:
    """Return why *row* is no message, ``None`` when it is one."""
    names, values = row.header_keys, row.header_values
    if names is None or values is None:
        return "a header array is NULL"
    if len(names) != len(values):
        return f"{len(names)} header names, but {len(values)} header values"
    if names and any(isinstance(value, list) for value in values):
        return "kafka_header_values has more than one dimension"
    if not all(map(_is_text, (row.topic, *names))):
        return "the topic or a header name is NULL, nested or not valid UTF-8"
    if not EARLIEST <= row.create_time <= LATEST:
        return "create_time is not between the years 1 and 9999"
    return None


def _is_text(cell: bytes | None) -> bool:
    try:
        return isinstance(cell, bytes) and (cell.isascii() or bool(cell.decode()))
    except UnicodeDecodeError:
        return False


def _marked(row: Row, why: str, table: str) -> Row:
    """Return *row* as a message that tells about itself; the raw columns are its data."""
    raw = {name: _readable(cell) for name, cell in zip(COLUMNS, row, strict=True)}
    raw["create_time"] = _readable_time(row.create_time)
    topic = row.topic if _is_text(row.topic) else table.encode()
    time = min(max(row.create_time, EARLIEST), LATEST)
    data = dumps(raw, ensure_ascii=False).encode()
    return Row(row.id, time, topic, row.key, data, [ERROR_HEADER.encode()], [why.encode()])


def _readable(cell: object) -> object:
    if isinstance(cell, bytes):
        return cell.decode(errors="backslashreplace")
    return [_readable(item) for item in cell] if isinstance(cell, list) else cell


def _readable_time(microseconds: int) -> str:
    if EARLIEST <= microseconds <= LATEST:
        return (_EPOCH + timedelta(microseconds=microseconds)).isoformat()
    outside = f"{microseconds} microseconds after {_EPOCH.isoformat()}"
    return _INFINITY.get(microseconds, outside)

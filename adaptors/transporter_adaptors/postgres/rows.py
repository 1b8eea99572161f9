"""Rows of the outbox as messages: columns in, one Arrow record batch out.

Text arrives as the bytes that the server sent, and times as microseconds since
2000, as PostgreSQL counts them. So no row can make the driver fail, and no
:class:`~transporter.message.Message` is built on the way.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import accumulate, chain
from json import dumps
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from transporter.message import ERROR_HEADER, HEADERS_TYPE, MESSAGE_SCHEMA
from transporter_adaptors.postgres.columns import OutboxColumns
from transporter_adaptors.postgres.table import TableName

if TYPE_CHECKING:
    from collections.abc import Sequence

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
EPOCH_MICROSECONDS: Final = 946_684_800_000_000
"""PostgreSQL's epoch, 2000, in microseconds after the Unix epoch."""
EARLIEST: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
"""Year 1. With :data:`LATEST`, year 9999, the range that every later step and sink can express."""
LATEST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_INFINITY: Final = {2**63 - 1: "infinity", -(2**63): "-infinity"}

Texts = list[bytes | None]


class OutboxRow(NamedTuple):
    """One row of the outbox, in the order in which the statements select the columns."""

    id: int
    create_time: int | None
    topic: bytes | None
    key: bytes | None
    value: bytes | None
    header_keys: Texts | None
    header_values: Texts | None


class LargeRow(NamedTuple):
    """The place and the sizes of a row that is too large for the log.

    ``topic`` and ``key`` are ``None`` when they have more than :data:`CARRIED` bytes.
    The bytes are as the server stores them, and 8 for each element of an array.
    """

    id: int
    create_time: int | None
    topic: bytes | None
    key: bytes | None
    topic_bytes: int
    key_bytes: int
    value_bytes: int
    header_keys_bytes: int
    header_values_bytes: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of each column that has its own size."""
        return self[4:]


ROLES: Final = ("id", "created", "topic", "key", "value", "header_keys", "header_values")
"""Names of a :class:`OutboxRow`'s columns in the settings."""
LARGEST: Final = 8 * 1024**2 - 16 * 1024
"""Maximum bytes of a row, with 8 for each element of an array, that the log surely accepts."""
CARRIED: Final = 64 * 1024
"""Maximum bytes of a topic or a key in an entry about a large row."""
_USUAL: Final = OutboxColumns()


def to_batch(
    rows: Sequence[Sequence[Any]], table: str, columns: OutboxColumns = _USUAL
) -> pa.RecordBatch:
    """Turn *rows* of *table* into messages, one each, in the same order.

    A row's first cells are those of :class:`OutboxRow`, and further ones are ignored. A row that
    cannot be a message (see :func:`find_flaw`) becomes one with its raw *columns* as data and
    the problem in a ``transporter-error`` header.
    """
    if not rows:
        return pa.RecordBatch.from_pylist([], schema=MESSAGE_SCHEMA)
    try:
        return check_texts(_assemble_batch(rows, table, columns.content_type))
    except (TypeError, ValueError, pa.ArrowException):
        cells = [OutboxRow(*row[: len(ROLES)]) for row in rows]
        sound = [_loggable_row(row, table, columns) for row in cells]
        return _assemble_batch(sound, table, columns.content_type)


def _loggable_row(row: OutboxRow, table: str, columns: OutboxColumns) -> OutboxRow:
    why = find_flaw(row, columns)
    return row if why is None else _report_flaw(row, why, table, columns)


def measure_unloggable(
    row: OutboxRow, table: str, columns: OutboxColumns = _USUAL
) -> LargeRow | None:
    """Return the sizes of *row* if its message from :func:`to_batch` is too large for the log.

    Only a row with a flaw can be so: its columns take more room as JSON.
    """
    made = _loggable_row(row, table, columns)
    if made is row or sum(map(_count_bytes, made[2:])) <= LARGEST:
        return None
    topic, key = (cell if _count_bytes(cell) <= CARRIED else None for cell in (row.topic, row.key))
    return LargeRow(row.id, row.create_time, topic, key, *map(_count_bytes, row[2:]))


def _count_bytes(cell: object) -> int:
    if isinstance(cell, list):
        return sum(_count_bytes(item) + 8 for item in cell)
    return len(cell) if isinstance(cell, bytes) else 0


def report_large(
    row: LargeRow, full: str, table: str, columns: OutboxColumns = _USUAL
) -> OutboxRow:
    """Return a message in place of *row* of *table*, which stays in the table.

    *full* is the table's name in SQL.
    """
    size, column = sum(row.sizes), TableName(columns.id)
    delete = f"DELETE FROM {full} WHERE {column} = {row.id}"  # noqa: S608 - for people
    why = (
        f"the row is too large: {size} bytes, but one append to the log holds at most {LARGEST}; "
        f"it stays in {full}, unread: deliver it by other means, or store its large part elsewhere "
        f"and a reference in a new row; then {delete}"
    )
    bare = OutboxRow(row.id, row.create_time, row.topic, row.key, None, None, None)
    cells = dict(list(_raw_columns(bare, columns).items())[:4])
    sizes = dict(zip([name for _, name in columns.items()][2:7], row.sizes, strict=True))
    return _error_row(bare, {"table": full, "row": cells, "bytes": sizes}, why, table)


def _assemble_batch(
    rows: Sequence[Sequence[Any]], table: str, content_type: str | None
) -> pa.RecordBatch:
    """Build the batch column by column, or raise when any row has a flaw."""
    ids, times, topics, keys, values, names, contents, *_ = zip(*rows, strict=True)
    if min(times) < EARLIEST or max(times) > LATEST or None in topics:
        raise ValueError("a time or a topic is invalid")
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
        "content_type": pa.array([content_type] * count, pa.string()),
        "headers": _to_headers(names, contents),
    }
    return pa.RecordBatch.from_pydict(columns, schema=MESSAGE_SCHEMA)


def _to_headers(names: Sequence[Texts], values: Sequence[Texts]) -> pa.Array:
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


def check_texts(messages: pa.RecordBatch) -> pa.RecordBatch:
    """Return *messages*, or raise unless keys, header values and JSON data are UTF-8.

    A SQL_ASCII database stores any bytes as text. Data without a content type may be any bytes.
    """
    texts = [messages.column("key"), messages.column("headers").flatten().field("value")]
    if not messages.column("content_type").null_count:
        texts.append(messages.column("data"))
    for column in texts:
        column.cast(pa.string())
    return messages


def find_flaw(row: OutboxRow, columns: OutboxColumns = _USUAL) -> str | None:
    """Return the reason why *row* cannot be a message, or ``None`` if it can."""
    names, values = row.header_keys, row.header_values
    if names is None or values is None:
        return "a header array is NULL"
    if len(names) != len(values):
        return f"{len(names)} header names, but {len(values)} header values"
    if names and any(isinstance(value, list) for value in values):
        return f"{columns.header_values} has more than one dimension"
    if not all(map(_is_text, (row.topic, *names))):
        return "the topic or a header name is NULL, nested or not valid UTF-8"
    texts = [row.key, *values] if columns.content_type is None else [row.key, row.value, *values]
    if not all(cell is None or _is_text(cell) for cell in texts):
        return "the key, the value or a header value is not valid UTF-8"
    return _find_time_flaw(row.create_time, columns.created)


def _find_time_flaw(time: int | None, column: str) -> str | None:
    if time is None:
        return f"{column} is NULL"
    return None if EARLIEST <= time <= LATEST else f"{column} is not between the years 1 and 9999"


def _is_text(cell: bytes | None) -> bool:
    try:
        return isinstance(cell, bytes) and (cell.isascii() or bool(cell.decode()))
    except UnicodeDecodeError:
        return False


def _report_flaw(row: OutboxRow, why: str, table: str, columns: OutboxColumns) -> OutboxRow:
    """Return *row* as a message about its own flaw, with the raw columns as data."""
    return _error_row(row, _raw_columns(row, columns), why, table)


def _raw_columns(row: OutboxRow, columns: OutboxColumns) -> dict[str, object]:
    names = [name for _, name in columns.items()]
    raw = {name: _to_readable(cell) for name, cell in zip(names, row, strict=False)}
    raw[columns.created] = _to_readable_time(row.create_time)
    return raw


def _error_row(row: OutboxRow, document: dict[str, object], why: str, table: str) -> OutboxRow:
    topic = row.topic if _is_text(row.topic) else table.encode()
    # A message needs a time: 1970 where there is none, as for every source without times.
    time = -EPOCH_MICROSECONDS if row.create_time is None else row.create_time
    time = min(max(time, EARLIEST), LATEST)
    data = dumps(document, ensure_ascii=False).encode()
    return OutboxRow(row.id, time, topic, row.key, data, [ERROR_HEADER.encode()], [why.encode()])


def _to_readable(cell: object) -> object:
    if isinstance(cell, bytes):
        return cell.decode(errors="backslashreplace")
    return [_to_readable(item) for item in cell] if isinstance(cell, list) else cell


def _to_readable_time(microseconds: int | None) -> str | None:
    if microseconds is None:
        return None
    if EARLIEST <= microseconds <= LATEST:
        return (_EPOCH + timedelta(microseconds=microseconds)).isoformat()
    outside = f"{microseconds} microseconds after {_EPOCH.isoformat()}"
    return _INFINITY.get(microseconds, outside)

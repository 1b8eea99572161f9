"""The columns of a batch, from the rows of one table in a run. Pure."""

from __future__ import annotations

import struct
import sys
from array import array
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from transporter.message import HEADERS_TYPE, JSON, MESSAGE_SCHEMA
from transporter_adaptors.postgres_cdc.cells import Cells
from transporter_adaptors.postgres_cdc.column_json import encode_column, join_columns
from transporter_adaptors.postgres_cdc.entries import ENTRY_SIZE
from transporter_adaptors.postgres_cdc.json_text import TextError
from transporter_adaptors.postgres_cdc.messages import EPOCH, UNCHANGED, ProtocolError, read_row
from transporter_adaptors.postgres_cdc.runs import HEAD_END

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transporter_adaptors.postgres_cdc.column_json import JsonColumn
    from transporter_adaptors.postgres_cdc.entries import TableEntries
    from transporter_adaptors.postgres_cdc.messages import Row
    from transporter_adaptors.postgres_cdc.runs import Run

_OPS: Final = {ord("I"): "insert", ord("U"): "update", ord("D"): "delete"}
_NEW: Final = ord("N")
_HEX: Final = 16
_ENTRY: Final = pa.scalar(ENTRY_SIZE, pa.int32())
_EMPTY: Final = pa.scalar(0, pa.int32())
_SYNC, _JSON, _SLASH, _ZERO = (pa.scalar(text, pa.string()) for text in ("sync", JSON, "/", "0"))
_NO_MEMBERS: Final = pa.scalar(b"{}", pa.binary())
_NO_HEADERS: Final = pa.array([], HEADERS_TYPE.value_type)
_EPOCH: Final = pa.scalar(EPOCH, pa.int64())


FEWEST: Final = 250
"""Rows of a table in a run from which on it is encoded column by column."""
_NO_TEXTS: Final = pa.array([], pa.binary())
_Encoded = tuple[pa.Array, pa.Array, "list[bool] | None"]


class Shape(Enum):
    """The values in the message of a change: a new row, a deleted one, or an old and a new one."""

    NEW = "new"
    DELETED = "deleted"
    BOTH = "both"


class Places(NamedTuple):
    """The time of its transaction and the id of each row of a run."""

    timestamps: pa.Array
    source_ids: pa.Array

    @classmethod
    def of(cls, run: Run) -> Places:
        """Return those of all rows of *run*."""
        lengths = [end - first for first, end in pairwise([*run.firsts, len(run)])]
        commits = [fields[:8] * count for fields, count in zip(run.begins, lengths, strict=True)]
        times = [fields[8:16] * count for fields, count in zip(run.begins, lengths, strict=True)]
        micros = array("q", b"".join(times))
        if sys.byteorder == "little":
            micros.byteswap()
        clock = pa.Array.from_buffers(pa.int64(), len(run), [None, pa.py_buffer(micros)])
        numbers: Any = _ZERO
        if max(run.counts) > 1:
            numbers = pa.array([2 * (count - 1) for count in run.counts]).cast(pa.string())
        ids = pc.binary_join_element_wise(_hex(commits), _hex(run.lsns), numbers, _SLASH)
        time_type = MESSAGE_SCHEMA.field("timestamp").type
        return cls(pc.add(clock, _EPOCH).cast(time_type), ids)


class RowColumns(NamedTuple):
    """Messages with their sizes, and the places in the run of the rows that they are of."""

    messages: pa.RecordBatch
    sizes: pa.Array
    rows: Sequence[int]


def encode_rows(
    run: Run, places: Places, entries: TableEntries, rows: Sequence[int], shape: Shape
) -> tuple[RowColumns | None, Sequence[int]]:
    """Return the messages of *rows* of *run*, which are those of one table, and the other rows.

    The others are to be decoded one by one: they lack large values or a key, have another key than
    before, or are malformed.
    """
    messages = _select(run.messages, rows)
    encode = _by_columns if len(rows) >= FEWEST else _by_rows
    try:
        data, key, usual = encode(messages, entries, shape)
    except TextError:
        return None, rows
    others = list[int]()
    if usual is not None:
        others = [row for row, is_usual in zip(rows, usual, strict=True) if not is_usual]
        rows = [row for row, is_usual in zip(rows, usual, strict=True) if is_usual]
    if not rows:
        return None, others
    batch = _batch(run, places, entries, rows, key, data)
    sizes = pc.add(pc.add(_sizes(data), _sizes(key)), _ENTRY)
    return RowColumns(batch, sizes, rows), others


def _by_columns(messages: Sequence[bytes], entries: TableEntries, shape: Shape) -> _Encoded:
    """Return data and keys of the usual rows, and which those are if not all."""
    try:
        cells = Cells(messages, len(entries.names), has_old=shape is Shape.BOTH)
    except IndexError:
        return _NO_TEXTS, _NO_TEXTS, [False] * len(messages)
    if shape is Shape.BOTH:
        cells.leave_out_changed(entries.identity_places)
    usual = None if cells.is_usual is None else cells.is_usual.to_pylist()
    count = len(messages) if usual is None else sum(usual)
    texts = {place: cells.column(place) for place in entries.key_places}
    if shape is Shape.DELETED and any(column.null_count for column in texts.values()):
        return _NO_TEXTS, _NO_TEXTS, [False] * len(messages)
    columns: list[JsonColumn] = []
    if shape is Shape.DELETED:
        data = pa.nulls(count, pa.binary())
    else:
        texts = {place: cells.column(place) for place in range(len(entries.names))}
        columns = [_encode(entries, place, texts[place]) for place in texts]
        data = join_columns(entries.heads, columns, b"}") if columns else _nothing(count)
    return data, _key(entries, texts, columns, count), usual


def _by_rows(messages: Sequence[bytes], entries: TableEntries, shape: Shape) -> _Encoded:
    """Return the same as :func:`_by_columns`, faster for some hundred rows."""
    data, keys, usual = list[bytes | None](), list[bytes | None](), list[bool]()
    for message in messages:
        values = _read_values(message, entries, shape)
        usual.append(values is not None)
        if values is not None:
            data.append(None if shape is Shape.DELETED else entries.data_of(values))
            keys.append(entries.key_of(values))
    texts, key = pa.array(data, pa.binary()), pa.array(keys, pa.binary())
    return texts, key, None if len(data) == len(messages) else usual


def _read_values(message: bytes, entries: TableEntries, shape: Shape) -> Row | None:
    """Return the values of the last row of *message*, or ``None`` if it is not a usual one.

    Whatever is wrong in it is reported when it is decoded alone.
    """
    try:
        values, end = read_row(message, HEAD_END)
        if shape is Shape.BOTH and len(values) == len(entries.names):
            old, marker = values, message[end]
            values, end = read_row(message, end + 1)
            if marker != _NEW or any(old[at] != values[at] for at in entries.identity_places):
                return None
    except (IndexError, struct.error, ProtocolError):
        return None
    is_usual = end == len(message) and len(values) == len(entries.names)
    if is_usual and shape is Shape.DELETED:
        is_usual = all(values[place] is not None for place in entries.key_places)
    return values if is_usual and UNCHANGED not in values else None


def _key(
    entries: TableEntries,
    texts: dict[int, pa.BinaryArray],
    columns: Sequence[JsonColumn],
    count: int,
) -> pa.Array:
    if not entries.key_places:
        return pa.nulls(count, pa.binary())
    if not entries.is_json_key:
        (place,) = entries.key_places
        return texts[place]
    parts = [
        columns[place] if columns else _encode(entries, place, texts[place])
        for place in entries.key_places
    ]
    heads = [b", " if number else b"[" for number in range(len(parts))]
    return join_columns(heads, parts, b"]")


def _encode(entries: TableEntries, place: int, texts: pa.BinaryArray) -> JsonColumn:
    try:
        return encode_column(entries.rules[place], texts)
    except TextError as error:
        raise error.in_column(entries.names[place]) from error


def _batch(
    run: Run,
    places: Places,
    entries: TableEntries,
    rows: Sequence[int],
    key: pa.Array,
    data: pa.Array,
) -> pa.RecordBatch:
    count = len(rows)
    timestamps, source_ids = places
    if count < len(run):
        chosen = pa.array(rows, pa.int32())
        timestamps, source_ids = timestamps.take(chosen), source_ids.take(chosen)
    columns = [
        pa.repeat(pa.scalar(entries.namespace, pa.string()), count),
        _ops(run, rows),
        pa.repeat(_SYNC, count),
        key,
        timestamps,
        source_ids,
        data,
        pa.nulls(count, pa.string()) if data.null_count else pa.repeat(_JSON, count),
        pa.ListArray.from_arrays(pa.repeat(_EMPTY, count + 1), _NO_HEADERS, type=HEADERS_TYPE),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)


def _ops(run: Run, rows: Sequence[int]) -> pa.Array:
    """Return the op of each of *rows*."""
    ops = pa.array([_OPS[kind] for kind, _, _ in run.relations()], pa.string())
    codes = run.codes if len(rows) == len(run) else bytes([run.codes[row] for row in rows])
    if codes.count(codes[0]) == len(codes):
        return pa.repeat(ops[codes[0]], len(codes))
    numbers = pa.Array.from_buffers(pa.uint8(), len(codes), [None, pa.py_buffer(bytes(codes))])
    return ops.take(numbers)


def _hex(numbers: Sequence[bytes]) -> pa.StringArray:
    """Return numbers of 8 bytes, joined in any way, as 16 digits each."""
    text = b"".join(numbers).hex().upper().encode()
    count = len(text) // _HEX
    edges = pa.arange(0, len(text) + 1, _HEX).cast(pa.int32())
    return pa.StringArray.from_buffers(count, edges.buffers()[1], pa.py_buffer(text))


def _nothing(count: int) -> pa.Array:
    """Return the data of rows without columns."""
    return pa.repeat(_NO_MEMBERS, count)


def _sizes(texts: pa.Array) -> pa.Array:
    return pc.binary_length(texts).fill_null(0)


def _select(messages: Sequence[bytes], rows: Sequence[int]) -> Sequence[bytes]:
    return messages if len(rows) == len(messages) else [messages[row] for row in rows]

"""Records of Kafka as messages: columns in, one Arrow record batch out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import accumulate, chain
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
from confluent_kafka import Message as Record

from transporter.message import ERROR_HEADER, HEADERS_TYPE, MESSAGE_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Headers = Sequence[tuple[str, bytes | None]]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
EARLIEST: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
"""Year 1. With :data:`LATEST`, year 9999, the range that every later step and sink can express."""
LATEST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
_NO_TIME: Final = -1
"""Kafka's value for a record without a time."""

# Typed, because for a plain value Arrow tries to import pandas, 0.1 ms each where it is missing.
_SLASH: Final = pa.scalar("/", pa.string())
_THOUSAND: Final = pa.scalar(1000, pa.int64())


class Names(NamedTuple):
    """The namespace of one topic's messages, and the beginning of their source ids."""

    namespace: str
    origin: str


def to_batch(
    records: Sequence[Record], names: Mapping[str, Names], content_type: str | None
) -> pa.RecordBatch:
    """Turn *records* (at least one, none of them an event) into messages, in the same order.

    A record whose time is outside the calendar, or whose headers cannot be read, becomes
    a message with a ``transporter-error`` header.
    """
    count = len(records)
    data = pa.array(list(map(Record.value, records)), pa.binary())
    times = list(map(itemgetter(1), map(Record.timestamp, records)))
    times, headers = _fit_message(times, _read_headers(records))
    namespaces, ids = _namespaces_and_ids(records, names)
    columns = {
        "namespace": namespaces,
        "op": _operations(data),
        "phase": _repeat("sync", "phase", count),
        "key": pa.array(list(map(Record.key, records)), pa.binary()),
        "timestamp": _microseconds(times),
        "source_id": ids,
        "data": data,
        "content_type": _repeat(content_type, "content_type", count),
        "headers": _headers_column(headers),
    }
    return pa.RecordBatch.from_pydict(columns, schema=MESSAGE_SCHEMA)


def _namespaces_and_ids(
    records: Sequence[Record], names: Mapping[str, Names]
) -> tuple[pa.Array, pa.Array]:
    """Return the namespaces and the source ids: ``<topic>@<topic id>/<partition>/<offset>``."""
    import pyarrow.compute as pc  # noqa: PLC0415 - 60 ms that `transporter check` does without

    topics = pa.array(list(map(Record.topic, records)), pa.string()).dictionary_encode()
    known = [names[topic] for topic in topics.dictionary.to_pylist()]
    # Taken by index, so only the texts of the few topics are made, not a million.
    namespaces = pa.array([each.namespace for each in known], pa.string()).take(topics.indices)
    origins = pa.array([each.origin for each in known], pa.string()).take(topics.indices)
    partitions = pa.array(list(map(Record.partition, records)), pa.int32()).cast(pa.string())
    offsets = pa.array(list(map(Record.offset, records)), pa.int64()).cast(pa.string())
    return namespaces, pc.binary_join_element_wise(origins, partitions, offsets, _SLASH)


def _operations(data: pa.Array) -> pa.Array:
    if not data.null_count:
        return _repeat("insert", "op", len(data))
    return pa.array(["insert", "delete"], pa.string()).take(data.is_null().cast(pa.int8()))


def _microseconds(times: list[int]) -> pa.Array:
    import pyarrow.compute as pc  # noqa: PLC0415 - see _named

    return pc.multiply(pa.array(times, pa.int64()), _THOUSAND).view(
        MESSAGE_SCHEMA.field("timestamp").type
    )


def _read_headers(records: Sequence[Record]) -> list[Headers | None]:
    """Return the headers of each record, or ``None`` where the client cannot read them.

    When a name is not UTF-8 it sets an exception and returns a value all the same.
    A call through ``map`` raises this, always at the record itself. The
    records after it are read from there on.
    """
    found: list[Headers | None] = []
    remaining = map(Record.headers, records)
    while len(found) < len(records):
        try:
            found.extend(headers or () for headers in remaining)
        except SystemError:
            found.append(None)
    return found


def _headers_column(headers: Sequence[Headers]) -> pa.Array:
    """Build a headers column from its parts, a tenth of the time of a dictionary per header."""
    pairs = list(chain.from_iterable(headers))
    name, value = HEADERS_TYPE.value_type
    names = pa.array(list(map(itemgetter(0), pairs)), name.type)
    values = pa.array(list(map(itemgetter(1), pairs)), value.type)
    items = pa.StructArray.from_arrays([names, values], fields=[name, value])
    ends = pa.array(list(accumulate(map(len, headers), initial=0)), pa.int32())
    return pa.ListArray.from_arrays(ends, items, type=HEADERS_TYPE)


def _fit_message(
    times: list[int], headers: list[Headers | None]
) -> tuple[list[int], list[Headers]]:
    """Return both in a form that fits a message, with an error header where they did not."""
    read = [pairs for pairs in headers if pairs is not None]
    if len(read) == len(headers) and min(times) >= 0 and max(times) <= LATEST:
        return times, read
    rows = [_fit_row(time, pairs) for time, pairs in zip(times, headers, strict=True)]
    return [time for time, _ in rows], [pairs for _, pairs in rows]


def _fit_row(time: int, headers: Headers | None) -> tuple[int, Headers]:
    if time == _NO_TIME:
        time = 0
    problems = []
    if not EARLIEST <= time <= LATEST:
        problems.append(f"its time, {time} ms after 1970, is not between the years 1 and 9999")
        time = min(max(time, EARLIEST), LATEST)
    if headers is None:
        problems.append("its headers cannot be read: a name is not valid UTF-8")
        headers = ()
    marks = [(ERROR_HEADER, problem.encode()) for problem in problems]
    return time, [*marks, *headers]


def _repeat(value: object, column: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, MESSAGE_SCHEMA.field(column).type), count)

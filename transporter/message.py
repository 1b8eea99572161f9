"""Messages and entries: the content of a pipeline, as objects and as Arrow.

In memory the unit is an Arrow record batch. :class:`Message` objects exist
only at the edges that need them. ``data`` stays the bytes that arrived, so a
pass-through never re-encodes: big integers, decimals and key order survive.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

OPS: Final = ("insert", "update", "delete", "command", "noop", "skip")
FEW: Final = 16
"""Rows up to which their values in Python are looked at faster than an Arrow kernel is called."""
NOOP: Final = "noop"
"""The op of an entry that no route delivers: it carries a position, or marks a phase."""
PHASES: Final = ("copy", "sync", "complete")
JSON: Final = "application/json"
ERROR_HEADER: Final = "transporter-error"
"""The header by which a reader marks a record that it could not turn into a message."""

HEADERS_TYPE: Final = pa.list_(
    pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())])
)
MESSAGE_SCHEMA: Final = pa.schema(
    [
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("op", pa.string(), nullable=False),
        pa.field("phase", pa.string(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("source_id", pa.string()),
        pa.field("data", pa.binary()),
        pa.field("content_type", pa.string()),
        pa.field("headers", HEADERS_TYPE, nullable=False),
    ]
)
"""Columns of messages. Plain, never dictionary-encoded: every batch can be read alone."""

ENTRY_SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("logged_at", pa.timestamp("us", "UTC"), nullable=False),
        *MESSAGE_SCHEMA,
    ]
)
"""Columns of entries: a message, its offset in the log and its log time."""

# Found once: Arrow makes a new object at each question.
*_PLAIN_TYPES, _ = MESSAGE_SCHEMA.types
_TIME: Final = ENTRY_SCHEMA.field("logged_at").type
_NAME, _VALUE = HEADERS_TYPE.value_type

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Message:
    """One change or event from a source.

    ``timestamp`` is in microseconds since the epoch, UTC, as given by the
    source. ``data`` of ``None`` is a tombstone. ``headers`` keep their order and may
    repeat a name.
    """

    namespace: str
    data: bytes | None
    key: bytes | None = None
    op: str = "insert"
    phase: str = "sync"
    timestamp: int = 0
    source_id: str | None = None
    content_type: str | None = JSON
    headers: Headers = ()


def position_message(reader: str) -> Message:
    """Return a message by which *reader* logs a position without any message of its source.

    It has a namespace and a key of its own, so that compaction keeps only the newest.
    """
    name = f"transporter.{reader}"
    return Message(name, None, name.encode(), NOOP, content_type=None)


class Entry(NamedTuple):
    """A message at an offset, with the time (µs UTC) at which it was logged."""

    offset: int
    logged_at: int
    message: Message


def messages_to_batch(messages: Sequence[Message]) -> pa.RecordBatch:
    """Turn *messages* into one record batch of :data:`MESSAGE_SCHEMA`."""
    # Each column is spelled out, because an attribute by name costs twice as much, at every cell.
    cells: tuple[list[Any], ...] = (
        [message.namespace for message in messages],
        [message.op for message in messages],
        [message.phase for message in messages],
        [message.key for message in messages],
        [message.timestamp for message in messages],
        [message.source_id for message in messages],
        [message.data for message in messages],
        [message.content_type for message in messages],
    )
    headers = _headers_array([message.headers for message in messages])
    columns = [*map(_to_array, cells, _PLAIN_TYPES), headers]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)


def _to_array(cells: list[Any], kind: pa.DataType) -> pa.Array:
    if len(cells) > 1 and cells.count(cells[0]) == len(cells):
        # Most columns repeat one value: Arrow need not look at each cell.
        return _repeat_value(cells[0], len(cells), kind)
    return pa.array(cells, type=kind)


def _repeat_value(value: object, count: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, type=kind), count)


def _headers_array(cells: list[Headers]) -> pa.Array:
    """Return a headers column from its parts. A dictionary per header costs ten times as much."""
    pairs = list(chain.from_iterable(cells))
    names = pa.array([name for name, _ in pairs], type=pa.string())
    values = pa.array([value for _, value in pairs], type=pa.binary())
    items = pa.StructArray.from_arrays([names, values], fields=[_NAME, _VALUE])
    ends = (
        pa.array(list(accumulate(map(len, cells), initial=0)), type=pa.int32())
        if pairs
        else _repeat_value(0, len(cells) + 1, pa.int32())
    )
    return pa.ListArray.from_arrays(ends, items, type=HEADERS_TYPE)


def with_offsets(messages: pa.RecordBatch, first: int, logged_at: int) -> pa.RecordBatch:
    """Give *messages* dense offsets from *first* on and one log time (µs UTC)."""
    count = messages.num_rows
    offsets = pa.arange(first, first + count)
    times = pa.repeat(pa.scalar(logged_at, type=_TIME), count)
    return pa.RecordBatch.from_arrays([offsets, times, *messages.columns], schema=ENTRY_SCHEMA)


def batch_bytes(batch: pa.RecordBatch) -> int:
    """Return the size of *batch* in bytes with its description, ten times faster than nbytes.

    Of a slice only the visible rows count.
    """
    return int(pa.ipc.get_record_batch_size(batch))


def microseconds(column: pa.Array) -> list[int]:
    """Return a timestamp column as integers, microseconds since the epoch."""
    # A view, because the cast would look for pandas at every call (0.1 ms without pandas).
    return column.view(pa.int64()).to_pylist()  # type: ignore[no-any-return]


def headers_of(column: pa.Array) -> list[Headers]:
    """Return a headers column as one tuple of pairs per row, four times faster than by rows."""
    ends = column.offsets.to_pylist()
    begin = ends[0]
    flat = column.values.slice(begin, ends[-1] - begin)
    pairs = zip(flat.field("name").to_pylist(), flat.field("value").to_pylist(), strict=True)
    known = tuple(pairs)
    return [known[start - begin : end - begin] for start, end in pairwise(ends)]


@dataclass(frozen=True, slots=True)
class Entries:
    """A batch of entries on its way to a writer.

    ``batch`` has :data:`ENTRY_SCHEMA` and ascending offsets. ``generation``
    counts the replays of the route, so a sink that stores its offset can
    distinguish a replay from the first delivery. Immutable: no route sees another's change.
    """

    batch: pa.RecordBatch
    log_id: str = ""
    generation: int = 0

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def __iter__(self) -> Iterator[Entry]:
        columns = {name: self.batch.column(name) for name in ENTRY_SCHEMA.names}
        rows = zip(
            self.offsets,
            microseconds(columns["logged_at"]),
            columns["namespace"].to_pylist(),
            columns["data"].to_pylist(),
            columns["key"].to_pylist(),
            columns["op"].to_pylist(),
            columns["phase"].to_pylist(),
            microseconds(columns["timestamp"]),
            columns["source_id"].to_pylist(),
            columns["content_type"].to_pylist(),
            headers_of(columns["headers"]),
            strict=True,
        )
        for offset, logged_at, *cells in rows:
            yield Entry(offset, logged_at, Message(*cells))

    @property
    def offsets(self) -> list[int]:
        """The offsets, ascending."""
        return self.batch.column("offset").to_pylist()  # type: ignore[no-any-return]

    def whole(self, rows: int) -> int:
        """Return how many of the first *rows* belong to entries without later rows.

        A step may make several rows of one entry, which is delivered when all of them are.
        """
        # Single cells are read: a writer calls this at every request, and a batch may have many.
        offsets = self.batch.column("offset")
        while 0 < rows < len(offsets) and offsets[rows - 1] == offsets[rows]:
            rows -= 1
        return rows

    def entry_id(self, offset: int) -> str:
        """Return the id of this entry, which every redelivery carries."""
        return f"{self.log_id}/{offset}"

    def row_ids(self) -> list[str]:
        """Return an id for each row, unique in this batch and the same at each redelivery.

        It is the entry's id. If a step made several rows of one entry, the second has
        ``/1`` behind it, and so on. A receiver that drops known ids would otherwise lose them.
        """
        ids: list[str] = []
        last, copy = -1, 0
        for offset in self.offsets:
            copy = copy + 1 if offset == last else 0
            last = offset
            ids.append(self.entry_id(offset) + (f"/{copy}" if copy else ""))
        return ids


def concat(batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """Join entry *batches* into one, copying only when there is more than one."""
    found = list(batches)
    if len(found) == 1:
        return found[0]
    table = pa.Table.from_batches(found, schema=ENTRY_SCHEMA).combine_chunks()
    joined: list[pa.RecordBatch] = table.to_batches()
    return joined[0] if joined else pa.RecordBatch.from_pylist([], schema=ENTRY_SCHEMA)

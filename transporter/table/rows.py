"""Record batches of a range of the log, with the columns and types of a query."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from transporter.errors import LogError, OffsetRefused
from transporter.log.reader import LogReader
from transporter.log.search import EntryFilter, frames_with_retry
from transporter.message import ENTRY_SCHEMA, batch_bytes
from transporter.table.options import TEXT
from transporter.table.plan import OffsetBounds, bounds_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transporter.log.reader import LocatedFrame
    from transporter.table.options import Options
    from transporter.table.plan import TablePart

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 4 << 20
"""Limits up to which small frames are joined, because each batch costs Spark some 0.1 ms."""


def typed_schema(text: frozenset[str]) -> pa.Schema:
    """Return the columns of the log, with the byte columns in *text* as strings."""
    fields = [
        field.with_type(pa.string()) if field.name in text else field for field in ENTRY_SCHEMA
    ]
    return pa.schema(fields)


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns and types of a table: ``schema`` is the log's or that of a query.

    With ``lenient``, bytes that are not UTF-8 become null in string columns.
    """

    schema: pa.Schema
    lenient: bool

    @property
    def converted_columns(self) -> frozenset[str]:
        """The columns whose values differ from those of the log, as a filter sees them."""
        fields = [self.schema.field(name) for name in TEXT if name in self.schema.names]
        return frozenset(field.name for field in fields if field.type == pa.string())

    def convert(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Return *entries* in this shape."""
        columns = [self._column(entries, field) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _column(self, entries: pa.RecordBatch, field: pa.Field) -> pa.Array:
        column = entries.column(field.name)
        if column.type.equals(field.type) or field.name not in TEXT:
            return column.cast(field.type)
        try:
            return column.cast(field.type)
        except pa.ArrowInvalid as error:
            if not self.lenient:
                raise _not_text_error(entries, field.name) from error
            return pa.array(map(_decode_text, column.to_pylist()), field.type)


def _not_text_error(entries: pa.RecordBatch, name: str) -> LogError:
    values = zip(
        entries.column("offset").to_pylist(), entries.column(name).to_pylist(), strict=True
    )
    offset = next(
        (at for at, value in values if value is not None and _decode_text(value) is None), "?"
    )
    return LogError(
        f"{name} at offset {offset} is not UTF-8 text; set the option {name} to binary for the "
        "bytes, or invalidUtf8 to null for null instead"
    )


def _decode_text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


@dataclass(frozen=True, slots=True)
class RowSelection:
    """The selected entries of a range: those that match both ``entry_filter`` and ``bounds``."""

    entry_filter: EntryFilter
    bounds: OffsetBounds = OffsetBounds()  # noqa: RUF009 - a frozen value

    def select(self, located: LocatedFrame, part: TablePart) -> pa.RecordBatch:
        """Return the selected entries of a frame that lie in *part*."""
        return self.entry_filter.apply(located.entries_within(*part))

    def can_skip(self, located: LocatedFrame) -> bool:
        """Return whether the header of a frame shows that nothing in it is selected."""
        offsets = self.bounds.offsets
        if offsets is None:
            return False
        at = bisect_left(offsets, located.frame.first)
        return at == len(offsets) or offsets[at] > located.frame.last


def selection_of(options: Options) -> RowSelection:
    """Return the selection of *options*."""
    bounds = bounds_of(options)
    return RowSelection(EntryFilter(options.namespace, None, bounds.since, bounds.until), bounds)


def read_rows(
    options: Options, part: TablePart, selection: RowSelection, shape: Shape
) -> Iterator[pa.RecordBatch]:
    """Yield the selected entries of *part* as record batches of *shape*, in log order.

    Holds a few frames at a time (Invariant 17), and continues when segments are compacted
    meanwhile.

    Raises:
        OffsetRefused: retention has removed some of it, and the options do not allow that.
        Corrupt: a frame is damaged. The text names file, byte and offset.
        LogError: a value of a string column is not UTF-8.

    """
    found = _read_entries(options, part, selection)
    yield from _join_small(shape.convert(entries) for entries in found if entries.num_rows)


def _read_entries(
    options: Options, part: TablePart, selection: RowSelection
) -> Iterator[pa.RecordBatch]:
    wanted = part.first
    with LogReader(options.directory) as reader:
        while wanted <= part.last:
            try:
                for found in frames_with_retry(reader, wanted, part.last):
                    if not selection.can_skip(found):
                        yield selection.select(found, part)
                    wanted = found.frame.last + 1
            except OffsetRefused:
                oldest = reader.first_offset()
                if options.fail_on_loss or oldest <= wanted:
                    raise
                wanted = oldest
            else:
                return


def _join_small(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        held.append(batch)
        count, size = count + batch.num_rows, size + batch_bytes(batch)
        if count >= BATCH_ROWS or size >= BATCH_BYTES:
            yield _concat(held)
            held, count, size = [], 0, 0
    if held:
        yield _concat(held)


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

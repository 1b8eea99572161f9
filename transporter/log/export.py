"""Export of entries into one file for other tools: Parquet or JSON lines.

The file appears whole or not at all. Memory is bounded by one row group, however long
the log is (Invariant 17).
"""

from __future__ import annotations

import json
from secrets import token_hex
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from transporter.errors import EnvironmentFault
from transporter.log.filesystem import TEMPORARY, RealFileSystem, replace_durably
from transporter.message import ENTRY_SCHEMA, Entries

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

    from transporter.log.filesystem import FileSystem
    from transporter.message import Entry

ROW_GROUP_BYTES: Final = 32 << 20
"""Bytes of entries in memory for one row group of a Parquet file."""
_ROW_GROUP_ROWS: Final = 1 << 20


def export(path: Path, parts: Iterable[bytes], files: FileSystem | None = None) -> None:
    """Write *parts* to the file at *path*, replacing the old file once all of it is durable.

    Raises:
        EnvironmentFault: the file cannot be written. The old file is untouched.

    """
    files = files or RealFileSystem()
    # In a shared folder, other users may have created files of every guessable name.
    private = path.with_name(f".{path.name}.{token_hex(16)}")
    whole = private / path.name
    try:
        files.create_directory(private)
        try:
            replace_durably(files, whole, parts)
            files.rename(whole, path)
        finally:
            files.remove(whole.with_name(whole.name + TEMPORARY))
            files.remove(whole)
            files.remove_directory(private)
        files.sync_directory(path.parent)
    except OSError as error:
        raise EnvironmentFault(f"{path}: {error.strerror}") from error


def json_lines(
    batches: Iterable[pa.RecordBatch], describe: Callable[[Entry], object]
) -> Iterator[bytes]:
    """Yield the description of each entry by *describe*, one line of JSON per entry."""
    for batch in batches:
        lines = [json.dumps(describe(entry)) for entry in Entries(batch)]
        yield "".join(f"{line}\n" for line in lines).encode()


def text_columns(batches: Iterable[pa.RecordBatch]) -> frozenset[str]:
    """Return the columns among ``key`` and ``data`` that are UTF-8 or null in all *batches*."""
    found = frozenset(("key", "data"))
    for batch in batches:
        found = frozenset(name for name in found if _is_text(batch.column(name)))
        if not found:
            break
    return found


def _is_text(column: pa.Array) -> bool:
    try:
        column.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def parquet_bytes(
    batches: Iterable[pa.RecordBatch], text: Collection[str] = frozenset()
) -> Iterator[bytes]:
    """Yield the bytes of a Parquet file of ``ENTRY_SCHEMA``, row group by row group.

    The columns in *text*, found by :func:`text_columns` in the same batches, become strings.
    """
    from pyarrow.parquet import ParquetWriter  # noqa: PLC0415 - heavy, and only for this format

    fields = (
        field.with_type(pa.string()) if field.name in text else field for field in ENTRY_SCHEMA
    )
    schema, sink = pa.schema(fields), _Sink()
    with ParquetWriter(sink, schema, compression="zstd") as writer:
        for group in _row_groups(batches):
            writer.write_table(group.cast(schema), row_group_size=group.num_rows)
            yield from sink.take()
    yield from sink.take()


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Join *batches* into tables large enough for a row group each."""
    held: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in batches:
        held.append(batch)
        size, rows = size + batch.nbytes, rows + batch.num_rows
        if size >= ROW_GROUP_BYTES or rows >= _ROW_GROUP_ROWS:
            yield pa.Table.from_batches(held)
            held, size, rows = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held)


class _Sink:
    """File object for Arrow's output, from which the bytes are taken at intervals."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._byte = 0

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        self._byte += len(data)
        return len(data)

    def tell(self) -> int:
        return self._byte

    def flush(self) -> None:
        """Keep everything until it is taken."""

    def close(self) -> None:
        """Keep everything until it is taken."""

    def take(self) -> list[bytes]:
        parts, self._parts = self._parts, []
        return parts

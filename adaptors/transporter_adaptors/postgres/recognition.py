"""Recognition of rows that are already in the log because a crash came between append and purge.

Pure: both sides come in as record batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.message import Entries, with_offsets
from transporter_adaptors.postgres.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from transporter.adaptor import Resume


def unpurged_batches(resume: Resume) -> Iterator[Entries]:
    """Yield the logged batches whose rows may still be in the table, newest first.

    They include frames of a batch that never got its position: their rows
    are logged, but were not acknowledged to the source.
    """
    batch = purged = None
    for text, entries in resume.recent():
        if text is not None:
            position = Position.parse(text)
            batch = position.batch
            purged = position.purged if purged is None else purged
        if batch is not None and purged is not None and batch <= purged:
            return
        yield entries


def logged_rows(entries: Entries, table: str) -> list[tuple[int, int]]:
    """Return offset and id of the rows of *table* that *entries* were made from."""
    prefix = f"{table}/"
    source_ids = entries.batch.column("source_id").to_pylist()
    return [
        (offset, int(source_id.removeprefix(prefix)))
        for offset, source_id in zip(entries.offsets, source_ids, strict=True)
        if source_id is not None and source_id.startswith(prefix)
    ]


def logged_ids(entries: Entries, table: str) -> list[int]:
    """Return the ids of the rows of *table* that *entries* were made from."""
    return [number for _, number in logged_rows(entries, table)]


def match_rows(entries: Entries, rows: pa.RecordBatch) -> list[bool]:
    """Return for each message of *rows* whether *entries* hold it with equal content.

    Equal means every column: id, topic, key, value, headers and create_time. A row that
    shares only its id (because a sequence was set back) is a different row.
    """
    logged = {entry.message.source_id: entry.message for entry in entries}
    found = Entries(with_offsets(rows, first=0, logged_at=0))
    return [logged.get(entry.message.source_id) == entry.message for entry in found]

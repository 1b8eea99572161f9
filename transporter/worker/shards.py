"""Entries of one shard of a route, by key, and the progress of that shard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

if TYPE_CHECKING:
    from transporter.protocol.messages import Slice


def entries_of_shard(entries: pa.RecordBatch, shard: int, shards: int) -> pa.RecordBatch:
    """Return the *entries* that belong to *shard*, the same in every run (Invariant 9).

    The shard is CRC-32C of the key modulo the shards. Entries without a key go by offset.
    """
    if shards == 1:
        return entries
    keys = entries.column("key").dictionary_encode()
    hashed = pa.array([crc32c(key) % shards for key in keys.dictionary.to_pylist()], pa.int64())
    offsets, count = entries.column("offset"), pa.scalar(shards, pa.int64())
    dealt = pc.subtract(offsets, pc.multiply(pc.divide(offsets, count), count))
    found = pc.coalesce(hashed.take(keys.indices), dealt)
    return entries.filter(pc.equal(found, pa.scalar(shard, pa.int64())))


class ShardProgress:
    """The progress of one shard beyond the route's watermark, which another shard holds back.

    Its entries beyond the watermark come again with the next slice and are skipped, so that a
    sink that stores its offset has none twice. Valid within one generation.
    """

    def __init__(self, generation: int, through: int) -> None:
        """Begin at the sink's stored offset, or at -1."""
        self._generation, self._through = generation, through

    def undelivered(self, entries: pa.RecordBatch, request: Slice) -> pa.RecordBatch:
        """Return those of *entries* that this shard has not delivered yet."""
        if request.generation != self._generation or request.first > self._through:
            return entries
        beyond = pc.greater(entries.column("offset"), pa.scalar(self._through, pa.int64()))
        return entries.filter(beyond)

    def delivered_through(self, request: Slice) -> int | None:
        """Return the last offset of *request* that this shard has delivered, or ``None``."""
        behind = request.generation != self._generation or request.first > self._through
        return None if behind else self._through

    def advance(self, request: Slice, through: int) -> None:
        """Take note that everything of the slice up to *through* is delivered."""
        if request.generation != self._generation:
            self._generation, self._through = request.generation, -1
        self._through = max(self._through, through)

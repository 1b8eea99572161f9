"""Detection of entries that a later one makes obsolete. Works on columns, not files.

Keys are compared as they are, never by a hash, because a collision would lose an entry.
The remembered keys are bounded in memory. The rest is left to another pass over the same
entries (Invariant 17).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable

Keep = Literal["namespace", "key"]
"""Unit of which the last entry is kept: each namespace, or each key in a namespace."""

SEEN_BYTES: Final = 64 << 20
"""Bytes of keys that one pass remembers."""
_NOTHING: Final = pa.array([], pa.binary())
# No UTF-8 text holds this byte, so no two pairs of namespace and key are equal.
_BETWEEN: Final = pa.scalar(b"\xff", pa.binary())


def keys_of(entries: pa.Table, keep: Keep) -> pa.Array:
    """Return for each of *entries* the key that a later one must share to make it obsolete.

    Null for a keyless entry if keys count: no later entry makes it obsolete.
    """
    names = _combine_chunks(entries.column("namespace")).view(pa.binary())
    if keep == "namespace":
        return names
    return pc.binary_join_element_wise(names, _combine_chunks(entries.column("key")), _BETWEEN)


def _combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    # A chunked array of no chunk would stay chunked. So would one of more than 2 GiB, but
    # chunks are smaller.
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


class SeenKeys:
    """The keys that one pass, from the newest entry back to the oldest, has seen.

    A pass covers the keys from *lower* on. When they take more than :data:`SEEN_BYTES`, the
    upper ones are left to the next pass, whose lower bound is ``upper`` (``None``: this was
    the last).
    """

    def __init__(self, lower: bytes | None = None) -> None:
        self._lower, self.upper = lower, None
        self._keys = _NOTHING

    def find_obsolete(self, keys: pa.Array) -> pa.BooleanArray:
        """Return a mask of those *keys* that a later entry repeats, and remember them.

        The entries of one call must be consecutive and in order, and older than those of the
        call before. Keys of another pass count as not obsolete here.
        """
        encoded = keys.dictionary_encode()
        known, rows = encoded.dictionary, encoded.indices
        if not len(known):
            return pa.repeat(pa.scalar(value=False), len(keys))
        ours = self._in_range(known)
        fresh = pc.and_(ours, pc.invert(pc.is_in(known, value_set=self._keys)))
        # Of equal keys the last row counts.
        latest = pc.inverse_permutation(rows, max_index=len(known) - 1)
        # Null if the entry has no key.
        decided = pc.fill_null(ours.take(rows), fill_value=False)
        kept = _mask_of(latest.filter(fresh), len(keys))
        self._remember(known.filter(fresh))
        return pc.and_(decided, pc.invert(kept))

    def _in_range(self, keys: pa.Array) -> pa.BooleanArray:
        ours = pa.repeat(pa.scalar(value=True), len(keys))
        if self._lower is not None:
            ours = pc.greater_equal(keys, pa.scalar(self._lower, pa.binary()))
        if self.upper is not None:
            ours = pc.and_(ours, pc.less(keys, pa.scalar(self.upper, pa.binary())))
        return ours

    def _remember(self, keys: pa.Array) -> None:
        self._keys = pa.concat_arrays([self._keys, keys])
        while self._keys.nbytes > SEEN_BYTES and len(self._keys) > 1:
            # Most of the keys that fit stay, because each pass reads everything once more.
            upper = len(self._keys) * 3 // 4
            at = pc.partition_nth_indices(self._keys, pivot=upper)[upper]
            self.upper = self._keys[at.as_py()].as_py()
            self._keys = self._keys.filter(pc.less(self._keys, pa.scalar(self.upper, pa.binary())))


class BackwardPass:
    """A backward pass through a log that finds the obsolete entries of many chunks at once.

    Looking up a key is cheap. Preparing the seen keys costs in proportion to their size.
    """

    def __init__(self, lower: bytes | None = None) -> None:
        self._seen = SeenKeys(lower)
        self._pending: list[tuple[pa.Array, Callable[[pa.BooleanArray], None]]] = []
        self._size = 0

    def add(self, keys: pa.Array, report: Callable[[pa.BooleanArray], None]) -> None:
        """Add a chunk older than all before. *report* is called later with its obsolete rows."""
        self._pending.append((keys, report))
        self._size += keys.nbytes
        if self._size >= SEEN_BYTES // 4:
            self._report_pending()

    def finish(self) -> bytes | None:
        """Process the remaining chunks. Return the start of the next pass, ``None`` at the end."""
        self._report_pending()
        return self._seen.upper

    def _report_pending(self) -> None:
        chunks, self._pending, self._size = self._pending[::-1], [], 0
        if not chunks:
            return
        obsolete = self._seen.find_obsolete(pa.concat_arrays([keys for keys, _ in chunks]))
        start = 0
        for keys, report in chunks:
            report(obsolete.slice(start, len(keys)))
            start += len(keys)


def _mask_of(indices: pa.Array, count: int) -> pa.BooleanArray:
    """Return *count* booleans, true at *indices*."""
    true = pa.repeat(pa.scalar(value=True), len(indices))
    if not len(indices):
        return pa.repeat(pa.scalar(value=False), count)
    return pc.fill_null(pc.scatter(true, indices, max_index=count - 1), fill_value=False)


class NewestOffsets:
    """The newest entry of each namespace, up to a limit of namespaces."""

    LIMIT: Final = 100_000

    def __init__(self) -> None:
        self._offsets: dict[str, int] = {}

    @property
    def is_complete(self) -> bool:
        """Whether every namespace had room."""
        return len(self._offsets) <= self.LIMIT

    def add(self, names: pa.ChunkedArray, offsets: pa.ChunkedArray) -> None:
        """Note entries, in any order."""
        if not self.is_complete:
            return
        table = pa.table({"name": names, "offset": offsets})
        newest = table.group_by("name").aggregate([("offset", "max")])
        pairs = zip(newest["name"].to_pylist(), newest["offset_max"].to_pylist(), strict=True)
        for name, offset in pairs:
            self._offsets[name] = max(offset, self._offsets.get(name, offset))

    def offsets(self) -> pa.Array:
        """Return the offset of each namespace's newest entry."""
        return pa.array(list(self._offsets.values()), pa.int64())

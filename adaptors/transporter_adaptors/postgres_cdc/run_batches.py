"""Runs of row changes as record batches for the log, without an object for each row.

The rows of each table are encoded together. Rows that this does not cover are decoded one by one:
those whose key has changed, those that lack large values, and those of a table with few rows in the
run.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from transporter.message import Message, messages_to_batch
from transporter_adaptors.postgres_cdc.entries import size_of
from transporter_adaptors.postgres_cdc.row_columns import Places, RowColumns, Shape, encode_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from transporter_adaptors.postgres_cdc.entries import TableEntries
    from transporter_adaptors.postgres_cdc.position import Inside
    from transporter_adaptors.postgres_cdc.runs import Change, Run

    Tables = Mapping[int, TableEntries]

FEWEST: Final = 20
"""Rows of a table in a run from which on they are encoded together."""
_MOST: Final = 32 << 20
"""Bytes of the JSON of a run that is encoded at once, about."""
_ALONE, _DROPPED = 255, 254
_SHAPES: Final[dict[tuple[int, ...], Shape]] = {
    tuple(b"IN"): Shape.NEW,
    tuple(b"UN"): Shape.NEW,
    tuple(b"UO"): Shape.BOTH,
    tuple(b"DK"): Shape.DELETED,
    tuple(b"DO"): Shape.DELETED,
}
"""Changes of a kind and a marker that are encoded together."""


class RunBatch:
    """The messages of a run, taken in parts. Not thread-safe."""

    def __init__(self, run: Run, part: RowColumns) -> None:
        """Begin before the first of the messages of *part*, which are in the order of *run*."""
        self._run, self._messages, self._rows = run, part.messages, part.rows
        sums = pc.cumulative_sum(part.sizes.cast(pa.int64()))
        self._sums = array("q", sums.buffers()[1].to_pybytes()) if len(sums) else array("q")
        self._taken = 0

    @property
    def is_done(self) -> bool:
        """Whether all was taken."""
        return self._taken == len(self._rows)

    def take(self, room: int, *, is_first: bool) -> tuple[pa.RecordBatch, int]:
        """Return the next messages and their size, *room* bytes at most.

        One change is returned in any case if it *is_first*.
        """
        begin, rows = self._taken, self._rows
        before = self._sums[begin - 1] if begin else 0
        end = bisect_right(self._sums, before + room, begin)
        while begin < end < len(rows) and rows[end] == rows[end - 1]:
            end -= 1
        if is_first and end == begin < len(rows):
            end = begin + 1
            while end < len(rows) and rows[end] == rows[end - 1]:
                end += 1
        self._taken = end
        size = self._sums[end - 1] - before if end > begin else 0
        return self._messages.slice(begin, end - begin), size

    def pass_taken(self, at: int, inside: Inside | None) -> tuple[int, Inside | None]:
        """Return the position behind what was taken, from that before it (*at*, *inside*)."""
        run, last = self._run, self._rows[self._taken - 1] if self._taken else -1
        passed = len(run.ends) if self.is_done else bisect_right(run.end_rows, last + 1)
        end = max(run.ends[:passed], default=0)
        if inside is None or end > inside.commit_lsn:
            at = max(at, end)
        if last >= 0:
            inside = run.inside(last)
        return at, None if inside is not None and end > inside.commit_lsn else inside


def encode_run(
    run: Run, tables: Tables, translate: Callable[[Change], list[Message]]
) -> RunBatch | None:
    """Return the messages of *run*, or ``None`` if it has too few rows or too much JSON.

    Args:
        run: the changes, of which those of tables without entries are left out.
        tables: the entries of each relation.
        translate: returns the messages of a change, for those that are encoded one by one.

    Raises:
        ProtocolError: the bytes of a row are not those of a change.

    """
    if len(run) < FEWEST:
        return None
    groups, alone = _group_rows(run, tables)
    size = sum(len(rows) * entries.row_overhead for entries, _, rows in groups)
    if not groups or size + sum(map(len, run.messages)) > _MOST:
        return None
    places, parts = Places.of(run), list[RowColumns]()
    for entries, shape, rows in groups:
        part, others = encode_rows(run, places, entries, rows, shape)
        alone += others
        parts += [part] if part is not None else []
    if alone:
        parts.append(_translate(run, sorted(alone), translate))
    return RunBatch(run, _merge(parts))


def _translate(
    run: Run, rows: Sequence[int], translate: Callable[[Change], list[Message]]
) -> RowColumns:
    """Return the messages of *rows*, decoded one by one: none, one or two of each."""
    found, found_rows = list[Message](), list[int]()
    for row in rows:
        made = translate(run.change(row))
        found += made
        found_rows += [row] * len(made)
    sizes = pa.array(map(size_of, found), pa.int32())
    return RowColumns(messages_to_batch(found), sizes, found_rows)


def _merge(parts: Sequence[RowColumns]) -> RowColumns:
    """Return the messages of all parts in the order of their rows."""
    if len(parts) == 1:
        return parts[0]
    rows = pa.array([row for part in parts for row in part.rows], pa.int32())
    # The order of two messages of one row is kept, because the sort is stable.
    order = pc.sort_indices(rows)
    messages = pa.concat_batches([part.messages for part in parts])
    sizes = pa.concat_arrays([part.sizes for part in parts])
    return RowColumns(messages.take(order), sizes.take(order), rows.take(order).to_pylist())


def join_parts(parts: Sequence[pa.RecordBatch | list[Message]]) -> pa.RecordBatch | None:
    """Return batches and messages as one batch, ``None`` if there are none."""
    batches = list[pa.RecordBatch]()
    messages = list[Message]()
    for part in parts:
        if isinstance(part, list):
            messages += part
            continue
        if messages:
            batches.append(messages_to_batch(messages))
            messages = []
        if part.num_rows:
            batches.append(part)
    if messages:
        batches.append(messages_to_batch(messages))
    if len(batches) > 1:
        return pa.concat_batches(batches)
    return batches[0] if batches else None


_Group = tuple["TableEntries", Shape, "Sequence[int]"]


def _group_rows(run: Run, tables: Tables) -> tuple[list[_Group], list[int]]:
    """Return the rows of each table, new ones and deleted ones, and those to be decoded alone."""
    kinds: dict[tuple[int, Shape], int] = {}
    group_of = bytearray(256)
    for code, (kind, oid, marker) in enumerate(run.relations()):
        entries, shape = tables.get(oid), _SHAPES.get((kind, marker))
        if entries is None:
            group_of[code] = _DROPPED
        elif (
            shape is None
            or (shape is not Shape.NEW and entries.form.keeps_old)
            or entries.form.has_transaction
        ):
            group_of[code] = _ALONE
        else:
            group_of[code] = kinds.setdefault((oid, shape), len(kinds))
    groups_of_rows = run.codes.translate(group_of)
    members: dict[int, Sequence[int]] = {}
    if groups_of_rows.count(groups_of_rows[0]) == len(run):
        members[groups_of_rows[0]] = range(len(run))
    else:
        lists: dict[int, list[int]] = {group: [] for group in {*groups_of_rows}}
        for row, group in enumerate(groups_of_rows):
            lists[group].append(row)
        members.update(lists)
    alone, groups = [*members.get(_ALONE, ())], list[_Group]()
    for (oid, shape), group in kinds.items():
        rows, entries = members.get(group, ()), tables[oid]
        if len(rows) < FEWEST:
            alone += rows
        else:
            groups.append((entries, shape, rows))
    return groups, alone

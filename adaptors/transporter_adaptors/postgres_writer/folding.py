"""Groups of changes that one statement applies: the last one of each row, or all in order. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from transporter.errors import RouteFault
from transporter_adaptors.postgres_writer.changes import (
    DELETE,
    UPDATE,
    UPSERT,
    Change,
    parse_object,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from transporter_adaptors.postgres_writer.rows import Row, Shape
    from transporter_adaptors.postgres_writer.table import Table


@dataclass(slots=True)
class Group:
    """Changes of one table and shape, in order."""

    table: Table
    shape: Shape
    changes: list[Change] = field(default_factory=list)


def group_folded(rows: Sequence[Row], rank: Callable[[Table], int]) -> Iterator[Group]:
    """Yield groups of the last change of each key: deletes, then upserts, then updates.

    Deletes go from children to parents, upserts from parents to children, by *rank*.

    Raises:
        RouteFault: Entries of one key are of different rows.
    """
    for run in _split_runs(rows):
        groups: dict[tuple[int, Shape], Group] = {}
        for row in run:
            place = row.table.oid, row.shape
            group = groups.get(place)
            if group is None:
                group = groups[place] = Group(row.table, row.shape)
            group.changes.append(row.change)
        by_kind: dict[str, list[Group]] = defaultdict(list)
        for group in groups.values():
            by_kind[group.shape.kind].append(group)
        yield from sorted(by_kind[DELETE], key=lambda group: -rank(group.table))
        others = by_kind[UPSERT] + by_kind[UPDATE]
        yield from sorted(others, key=lambda group: rank(group.table))


def _split_runs(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield the last change of each key, in runs in which it replaces the earlier ones."""
    last: dict[Hashable, Row] = {}
    for row in rows:
        earlier = last.pop(row.identity, None)
        if earlier is not None:
            _check_same_row(earlier, row)
            if not row.shape.replaces(earlier.shape):
                last[earlier.identity] = earlier
                yield [*last.values()]
                last.clear()
        last[row.identity] = row
    yield [*last.values()]


def _check_same_row(earlier: Row, later: Row) -> None:
    """Check that two changes with one key are of one row, as far as their data shows."""
    if not (earlier.change.data and later.change.data):
        return
    before, after = parse_object(earlier.change.data), parse_object(later.change.data)
    key = later.table.key
    if before is None or after is None or not later.table.has_exact_key:
        return
    if any(before.get(name) != after.get(name) for name in key):
        raise RouteFault(
            f"{later.table.name}: entries with one key are of different rows: their key must be "
            f"that of {', '.join(key)}, so name other columns in key, or change it by a step"
        )


def group_in_order(rows: Sequence[Row]) -> Iterator[Group]:
    """Yield groups of changes that stand together, in the order of the log."""
    group: Group | None = None
    seen: set[Hashable] = set()
    for row in rows:
        is_same = group is not None and group.table is row.table and group.shape == row.shape
        if group is None or not is_same or row.identity in seen:
            if group is not None:
                yield group
            group, seen = Group(row.table, row.shape), set()
        group.changes.append(row.change)
        seen.add(row.identity)
    if group is not None:
        yield group

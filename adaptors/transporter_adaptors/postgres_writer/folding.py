"""Groups of changes that one statement applies: the last one of each row, or all in order. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from transporter_adaptors.postgres_writer.changes import (
    DELETE,
    UPDATE,
    UPSERT,
    Change,
    parse_object,
)
from transporter_adaptors.postgres_writer.failures import BadEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

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
        BadEntry: Entries of one key are of different rows.
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


def needs_order(rows: Sequence[Row], cascades: Mapping[int, set[int]]) -> bool:
    """Return whether *rows* have a delete that may change the row of another change.

    *cascades* are the oids of the tables that a delete in a table changes, too.
    """
    if not cascades:
        return False
    deleted = {row.table.oid for row in rows if row.shape.kind == DELETE}
    reached = set[int]().union(*(cascades.get(oid, set()) for oid in deleted))
    return any(row.table.oid in reached and row.shape.kind != DELETE for row in rows)


def _split_runs(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield the last change of each key, in runs in which it replaces the earlier ones."""
    if _are_alike(rows):
        yield [*rows]
        return
    run = _Run()
    for row in rows:
        if run.must_end_before(row):
            yield run.rows
            run = _Run()
        run.add(row)
    yield run.rows


def _are_alike(rows: Sequence[Row]) -> bool:
    """Return whether *rows* are one run as they are: of one table and shape, each another row."""
    if not rows:
        return True
    _, _, table, shape, _ = rows[0]
    return (
        table.has_clear_key
        and all(row.table is table and row.shape is shape and row.change.key for row in rows)
        and len({row.identity for row in rows}) == len(rows)
    )


class _Run:
    """Changes that may be applied in another order, of each key the last one.

    Two keys that differ here may be one for the server, if their type has several texts for a
    value, or if an entry has no key. The changes of such a table have one shape in a run, so
    that their order stays: the server refuses two upserts of one row in a statement.
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, Row] = {}
        self._shapes: dict[int, list[Shape]] = {}
        self._keyless: set[int] = set()

    @property
    def rows(self) -> list[Row]:
        return [*self._last.values()]

    def must_end_before(self, row: Row) -> bool:
        """Return whether *row* must come after all of these changes."""
        earlier = self._last.get(row.identity)
        if earlier is not None:
            _check_same_row(earlier, row)
            if not row.shape.replaces(earlier.shape):
                return True
        if _has_clear_key(row) and row.table.oid not in self._keyless:
            return False
        shapes = self._shapes.get(row.table.oid)
        # An UPDATE would take any of two rows without an error.
        return bool(shapes) and (row.shape.kind == UPDATE or shapes != [row.shape])

    def add(self, row: Row) -> None:
        """Add *row* in place of an earlier change of its key."""
        self._last.pop(row.identity, None)
        self._last[row.identity] = row
        shapes = self._shapes.get(row.table.oid)
        if shapes is None:
            self._shapes[row.table.oid] = [row.shape]
        elif shapes[-1] is not row.shape and row.shape not in shapes:
            shapes.append(row.shape)
        if row.change.key is None:
            self._keyless.add(row.table.oid)


def _has_clear_key(row: Row) -> bool:
    return row.table.has_clear_key and row.change.key is not None


def _check_same_row(earlier: Row, later: Row) -> None:
    """Check that two changes with one key are of one row, as far as their data shows.

    Raises:
        BadEntry: They are not.
    """
    table = later.table
    if not (earlier.change.data and later.change.data and table.has_clear_key):
        return
    before, after = parse_object(earlier.change.data), parse_object(later.change.data)
    if before is None or after is None:
        return
    given = [before.get(name) for name in table.key]
    try:
        if table.canonical(given) == table.canonical(after.get(name) for name in table.key):
            return
    except ValueError as error:
        raise BadEntry(later.place, str(error)) from error
    # The one whose data is not that of the key.
    guilty = later if table.is_key_of(later.change.key or b"", given) else earlier
    raise BadEntry(
        guilty.place,
        f"{table.name}: entries with one key are of different rows: their key must be "
        f"that of {', '.join(table.key)}, so name other columns in key, or change it by a step",
    )


def group_in_order(rows: Sequence[Row]) -> Iterator[Group]:
    """Yield groups of changes that stand together, in the order of the log."""
    group: Group | None = None
    seen: set[Hashable] = set()
    may_grow = True
    for row in rows:
        # An UPDATE would take any of two rows without an error.
        is_alone = row.shape.kind == UPDATE and not _has_clear_key(row)
        is_same = group is not None and group.table is row.table and group.shape == row.shape
        if group is None or not is_same or is_alone or not may_grow or row.identity in seen:
            if group is not None:
                yield group
            group, seen = Group(row.table, row.shape), set()
        group.changes.append(row.change)
        seen.add(row.identity)
        may_grow = not is_alone
    if group is not None:
        yield group

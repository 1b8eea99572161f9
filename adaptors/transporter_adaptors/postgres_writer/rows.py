"""Changes as rows of their tables: the columns they write, and the row they are of. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from transporter_adaptors.postgres_writer.changes import DELETE, NOTHING, UPDATE, UPSERT, Change
from transporter_adaptors.postgres_writer.config import Mark, Rest
from transporter_adaptors.postgres_writer.failures import BadEntry
from transporter_adaptors.postgres_writer.table import parse_exactly

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from transporter_adaptors.postgres_writer.config import PostgresWriterConfig
    from transporter_adaptors.postgres_writer.table import Table

_JSON: Final = frozenset({"json", "jsonb"})
_MARKS: Final = frozenset(
    {"boolean", "timestamp with time zone", "timestamp without time zone", "date"}
)


class Shape(NamedTuple):
    """The part of a row that a statement writes."""

    kind: str
    columns: tuple[str, ...] = ()
    has_rest: bool = False
    """Whether fields without a column go to the column for the rest."""
    is_whole: bool = False
    """Whether nothing of an earlier row is left, in other columns either."""
    kept: tuple[str, ...] = ()
    """The fields that an UPDATE leaves as they are in the column for the rest."""

    def replaces(self, earlier: Shape) -> bool:
        """Return whether nothing is left of an *earlier* change of the same row."""
        if self.is_whole:
            return True
        if DELETE in {self.kind, earlier.kind} or (self.kind == UPDATE and earlier.kind == UPSERT):
            return False
        return earlier == self or (
            self.has_rest >= earlier.has_rest
            and set(earlier.columns) <= set(self.columns)
            # What this one keeps, the earlier one may have brought.
            and set(self.kept) <= set(earlier.kept)
        )


class Row(NamedTuple):
    """A change at a place of its part, with the table and shape that it has there."""

    place: int
    change: Change
    table: Table
    shape: Shape
    identity: Hashable


def fit_rows(
    changes: Sequence[Change], tables: Mapping[str, Table], config: PostgresWriterConfig
) -> list[Row]:
    """Return *changes* as rows of their *tables*, without those that change nothing there.

    Raises:
        BadEntry: One does not fit.
    """
    known: dict[Hashable, tuple[Table, Shape]] = {}
    checked: set[int] = set()
    rows: list[Row] = []
    for place, change in enumerate(changes):
        _, namespace, kind, key, data, fields, problem, unchanged = change
        if kind == NOTHING:
            continue
        try:
            found = known.get((namespace, kind, fields, unchanged))
            if found is None or problem:
                table = tables[namespace]
                found = table, _fit(change, table, config)
                known[namespace, kind, fields, unchanged] = found
            table, shape = found
            if shape.kind == NOTHING:
                continue
            if table.oid not in checked and data:
                checked.add(table.oid)
                _check_key(change, table)
            identity: Hashable = place if key is None else table.identity(key)
            if kind == DELETE and key is not None:
                table.key_values(key)
        except ValueError as error:
            raise BadEntry(place, str(error)) from error
        rows.append(Row(place, change, table, shape, (table.oid, identity)))
    return rows


def _fit(change: Change, table: Table, config: PostgresWriterConfig) -> Shape:
    """Return the shape of *change*, or raise ``ValueError``."""
    if change.problem:
        raise ValueError(f"{table.name}: {change.problem}")
    if change.kind == DELETE:
        if isinstance(config.delete, Mark):
            _require(table, config.delete.mark, _MARKS)
        # A mark leaves the rest of the row as the earlier changes made it.
        kind = NOTHING if config.delete == "ignore" else DELETE
        return Shape(kind, is_whole=config.delete == "apply")
    return _row_shape(change, table, config)


def _row_shape(change: Change, table: Table, config: PostgresWriterConfig) -> Shape:
    """Return the shape of the row or part of a row in *change*, or raise ``ValueError``."""
    fields = change.fields
    rest = config.extra.column if isinstance(config.extra, Rest) else None
    if rest is not None:
        _require(table, rest, _JSON)
    own = {name: column for name, column in table.columns.items() if name != rest}
    given = set(fields)
    extra = [name for name in fields if name not in own]
    if extra and config.extra == "refuse":
        raise ValueError(
            f"{table.name} has no column {', '.join(extra)}: add it, or set extra or evolve"
        )
    lacking = [name for name in table.key if name not in given]
    if lacking:
        raise ValueError(f"{table.name}: the data lacks {', '.join(lacking)}, a part of the key")
    writable = {name: column for name, column in own.items() if not column.is_generated}
    present = tuple(name for name in writable if name in given)
    has_rest = rest is not None and bool(extra)
    # Only a new row gets a value for an identity column, so a delete before it counts.
    keeps_some = any(c.is_always_identity and c.name not in table.key for c in writable.values())
    absent = [column for name, column in writable.items() if name not in given]
    if change.kind == UPDATE:
        kept = _kept(change, table) if rest is not None else ()
        return Shape(UPDATE, present, has_rest, kept=kept)
    if config.missing == "null":
        # An identity column would refuse NULL.
        absent_too = {column.name for column in absent if not column.is_always_identity}
        columns = tuple(name for name in writable if name in given | absent_too)
        return Shape(UPSERT, columns, has_rest, is_whole=not keeps_some)
    if config.missing == "keep" and any(column.is_required for column in absent):
        # An INSERT would be refused, even if the row is there.
        return Shape(UPDATE, present, has_rest)
    is_whole = not keeps_some and (not absent or config.missing == "default")
    return Shape(UPSERT, present, has_rest, is_whole)


def _kept(change: Change, table: Table) -> tuple[str, ...]:
    """Return the fields of the rest that *change* leaves alone, or raise ``ValueError``.

    One that has a column now may be among the rest of a row that was written before.
    """
    if change.unchanged is None:
        raise ValueError(f"{table.name}: the header pg-unchanged is not a JSON array of names")
    return tuple(dict.fromkeys(name for name in change.unchanged if name not in change.fields))


def _require(table: Table, column: str, kinds: frozenset[str]) -> None:
    if column not in table.columns or table.columns[column].type not in kinds:
        raise ValueError(
            f"{table.name} has no column {column} of the type {' or '.join(sorted(kinds))}, "
            "which a setting names"
        )


def _check_key(change: Change, table: Table) -> None:
    """Check that the key of an entry is that of its data, in the order of the columns.

    A single column is compared if its type has a canonical form here.
    """
    if change.key is None:
        return
    try:
        data = parse_exactly(change.data)
    except RecursionError:
        return
    if not isinstance(data, dict) or not (table.is_array_key or table.has_clear_key):
        return
    if not table.is_key_of(change.key, [data.get(name) for name in table.key]):
        raise ValueError(
            f"{table.name}: the key of the entry is not that of its data, which is "
            f"{', '.join(table.key)}: name the columns of the entry's key, in its order, in key"
        )

"""The mode ``upsert``: entries as changes of rows."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from functools import cached_property
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final

from transporter_adaptors.postgres_writer.changes import (
    COMMANDS,
    NOTHING,
    SCHEMA,
    TRUNCATE,
    UPDATE,
    Change,
    parse_object,
    read_changes,
    unit_starts,
)
from transporter_adaptors.postgres_writer.config import Rest
from transporter_adaptors.postgres_writer.evolution import follow_schema
from transporter_adaptors.postgres_writer.failures import BadEntry, MissingRow, is_stale
from transporter_adaptors.postgres_writer.folding import group_folded, group_in_order, needs_order
from transporter_adaptors.postgres_writer.guilty import ALONE, Units
from transporter_adaptors.postgres_writer.rows import fit_rows
from transporter_adaptors.postgres_writer.statements import quote_table, statements_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import psycopg

    from transporter.message import Entries
    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres_writer.catalog import Catalog
    from transporter_adaptors.postgres_writer.config import PostgresWriterConfig
    from transporter_adaptors.postgres_writer.folding import Group
    from transporter_adaptors.postgres_writer.rows import Row

    Sent = list[tuple[psycopg.Cursor[Any], int, Group]]


_STEP: Final = 2048
"""Rows that are read and sent at a time."""


class Upserts:
    """The entries of one slice, of which parts are applied. Belongs to one transaction."""

    can_reorder = True

    def __init__(
        self,
        connection: Connection,
        config: PostgresWriterConfig,
        catalog: Catalog,
        batch: Entries,
    ) -> None:
        """Apply entries of *batch* by *connection*, which is in pipeline mode then."""
        self._connection, self._config, self._catalog = connection, config, catalog
        self._batch, self._changes = batch, list[Change]()
        offsets = batch.offsets
        self._starts = unit_starts(offsets)
        self.offsets = [offsets[start] for start in self._starts[:-1]]
        """The offset of each entry."""
        self._sent: Sent = []
        self._has_new_columns = False
        self._has_looked = False

    def apply(self, begin: int, end: int, *, in_order: bool) -> bool:
        """Send the statements for the entries from *begin* to *end*, folded or *in_order*.

        Returns:
            Whether :meth:`check` must be called when the server has answered.

        Raises:
            psycopg.Error: The server refuses something.
            RouteFault: A table is missing, or cannot be written.
            BadEntry: An entry cannot be applied, by its content.
        """
        self._sent = []
        place = self._starts[begin]
        changes = self._read(place, self._starts[end])
        for kind, group in groupby(changes, key=_command):
            # The server applies the rows that were sent while the next ones are read.
            while run := [*islice(group, None if kind else _STEP)]:
                try:
                    self._apply_run(kind, run, in_order=in_order)
                except BadEntry as bad:
                    raise BadEntry(self._unit(place + bad.place), bad.problem) from bad
                place += len(run)
        return bool(self._sent)

    def check(self) -> None:
        """Check that every row was there of which an entry has only a part.

        Raises:
            MissingRow: One was not.
        """
        for cursor, rows, group in self._sent:
            if cursor.rowcount < rows:
                table, shape, extra = group.table, group.shape, self._config.extra
                own = [*shape.columns, *([extra.column] if isinstance(extra, Rest) else [])]
                lacking = [name for name in table.columns if name not in own]
                lacking += [name for name in shape.kept if name not in table.columns]
                raise MissingRow(
                    f"{table.name}: the row is not in the table, and the entry lacks "
                    f"{', '.join(lacking)}: copy the table again (copy_run of its reader), or set "
                    "missing_row: ignore"
                )

    @cached_property
    def units(self) -> Units:
        """The entries of a TRUNCATE, whose tables may have foreign keys to one another."""
        if self._config.truncate != "apply":
            return ALONE
        places = [
            self._unit(place)
            for place, op in enumerate(self._batch.batch.column("op").to_pylist())
            if op == "command" and self._is_truncate(place)
        ]
        # Of neighbours the difference to their number in the list is the same.
        runs = groupby(enumerate(places), key=lambda pair: pair[1] - pair[0])
        together = ([place for _, place in run] for _, run in runs)
        return Units((run[0], run[-1] + 1) for run in together if len(run) > 1)

    def _is_truncate(self, place: int) -> bool:
        (change,) = read_changes(replace(self._batch, batch=self._batch.batch.slice(place, 1)))
        return change.kind == TRUNCATE and not change.problem

    def may_continue(self, begin: int) -> bool:
        """Return whether the entries from *begin* may be a TRUNCATE that the next slice continues.

        One of several tables has an entry for each, and may need all of them at once.
        """
        if self._config.truncate != "apply":
            return False
        changes = self._read(self._starts[begin], self._starts[-1])
        return all(change.kind == TRUNCATE and not change.problem for change in changes)

    def undo(self, error: Exception) -> None:
        """Forget columns that are rolled back, or that may be others by now.

        The whole transaction may be, so columns of earlier parts count, too.
        """
        if self._has_new_columns or is_stale(error):
            self._catalog.forget()

    def _read(self, begin: int, end: int) -> Iterator[Change]:
        """Yield the changes from *begin* to *end*, each of which is read once and when needed."""
        for place in range(begin, end):
            while place >= len(self._changes):
                part = self._batch.batch.slice(len(self._changes), _STEP)
                self._changes += read_changes(replace(self._batch, batch=part))
            yield self._changes[place]

    def _unit(self, place: int) -> int:
        """Return the entry to which the change at *place* belongs."""
        return bisect_right(self._starts, place) - 1

    def _apply_run(self, kind: str, run: Sequence[Change], *, in_order: bool) -> None:
        if kind == TRUNCATE:
            self._truncate(run)
        elif kind == SCHEMA:
            for place, change in enumerate(run):
                self._follow(place, change)
        else:
            self._write(run, in_order=in_order)

    def _write(self, run: Sequence[Change], *, in_order: bool) -> None:
        try:
            rows = self._fit(run)
        except BadEntry:
            if self._has_looked:
                raise
            self._has_looked = True
            self._catalog.forget()
            rows = self._fit(run)  # Perhaps a column was added meanwhile.
        in_order = in_order or needs_order(rows, self._catalog.cascades())
        groups = group_in_order(rows) if in_order else group_folded(rows, self._catalog.rank)
        for group in groups:
            self._send(group)

    def _fit(self, run: Sequence[Change]) -> list[Row]:
        names = {change.namespace for change in run if change.kind != NOTHING}
        tables = {name: self._catalog.table(self._config.table_of(name)) for name in sorted(names)}
        return fit_rows(run, tables, self._config)

    def _send(self, group: Group) -> None:
        for text, parameters, rows in statements_of(group, self._config):
            cursor = self._connection.execute(text, parameters)
            if group.shape.kind == UPDATE and self._config.missing_row == "reject":
                self._sent.append((cursor, rows, group))

    def _truncate(self, run: Sequence[Change]) -> None:
        """Empty the tables of *run* at once, because each may have foreign keys to another."""
        for place, change in enumerate(run):
            if change.problem or self._config.truncate == "refuse":
                raise BadEntry(
                    place, change.problem or f"{change.namespace}: TRUNCATE is set to be refused"
                )
        if self._config.truncate == "ignore":
            return
        names = {self._config.table_of(change.namespace): None for change in run}
        # The entry with its columns creates a table behind this one.
        is_created = self._config.evolve == "create"
        find = self._catalog.find if is_created else self._catalog.table
        tables = [table.name for name in names if (table := find(name)) is not None]
        if not tables:
            return
        restarts = any((parse_object(each.data) or {}).get("restart_identity") for each in run)
        listed = ", ".join(map(quote_table, tables))
        identity = " RESTART IDENTITY" if restarts else ""
        self._connection.execute(f"TRUNCATE {listed}{identity}", [])

    def _follow(self, place: int, change: Change) -> None:
        if self._config.evolve == "none":
            return
        name = self._config.table_of(change.namespace)
        self._has_new_columns = True
        creates = self._config.evolve == "create"
        try:
            follow_schema(self._connection, self._catalog, name, change, creates=creates)
        except ValueError as error:
            raise BadEntry(place, str(error)) from error


def _command(change: Change) -> str:
    return change.kind if change.kind in COMMANDS else ""

"""Large values that a change has left out, read from the table as it is now."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql

from transporter.errors import SourceUnavailable
from transporter_adaptors.postgres.table import TableName, escape_percent
from transporter_adaptors.postgres_cdc import publication as pub
from transporter_adaptors.postgres_cdc.chunk_reader import is_flushed
from transporter_adaptors.postgres_cdc.chunks import text_of
from transporter_adaptors.postgres_cdc.columns import LoggedColumn, follow_renames
from transporter_adaptors.postgres_cdc.key_order import Comparison, key_types
from transporter_adaptors.postgres_cdc.messages import UNCHANGED
from transporter_adaptors.postgres_cdc.server import end_of_log
from transporter_adaptors.postgres_cdc.snapshots import Snapshot, widen_xid
from transporter_adaptors.postgres_cdc.tables import read_definition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres_cdc.entries import TableEntries
    from transporter_adaptors.postgres_cdc.key_order import KeyType
    from transporter_adaptors.postgres_cdc.messages import Value
    from transporter_adaptors.postgres_cdc.plan import Names
    from transporter_adaptors.postgres_cdc.tables import TableDefinition

_MIGRATIONS: Final = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.InvalidSchemaName,
)
_VISIBLE: Final = 5.0
"""Seconds until a transaction of the stream has to be visible to queries."""


@dataclass(frozen=True, slots=True)
class _KeyColumn:
    """A column that identifies a row: its place in the stream, and its name and type now.

    One that ``has_other_type`` now is compared as text.
    """

    place: int
    name: str
    type: KeyType
    has_other_type: bool

    def condition(self) -> sql.Composable:
        """Return the condition for its value, which is a parameter."""
        if self.has_other_type:
            return text_of("o", self.name) + sql.SQL(" = %s")
        column = sql.SQL("o.") + escape_percent(sql.Identifier(self.name))
        return column + self.type.operator(Comparison.EQUAL) + self.type.cast(sql.SQL("%s"))


@dataclass(frozen=True, slots=True)
class _Present:
    """A table as it is now. ``columns`` are the names of all, and ``key`` identifies a row.

    One that is gone has no columns.
    """

    name: TableName
    columns: frozenset[str]
    key: tuple[_KeyColumn, ...]


class LargeValues:
    """Reads values by the key of their row. Belongs to one thread."""

    def __init__(self, queries: Connection, names: Names) -> None:
        """Read by the session *queries* what the publication of *names* publishes."""
        self._queries, self._names = queries, names
        self._tables: dict[int, _Present | None] = {}

    def forget(self) -> None:
        """Look tables up again from now on, because they may have changed."""
        self._tables.clear()

    def fill(
        self, entries: TableEntries, values: Sequence[Value], xid: int
    ) -> Sequence[Value] | None:
        """Return *values* with the present ones of the row in place of those left out.

        A column that was dropped or renamed since stays without. So does a row that cannot be
        found, because its key was changed beyond recognition.

        Args:
            entries: the table.
            values: the row as it came.
            xid: the transaction that it came in, 32 bits.

        Returns:
            The values, or ``None`` if the row is gone.

        Raises:
            psycopg.Error: the table cannot be read.
            SourceUnavailable: the table has changed meanwhile, or the change cannot be seen yet.

        """
        missing = [place for place, value in enumerate(values) if value is UNCHANGED]
        if not missing:
            return values
        oid = entries.relation.oid
        if oid not in self._tables:
            self._tables[oid] = self._look_up(entries)
        table = self._tables[oid]
        if table is None:
            return values
        if not table.columns:
            return None
        missing = [place for place in missing if entries.names[place] in table.columns]
        try:
            found = self._read(table, [entries.names[place] for place in missing], values, xid)
        except psycopg.errors.InvalidTextRepresentation:
            return values  # A value of an enum, for example, that was renamed.
        if found is None:
            return None
        filled = list(values)
        for place, text in zip(missing, found, strict=True):
            filled[place] = None if text is None else text.encode(errors="surrogateescape")
        return filled

    def flushed_end_of_log(self) -> int:
        """Return an LSN behind all that was visible, which the server cannot lose any more.

        Raises:
            psycopg.Error: the server has a problem.
            SourceUnavailable: it does not write its log.

        """
        end = end_of_log(self._queries)
        if not is_flushed(self._queries, end):
            raise SourceUnavailable("the server does not write its log; trying again may help")
        return end

    def _look_up(self, entries: TableEntries) -> _Present | None:
        """Return the table of *entries* as it is now, or ``None`` if its rows cannot be found."""
        relation = entries.relation
        definition = read_definition(self._queries, relation.oid)
        if not definition.columns:
            return _Present(TableName(relation.name, relation.schema), frozenset(), ())
        version = self._queries.info.server_version
        publication = self._names.publication
        if (member := pub.find_member(self._queries, publication, version, relation.oid)) is None:
            return None
        before = [LoggedColumn(each.name, each.type_oid, -1) for each in relation.columns]
        published = member.published(definition.columns)
        logged = [LoggedColumn(each.name, each.type_oid, -1) for each in published]
        places = entries.row_places
        names = follow_renames(tuple(entries.names[place] for place in places), before, logged)
        now = {each.name: each for each in published}
        if not names or not {*names} <= now.keys() or not _is_key(definition, entries, names):
            return None
        columns = [now[name] for name in names]
        types = key_types(self._queries, columns)
        key = tuple(
            _KeyColumn(place, column.name, kind, before[place].type_oid != column.type_oid)
            for place, column, kind in zip(places, columns, types, strict=True)
        )
        return _Present(member.full_name, frozenset(now), key)

    def _read(
        self, table: _Present, names: Iterable[str], values: Sequence[Value], xid: int
    ) -> Sequence[str | None] | None:
        """Return the columns *names* of the row with the key of *values*, ``None`` without one."""
        query = sql.SQL(
            "SELECT pg_current_snapshot()::text,"
            " (SELECT ARRAY[{}]::text[] FROM {} o WHERE {} LIMIT 1)"
        ).format(
            sql.SQL(", ").join(text_of("o", name) for name in names),
            table.name.in_query,
            sql.SQL(" AND ").join(column.condition() for column in table.key),
        )
        key = [_as_text(values[column.place]) for column in table.key]
        ends = time.monotonic() + _VISIBLE
        try:
            while True:
                row = self._queries.execute(query, key).fetchone()
                assert row is not None  # noqa: S101 - a SELECT without FROM has a row
                snapshot, found = Snapshot.parse(row[0]), row[1]
                # A commit is streamed before queries see it: until then they see an older row.
                if snapshot.sees(widen_xid(xid, snapshot.xmax)):
                    return found  # type: ignore[no-any-return]
                if time.monotonic() > ends:
                    break
                time.sleep(0.005)
        except _MIGRATIONS as error:
            raise SourceUnavailable(
                f"cannot read a large value of {table.name}: {error.diag.message_primary}; trying "
                "again may help"
            ) from error
        raise SourceUnavailable(
            f"cannot read a large value of {table.name}: transaction {xid}, which has changed its "
            "row, is committed and not visible yet, as while it waits for a synchronous standby; "
            "trying again may help"
        )


def _is_key(definition: TableDefinition, entries: TableEntries, names: Sequence[str]) -> bool:
    """Return whether the columns *names* identify a row: those of the stream, or a key of now.

    Where columns were dropped as well, one may look like the new name of another.
    """
    is_renamed = [entries.names[place] for place in entries.row_places] != [*names]
    return not is_renamed or {*names} in [{*key.columns} for key in definition.keys]


def _as_text(value: Value) -> str | None:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else None

"""Reset of marks whose leaders are fenced.

A mark is the id of the leader that claimed the row. The reader's table
``transporter_term`` holds the last term and its leader. Statements of other
leaders have no effect (Invariant 10), so their marks are meaningless. The marks of
the last leader stay, because its engine may be about to purge those rows
(Invariant 7), unless its term is ended first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from transporter.errors import ActionRefused
from transporter.outbox.database import require_table, translate_errors
from transporter.outbox.table import USUAL, Columns, quote_table

if TYPE_CHECKING:
    from datetime import datetime

    from transporter.outbox.database import Connection, OutboxTable

_BATCH: Final = 10_000
"""Rows of one statement, because short statements hold locks for a short time."""
_THERE: Final = "SELECT pg_catalog.to_regclass(%s) IS NOT NULL"
_TERM: Final = (
    "SELECT outbox, term, leader_id, acquired_at FROM {terms}"
    " WHERE pg_catalog.to_regclass(outbox)::oid::bigint = %s ORDER BY term DESC LIMIT 1"
)
_MARKS: Final = (
    "SELECT o.{leader}, count(*) FROM {table} AS o WHERE o.{leader} IS NOT NULL GROUP BY o.{leader}"
)
_END: Final = (
    "UPDATE {terms} SET term = term + 1, leader_id = %(leader)s,"
    " acquired_at = clock_timestamp() WHERE outbox = %(outbox)s AND term = %(term)s"
)
# A row that is marked or deleted in the meantime no longer has one of these leaders, and stays
# unchanged.
_RESET: Final = """
WITH found AS MATERIALIZED (
    SELECT o.{id} AS id FROM {table} AS o
    WHERE o.{id} > %(after)s AND o.{leader} = ANY(%(leaders)s::uuid[])
    ORDER BY o.{id} LIMIT %(rows)s
),
reset AS (
    UPDATE {table} AS o SET {leader} = NULL FROM found
    WHERE o.{id} = found.id AND o.{leader} = ANY(%(leaders)s::uuid[]) RETURNING 1
)
SELECT (SELECT max(id) FROM found), (SELECT count(*) FROM reset)
"""


@dataclass(frozen=True, slots=True)
class LastTerm:
    """The newest term of an outbox. It does not show whether its leader is still alive."""

    outbox: str
    number: int
    leader: UUID
    since: datetime


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of an outbox: rows by leader, and the last term, if there was one."""

    table: OutboxTable
    rows: dict[UUID, int]
    last: LastTerm | None
    columns: Columns = USUAL

    @property
    def rows_of_ended_leaders(self) -> dict[UUID, int]:
        """Rows by leader, of leaders whose terms are over or that never had one."""
        return {leader: rows for leader, rows in self.rows.items() if leader != self._leader}

    @property
    def kept_rows(self) -> int:
        """Number of rows marked by the leader of the last term."""
        return self.rows.get(self._leader, 0) if self._leader else 0

    @property
    def _leader(self) -> UUID | None:
        return self.last.leader if self.last else None


def read_marks(connection: Connection, table: str, columns: Columns = USUAL) -> Marks:
    """Return the marks of *table* with *columns*. It reads all rows and changes nothing."""
    there = require_table(connection, table)
    with translate_errors(f"cannot read the marks of {there.name}"):
        rows = connection.execute(_fill_statement(_MARKS, there, columns), []).fetchall()
        # In this order, so the leader of a term that begins in between has no mark among these.
        last = _read_last_term(connection, there)
    return Marks(there, dict(rows), last, columns)


def _read_last_term(connection: Connection, table: OutboxTable) -> LastTerm | None:
    terms = _terms_table(table)
    if connection.execute(_THERE, [terms]).fetchone() != (True,):
        return None
    row = connection.execute(_TERM.format(terms=_escape_percent(terms)), [table.oid]).fetchone()
    return LastTerm(*row) if row else None


def end_term(connection: Connection, marks: Marks) -> None:
    """End the last term. If its engine is alive, its statements lose their effect and it stops.

    Raises:
        ActionRefused: If another term has begun since *marks* was read.
    """
    if marks.last is None:
        return
    parameters = {"leader": uuid4(), "outbox": marks.last.outbox, "term": marks.last.number}
    with translate_errors(f"cannot end term {marks.last.number} of {marks.table.name}"):
        statement = _END.format(terms=_escape_percent(_terms_table(marks.table)))
        ended = connection.execute(statement, parameters).rowcount
    if not ended:
        raise ActionRefused(
            f"another term of {marks.table.name} has begun meanwhile, because an engine has "
            "started on it; nothing was reset; run the command again"
        )


def clear_marks(
    connection: Connection, table: OutboxTable, leaders: list[UUID], columns: Columns = USUAL
) -> int:
    """Clear the marks of *leaders*, whose terms are over, and return the number of rows.

    It works in id order and in several transactions. An engine may mark, purge or
    take rows of the same table meanwhile.
    """
    statement, after, done = _fill_statement(_RESET, table, columns), -(2**63), 0
    while True:
        parameters = {"after": after, "leaders": leaders, "rows": _BATCH}
        with translate_errors(f"cannot reset rows of {table.name} ({done} rows were reset)"):
            row = connection.execute(statement, parameters).fetchone()
        last, count = row or (None, 0)
        if last is None:
            return done
        after, done = last, done + count


def _fill_statement(statement: str, table: OutboxTable, columns: Columns) -> str:
    return statement.format(
        table=_escape_percent(quote_table(table.name)), **columns.escaped_names()
    )


def _terms_table(table: OutboxTable) -> str:
    schema = table.schema.replace('"', '""')
    return quote_table(f'"{schema}".transporter_term')


def _escape_percent(name: str) -> str:
    """Escape *name* for a statement with parameters, which start with a per cent sign."""
    return name.replace("%", "%%")

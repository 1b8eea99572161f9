"""The outbox table during one term: every statement requires the term number.

Statements name rows by id, or by bounds within one snapshot. So rows that commit
between two statements are never marked or purged by accident (Invariant 7).
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import psycopg
import pyarrow as pa
from psycopg import RawCursor
from psycopg.pq import TransactionStatus

from transporter.errors import SourceError, SourceUnavailable
from transporter.message import MESSAGE_SCHEMA
from transporter_adaptors.postgres.columns import OutboxColumns
from transporter_adaptors.postgres.gaps import Snapshot
from transporter_adaptors.postgres.leaders import is_same_log
from transporter_adaptors.postgres.packed import Packed, unpack_rows
from transporter_adaptors.postgres.recognition import logged_ids, logged_rows, match_rows
from transporter_adaptors.postgres.rows import (
    LargeRow,
    OutboxRow,
    measure_unloggable,
    report_large,
    to_batch,
)
from transporter_adaptors.postgres.session import (
    StatementTooSlow,
    texts_as_stored,
    translate_errors,
)
from transporter_adaptors.postgres.statements import compose_statements

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transporter.message import Entries
    from transporter_adaptors.postgres.gaps import IdBounds
    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres.statements import Statement
    from transporter_adaptors.postgres.table import TableName
    from transporter_adaptors.postgres.term import Term


class Fenced(SourceError):
    """A later term has begun, and this leader's statements have no effect (Invariant 10)."""


class LookTooSlow(SourceUnavailable):
    """A look asked for more rows than a statement has time for, and claimed none."""


class PolledRows(NamedTuple):
    """The rows of one look by id, with a message each, and its snapshot.

    Attributes:
        ids: The ids of the rows, ascending.
        messages: One message for each id, in the same order.
        cut: Whether more rows were there than the look was allowed to take.
        snapshot: The snapshot of the look.
        horizon: A number above that of every transaction that was in flight.
    """

    ids: list[int]
    messages: pa.RecordBatch
    cut: bool
    snapshot: Snapshot
    horizon: int


class PeekResult(NamedTuple):
    """The answer to a peek: whether rows wait, and the snapshot of that answer."""

    waiting: bool
    snapshot: Snapshot


class Outbox:
    """The rows of *table* on *connection*, as the leader of *term* sees, marks and purges them.

    The source ids of its messages begin with *source*. Rows that the log cannot take are
    *kept*: each is reported in a message once in the term, and stays in the table.
    A look that takes too long raises :class:`LookTooSlow`. Statements for given rows are then
    repeated for half of them at a time. Not thread-safe.

    Raises:
        SourceUnavailable: From every method, when the connection is lost.
        Fenced: From every method, when a later term has begun.
    """

    def __init__(
        self,
        connection: Connection,
        table: TableName,
        term: Term,
        source: str,
        columns: OutboxColumns | None = None,
    ) -> None:
        self._cursor = RawCursor(connection)
        self._term = term
        self._name, self._source = str(table), source
        self._columns = columns or OutboxColumns()
        self._sql = compose_statements(table, self._columns, term.terms, connection)
        # Each id takes the server more room than it takes us (Invariant 17).
        self._kept: set[int] = set()

    def mark(self, bounds: IdBounds, rows: int, size: int) -> PolledRows:
        """Mark up to *rows* rows within *bounds*, about *size* bytes, and return them.

        Includes rows that an earlier leader marked, but none that were marked in this
        term. At least one row is taken when there is one.
        """
        return self._fetch_rows(self._sql.mark, bounds, rows, size)

    def copy(self, bounds: IdBounds, rows: int, size: int) -> PolledRows:
        """Return up to *rows* rows within *bounds*, about *size* bytes, changing nothing.

        Includes all rows of the transaction's snapshot from ``bounds.low`` to the last
        one, except for kept rows that were already reported. At least one row is
        returned when there is one.
        """
        return self._fetch_rows(self._sql.copy, bounds, rows, size)

    def _fetch_rows(
        self, statement: Statement, bounds: IdBounds, rows: int, size: int
    ) -> PolledRows:
        found = self._run_look(statement, bounds, rows=rows, bytes=size)
        term, candidates, snapshot, horizon, large, *columns = found[0]
        self._require_term(term)
        packed = Packed(*columns)
        cut = candidates >= rows or candidates > len(packed.ids) + len(large)
        ids, messages = self._unpack_messages(packed, large)
        return PolledRows(ids, messages, cut, Snapshot.parse(snapshot.decode()), horizon)

    def _unpack_messages(
        self, packed: Packed, large: list[int]
    ) -> tuple[list[int], pa.RecordBatch]:
        """Return ids and messages: the rows of *packed*, and reports of *large* ones."""
        if not (packed.ids or large):
            return [], pa.RecordBatch.from_pylist([], schema=MESSAGE_SCHEMA)
        with suppress(TypeError, ValueError, pa.ArrowException):
            if not large:
                return sorted(packed.ids), unpack_rows(
                    packed, self._source, self._columns.content_type
                )
        return self._read_by_row(packed.ids, large)

    def _read_by_row(
        self, ids: Sequence[int], large: list[int]
    ) -> tuple[list[int], pa.RecordBatch]:
        """Read rows again, cell by cell, because some have flaws. They are ours, and do not change.

        A large row that was deleted meanwhile is not reported.
        """
        rows, kept = self._merge_large([OutboxRow(*row[:-1]) for row in self.read_rows(ids)], large)
        self._kept.update(kept)
        return [row.id for row in rows], to_batch(rows, self._source, self._columns)

    def _merge_large(
        self, found: list[OutboxRow], large: Iterable[int]
    ) -> tuple[list[OutboxRow], set[int]]:
        """Return *found* and *large* rows in order, and the ids of those that are only reported."""
        table, columns = self._source, self._columns
        kept = [big for row in found if (big := measure_unloggable(row, table, columns))]
        kept += [LargeRow(*row) for row in self._run(self._sql.large, ids=_array_literal(large))]
        reports = {big.id: report_large(big, self._name, table, columns) for big in kept}
        rows = sorted(({row.id: row for row in found} | reports).values(), key=itemgetter(0))
        return rows, set(reports)

    def begin(self) -> None:
        """Begin a transaction in which all statements share the first one's snapshot."""
        self._run_command(b"BEGIN ISOLATION LEVEL REPEATABLE READ")

    def commit(self) -> None:
        """End the transaction. When that fails, its effects may or may not have happened."""
        self._run_command(b"COMMIT")

    def roll_back(self) -> None:
        """End the transaction without effect. A lost connection has done so itself."""
        with suppress(psycopg.Error):
            self._cursor.execute(b"ROLLBACK")

    def _run_command(self, command: bytes) -> None:
        with translate_errors(self._operation):
            self._cursor.execute(command)

    def peek(self, bounds: IdBounds) -> PeekResult:
        """Return whether a claim within *bounds* would find a row, writing nothing."""
        ((waiting, term, snapshot),) = self._run_look(self._sql.peek, bounds)
        self._require_term(term)
        return PeekResult(waiting, Snapshot.parse(snapshot.decode()))

    def _run_look(
        self, statement: Statement, bounds: IdBounds, **most: int
    ) -> list[tuple[Any, ...]]:
        try:
            return self._run(statement, **_bounds_arguments(bounds), **most)
        except StatementTooSlow as slow:
            raise LookTooSlow(str(slow)) from slow

    def read_rows(self, ids: Iterable[int]) -> list[tuple[Any, ...]]:
        """Return the rows of *ids* that are still there, each with its marking leader at the end.

        Rows that are too large for the log are left out, because they are never read.
        """
        return self._run_by_halves(self._sql.read, list(ids))

    def delete(self, low: int, ids: Sequence[int]) -> bool:
        """Delete the rows of *ids* that :meth:`copy` from *low* on returned, except for kept ones.

        Works only in the same transaction: there no row that was not copied can stand
        between the ids (Invariant 7). Deletes nothing when a later term has begun.

        Returns:
            Whether exactly these rows were deleted.
        """
        ids = self._without_kept(ids)
        late = bisect_left(ids, low)
        deleted = 0
        if late:
            deleted += self._run_change(self._sql.delete_ids, ids=_array_literal(ids[:late]))
        if late < len(ids):
            deleted += self._run_change(self._sql.delete_range, low=low, last=ids[-1])
        return deleted == len(ids)

    def purge(self, ids: Iterable[int]) -> None:
        """Delete exactly the rows of *ids* that this term has marked, except for kept ones."""
        self._purge_marked_by(self._term.leader, self._without_kept(ids))

    def _without_kept(self, ids: Iterable[int]) -> list[int]:
        return [number for number in ids if number not in self._kept]

    def purge_logged(self, entries: Entries) -> None:
        """Delete exactly the rows that *entries* were made from and that are still the same.

        An entry that only reports a row, which the log could not take, differs from it.
        """
        found = self.read_rows(logged_ids(entries, self._source))
        equal = match_rows(entries, to_batch(found, self._source, self._columns))
        logged = [(row[0], row[-1]) for row, known in zip(found, equal, strict=True) if known]
        for leader in {leader for _, leader in logged}:
            self._purge_marked_by(leader, [number for number, by in logged if by == leader])

    def adopt(self, entries: Entries) -> list[tuple[int, int]]:
        """Mark as this term's the rows of *entries* that are still the same.

        An entry that only reports a row adopts it without a mark, so it is not reported again.

        Returns:
            The offset and the id of each adopted row. Later looks of this term skip them.
        """
        logged = logged_rows(entries, self._source)
        found = self.read_rows(number for _, number in logged)
        missing = {number for _, number in logged} - {row[0] for row in found}
        rows, kept = self._merge_large([OutboxRow(*row[:-1]) for row in found], missing)
        equal = match_rows(entries, to_batch(rows, self._source, self._columns))
        adopted = {row.id for row, known in zip(rows, equal, strict=True) if known}
        self._kept |= kept & adopted
        marked = {row[0]: row[-1] for row in found if row[0] in adopted - kept}
        for leader in set(marked.values()):
            self._adopt_marked_by(leader, [number for number, by in marked.items() if by == leader])
        return [(offset, number) for offset, number in logged if number in adopted]

    def _adopt_marked_by(self, leader: UUID | None, ids: Iterable[int]) -> None:
        for (term,) in self._run_by_halves(self._sql.adopt, list(ids), marked_by=leader):
            self._require_term(term)

    def _purge_marked_by(self, leader: UUID | None, ids: Iterable[int]) -> None:
        for (term,) in self._run_by_halves(self._sql.purge, list(ids), marked_by=leader):
            self._require_term(term)

    def _run_by_halves(
        self, statement: Statement, ids: list[int], **arguments: object
    ) -> list[tuple[Any, ...]]:
        """Run *statement* for *ids*, or for half of them at a time where that takes too long."""
        try:
            return self._run(statement, ids=_array_literal(ids), **arguments)
        except StatementTooSlow:
            # A failed transaction accepts no further statements.
            idle = self._cursor.connection.info.transaction_status == TransactionStatus.IDLE
            if len(ids) <= 1 or not idle:
                raise
        middle = len(ids) // 2
        return [
            row
            for half in (ids[:middle], ids[middle:])
            for row in self._run_by_halves(statement, half, **arguments)
        ]

    def _run(self, statement: Statement, **arguments: object) -> list[tuple[Any, ...]]:
        with translate_errors(self._operation), texts_as_stored(self._cursor.connection):
            return self._execute(statement, arguments).fetchall()

    def _run_change(self, statement: Statement, **arguments: object) -> int:
        with translate_errors(self._operation):
            return self._execute(statement, arguments).rowcount

    def _execute(self, statement: Statement, arguments: dict[str, object]) -> RawCursor[Any]:
        term = self._term
        arguments |= {"outbox": term.outbox, "term": term.number, "leader": term.leader}
        arguments["kept"] = _array_literal(self._kept)
        values = [arguments[name] for name in statement.arguments]
        return self._cursor.execute(statement.text, values, binary=True)

    @property
    def _operation(self) -> str:
        return f"the outbox {self._name} failed"

    def _require_term(self, term: int | None) -> None:
        """Raise if *term*, as the statement returned it, shows that this term has ended."""
        if term is None:  # Invariant 10
            raise Fenced(
                f"fenced: term {self._term.number} of the outbox {self._name} (leader "
                f"{self._term.leader}) has ended; {self._describe_holder()}"
            )

    def confirm(self) -> None:
        """Check that no later term has begun."""
        ours = (self._term.number, str(self._term.leader))
        found = self._run(self._sql.holder)
        holds = bool(found) and (found[0][0], found[0][1].decode()) == ours
        self._require_term(self._term.number if holds else None)

    def _describe_holder(self) -> str:
        found = self._run(self._sql.holder)
        if not found:
            return f"its row in {self._term.terms} is gone; start again"
        number, leader, since = found[0]
        holder = f"leader {leader.decode()} has held term {number} since {since.decode()}"
        if is_same_log(UUID(leader.decode()), self._term.leader):
            # Our engine is alive, and no other one can have its log.
            return (
                f"{holder}, for another reader of this pipeline. Only one reader may read an "
                "outbox: remove the other one, or this one, from the pipeline file"
            )
        return (
            f"{holder}. Only one engine may read an outbox: stop the other one, or this one, or "
            "give both of them an elector"
        )


def _bounds_arguments(bounds: IdBounds) -> dict[str, object]:
    firsts, lasts, untils = zip(*bounds.gaps, strict=True) if bounds.gaps else ((), (), ())
    return {
        "low": bounds.low,
        "firsts": _array_literal(firsts),
        "lasts": _array_literal(lasts),
        "untils": _array_literal(untils),
        "waited": _array_literal(bounds.waited),
    }


def _array_literal(numbers: Iterable[int]) -> str:
    """Return *numbers* as an array literal, several times as fast as the driver does it."""
    return "{" + ",".join(map(str, numbers)) + "}"

"""The outbox table during one term: every statement requires the term number.

Rows are named by their ids, or by bounds within one snapshot: what commits
between two statements is never marked or purged by accident (Invariant 7).
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import psycopg
import pyarrow as pa
from psycopg.pq import TransactionStatus

from adaptors.postgres.columns import Columns
from adaptors.postgres.gaps import Snapshot
from adaptors.postgres.leaders import of_one_log
from adaptors.postgres.packed import Packed, unpacked
from adaptors.postgres.recognition import logged_ids, logged_rows, same
from adaptors.postgres.rows import Large, Row, to_batch, told, unloggable
from adaptors.postgres.session import TooSlow, faults, texts_as_stored
from adaptors.postgres.statements import compose
from transporter.errors import SourceError, SourceUnavailable
from transporter.message import MESSAGE_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from adaptors.postgres.gaps import Bounds
    from adaptors.postgres.session import Connection
    from adaptors.postgres.table import TableName
    from adaptors.postgres.term import Term
    from transporter.message import Entries


class Fenced(SourceError):
    """A later term has begun: what this leader does has no effect any more (Invariant 10)."""


class TooMuch(SourceUnavailable):
    """A look asked for more than a statement may take time for, and has claimed nothing."""


class Found(NamedTuple):
    """The rows of one look, by id, a message each, and its snapshot.

    ``cut``: more rows were there than the look was allowed to take. ``horizon`` is above the
    number of every transaction that was in flight.
    """

    ids: list[int]
    messages: pa.RecordBatch
    cut: bool
    snapshot: Snapshot
    horizon: int


class Peeked(NamedTuple):
    """Whether rows wait, and the snapshot of that answer."""

    waiting: bool
    snapshot: Snapshot


class Outbox:
    """Looks at and purges rows of *table* on *connection*, as the leader of *term*.

    The source ids of its messages begin with *source*. Rows that the log cannot take are
    *kept*: a message tells of each once in the term, and it stays in the table.
    Every method raises ``SourceUnavailable`` when the connection is lost, and
    :class:`Fenced` when a later term has begun. A look that takes too long raises
    :class:`TooMuch`; what is done to given rows is then done to half of them at a time.
    Not thread-safe.
    """

    def __init__(
        self,
        connection: Connection,
        table: TableName,
        term: Term,
        source: str,
        columns: Columns | None = None,
    ) -> None:
        self._cursor = connection.cursor(binary=True)
        self._term = term
        self._name, self._source = str(table), source
        self._columns = columns or Columns()
        self._sql = compose(table, self._columns, term.terms, connection)
        # Each of them takes the server more room than it takes us (Invariant 17).
        self._kept: set[int] = set()

    def mark(self, bounds: Bounds, rows: int, size: int) -> Found:
        """Mark up to *rows* rows within *bounds*, about *size* bytes, and return them.

        Rows that an earlier leader marked are among them, those marked in this
        term are not. At least one row is taken when there is one.
        """
        return self._find(self._sql.mark, bounds, rows, size)

    def copy(self, bounds: Bounds, rows: int, size: int) -> Found:
        """Return up to *rows* rows within *bounds*, about *size* bytes, changing nothing.

        All rows of the transaction's snapshot from ``bounds.low`` to the last
        one are among them, but for those that are kept and were told of. At
        least one row is returned when there is one.
        """
        return self._find(self._sql.copy, bounds, rows, size)

    def _find(self, statement: bytes, bounds: Bounds, rows: int, size: int) -> Found:
        found = self._look(statement, bounds, rows=rows, bytes=size)
        term, candidates, snapshot, horizon, large, *columns = found[0]
        self._require(term)
        packed = Packed(*columns)
        cut = candidates >= rows or candidates > len(packed.ids) + len(large)
        ids, messages = self._messages(packed, large)
        return Found(ids, messages, cut, Snapshot.parse(snapshot.decode()), horizon)

    def _messages(self, packed: Packed, large: list[int]) -> tuple[list[int], pa.RecordBatch]:
        """Return the rows of *packed* and what is told of *large* ones, ids and messages."""
        if not (packed.ids or large):
            return [], pa.RecordBatch.from_pylist([], schema=MESSAGE_SCHEMA)
        with suppress(TypeError, ValueError, pa.ArrowException):
            if not large:
                return sorted(packed.ids), unpacked(
                    packed, self._source, self._columns.content_type
                )
        return self._by_row(packed.ids, large)

    def _by_row(self, ids: Sequence[int], large: list[int]) -> tuple[list[int], pa.RecordBatch]:
        """Read rows again, cell by cell, some of which are bad. They are ours, and do not change.

        A large one that someone has deleted meanwhile is not told of.
        """
        rows, kept = self._with_large([Row(*row[:-1]) for row in self.read(ids)], large)
        self._kept.update(kept)
        return [row.id for row in rows], to_batch(rows, self._source, self._columns)

    def _with_large(self, found: list[Row], large: Iterable[int]) -> tuple[list[Row], set[int]]:
        """Return *found* and *large* rows in order, and which of them are only told of."""
        table, columns = self._source, self._columns
        kept = [big for row in found if (big := unloggable(row, table, columns))]
        kept += [Large(*row) for row in self._run(self._sql.large, ids=_array(large))]
        told_of = {big.id: told(big, self._name, table, columns) for big in kept}
        rows = sorted(({row.id: row for row in found} | told_of).values(), key=itemgetter(0))
        return rows, set(told_of)

    def begin(self) -> None:
        """Begin a transaction whose statements all see what the first of them sees."""
        self._control(b"BEGIN ISOLATION LEVEL REPEATABLE READ")

    def commit(self) -> None:
        """End the transaction; when that fails, what it did may have happened or not."""
        self._control(b"COMMIT")

    def roll_back(self) -> None:
        """End the transaction without effect; a connection that is lost has done so itself."""
        with suppress(psycopg.Error):
            self._cursor.execute(b"ROLLBACK")

    def _control(self, command: bytes) -> None:
        with faults(self._doing):
            self._cursor.execute(command)

    def peek(self, bounds: Bounds) -> Peeked:
        """Tell whether a claim within *bounds* would find a row, writing nothing."""
        ((waiting, term, snapshot),) = self._look(self._sql.peek, bounds)
        self._require(term)
        return Peeked(waiting, Snapshot.parse(snapshot.decode()))

    def _look(self, statement: bytes, bounds: Bounds, **most: int) -> list[tuple[Any, ...]]:
        try:
            return self._run(statement, **_limits(bounds), **most)
        except TooSlow as slow:
            raise TooMuch(str(slow)) from slow

    def read(self, ids: Iterable[int]) -> list[tuple[Any, ...]]:
        """Return the rows of *ids* that are still there; the last cell is who marked it.

        Rows that are too large for the log are left out, for they are never read.
        """
        return self._by_halves(self._sql.read, list(ids))

    def delete(self, low: int, ids: Sequence[int]) -> bool:
        """Delete what :meth:`copy` from *low* on returned, *ids*, but for what is kept.

        Return whether that hit exactly these rows. Only in the same transaction: there no row
        can stand between the ids that was not copied (Invariant 7). Hits nothing when a later
        term has begun.
        """
        ids = self._leaving(ids)
        late = bisect_left(ids, low)
        deleted = 0
        if late:
            deleted += self._change(self._sql.delete_ids, ids=_array(ids[:late]))
        if late < len(ids):
            deleted += self._change(self._sql.delete_range, low=low, last=ids[-1])
        return deleted == len(ids)

    def purge(self, ids: Iterable[int]) -> None:
        """Delete exactly the rows of *ids* that this term has marked, but for what is kept."""
        self._purge_marked_by(self._term.leader, self._leaving(ids))

    def _leaving(self, ids: Iterable[int]) -> list[int]:
        return [number for number in ids if number not in self._kept]

    def purge_logged(self, entries: Entries) -> None:
        """Delete exactly the rows that *entries* were made from and that are still the same.

        An entry that only tells of a row, which the log could not take, differs from it.
        """
        found = self.read(logged_ids(entries, self._source))
        equal = same(entries, to_batch(found, self._source, self._columns))
        logged = [(row[0], row[-1]) for row, known in zip(found, equal, strict=True) if known]
        for leader in {leader for _, leader in logged}:
            self._purge_marked_by(leader, [number for number, by in logged if by == leader])

    def adopt(self, entries: Entries) -> list[tuple[int, int]]:
        """Mark as this term's the rows that *entries* were made from and that are still the same.

        Returns the offset and the id of each; no later look of this term finds them. An entry
        that only tells of a row adopts it without a mark, so it is not told of again.
        """
        logged = logged_rows(entries, self._source)
        found = self.read(number for _, number in logged)
        missing = {number for _, number in logged} - {row[0] for row in found}
        rows, kept = self._with_large([Row(*row[:-1]) for row in found], missing)
        equal = same(entries, to_batch(rows, self._source, self._columns))
        adopted = {row.id for row, known in zip(rows, equal, strict=True) if known}
        self._kept |= kept & adopted
        marked = {row[0]: row[-1] for row in found if row[0] in adopted - kept}
        for leader in set(marked.values()):
            self._mark_of(leader, [number for number, by in marked.items() if by == leader])
        return [(offset, number) for offset, number in logged if number in adopted]

    def _mark_of(self, leader: UUID | None, ids: Iterable[int]) -> None:
        for (term,) in self._by_halves(self._sql.adopt, list(ids), marked_by=leader):
            self._require(term)

    def _purge_marked_by(self, leader: UUID | None, ids: Iterable[int]) -> None:
        for (term,) in self._by_halves(self._sql.purge, list(ids), marked_by=leader):
            self._require(term)

    def _by_halves(
        self, statement: bytes, ids: list[int], **arguments: object
    ) -> list[tuple[Any, ...]]:
        """Run *statement* for *ids*, for half of them at a time where that takes too long."""
        try:
            return self._run(statement, ids=_array(ids), **arguments)
        except TooSlow:
            # A transaction that has failed runs nothing more.
            idle = self._cursor.connection.info.transaction_status == TransactionStatus.IDLE
            if len(ids) <= 1 or not idle:
                raise
        middle = len(ids) // 2
        return [
            row
            for half in (ids[:middle], ids[middle:])
            for row in self._by_halves(statement, half, **arguments)
        ]

    def _run(self, statement: bytes, **arguments: object) -> list[tuple[Any, ...]]:
        with faults(self._doing), texts_as_stored(self._cursor.connection):
            return self._cursor.execute(statement, self._given(**arguments)).fetchall()

    def _change(self, statement: bytes, **arguments: object) -> int:
        with faults(self._doing):
            return self._cursor.execute(statement, self._given(**arguments)).rowcount

    def _given(self, **arguments: object) -> dict[str, object]:
        term = self._term
        given = {"outbox": term.outbox, "term": term.number, "leader": term.leader}
        return {**given, "kept": _array(self._kept), **arguments}

    @property
    def _doing(self) -> str:
        return f"the outbox {self._name} failed"

    def _require(self, term: int | None) -> None:
        """Raise when the statement that answered *term* ran after this term's end."""
        if term is None:  # Invariant 10
            raise Fenced(
                f"fenced: term {self._term.number} of the outbox {self._name} (leader "
                f"{self._term.leader}) has ended; {self._holder()}"
            )

    def confirm(self) -> None:
        """Make sure that no later term has begun."""
        ours = (self._term.number, str(self._term.leader))
        found = self._run(self._sql.holder)
        holds = bool(found) and (found[0][0], found[0][1].decode()) == ours
        self._require(self._term.number if holds else None)

    def _holder(self) -> str:
        found = self._run(self._sql.holder)
        if not found:
            return f"its row in {self._term.terms} is gone; start again"
        number, leader, since = found[0]
        holder = f"leader {leader.decode()} has held term {number} since {since.decode()}"
        if of_one_log(UUID(leader.decode()), self._term.leader):
            # Our engine is alive, and no other one can have its log.
            return (
                f"{holder}, for another reader of this pipeline. Only one reader may read an "
                "outbox: remove the other one, or this one, from the pipeline file"
            )
        return (
            f"{holder}. Only one engine may read an outbox: stop the other one, or this one, or "
            "give both of them an elector"
        )


def _limits(bounds: Bounds) -> dict[str, object]:
    firsts, lasts, untils = zip(*bounds.gaps, strict=True) if bounds.gaps else ((), (), ())
    return {
        "low": bounds.low,
        "firsts": _array(firsts),
        "lasts": _array(lasts),
        "untils": _array(untils),
        "waited": _array(bounds.waited),
    }


def _array(numbers: Iterable[int]) -> str:
    """Return *numbers* as an array literal, several times as fast as the driver does it."""
    return "{" + ",".join(map(str, numbers)) + "}"

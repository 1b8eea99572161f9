"""The outbox table during one term: every statement requires the term number.

Rows are named by their ids, or by bounds within one snapshot: what commits
between two statements is never marked or purged by accident (Invariant 7).
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pyarrow as pa

from adaptors.postgres.packed import Packed, unpacked
from adaptors.postgres.recognition import logged_ids, same
from adaptors.postgres.rows import to_batch
from adaptors.postgres.session import faults
from adaptors.postgres.statements import compose
from transporter.errors import SourceError
from transporter.message import MESSAGE_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from adaptors.postgres.session import Connection
    from adaptors.postgres.table import TableName
    from adaptors.postgres.term import Term
    from transporter.message import Entries


class Found(NamedTuple):
    """The rows of one look, by id, and what its snapshot tells.

    ``cut``: more rows were there than the look was allowed to take.
    """

    ids: list[int]
    messages: pa.RecordBatch
    cut: bool
    xmin: int
    xmax: int


class Peeked(NamedTuple):
    """Whether rows wait, and what the snapshot of that answer tells."""

    waiting: bool
    xmin: int
    xmax: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where to look: ids from *low* on, and the open gaps below."""

    low: int
    gaps: Sequence[tuple[int, int]] = ()


class Outbox:
    """Looks at and purges rows of *table* on *connection*, as the leader of *term*.

    The source ids of its messages begin with *source*.
    Every method raises ``SourceUnavailable`` when the connection is lost, and
    ``SourceError`` when a later term has begun. Not thread-safe.
    """

    def __init__(self, connection: Connection, table: TableName, term: Term, source: str) -> None:
        self._cursor = connection.cursor(binary=True)
        self._term = term
        self._name, self._source = str(table), source
        self._sql = compose(table, term.terms, connection)

    def mark(self, bounds: Bounds, rows: int, size: int) -> Found:
        """Mark up to *rows* rows within *bounds*, about *size* bytes, and return them.

        Rows that an earlier leader marked are among them, those marked in this
        term are not. At least one row is taken when there is one.
        """
        return self._find(self._sql.mark, bounds, rows, size)

    def copy(self, bounds: Bounds, rows: int, size: int) -> Found:
        """Return up to *rows* rows within *bounds*, about *size* bytes, changing nothing.

        All rows of the transaction's snapshot from ``bounds.low`` to the last
        one are among them. At least one row is returned when there is one.
        """
        return self._find(self._sql.copy, bounds, rows, size)

    def _find(self, statement: bytes, bounds: Bounds, rows: int, size: int) -> Found:
        found = self._run(statement, rows=rows, bytes=size, **_limits(bounds))
        term, candidates, xmin, xmax, *columns = found[0]
        self._require(term)
        packed = Packed(*columns)
        cut = candidates >= rows or candidates > len(packed.ids)
        return Found(sorted(packed.ids), self._messages(packed), cut, xmin, xmax)

    def _messages(self, packed: Packed) -> pa.RecordBatch:
        if not packed.ids:
            return pa.RecordBatch.from_pylist([], schema=MESSAGE_SCHEMA)
        try:
            return unpacked(packed, self._source)
        except (TypeError, ValueError, pa.ArrowException):
            # Some row is bad: read all again, cell by cell. They are ours, and do not change.
            return to_batch(sorted(self.read(packed.ids)), self._source)

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
        ((waiting, term, xmin, xmax),) = self._run(self._sql.peek, **_limits(bounds))
        self._require(term)
        return Peeked(waiting, xmin, xmax)

    def read(self, ids: Iterable[int]) -> list[tuple[Any, ...]]:
        """Return the rows of *ids* that are still there; the last cell is who marked it."""
        return self._run(self._sql.read, ids=_array(ids))

    def delete(self, low: int, ids: Sequence[int]) -> int:
        """Delete what :meth:`copy` from *low* on returned, *ids*; return how many rows that hit.

        Only in the same transaction: there no row can stand between the ids
        that was not copied (Invariant 7). Hits nothing when a later term has begun.
        """
        late = bisect_left(ids, low)
        deleted = 0
        if late:
            deleted += self._change(self._sql.delete_ids, ids=_array(ids[:late]))
        if late < len(ids):
            deleted += self._change(self._sql.delete_range, low=low, last=ids[-1])
        return deleted

    def purge(self, ids: Iterable[int]) -> None:
        """Delete exactly the rows of *ids* that this term has marked."""
        self._purge_marked_by(self._term.leader, ids)

    def purge_logged(self, entries: Entries) -> None:
        """Delete exactly the rows that *entries* were made from and that are still the same."""
        found = self.read(logged_ids(entries, self._source))
        if not found:
            return
        equal = same(entries, to_batch(found, self._source))
        logged = [(row[0], row[-1]) for row, known in zip(found, equal, strict=True) if known]
        for leader in {leader for _, leader in logged}:
            self._purge_marked_by(leader, [number for number, by in logged if by == leader])

    def _purge_marked_by(self, leader: UUID | None, ids: Iterable[int]) -> None:
        ((term,),) = self._run(self._sql.purge, ids=_array(ids), marked_by=leader)
        self._require(term)

    def _run(self, statement: bytes, **arguments: object) -> list[tuple[Any, ...]]:
        with faults(self._doing):
            return self._cursor.execute(statement, self._given(**arguments)).fetchall()

    def _change(self, statement: bytes, **arguments: object) -> int:
        with faults(self._doing):
            return self._cursor.execute(statement, self._given(**arguments)).rowcount

    def _given(self, **arguments: object) -> dict[str, object]:
        term = self._term
        return {"outbox": term.outbox, "term": term.number, "leader": term.leader, **arguments}

    @property
    def _doing(self) -> str:
        return f"the outbox {self._name} failed"

    def _require(self, term: int | None) -> None:
        """Raise when the statement that answered *term* ran after this term's end."""
        if term is None:  # Invariant 10
            raise SourceError(
                f"fenced: term {self._term.number} of the outbox {self._name} (leader "
                f"{self._term.leader}) has ended; {self._holder()}. Only one engine may read "
                "an outbox: stop the other one, or this one"
            )

    def _holder(self) -> str:
        found = self._run(self._sql.holder)
        if not found:
            return f"its row in {self._term.terms} is gone"
        number, leader, since = found[0]
        return f"leader {leader.decode()} has held term {number} since {since.decode()}"


def _limits(bounds: Bounds) -> dict[str, object]:
    firsts = [first for first, _ in bounds.gaps]
    lasts = [last for _, last in bounds.gaps]
    return {"low": bounds.low, "firsts": _array(firsts), "lasts": _array(lasts)}


def _array(numbers: Iterable[int]) -> str:
    """Return *numbers* as an array literal, several times as fast as the driver does it."""
    return "{" + ",".join(map(str, numbers)) + "}"

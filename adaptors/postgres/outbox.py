"""The outbox table during one term: every statement requires the term number.

Rows are named by their ids alone: what commits between two statements is never
marked or purged by accident (Invariant 7).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from adaptors.postgres.session import faults
from adaptors.postgres.statements import compose
from transporter.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from adaptors.postgres.session import Connection
    from adaptors.postgres.table import TableName
    from adaptors.postgres.term import Term


class Marked(NamedTuple):
    """The rows that one mark took, by id, and what its snapshot tells.

    The first cells of a row are those of :class:`~adaptors.postgres.rows.Row`.
    """

    rows: list[tuple[Any, ...]]
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
    """Marks, reads and purges rows of *table* on *connection*, as the leader of *term*.

    Every method raises ``SourceUnavailable`` when the connection is lost, and
    ``SourceError`` when a later term has begun. Not thread-safe.
    """

    def __init__(self, connection: Connection, table: TableName, term: Term) -> None:
        self._cursor = connection.cursor(binary=True)
        self._term = term
        self._name = str(table)
        self._sql = compose(table, term.terms, connection)

    def mark(self, bounds: Bounds, rows: int, size: int) -> Marked:
        """Mark up to *rows* rows within *bounds*, about *size* bytes, and return them by id.

        Rows that an earlier leader marked are among them, those marked in this
        term are not. At least one row is taken when there is one.
        """
        found = self._run(self._sql.mark, rows=rows, bytes=size, **_limits(bounds))
        term, candidates, xmin, xmax = found[0][-4:]
        self._require(term)
        taken = [] if found[0][0] is None else sorted(found)
        cut = candidates >= rows or candidates > len(taken)
        return Marked(taken, cut, xmin, xmax)

    def peek(self, bounds: Bounds) -> Peeked:
        """Tell whether a mark within *bounds* would find a row, writing nothing."""
        ((waiting, term, xmin, xmax),) = self._run(self._sql.peek, **_limits(bounds))
        self._require(term)
        return Peeked(waiting, xmin, xmax)

    def read(self, ids: Iterable[int]) -> list[tuple[Any, ...]]:
        """Return the rows of *ids* that are still there; the last cell is who marked it."""
        return self._run(self._sql.read, ids=_array(ids))

    def purge(self, ids: Iterable[int]) -> None:
        """Delete exactly the rows of *ids* that this term has marked."""
        self.purge_marked_by(self._term.leader, ids)

    def purge_marked_by(self, leader: UUID | None, ids: Iterable[int]) -> None:
        """Delete exactly the rows of *ids* that *leader* (``None``: nobody) has marked."""
        ((term,),) = self._run(self._sql.purge, ids=_array(ids), marked_by=leader)
        self._require(term)

    def _run(self, statement: bytes, **arguments: object) -> list[tuple[Any, ...]]:
        term = self._term
        given = {"outbox": term.outbox, "term": term.number, "leader": term.leader, **arguments}
        with faults(f"the outbox {self._name} failed"):
            return self._cursor.execute(statement, given).fetchall()

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

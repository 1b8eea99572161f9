"""One slice in one transaction: fence, changes, stored offset."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import psycopg

from transporter_adaptors.postgres_writer.failures import (
    BadEntry,
    MissingRow,
    is_data,
    is_order,
    problem_of,
)
from transporter_adaptors.postgres_writer.guilty import Failure, Units, apply_good

if TYPE_CHECKING:
    from transporter.adaptor import StoredOffset, WriterContext
    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres_writer.progress import Progress

_IN_TRANSACTION: Final = {
    psycopg.pq.TransactionStatus.INTRANS,
    psycopg.pq.TransactionStatus.INERROR,
}

_FAILURES: Final = (psycopg.Error, BadEntry, MissingRow)


class Work(Protocol):
    """The entries of a slice, in one mode of the writer."""

    can_reorder: bool
    offsets: list[int]

    @property
    def units(self) -> Units:
        """The entries that cannot be applied one by one."""

    def apply(self, begin: int, end: int, *, in_order: bool) -> bool:
        """Send the statements for the entries from *begin* to *end*."""

    def check(self) -> None:
        """Check the answers, if :meth:`apply` returned ``True``."""

    def undo(self, error: Exception) -> None:
        """Note that the statements are rolled back because of *error*."""


class Transactions:
    """Transactions of one writer. Belongs to its thread.

    Each is two round trips if nothing fails: the fence, and the rest in libpq's pipeline mode.
    """

    def __init__(self, connection: Connection, progress: Progress, context: WriterContext) -> None:
        """Write by *connection*, as the holder of *progress*."""
        self._connection, self._progress, self._context = connection, progress, context

    def apply(
        self, work: Work, begin: int, end: int, generation: int, until: float = math.inf
    ) -> tuple[int, Failure | None]:
        """Apply the entries from *begin* to *end* in a transaction, up to one that fails.

        The search for that one ends at the monotonic time *until*.

        Returns:
            The place up to which the entries are durable, and the failure of the one there.
            Without a failure it is before *end* only if the time was over.

        Raises:
            psycopg.Error: Nothing is durable, except if the answer to COMMIT was lost.
            RouteFault: The writer was fenced, or a table cannot be written.
        """
        try:
            return self._apply_good(work, begin, end, generation, until)
        except Exception as error:
            work.undo(error)
            raise
        finally:
            self._roll_back()

    def _apply_good(
        self, work: Work, begin: int, end: int, generation: int, until: float
    ) -> tuple[int, Failure | None]:
        known = self._progress.begin(self._connection)
        first = max(begin, self._covered(work, known, generation))
        if first >= end:
            return end, None
        done = _Done(work, known, generation)
        failed = self._attempt(work, first, end, done)
        if failed is None:
            return end, None
        if end <= work.units.end_of(first):
            return first, failed
        good, failure = apply_good(
            first,
            end,
            lambda low, high: self._attempt(work, low, high),
            failed,
            work.units,
            lambda: time.monotonic() > until,
        )
        if good > first:
            with self._connection.pipeline():
                self._finish(done, good)
            self._progress.note_commit()
        return good, failure

    def _covered(self, work: Work, known: StoredOffset | None, generation: int) -> int:
        """Return how many entries are there although the answer to their COMMIT was lost."""
        context = self._context
        if known is None or generation < 0:
            return 0
        mine = context.log_id, context.run, generation, context.shards
        if (known.log_id, known.run, known.generation, known.shards) != mine:
            return 0
        return bisect_right(work.offsets, known.offset)

    def _attempt(
        self, work: Work, begin: int, end: int, done: _Done | None = None
    ) -> Failure | None:
        """Apply entries and, with *done*, commit. On a failure undo all of it, and return that."""
        try:
            self._apply(work, begin, end, done, in_order=False)
        except _FAILURES as error:
            failure = self._undo(work, error)
            if not (work.can_reorder and is_order(error) and end - begin > 1):
                return failure
        else:
            self._note_commit(done)
            return None
        try:
            self._apply(work, begin, end, done, in_order=True)
        except _FAILURES as error:
            return self._undo(work, error)
        self._note_commit(done)
        return None

    def _note_commit(self, done: _Done | None) -> None:
        if done is not None:
            self._progress.note_commit()

    def _apply(
        self, work: Work, begin: int, end: int, done: _Done | None, *, in_order: bool
    ) -> None:
        execute = self._connection.execute
        with self._connection.pipeline() as pipeline:
            execute("SAVEPOINT part")
            # Foreign keys may be in a cycle. All are checked here, and none by COMMIT.
            execute("SET CONSTRAINTS ALL DEFERRED")
            must_check = work.apply(begin, end, in_order=in_order)
            execute("SET CONSTRAINTS ALL IMMEDIATE")
            if must_check:
                pipeline.sync()
                work.check()
            if done is None:
                execute("RELEASE SAVEPOINT part")
            else:
                self._finish(done, end)

    def _undo(self, work: Work, error: Exception) -> Failure:
        """Undo what was applied since the savepoint, or raise an *error* of no entry."""
        if isinstance(error, psycopg.Error) and not is_data(error):
            raise error  # All of the transaction is undone by apply.
        work.undo(error)
        with self._connection.pipeline():
            self._connection.execute("ROLLBACK TO SAVEPOINT part")
            self._connection.execute("RELEASE SAVEPOINT part")
        if isinstance(error, BadEntry):
            return Failure(error.problem, error.place)
        return Failure(problem_of(error))

    def _finish(self, done: _Done, end: int) -> None:
        """Store the offset of the entry before *end*, and commit."""
        offset = done.work.offsets[end - 1]
        stored = self._context.stored(done.generation, offset, done.known)
        self._progress.store(self._connection, stored)
        self._connection.execute("COMMIT")

    def _roll_back(self) -> None:
        """End a transaction that is still open."""
        if self._connection.info.transaction_status in _IN_TRANSACTION:
            with suppress(psycopg.Error):
                self._connection.execute("ROLLBACK")


@dataclass(frozen=True, slots=True)
class _Done:
    """The parts of the offset to store next."""

    work: Work
    known: StoredOffset | None
    generation: int

"""Reads a transactional outbox: mark, log, purge."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from psycopg import sql

from adaptors.postgres import term
from adaptors.postgres.config import OutboxConfig
from adaptors.postgres.gaps import LOWEST, Gaps, Look
from adaptors.postgres.inspection import locate
from adaptors.postgres.outbox import Bounds, Outbox
from adaptors.postgres.pacing import Pace
from adaptors.postgres.position import Position
from adaptors.postgres.recognition import logged_ids, same, unpurged
from adaptors.postgres.rows import to_batch
from adaptors.postgres.session import connect, faults, wait_for_notify
from adaptors.postgres.table import TableName
from transporter.adaptor import Batch
from transporter.errors import SourceError

if TYPE_CHECKING:
    from adaptors.postgres.session import Connection
    from transporter.adaptor import Entries, Resume

    Rows = list[tuple[Any, ...]]


class OutboxReader:
    """Reads the rows of an outbox table in id order and purges what is logged.

    Each open begins a new term: rows that earlier leaders marked are marked
    again, and an engine that still believes to lead finds its statements
    without effect. Not promised: that rows are read in the order of their
    transactions' commits; only that a row never overtakes an earlier one of its
    key that was committed before it was inserted.
    """

    Config: ClassVar[type[OutboxConfig]] = OutboxConfig

    def __init__(self, config: OutboxConfig) -> None:
        self._config = config
        self._table = TableName.parse(config.table)
        self._connection: Connection | None = None
        self._outbox: Outbox | None = None
        self._reset(Position(0, 0))

    def _reset(self, last: Position) -> None:
        self._gaps = Gaps()
        self._pace = Pace(self._config.poll_interval)
        self._batch = last.batch
        self._purged = last.batch
        self._logged: dict[int, list[int]] = {}
        self._due: list[int] = []

    def open(self, resume: Resume) -> None:
        """Begin a term and purge what the log already holds.

        Raise ``SourceUnavailable`` when the server does not let us in, and
        ``EnvironmentFault`` when the table, a column or a right is missing.
        """
        self.close()
        position = resume.position
        self._reset(Position.parse(position) if position else Position(0, 0))
        connection = self._connection = connect(self._config.dsn)
        table = locate(connection, self._table, self._config.notify_channel)
        self._outbox = Outbox(connection, table, term.acquire(connection, table))
        for entries in unpurged(resume):
            self._recognise(entries)
        self._listen(connection)

    def _recognise(self, entries: Entries) -> None:
        """Purge the rows that *entries* were made from: their purge was lost."""
        outbox, name = self._opened
        found = outbox.read(logged_ids(entries, name))
        if not found:
            return
        equal = same(entries, to_batch(found, name))
        logged = [(row[0], row[-1]) for row, known in zip(found, equal, strict=True) if known]
        for leader in {leader for _, leader in logged}:
            outbox.purge_marked_by(leader, [number for number, by in logged if by == leader])

    def _listen(self, connection: Connection) -> None:
        connection.add_notify_handler(lambda _: self._pace.woken())
        channel = sql.Identifier(self._config.notify_channel)
        with faults("cannot listen to the outbox's notifications"):
            connection.execute(sql.SQL("LISTEN {}").format(channel))

    def poll(self, timeout: float) -> Batch:
        """Return the next rows, marked, waiting up to *timeout* seconds for some.

        Rows whose purge has failed are purged first. The position is ``None``
        when there is nothing.
        """
        deadline = monotonic() + timeout
        self._purge_due()
        while True:
            if self._pace.wait(monotonic()) == 0 and (rows := self._look()):
                return self._batch_of(rows)
            now = monotonic()
            if self._woken(max(0.0, min(deadline - now, self._pace.wait(now)))):
                self._pace.woken()
            elif monotonic() >= deadline:
                return Batch(())

    def _woken(self, seconds: float) -> bool:
        connection = self._connection
        return connection is not None and wait_for_notify(connection, seconds)

    def _look(self) -> Rows:
        began = monotonic()
        sweep, hurry = self._pace.sweep_due(began), self._pace.hurry
        self._pace.begin(began)
        rows, look = self._find(sweep=sweep, peek=not hurry)
        self._gaps.observe(look)
        if look.cut:
            self._pace.more()
        if sweep:
            self._pace.swept(began, monotonic())
        return rows

    def _find(self, *, sweep: bool, peek: bool) -> tuple[Rows, Look]:
        """Mark what is there; with *peek* ask first, so that an idle look writes nothing."""
        outbox, _ = self._opened
        bounds = Bounds(LOWEST) if sweep else Bounds(self._gaps.low, self._gaps.ranges)
        if peek and not (seen := outbox.peek(bounds)).waiting:
            return [], Look((), seen.xmin, seen.xmax, sweep=sweep)
        config = self._config
        rows, cut, xmin, xmax = outbox.mark(bounds, config.batch_rows, config.batch_bytes)
        return rows, Look([row[0] for row in rows], xmin, xmax, cut, sweep)

    def _batch_of(self, rows: Rows) -> Batch:
        self._batch += 1
        self._logged[self._batch] = [row[0] for row in rows]
        position = Position(self._batch, self._purged)
        return Batch(to_batch(rows, str(self._table)), str(position))

    def commit(self, position: str) -> None:
        """Purge exactly the rows of the batches up to *position* (Invariants 1 and 7).

        When that fails they stay due, and are purged before anything else is
        marked; after a new open the log tells which they were.
        """
        reached = Position.parse(position).batch
        for batch in [batch for batch in self._logged if batch <= reached]:
            self._due.extend(self._logged.pop(batch))
        self._purge_due()
        self._purged = max(self._purged, reached)

    def _purge_due(self) -> None:
        if self._due:
            outbox, _ = self._opened
            outbox.purge(self._due)
            self._due.clear()

    @property
    def _opened(self) -> tuple[Outbox, str]:
        if self._outbox is None:
            raise SourceError(f"the reader of the outbox {self._table} is not open")
        return self._outbox, str(self._table)

    def close(self) -> None:
        """End the session; marked rows stay, and the next term marks them again."""
        connection, self._connection, self._outbox = self._connection, None, None
        if connection is not None:
            connection.close()

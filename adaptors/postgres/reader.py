"""Reads a transactional outbox: claim, log, purge."""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, ClassVar, Final

from psycopg import sql

from adaptors.postgres import term
from adaptors.postgres.claims import Mark, Take
from adaptors.postgres.config import OutboxConfig
from adaptors.postgres.gaps import LOWEST, Gaps, Look
from adaptors.postgres.inspection import locate
from adaptors.postgres.outbox import Bounds, Outbox
from adaptors.postgres.pacing import Pace
from adaptors.postgres.position import Position
from adaptors.postgres.recognition import unpurged
from adaptors.postgres.session import connect, faults, wait_for_notify
from adaptors.postgres.table import TableName
from transporter.adaptor import Batch
from transporter.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from adaptors.postgres.claims import Claim, Claimed
    from adaptors.postgres.session import Connection
    from transporter.adaptor import Resume

_CLAIMS: Final[dict[str, type[Mark | Take]]] = {"mark": Mark, "take": Take}


class OutboxReader:
    """Reads the rows of an outbox table in id order and purges what is logged.

    Each open begins a new term: rows that earlier leaders marked are claimed
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
        self._claim: Claim | None = None
        self._reset(Position(0, 0))

    def _reset(self, last: Position) -> None:
        self._gaps = Gaps()
        self._pace = Pace(self._config.poll_interval)
        self._batch = last.batch
        self._purged = last.batch
        self._logged: dict[int, Callable[[], None]] = {}
        self._due: deque[Callable[[], None]] = deque()

    def open(self, resume: Resume) -> None:
        """Begin a term and purge what the log already holds.

        Raise ``SourceUnavailable`` when the server does not let us in, and
        ``EnvironmentFault`` when the table, a column or a right is missing.
        """
        self.close()
        position = resume.position
        self._reset(Position.parse(position) if position else Position(0, 0))
        config, claim = self._config, _CLAIMS[self._config.claim]
        connection = self._connection = connect(config.dsn)
        table = locate(connection, self._table, claim.rights)
        leading = term.acquire(connection, table)
        outbox = self._outbox = Outbox(connection, table, leading, str(self._table))
        self._claim = claim(outbox)
        for entries in unpurged(resume):
            outbox.purge_logged(entries)
        self._listen(connection)

    def _listen(self, connection: Connection) -> None:
        connection.add_notify_handler(lambda _: self._pace.woken())
        channel = sql.Identifier(self._config.notify_channel)
        with faults("cannot listen to the outbox's notifications"):
            connection.execute(sql.SQL("LISTEN {}").format(channel))

    def poll(self, timeout: float) -> Batch:
        """Return the next rows, claimed, waiting up to *timeout* seconds for some.

        Rows whose purge has failed are purged first. The position is ``None``
        when there is nothing, which with ``claim: take`` is so, and at once,
        until the batch before is committed.
        """
        deadline = monotonic() + timeout
        self._purge_due()
        _, claim = self._opened
        if claim.holding:
            return Batch(())
        while True:
            if self._pace.wait(monotonic()) == 0 and (claimed := self._look()):
                return self._batch_of(claimed)
            now = monotonic()
            if self._woken(max(0.0, min(deadline - now, self._pace.wait(now)))):
                self._pace.woken()
            elif monotonic() >= deadline:
                return Batch(())

    def _woken(self, seconds: float) -> bool:
        connection = self._connection
        return connection is not None and wait_for_notify(connection, seconds)

    def _look(self) -> Claimed | None:
        began = monotonic()
        sweep, hurry = self._pace.sweep_due(began), self._pace.hurry
        self._pace.begin(began)
        claimed, look = self._find(sweep=sweep, peek=not hurry)
        self._gaps.observe(look)
        if look.cut:
            self._pace.more()
        if sweep:
            self._pace.swept(began, monotonic())
        return claimed if look.ids else None

    def _find(self, *, sweep: bool, peek: bool) -> tuple[Claimed | None, Look]:
        """Claim what is there; with *peek* ask first, so that an idle look writes nothing."""
        outbox, claim = self._opened
        bounds = Bounds(LOWEST) if sweep else Bounds(self._gaps.low, self._gaps.ranges)
        if peek and not (seen := outbox.peek(bounds)).waiting:
            return None, Look((), seen.xmin, seen.xmax, sweep=sweep)
        claimed = claim.claim(bounds, self._config.batch_rows, self._config.batch_bytes)
        found = claimed.found
        return claimed, Look(found.ids, found.xmin, found.xmax, found.cut, sweep)

    def _batch_of(self, claimed: Claimed) -> Batch:
        self._batch += 1
        self._logged[self._batch] = claimed.purge
        return Batch(claimed.found.messages, str(Position(self._batch, self._purged)))

    def commit(self, position: str) -> None:
        """Purge exactly the rows of the batches up to *position* (Invariants 1 and 7).

        When that fails they stay due, and are purged before anything else is
        claimed; after a new open the log tells which they were.
        """
        reached = Position.parse(position).batch
        for batch in [batch for batch in self._logged if batch <= reached]:
            self._due.append(self._logged.pop(batch))
        self._purge_due()
        self._purged = max(self._purged, reached)

    def _purge_due(self) -> None:
        while self._due:
            self._due[0]()
            self._due.popleft()

    @property
    def _opened(self) -> tuple[Outbox, Claim]:
        if self._outbox is None or self._claim is None:
            raise SourceError(f"the reader of the outbox {self._table} is not open")
        return self._outbox, self._claim

    def close(self) -> None:
        """End the session; rows that are not purged stay, and the next term claims them again."""
        connection, self._connection = self._connection, None
        self._outbox = self._claim = None
        if connection is not None:
            connection.close()

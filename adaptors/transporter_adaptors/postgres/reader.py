"""Reader of a transactional outbox: claim, log, purge."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, ClassVar, Final

from psycopg import sql

from transporter.adaptor import Batch
from transporter.errors import SourceError, SourceUnavailable
from transporter_adaptors.postgres import term
from transporter_adaptors.postgres.backlog import Backlog, RowMeter
from transporter_adaptors.postgres.claims import MarkClaim, TakeClaim
from transporter_adaptors.postgres.config import OutboxConfig
from transporter_adaptors.postgres.gaps import LOWEST, IdBounds, IdGaps, Poll
from transporter_adaptors.postgres.inspection import (
    caching_sequences,
    describe_polling,
    has_notify_trigger,
    locate,
    probe_outbox,
)
from transporter_adaptors.postgres.leaders import lineage_of
from transporter_adaptors.postgres.leadership import Leadership, election_term
from transporter_adaptors.postgres.outbox import Fenced, LookTooSlow, Outbox
from transporter_adaptors.postgres.pacing import PollPace, Portion
from transporter_adaptors.postgres.position import Position
from transporter_adaptors.postgres.recognition import unpurged_batches
from transporter_adaptors.postgres.session import (
    connect,
    statement_limit,
    translate_errors,
    wait_for_notify,
)
from transporter_adaptors.postgres.table import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from transporter.adaptor import Entries, Finding, Resume
    from transporter_adaptors.postgres.claims import Claim, ClaimedRows
    from transporter_adaptors.postgres.session import Connection

_PATIENCE: Final = 30.0
"""Least seconds that entries of our last term wait for our next election."""
_SPARSE: Final = 8
"""Rows of a batch for each one that is left, above which only those left are kept."""
_REOPENED: Final = -1
"""Number of the batch of all entries that earlier terms logged and did not deliver."""
_CLAIMS: Final[dict[str, type[MarkClaim | TakeClaim]]] = {"mark": MarkClaim, "take": TakeClaim}


@dataclass(slots=True)
class _LoggedBatch:
    """A batch that was handed out: its rows, its purge, and the number of rows left."""

    ids: Sequence[int] | dict[int, int]
    purge: Callable[[], None]
    left: int
    _left_table: bytearray = field(default_factory=bytearray)

    def remove(self, rows: Sequence[int]) -> None:
        """Record that *rows* have left the table.

        Parked rows may stay for long, one of a batch: then only they are kept (Invariant 17).
        """
        self.left -= len(rows)
        if isinstance(self.ids, dict):
            for row in rows:
                del self.ids[row]
            return
        self._left_table = self._left_table or bytearray(len(self.ids))
        for row in rows:
            self._left_table[row] = 1
        if self.left * _SPARSE < len(self.ids):
            pairs = zip(self.ids, self._left_table, strict=True)
            self.ids = {row: each for row, (each, is_gone) in enumerate(pairs) if not is_gone}
            # The whole batch is purged at once only if no single rows were.
            self.purge, self._left_table = _purge_nothing, bytearray()


def _purge_nothing() -> None:
    """Purge nothing."""


class OutboxReader:
    """Reader of an outbox's rows in id order, which purges logged, or delivered, rows.

    Each open, and each election that is won, begins a new term. Rows that earlier leaders
    marked are claimed again, and the statements of an engine that wrongly believes that it
    leads have no effect. Rows are not promised in the order of their transactions' commits.
    Only this is: a row never overtakes an earlier one of its key that was committed before
    it was inserted.
    """

    Config: ClassVar[type[OutboxConfig]] = OutboxConfig

    def __init__(self, config: OutboxConfig) -> None:
        self._config = config
        self._table, self._columns = TableName.parse(config.table), config.names
        self._term_length = election_term(config.elector)
        self._connection: Connection | None = None
        self._resume: Resume | None = None
        self._leadership: Leadership | None = None
        self._outbox: Outbox | None = None
        self._claim: Claim | None = None
        self._unpurged: list[Entries] = []
        self._full_name, self._number = self._table, 0
        self._lineage, self._undecided_until = "", 0.0
        self._undecided = self._has_trigger = False
        self._meter, self._backlog = RowMeter(), Backlog()
        limit = statement_limit(self._term_length)
        self._portion = Portion(config.batch_rows, config.batch_bytes, limit)
        self._reset(Position(0, 0))

    def _reset(self, last: Position) -> None:
        self._gaps = IdGaps()
        self._pace = PollPace(self._config.poll_interval, self._has_trigger)
        self._batch, self._purged = last.batch, last.purged
        self._logged: dict[int, _LoggedBatch] = {}
        self._due_batches: deque[_LoggedBatch] = deque()

    def open(self, resume: Resume) -> None:
        """Look up the table, and stand for election, or without an elector begin a term.

        Raises:
            SourceUnavailable: The server refuses the connection or has no such table.
            EnvironmentFault: A column or a privilege is missing.
        """
        self.close()
        self._resume = resume
        position = resume.position
        self._reset(Position.parse(position) if position else Position(0, 0))
        config = self._config
        connection = self._connection = connect(config.dsn, self._term_length)
        self._full_name = locate(
            connection, self._table, _CLAIMS[config.claim].rights, self._columns
        )
        for problem in caching_sequences(connection, self._full_name, self._columns):
            resume.report("sequence-caches", table=str(self._full_name), problem=problem)
        self._has_trigger = has_notify_trigger(connection, self._full_name, config.notify_channel)
        if not self._has_trigger:
            problem = describe_polling(self._full_name, config.notify_channel, config.poll_interval)
            resume.report("outbox-polled", table=str(self._full_name), problem=problem)
        self._listen(connection)
        self._leadership = Leadership(config.elector, str(self._full_name), config.dsn, resume)
        self._lineage = Position.parse(position).lineage if position else ""
        patience = max(_PATIENCE, 2 * (self._term_length or 0.0))
        self._undecided, self._undecided_until = True, monotonic() + patience
        if not self._lineage_continues(connection):
            self._stop_leading()
        self.keep_alive()

    def probe(self) -> Iterable[Finding]:
        """Check the table, the privileges on it and the objects beside it."""
        return probe_outbox(self._config, _CLAIMS[self._config.claim].rights)

    def _listen(self, connection: Connection) -> None:
        connection.add_notify_handler(lambda _: self._pace.record_notification())
        channel = sql.Identifier(self._config.notify_channel)
        with translate_errors("cannot listen to the outbox's notifications"):
            connection.execute(sql.SQL("LISTEN {}").format(channel))

    def _lineage_continues(self, connection: Connection) -> bool:
        """Return whether no other leader has led since the log's entries were read."""
        last = term.current_leader(connection, self._full_name)
        return last is not None and lineage_of(last) == self._lineage

    def _take_part(self) -> bool:
        """Take part in the election, begin a term if elected, and return whether a term goes on."""
        candidacy, connection = self._leadership, self._connection
        if candidacy is None or connection is None:
            raise SourceError(f"the reader of the outbox {self._table} is not open")
        if not candidacy.pulse(monotonic()) and self._outbox is not None:
            self._stop_leading()
        if self._outbox is None and candidacy.can_begin(monotonic()):
            self._begin_term(connection, candidacy)
        if self._undecided and monotonic() >= self._undecided_until:
            # The elected engine does not begin a term either, and other readers' entries wait.
            self._stop_leading()
        return self._outbox is not None

    def _begin_term(self, connection: Connection, candidacy: Leadership) -> None:
        """Begin a term: continue with the logged entries, or supersede them (Invariant 10).

        Rows that were delivered until now are purged in either case (Invariant 7).
        """
        log_id = self._resume.log_id if self._resume else ""
        leading = term.begin_term(
            connection, self._full_name, self._config.dsn, self._term_length, log_id, self._lineage
        )
        outbox = Outbox(connection, self._full_name, leading, str(self._table), self._columns)
        if self._undecided and not leading.continues:
            self._stop_leading()
        # Entries that are logged from now on name it, even if the term has to begin again.
        self._lineage = lineage_of(leading.leader)
        goes_on = self._undecided
        adopted = self._adopt_logged(outbox, candidacy) if goes_on else []
        if adopted is None:
            return
        for entries in self._unpurged:
            outbox.purge_logged(entries)
        self._unpurged = []
        self._reset(Position(self._batch, self._purged if adopted else self._batch))
        self._number, self._outbox = leading.number, outbox
        self._claim = _CLAIMS[self._config.claim](outbox)
        self._undecided = False
        if goes_on and self._resume is not None:
            self._resume.reopen(self._reopened_batches(adopted, outbox))
        candidacy.record_term(leading)

    def _reopened_batches(
        self, adopted: list[tuple[int, int]], outbox: Outbox
    ) -> Iterator[tuple[str, Sequence[int]]]:
        if adopted:
            offsets, ids = zip(*adopted, strict=True)
            self._logged[_REOPENED] = _LoggedBatch(ids, partial(outbox.purge, ids), len(ids))
            yield str(Position(_REOPENED, 0)), offsets

    def _adopt_logged(self, outbox: Outbox, candidacy: Leadership) -> list[tuple[int, int]] | None:
        """Adopt the entries that earlier terms logged and did not deliver.

        Returns:
            The offset and the id of each row, or ``None`` if the election was lost meanwhile.
        """
        adopted = list[tuple[int, int]]()
        if self._resume is not None:
            # In this order: an entry delivered in between is in both lists, not in neither.
            for _, part in self._resume.undelivered():
                adopted += outbox.adopt(part)
                candidacy.pulse(monotonic())
                if not candidacy.can_begin(monotonic()):
                    return None
            self._unpurged = list(unpurged_batches(self._resume))
        return adopted

    def _stop_leading(self) -> None:
        """Stop leading. The next leader redelivers entries that are logged but not delivered."""
        self._outbox = self._claim = None
        self._undecided = False
        if self._resume is not None:
            self._unpurged = list(unpurged_batches(self._resume))
            self._resume.supersede()

    def _on_fenced(self, error: Fenced) -> None:
        """Yield to the leader of a later term, or raise *error* where there is no election."""
        self._stop_leading()
        if self._leadership is None or self._leadership.is_alone:
            raise error
        self._leadership.record_fencing(str(error), monotonic())

    def poll(self, timeout: float) -> Batch:
        """Return the next rows, claimed, waiting up to *timeout* seconds for some.

        Rows whose purge has failed are purged first. The position is ``None`` when there are
        no rows. That is so while another engine leads, and with ``claim: take``, at once, until
        the previous batch is committed.
        """
        deadline = monotonic() + timeout
        try:
            if not self._take_part():
                return self._wait_as_candidate(deadline)
            return self._poll(deadline)
        except Fenced as error:
            self._on_fenced(error)
            return Batch(())

    def _wait_as_candidate(self, deadline: float) -> Batch:
        # A candidate ignores notifications, but must notice a lost connection.
        while (left := deadline - monotonic()) > 0:
            self._wait_for_notify(left)
            if self._take_part():
                break
        return Batch(())

    def _poll(self, deadline: float) -> Batch:
        self._purge_due()
        _, claim = self._open_parts
        if claim.is_holding:
            return Batch(())
        while True:
            if self._pace.seconds_until_due(monotonic()) == 0 and (claimed := self._poll_table()):
                return self._make_batch(claimed)
            # Checked even under constant notifications: terms and stops do not wait for them.
            if (now := monotonic()) >= deadline or not self._take_part():
                return Batch(())
            if self._wait_for_notify(
                max(0.0, min(deadline - now, self._pace.seconds_until_due(now)))
            ):
                self._pace.record_notification()

    def _wait_for_notify(self, seconds: float) -> bool:
        connection, candidacy = self._connection, self._leadership
        if connection is None or candidacy is None:
            return False
        return wait_for_notify(connection, min(seconds, candidacy.patience))

    def _poll_table(self) -> ClaimedRows | None:
        began = monotonic()
        sweep, hurry = self._pace.is_sweep_due(began), self._pace.has_known_rows
        self._pace.record_start(began)
        try:
            claimed, look = self._claim_rows(
                IdBounds(LOWEST) if sweep else self._gaps.bounds,
                settling=self._pace.is_settling_due(began),
                peek=not hurry,
            )
        except LookTooSlow as slow:
            if sweep:
                # Dead rows that a long transaction keeps take their time however few rows are
                # asked for. Urgent rows are within the bounds, and these are read next.
                self._pace.record_sweep(began, monotonic())
                self._pace.record_rows_left()
            else:
                self._halve_portion(slow)
            return None
        ended = monotonic()
        # Sweeps are limited by their own share.
        self._pace.record_look(ended, 0.0 if sweep else ended - began, rows=bool(look.ids))
        self._gaps.observe(look)
        if look.settling:
            self._pace.record_settling(began)
        if look.cut:
            self._pace.record_rows_left()
        if sweep:
            self._pace.record_sweep(began, ended)
        return claimed if look.ids else None

    def _claim_rows(
        self, bounds: IdBounds, *, settling: bool, peek: bool
    ) -> tuple[ClaimedRows | None, Poll]:
        """Claim waiting rows. With *peek* look first, so that an idle look writes nothing."""
        outbox, claim = self._open_parts
        if peek and not (seen := outbox.peek(bounds)).waiting:
            return None, Poll((), seen.snapshot, settling=settling)
        began = monotonic()
        claimed = claim.claim(bounds, self._portion.rows, self._portion.size)
        self._portion.record_duration(monotonic() - began)
        found = claimed.found
        return claimed, Poll(found.ids, found.snapshot, found.horizon, found.cut, settling)

    def _halve_portion(self, slow: LookTooSlow) -> None:
        """Halve the size of the next look, or raise *slow* if it was for a single row."""
        if not self._portion.halve():
            raise slow
        self._pace.record_rows_left()
        if self._resume is not None:
            self._resume.report("batch-halved", rows=self._portion.rows, problem=str(slow))

    def _make_batch(self, claimed: ClaimedRows) -> Batch:
        self._batch += 1
        found = claimed.found
        # The messages are dropped, because rows may wait for delivery for long (Invariant 17).
        self._logged[self._batch] = _LoggedBatch(found.ids, claimed.purge, len(found.ids))
        position = Position(self._batch, self._purged, self._lineage)
        return Batch(found.messages, str(position), self._number)

    def commit(self, position: str) -> None:
        """Purge exactly the rows of the batches up to *position* (Invariants 1 and 7).

        When that fails they stay due, and are purged before the next claim. After a new open
        they are recognised by the log.
        """
        reached = Position.parse(position).batch
        for batch in [batch for batch in self._logged if batch <= reached]:
            self._due_batches.append(self._logged.pop(batch))
        self._purge_due()
        self._purged = max(self._purged, reached)

    def delivered(self, position: str, rows: Sequence[int]) -> None:
        """Purge exactly these *rows* of the batch at *position* (Invariant 7).

        Earlier batches' other rows stay in the table: if the engine ends, they are claimed again.
        """
        batch = Position.parse(position).batch
        if self._outbox is None or batch not in self._logged:
            # The term has ended meanwhile, and these batches with it.
            return
        logged = self._logged[batch]
        try:
            self._outbox.purge(logged.ids[row] for row in rows)
        except Fenced as error:
            self._on_fenced(error)
            return
        logged.remove(rows)
        if not logged.left:
            del self._logged[batch]
        self._purged = max(self._purged, batch - 1)
        self._count_purged(len(rows))

    def keep_alive(self) -> None:
        """Take part in the election, and consume notifications while the engine does not poll.

        The server's queue keeps every notification for a session that listens and does not read.
        Once that queue is full the application's commits fail.
        """
        try:
            self._take_part()
        except Fenced as error:
            self._on_fenced(error)
        if self._claim is not None:
            self._claim.end_transaction()
        # The next call on a lost connection reports it.
        with suppress(SourceUnavailable):
            if self._wait_for_notify(0):
                self._pace.record_notification()
        self._measure()

    def _measure(self) -> None:
        if self._outbox is not None and self._connection is not None and self._resume is not None:
            self._backlog.measure(
                self._connection, self._full_name, self._columns, self._resume, monotonic()
            )

    def confirm(self) -> bool:
        """Return whether our entries' delivery is decided, after checking the database's last term.

        The check finds whether our term is the last one that was begun (Invariant 10). While we
        stand for election with entries of our last term, and no other leader has led since, it
        is undecided which engine delivers them.
        """
        if self._outbox is not None:
            try:
                self._outbox.confirm()
            except Fenced as error:
                self._on_fenced(error)
        elif self._undecided and self._connection and not self._lineage_continues(self._connection):
            self._stop_leading()
        return not self._undecided

    def _purge_due(self) -> None:
        while self._due_batches:
            self._due_batches[0].purge()
            purged = self._due_batches.popleft()
            self._count_purged(purged.left)

    def _count_purged(self, rows: int) -> None:
        read = self._meter.add(rows, monotonic())
        if read is not None and self._resume is not None:
            self._resume.report("meter-read", **read)

    @property
    def _open_parts(self) -> tuple[Outbox, Claim]:
        if self._outbox is None or self._claim is None:
            raise SourceError(f"the reader of the outbox {self._table} is not open")
        return self._outbox, self._claim

    def close(self) -> None:
        """End the session. Rows that are not purged stay, and the next term claims them again."""
        candidacy, self._leadership = self._leadership, None
        if self._outbox is not None and candidacy is not None and not candidacy.is_alone:
            self._stop_leading()
        # Without an election we lead on after the next open, which finds the delivered rows.
        self._outbox = self._claim = None
        connection, self._connection = self._connection, None
        if candidacy is not None:
            candidacy.close()
        if connection is not None:
            connection.close()

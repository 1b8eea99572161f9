"""The ``postgres-cdc`` reader: copies tables, then follows their changes."""

from __future__ import annotations

import json
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, ClassVar, Final

import pyarrow as pa
from psycopg.conninfo import conninfo_to_dict

from transporter.adaptor import AdaptorConfig, Batch, state_name
from transporter.errors import SourceUnavailable
from transporter.message import NOOP, Message, messages_to_batch
from transporter_adaptors.postgres_cdc import opening
from transporter_adaptors.postgres_cdc import slot as slots
from transporter_adaptors.postgres_cdc.changes import ChangeTranslator
from transporter_adaptors.postgres_cdc.config import CdcConfig
from transporter_adaptors.postgres_cdc.copier import Copier
from transporter_adaptors.postgres_cdc.entries import truncation
from transporter_adaptors.postgres_cdc.pending import PendingChanges
from transporter_adaptors.postgres_cdc.position import Position
from transporter_adaptors.postgres_cdc.session import connect_queries, connect_replication
from transporter_adaptors.postgres_cdc.state import TablesState
from transporter_adaptors.postgres_cdc.transactions import TransactionReader
from transporter_adaptors.postgres_cdc.types import TypeCatalog
from transporter_adaptors.postgres_cdc.watch import Watch
from transporter_adaptors.postgres_cdc.wire import SlotStream

if TYPE_CHECKING:
    from transporter.adaptor import Resume
    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres_cdc.handover import Handover, TableCopy

_REPORT: Final = 10.0
"""Seconds between two reports to the server: it ends a session that is silent for a minute."""
_REPORT_COMMITS: Final = 0.1
_SILENCE: Final = 30.0
"""Seconds without a word after which the server is asked for one."""
_ANSWER: Final = 10.0
_IDLE_BYTES: Final = 16 << 20
"""Bytes of others' changes after which a position without messages is logged."""
_IDLE_SECONDS: Final = 60.0
_COPY_RETRY: Final = 0.05
"""Seconds for which the stream goes on when a chunk had to wait."""


class CdcReader:
    """Reader of a database's tables, which copies them and follows their changes."""

    Config: ClassVar[type[AdaptorConfig]] = CdcConfig

    def __init__(self, config: CdcConfig) -> None:
        """Keep *config*, without any I/O."""
        self._config = config
        self._parts: _Open | None = None

    def open(self, resume: Resume) -> None:
        """Check server, tables, publication and slot, create what is missing, and connect."""
        self._parts = _Open(self._config, resume)

    def poll(self, timeout: float) -> Batch:
        """Return the next chunk of the copy, or what the stream has."""
        return self._open_parts.poll(timeout)

    def commit(self, position: str) -> None:
        """Confirm *position* to the slot, which may forget what is behind it (Invariant 1)."""
        self._open_parts.confirm(Position.parse(position).at)

    def keep_alive(self) -> None:
        """Report to the server that this reader is there, also while nothing is polled."""
        if self._parts is not None:
            self._parts.keep_alive()

    def close(self) -> None:
        """End all sessions. Safe to call twice."""
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.close()

    @property
    def _open_parts(self) -> _Open:
        assert self._parts is not None  # noqa: S101 - the engine opens it first
        return self._parts


class _Open:
    """The state of an open reader."""

    def __init__(self, config: CdcConfig, resume: Resume) -> None:
        self._config, self._resume = config, resume
        self._sessions: list[Connection] = []
        self._emptied: list[int] = []
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        config, resume = self._config, self._resume
        host = str(conninfo_to_dict(config.dsn.get_secret_value()).get("host") or "the server")
        self._names = opening.names_of(config, resume.reader, resume.log_id)
        queries = connect_queries(config.dsn)
        self._sessions.append(queries)
        plan = opening.plan_tables(queries, config, host)
        replication = connect_replication(config.dsn)
        self._sessions.append(replication)
        opening.check_same_server(plan.server, replication)
        types = TypeCatalog()
        if resume.position is None:
            self._position, state = self._begin_anew(queries, replication, plan)
            self._unlogged_state: TablesState | None = state
        else:
            self._position, state = self._continue(queries, replication, plan)
            self._unlogged_state = None if state_name(str(state)) == self._position.state else state
        self._state = state
        self._position = replace(self._position, state=state_name(str(state)))
        queued = state.copies
        self._queued = {copy.oid: copy for copy in queued}
        self._handover: Handover = self._position.handover(queued)
        self._translator = ChangeTranslator(queries, config, types, state)
        self._copier = Copier(queries, config, types, self._names.publication)
        self._watch = Watch(queries, self._names, plan.server.version, config.watch, resume, state)
        self._stream = SlotStream(
            replication,
            self._names.slot,
            self._position.at,
            opening.stream_options(self._names),
        )
        self._transactions = TransactionReader(self._stream, self._position.inside)
        self._pending = PendingChanges(self._translator, self._handover)
        self._confirmed = self._reported = self._position.at
        self._reported_at = self._logged_at = monotonic()
        self._logged_lsn = self._position.at
        self._copy_after = 0.0

    def _begin_anew(
        self, queries: Connection, replication: Connection, plan: opening.Plan
    ) -> tuple[Position, TablesState]:
        config = self._config
        publication, members = opening.ensure_publication(queries, config, self._names, plan)
        found = opening.identify(replication)
        at = opening.create_slot(replication, queries, config, self._names, plan.server.version)
        begun = opening.first_transaction(queries)
        state = opening.make_state(config, plan, publication, members, begun)
        self._resume.tell(
            "slot-created", slot=self._names.slot, publication=self._names.publication
        )
        return Position(found.system_id, found.timeline, at), state

    def _continue(
        self, queries: Connection, replication: Connection, plan: opening.Plan
    ) -> tuple[Position, TablesState]:
        config, version = self._config, plan.server.version
        position = Position.parse(self._resume.position or "")
        state = TablesState.parse(self._resume.state(position.state))
        changes = opening.compare_tables(config, plan, state)
        if plan.tables.keys() <= changes.to_copy and changes.repeated:
            return self._begin_again(queries, replication, plan, state, changes)
        found = opening.check_position(replication, position, config)
        slot = slots.find_slot(queries, self._names.slot, version)
        slots.check_slot(slot, self._names.slot, position.at, opening.REMEDY)
        publication, members = opening.ensure_publication(queries, config, self._names, plan)
        opening.check_state(state, publication, members, changes.repeated)
        position = replace(position, system_id=found.system_id, timeline=found.timeline)
        if not changes:
            return position, state
        begun = opening.first_transaction(queries)
        fresh = opening.make_state(config, plan, publication, members, begun)
        made = opening.next_state(config, state, fresh, changes, state.queue[position.begun :])
        opening.drop_removed(queries, config, self._names, state, changes.removed)
        self._emptied = self._to_empty(changes)
        gone = changes.removed | changes.repeated
        copies = tuple(copy for copy in position.copies if copy.oid not in gone)
        return replace(position, begun=0, copies=copies), made

    def _begin_again(
        self,
        queries: Connection,
        replication: Connection,
        plan: opening.Plan,
        state: TablesState,
        changes: opening.Changes,
    ) -> tuple[Position, TablesState]:
        """Copy every table again, by a new slot: whatever was missed is in the copy."""
        opening.drop_slot(queries, self._names, plan.server.version)
        position, fresh = self._begin_anew(queries, replication, plan)
        self._emptied = self._to_empty(changes)
        return position, opening.next_state(self._config, state, fresh, changes, ())

    def _to_empty(self, changes: opening.Changes) -> list[int]:
        """Return the tables whose repeated copies begin with an entry that empties them."""
        return sorted(changes.repeated) if self._config.copy_from_empty else []

    def poll(self, timeout: float) -> Batch:
        if self._unlogged_state is not None:
            # The slot is there: the log has to know from where.
            emptying = [self._emptying(oid) for oid in self._emptied]
            return self._batch(messages_to_batch(emptying) if emptying else None)
        self._watch.look()
        is_between = not self._pending and self._position.inside is None
        if is_between and (chunk := self._copy_chunk()) is not None:
            return chunk
        if not self._pending:
            is_copying = self._handover.next_table is not None
            wait = min(timeout, _COPY_RETRY) if is_copying else timeout
            items = self._transactions.receive(
                self._config.batch_rows, self._config.batch_bytes, wait
            )
            self._pending.add(items)
        return self._take_pending()

    def _emptying(self, oid: int) -> Message:
        """Return the entry that empties a table before it is copied again."""
        table = self._state.tables[oid]
        namespace, source_id = self._translator.namespace(oid), f"copy/{table.run}/begin"
        return Message(namespace, truncation(), None, "command", source_id=source_id)

    def _copy_chunk(self) -> Batch | None:
        copy = self._handover.next_table
        if copy is None or monotonic() < self._copy_after:
            return None
        if not copy.has_room:
            self._copy_after = monotonic() + _COPY_RETRY
            return None
        table = self._state.tables[copy.oid]
        namespace = self._translator.namespace(copy.oid)
        chunk = self._copier.read_next(self._handover, copy, table, namespace)
        # The stream gets its turn after each chunk.
        self._copy_after = monotonic() + (_COPY_RETRY if chunk is None else 0.0)
        if chunk is None:
            return None
        self._announce(chunk.copy, is_first=copy.boundary is None)
        messages = chunk.messages
        if chunk.copy.is_complete:
            messages = _joined(messages, [_completion(namespace, chunk.copy)])
        return Batch(messages, self._record_position())

    def _announce(self, copy: TableCopy, *, is_first: bool) -> None:
        name = str(self._state.tables[copy.oid].full_name)
        if is_first:
            self._resume.tell("copy-began", table=name, run=copy.run)
        if copy.is_complete:
            self._resume.tell("copy-complete", table=name, rows=copy.rows, run=copy.run)

    def _take_pending(self) -> Batch:
        """Return the messages of what came, as far as one frame holds them."""
        found, at, inside = self._pending.take(self._position.at, self._position.inside)
        self._position = replace(self._position, at=at, inside=inside)
        # The keys of what is pending were compared with the chunks as they are.
        if inside is None and not self._pending:
            for oid in self._handover.pass_chunks(at):
                self._resume.tell("table-in-sync", table=str(self._state.tables[oid].full_name))
        return self._batch(found)

    def _batch(self, messages: pa.RecordBatch | None) -> Batch:
        is_due = (
            self._position.at - self._logged_lsn >= _IDLE_BYTES
            or (
                self._position.at > self._logged_lsn
                and monotonic() - self._logged_at >= _IDLE_SECONDS
            )
            or self._unlogged_state is not None
        )
        if messages is None and not is_due:
            return Batch(())
        state, self._unlogged_state = self._unlogged_state, None
        text = None if state is None else str(state)
        return Batch(() if messages is None else messages, self._record_position(), state=text)

    def _record_position(self) -> str:
        """Return the position behind all that was returned, as text."""
        queue, copies = self._state.queue, self._handover.copies
        # A copy that has not begun is as the queue has it.
        begun = self._position.begun
        for place, oid in enumerate(queue[begun:], begun):
            if copies.get(oid) != self._queued.get(oid):
                begun = place + 1
        waiting = {*queue[begun:]}
        started = [copy for copy in copies.values() if copy.oid not in waiting]
        self._position = replace(
            self._position,
            copies=tuple(started),
            passed=frozenset(self._handover.passed),
            begun=begun,
        )
        self._logged_at, self._logged_lsn = monotonic(), self._position.at
        return str(self._position)

    def confirm(self, at: int) -> None:
        """Keep *at* for the next report, and make that soon."""
        self._confirmed = max(self._confirmed, at)
        self._report_soon()

    def keep_alive(self) -> None:
        """Report to the server when that is due, and find out whether it is still there."""
        now = monotonic()
        silent = now - self._transactions.heard_at
        if silent > _SILENCE + _ANSWER and now - self._reported_at < _ANSWER:
            raise SourceUnavailable(
                f"the server has sent nothing for {silent:.0f} s, not even an answer; trying again "
                "may help"
            )
        if self._transactions.wants_reply or now - self._reported_at >= _REPORT:
            self._report(reply=silent > _SILENCE)
        self._report_soon()

    def _report_soon(self) -> None:
        if self._confirmed > self._reported and monotonic() - self._reported_at >= _REPORT_COMMITS:
            self._report()

    def _report(self, *, reply: bool = False) -> None:
        self._stream.report(self._confirmed, reply=reply)
        self._reported, self._reported_at = self._confirmed, monotonic()
        self._transactions.wants_reply = False

    def close(self) -> None:
        """End all sessions."""
        for session in self._sessions:
            session.close()


def _completion(namespace: str, copy: TableCopy) -> Message:
    """Return the entry that ends a copy: the phase of its namespace is complete."""
    fields = {"copied": copy.rows, "run": copy.run}
    return Message(
        namespace,
        json.dumps(fields).encode(),
        None,
        NOOP,
        "complete",
        source_id=f"copy/{copy.run}/complete",
    )


def _joined(batch: pa.RecordBatch, messages: list[Message]) -> pa.RecordBatch:
    table = pa.Table.from_batches([batch, messages_to_batch(messages)])
    (found,) = table.combine_chunks().to_batches()
    return found

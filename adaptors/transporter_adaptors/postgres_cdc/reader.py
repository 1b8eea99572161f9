"""The ``postgres-cdc`` reader: copies tables, then follows their changes."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from time import monotonic, time
from typing import TYPE_CHECKING, ClassVar, Final

from psycopg.conninfo import conninfo_to_dict

from transporter.adaptor import AdaptorConfig, Batch, state_name
from transporter.errors import EnvironmentFault, SourceUnavailable
from transporter.message import NOOP, Message
from transporter_adaptors.postgres.session import translate_errors
from transporter_adaptors.postgres_cdc import slot as slots
from transporter_adaptors.postgres_cdc.changes import ChangeTranslator
from transporter_adaptors.postgres_cdc.config import CdcConfig
from transporter_adaptors.postgres_cdc.copier import Copier
from transporter_adaptors.postgres_cdc.entries import truncation
from transporter_adaptors.postgres_cdc.handover import Handover
from transporter_adaptors.postgres_cdc.pending import PendingChanges
from transporter_adaptors.postgres_cdc.plan import (
    Plan,
    find_published,
    names_of,
    plan_tables,
    stream_options,
)
from transporter_adaptors.postgres_cdc.position import Position
from transporter_adaptors.postgres_cdc.publishing import (
    create_missing,
    drop_unwanted,
    ensure_published,
    publish_new,
)
from transporter_adaptors.postgres_cdc.run_batches import join_parts
from transporter_adaptors.postgres_cdc.schema_log import NewColumns
from transporter_adaptors.postgres_cdc.server import (
    check_position,
    check_same_server,
    end_of_log,
    identify,
)
from transporter_adaptors.postgres_cdc.session import connect_queries, connect_replication
from transporter_adaptors.postgres_cdc.slot_creation import (
    NOTICE,
    check_slot_room,
    create_slot,
    drop_slot,
)
from transporter_adaptors.postgres_cdc.state import TablesState
from transporter_adaptors.postgres_cdc.table_states import (
    Changes,
    check_state,
    compare_tables,
    keeps_slot,
    make_state,
    moved_tables,
    next_state,
    record_items,
)
from transporter_adaptors.postgres_cdc.tables import FoundTable
from transporter_adaptors.postgres_cdc.transactions import TransactionReader
from transporter_adaptors.postgres_cdc.types import TypeCatalog
from transporter_adaptors.postgres_cdc.watch import Watch
from transporter_adaptors.postgres_cdc.wire import SlotStream

if TYPE_CHECKING:
    from collections.abc import Generator
    from collections.abc import Set as AbstractSet

    import pyarrow as pa

    from transporter.adaptor import Resume
    from transporter.change_source import ChangeSource, LoggedReader
    from transporter_adaptors.postgres.session import BoundedConnection, Connection
    from transporter_adaptors.postgres_cdc.handover import TableCopy
    from transporter_adaptors.postgres_cdc.runs import LooseMessage
    from transporter_adaptors.postgres_cdc.server import SystemPosition

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
_PASSED: Final = 1000
"""Transactions that may be remembered before a snapshot is taken for them alone."""
HEARTBEAT: Final = "transporter.heartbeat"
"""The prefix of the messages by which a reader measures its lag."""


class CdcReader:
    """Reader of a database's tables, which copies them and follows their changes."""

    Config: ClassVar[type[AdaptorConfig]] = CdcConfig

    def __init__(self, config: CdcConfig) -> None:
        """Keep *config*, without any I/O."""
        self._config = config
        self._parts: _Open | None = None

    def open(self, resume: Resume) -> None:
        """Check server, tables, publication and slot, create what is missing, and connect."""
        # Most errors are translated where they have a better text.
        with translate_errors("cannot open the reader"):
            self._parts = _Open(self._config, resume)

    def poll(self, timeout: float) -> Batch:
        """Return the next chunk of the copy, or what the stream has."""
        with translate_errors("cannot read the changes"):
            return self._open_parts.poll(timeout)

    def commit(self, position: str) -> None:
        """Confirm *position* to the slot, which may forget what is behind it (Invariant 1)."""
        self._open_parts.confirm(Position.parse(position).at)

    def keep_alive(self) -> None:
        """Report to the server that this reader is there, also while nothing is polled."""
        if self._parts is not None:
            with translate_errors("cannot look at the server"):
                self._parts.keep_alive()

    def close(self) -> None:
        """End all sessions. Safe to call twice."""
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.close()

    def change_source(self, logged: LoggedReader) -> ChangeSource:
        """Return the source, for the commands ``transporter cdc`` and ``check --connect``."""
        # An engine does without these modules.
        from transporter_adaptors.postgres_cdc.operating.source import PostgresSource  # noqa: PLC0415

        return PostgresSource(self._config, logged)

    @property
    def config(self) -> CdcConfig:
        """The settings."""
        return self._config

    @property
    def _open_parts(self) -> _Open:
        assert self._parts is not None  # noqa: S101 - the engine opens it first
        return self._parts


class _Open:
    """The state of an open reader."""

    def __init__(self, config: CdcConfig, resume: Resume) -> None:
        self._config, self._resume = config, resume
        self._sessions: list[Connection | SlotStream | Copier] = []
        self._emptied: list[int] = []
        self._renamed: list[int] = []
        self._unlogged_state: TablesState | None = None
        self._unlogged_events: list[partial[None]] = []
        """Reports about the last batch, which are true once it is in the log."""
        self._opening: Generator[None, float, None] | None = self._begin()
        try:
            # The creation of a slot may wait for hours. An engine can stop meanwhile.
            if not self._go_on(None):
                self._go_on(NOTICE)
        except BaseException:
            self.close()
            raise

    def _go_on(self, seconds: float | None) -> bool:
        """Go on with the opening for some *seconds*; return whether it is done.

        The first call begins it, and has none.
        """
        if self._opening is None:
            return True
        try:
            if seconds is None:
                next(self._opening)
            else:
                self._opening.send(seconds)
        except StopIteration:
            self._opening = None
            return True
        return False

    def _begin(self) -> Generator[None, float, None]:
        """Open everything. Yields before each wait, and takes the seconds that it may last."""
        config, resume = self._config, self._resume
        self._names = names_of(config, resume.reader, resume.log_id)
        self._left_out = dict[int, FoundTable]()
        self._told_problems = dict[int, str]()
        self._has_other_tables = False
        self._awaited = frozenset[int | str]()
        """Tables that are gone, and publications that are new."""
        self._awaited_until = 0
        """The LSN behind changes of these tables, and those from before these publications."""
        self._queries = queries = connect_queries(config.dsn)
        self._sessions.append(queries)
        position, state = self._logged()
        plan = self._plan(state)
        replication = connect_replication(config.dsn)
        self._sessions.append(replication)
        check_same_server(plan.server, replication)
        if position is None or state is None:
            self._position, made = yield from self._begin_anew(replication, plan, None)
        else:
            self._position, made = yield from self._continue(replication, plan, position, state)
        is_logged = state_name(str(made)) == self._position.state
        self._translator = ChangeTranslator(
            queries, config, TypeCatalog(), made, resume.report, self._names
        )
        self._handover = Handover(passed=set(self._position.passed), gone=dict(self._position.gone))
        self._follow(made)
        if is_logged:
            self._unlogged_state = None
        self._server = plan.server
        self._copier = Copier(self._connect_copy, config, self._names)
        self._watch = Watch(queries, config, self._names, plan.server.version, resume)
        # A stream from before a publication cannot have it.
        self._streamed = self._publications_of(made)
        wants_messages = bool(config.messages) or config.heartbeat is not None
        self._stream = SlotStream(
            replication,
            self._names.slot,
            self._position.at,
            stream_options(self._streamed, messages=wants_messages),
        )
        self._sessions += [self._stream, self._copier]
        self._transactions = TransactionReader(self._stream, self._position.inside)
        self._pending = PendingChanges(self._translator, self._handover, self._take_other)
        self._confirmed = self._reported = self._position.at
        self._reported_at = self._logged_at = monotonic()
        self._logged_lsn = self._position.at
        self._copy_after = self._beat_at = 0.0
        self._has_unlogged_step = False
        # After each chunk of the copy, so that neither waits for long. After an opening, too: the
        # last one may have ended at a chunk, and the stream goes on nevertheless.
        self._is_streams_turn = resume.position is not None
        if self._is_streams_turn:
            self._copy_after = monotonic() + _COPY_RETRY

    def _connect_copy(self) -> BoundedConnection:
        """Open a session for the chunks of the copy, on the server that is streamed from."""
        session = connect_queries(self._config.dsn)
        try:
            check_same_server(self._server, session)
        except BaseException:
            session.close()
            raise
        return session

    def _logged(self) -> tuple[Position | None, TablesState | None]:
        """Return the position in the log and the state that it names, if there is one."""
        if self._resume.position is None:
            return None, None
        position = Position.parse(self._resume.position)
        return position, TablesState.parse(self._resume.state(position.state))

    def _plan(self, state: TablesState | None) -> Plan:
        host = str(
            conninfo_to_dict(self._config.dsn.get_secret_value()).get("host") or "the server"
        )
        return plan_tables(self._queries, self._config, self._names, host, state, self._leave_out)

    def _leave_out(self, table: FoundTable, problem: str) -> None:
        """Report, once for each problem, that a new table of a pattern cannot be read."""
        self._left_out[table.oid] = table
        if self._told_problems.get(table.oid) != problem:
            self._told_problems[table.oid] = problem
            self._resume.report("table-left-out", table=str(table.full_name), problem=problem)

    def _begin_anew(
        self, replication: BoundedConnection, plan: Plan, state: TablesState | None
    ) -> Generator[None, float, tuple[Position, TablesState]]:
        config, queries, version = self._config, self._queries, plan.server.version
        check_slot_room(queries, self._names)
        published = ensure_published(queries, config, self._names, plan, state)
        found = identify(replication)
        at = yield from create_slot(
            replication, queries, config, self._names, version, self._resume.report
        )
        made = make_state(queries, config, plan, published)
        self._resume.report(
            "slot-created", slot=self._names.slot, publication=self._names.publication
        )
        return Position(found.system_id, found.timeline, at), made

    def _continue(
        self,
        replication: BoundedConnection,
        plan: Plan,
        position: Position,
        state: TablesState,
    ) -> Generator[None, float, tuple[Position, TablesState]]:
        config, queries, version = self._config, self._queries, plan.server.version
        changes = compare_tables(config, plan, state, moved_tables(queries, state))
        copies_all, found = changes.copies_all(plan), None
        if not copies_all or keeps_slot(config, plan, state):
            found = self._find_source(replication, plan, position, state, copies_all=copies_all)
        if found is None:
            # By a new slot: whatever was missed is in the copy.
            drop_slot(queries, config, self._names, version, position.at)
            self._emptied, self._renamed = self._to_empty(changes), sorted(changes.renamed)
            position, fresh = yield from self._begin_anew(replication, plan, state)
            return position, next_state(config, state, fresh, changes, ())
        position = replace(position, system_id=found.system_id, timeline=found.timeline)
        return self._apply(plan, position, state)

    def _find_source(
        self,
        replication: BoundedConnection,
        plan: Plan,
        position: Position,
        state: TablesState,
        *,
        copies_all: bool,
    ) -> SystemPosition | None:
        """Return the server, which has all changes behind *position*.

        Returns ``None`` if they cannot be read and every table is copied again. Otherwise they are
        read first, because sinks lack the deletes among them.
        """
        queries, names, version = self._queries, self._names, plan.server.version
        try:
            found = check_position(replication, position, self._config)
            with translate_errors(f"cannot look at the replication slot {names.slot}"):
                slot = slots.find_slot(queries, names.slot, version)
            slots.check_slot(slot, names.slot, position.at, state.remedy)
        except EnvironmentFault:
            if copies_all:
                return None
            raise
        if copies_all:
            with translate_errors("cannot look at the publications"):
                published = find_published(queries, names, version)
            oids = {name: each.oid for name, each in published.publications.items()}
            is_other = found.system_id != position.system_id or oids != state.publications
            if is_other or oids.keys() != names.kinds.keys():
                return None
        return found

    def _apply(
        self, plan: Plan, position: Position, state: TablesState
    ) -> tuple[Position, TablesState]:
        """Return position and state with the changes of *plan*, published where they are tables.

        Nothing of *plan* counts while a table that is gone may have changes in the stream, or the
        stream is before a publication that the log does not know: the server could not decode it.
        """
        config, queries = self._config, self._queries
        new = self._names.kinds.keys() - state.publications.keys()
        if self._names.publication not in state.publications:
            new = set()  # They are others', which is a gap.
        for name in sorted(new):
            create_missing(queries, config, self._names, name, plan)
        removed = state.tables.keys() - plan.tables.keys()
        if self._has_unread(removed, new, state, position):
            with translate_errors("cannot look at the publications"):
                published = find_published(queries, self._names, plan.server.version, state)
            check_state(state, self._names, published)
            return position, state
        plan = publish_new(queries, config, self._names, plan, state, self._leave_out)
        changes = compare_tables(config, plan, state, moved_tables(queries, state))
        copied = changes.to_copy
        published = ensure_published(queries, config, self._names, plan, state, copied)
        check_state(state, self._names, published, copied)
        if not changes:
            return position, record_items(state, plan)
        fresh = make_state(queries, config, plan, published)
        made = next_state(config, state, fresh, changes, state.queue[position.begun :])
        drop_unwanted(queries, config, self._names, plan, state)
        self._emptied, self._renamed = self._to_empty(changes), sorted(changes.renamed)
        for event, oids in (
            ("table-removed", changes.removed),
            ("partitions-changed", changes.moved),
        ):
            for oid in sorted(oids):
                self._resume.report(event, table=str(state.tables[oid].full_name))
        gone = changes.removed | changes.to_copy
        copies = tuple(copy for copy in position.copies if copy.oid not in gone)
        return replace(position, begun=0, copies=copies), made

    def _has_unread(
        self,
        removed: AbstractSet[int],
        new: AbstractSet[str],
        state: TablesState,
        position: Position,
    ) -> bool:
        """Return whether *position* is before the end of *removed* tables or *new* publications."""
        awaited = frozenset(
            oid
            for oid in removed
            # Of a table that the pipeline file leaves out now, nothing is wanted.
            if self._config.item_of(state.tables[oid].full_name) is not None
        ).union(new)
        if not awaited <= self._awaited:
            with translate_errors("cannot look at the server's log"):
                self._awaited_until = end_of_log(self._queries)
        self._has_other_tables = bool(awaited) and position.at < self._awaited_until
        # What the stream has passed is taken up now, and not looked at once more.
        self._awaited = awaited if self._has_other_tables else frozenset()
        return self._has_other_tables

    def _publications_of(self, state: TablesState) -> list[str]:
        return [name for name in self._names.kinds if name in state.publications]

    def _to_empty(self, changes: Changes) -> list[int]:
        """Return the tables that an entry empties first.

        Those are repeated copies, if the settings say so, and tables with a name that another had,
        because nothing else takes the rows of that one away.
        """
        repeated = changes.repeated if self._config.copy_from_empty else frozenset()
        return sorted({*repeated, *changes.recreated})

    def _follow(self, state: TablesState) -> None:
        """Follow the tables of *state* from the present position on."""
        self._position = replace(self._position, state=state_name(str(state)))
        self._translator.use(state)
        self._translator.use_names()
        self._unlogged_state = state
        self._queued = {copy.oid: copy for copy in state.copies}
        waiting = state.copies[self._position.begun :]
        self._handover.copies = {}
        self._handover.begin([*self._position.copies, *waiting])

    def _look(self) -> None:
        """Look for gaps, if that is due."""
        if self._watch.is_due:
            is_other = self._watch.look(
                self._translator.state, self._left_out, self._handover, self._position.at
            )
            self._has_other_tables = is_other or bool(self._awaited)
            if self._position.at < self._awaited_until:
                # A server without further changes says how far it is only if it is asked.
                self._report(reply=True)
        else:
            self._watch.follow(self._position.at)

    def _take_up_tables(self) -> None:
        """Follow tables that are new, and leave out those that are gone, while all others go on."""
        state = self._translator.state
        self._has_other_tables = False
        self._left_out.clear()
        plan = self._plan(state)
        self._translator.forget_all_but({*plan.tables, *self._left_out})
        self._record_position()
        self._position, made = self._apply(plan, self._position, state)
        if made != state:
            self._follow(made)

    def poll(self, timeout: float) -> Batch:
        if not self._go_on(timeout):
            return Batch(())
        # The engine polls again once the last batch is durable.
        while self._unlogged_events:
            self._unlogged_events.pop(0)()
        if self._unlogged_state is not None:
            # The slot is there, or tables were published: the log has to know from where.
            return self._batch([self._beginning()])
        if self._streamed != self._publications_of(self._translator.state):
            raise SourceUnavailable(
                "the stream begins again with a publication that is new; trying again may help"
            )
        self._look()
        if (
            self._has_other_tables
            and not self._pending
            and self._position.at >= self._awaited_until
        ):
            self._take_up_tables()
            if self._unlogged_state is not None:
                return self.poll(timeout)
        self._beat()
        is_between = not self._pending and self._position.inside is None
        if is_between and (chunk := self._copy_chunk()) is not None:
            return chunk
        if not self._pending:
            is_copying = self._handover.next_table is not None
            wait = min(timeout, _COPY_RETRY) if is_copying else timeout
            if is_copying and self._is_streams_turn and monotonic() >= self._copy_after:
                wait = 0.0
            self._is_streams_turn = False
            items = self._transactions.receive(
                self._config.batch_rows, self._config.batch_bytes, wait
            )
            self._pending.add(items)
        return self._take_pending()

    def _beginning(self) -> list[Message]:
        """Return the entries that come before those of tables that are followed from now on."""
        emptied, self._emptied = self._emptied, []
        renamed, self._renamed = self._renamed, []
        begin = [self._emptying(oid) for oid in emptied]
        for oid in sorted({*emptied, *renamed}):
            begin += self._describe(oid)
        return begin

    def _emptying(self, oid: int) -> Message:
        """Return the entry that empties a table before it is copied again."""
        table = self._translator.state.tables[oid]
        namespace, source_id = self._translator.namespace(oid), f"copy/{oid}/{table.run}/begin"
        return Message(namespace, truncation(), None, "command", source_id=source_id)

    def _describe(self, oid: int) -> list[Message]:
        """Return the entry about the columns of a table that is in a namespace for the first time.

        Its definition may not come again in the stream.
        """
        table = self._translator.state.tables[oid]
        with translate_errors(f"cannot look up the columns of {table.full_name}"):
            found = self._translator.schema_log.compare(table, table.columns)
        return [] if found is None else self._use_columns(found)

    def _copy_chunk(self) -> Batch | None:
        copy = self._handover.next_table
        if copy is None or monotonic() < self._copy_after:
            return None
        if self._is_streams_turn:
            return None
        if not self._handover.has_room:
            self._copy_after = monotonic() + _COPY_RETRY
            if len(self._handover.passed) > _PASSED:
                self._copier.see_snapshot(self._handover)
            return None
        table = self._translator.state.tables[copy.oid]
        namespace = self._translator.namespace(copy.oid)
        began = monotonic()
        chunk = self._copier.read_next(self._handover, copy, table, namespace)
        self._is_streams_turn = True
        if chunk is None:
            # The stream has waited meanwhile, and gets as much time.
            self._copy_after = monotonic() + max(_COPY_RETRY, monotonic() - began)
            return None
        self._copy_after = 0.0
        self._has_unlogged_step = True
        if self._config.copy_rate is not None:
            self._copy_after = began + chunk.size / self._config.copy_rate
        self._announce(chunk.copy, is_first=copy.boundary is None)
        before, behind = list[Message](), list[Message]()
        with translate_errors(f"cannot look up the columns of {table.full_name}"):
            found = self._translator.schema_log.compare(table, chunk.columns)
        if found is not None:
            before = self._use_columns(found)
        if chunk.copy.is_complete:
            behind = [_completion(namespace, chunk.copy, self._position.at)]
        return self._batch([before, chunk.messages, behind])

    def _announce(self, copy: TableCopy, *, is_first: bool) -> None:
        name = str(self._translator.state.tables[copy.oid].full_name)
        if is_first:
            self._resume.report("copy-began", table=name, run=copy.run)
        if copy.is_complete:
            self._report_once_logged("copy-complete", table=name, rows=copy.rows, run=copy.run)

    def _report_once_logged(self, event: str, **details: object) -> None:
        self._unlogged_events.append(partial(self._resume.report, event, **details))

    def _take_pending(self) -> Batch:
        """Return the messages of what came, as far as one frame holds them."""
        found, at, inside = self._pending.take(self._position.at, self._position.inside)
        self._position = replace(self._position, at=at, inside=inside)
        # The keys of what is pending were compared with the chunks as they are.
        if inside is None and not self._pending:
            for oid in self._handover.pass_chunks(at):
                name = str(self._translator.state.tables[oid].full_name)
                self._report_once_logged("table-in-sync", table=name)
            if not self._handover.copies:
                self._copier.close()
        return self._batch([] if found is None else [found])

    def _take_other(self, item: NewColumns | LooseMessage) -> list[Message]:
        return self._use_columns(item) if isinstance(item, NewColumns) else self._take_loose(item)

    def _use_columns(self, found: NewColumns) -> list[Message]:
        """Remember a table's new columns; return the entry about them, if there is to be one."""
        state, table = self._translator.state, found.table
        made = replace(state, tables={**state.tables, table.oid: table})
        self._translator.use(made)
        self._unlogged_state = made
        self._position = replace(self._position, state=state_name(str(made)))
        if found.changes:
            name = str(table.full_name)
            self._resume.report(
                "schema-changed",
                table=name,
                added=list(found.changes.added),
                dropped=list(found.changes.dropped),
                retyped=list(found.changes.retyped),
            )
            if found.fills:
                self._resume.report(
                    "table-rewritten",
                    table=name,
                    problem="existing rows have values that the server does not send; raise "
                    "copy_run in the table's item, which copies it again",
                )
        entry = found.entry(self._config)
        return [] if entry is None else [entry]

    def _take_loose(self, item: LooseMessage) -> list[Message]:
        """Return the entry of a message outside of a transaction; measure by our own."""
        if item.what.prefix == HEARTBEAT:
            sent = _sent_at(item.what.content, self._names.slot)
            if sent is not None:
                self._resume.measure("lag_seconds", max(0.0, time() - sent))
            return []
        return self._translator.logical(item)

    def _beat(self) -> None:
        """Write a heartbeat if it is due."""
        interval = self._config.heartbeat
        if interval is None or monotonic() < self._beat_at:
            return
        self._beat_at = monotonic() + interval
        content = json.dumps({"slot": self._names.slot, "time": time()})
        with translate_errors("cannot write a heartbeat"):
            self._queries.execute(
                "SELECT pg_logical_emit_message(false, %s, %s)", [HEARTBEAT, content]
            )

    def _batch(self, parts: list[pa.RecordBatch | list[Message]]) -> Batch:
        """Return the *parts* as the next batch, with the position behind them."""
        is_due = (
            self._position.at - self._logged_lsn >= _IDLE_BYTES
            or (
                self._position.at > self._logged_lsn
                and monotonic() - self._logged_at >= _IDLE_SECONDS
            )
            # A copy whose filter leaves every row out goes forward as well.
            or (self._has_unlogged_step and monotonic() - self._logged_at >= _IDLE_SECONDS)
            or self._unlogged_state is not None
        )
        messages = join_parts(parts)
        if messages is None and not is_due:
            return Batch(())
        state, self._unlogged_state = self._unlogged_state, None
        text = None if state is None else str(state)
        return Batch(() if messages is None else messages, self._record_position(), state=text)

    def _record_position(self) -> str:
        """Return the position behind all that was returned, as text."""
        queue, copies = self._translator.state.queue, self._handover.copies
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
            gone=tuple(self._handover.gone.items()),
            begun=begun,
        )
        self._logged_at, self._logged_lsn = monotonic(), self._position.at
        self._has_unlogged_step = False
        return str(self._position)

    def confirm(self, at: int) -> None:
        """Keep *at* for the next report, and make that soon."""
        self._confirmed = max(self._confirmed, at)
        self._report_soon()

    def keep_alive(self) -> None:
        """Report to the server when that is due, and find out whether it is still there."""
        if self._opening is not None:
            return
        self._look()
        now = monotonic()
        if now - self._transactions.heard_at > _SILENCE and self._stream.has_input:
            # It is not silent, but there are no polls: the log is full, or chunks are read.
            self._transactions.heard_at = now
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
        if self._opening is not None:
            self._opening.close()
        for session in reversed(self._sessions):
            session.close()


def _completion(namespace: str, copy: TableCopy, at: int) -> Message:
    """Return the entry that ends a copy: the phase of its namespace is complete.

    A TRUNCATE may begin the copy again behind it, so its id has the LSN *at* of the stream.
    """
    fields = {"copied": copy.rows, "run": copy.run}
    return Message(
        namespace,
        json.dumps(fields).encode(),
        None,
        NOOP,
        "complete",
        source_id=f"copy/{copy.oid}/{copy.run}/complete/{at:016X}",
    )


def _sent_at(content: bytes, slot: str) -> float | None:
    """Return when a heartbeat of *slot* was sent, or ``None`` for another's."""
    try:
        fields = json.loads(content)
        return float(fields["time"]) if fields["slot"] == slot else None
    except (ValueError, LookupError, TypeError):
        return None

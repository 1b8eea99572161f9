"""Checks of all that an open of the reader needs, which change nothing.

Notes on the server's limits, on large values and on the size of the copy come with them.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from transporter.adaptor import Finding
from transporter.errors import TransporterError
from transporter.units import format_size
from transporter_adaptors.postgres.session import server_text, translate_errors
from transporter_adaptors.postgres_cdc import publication as pub
from transporter_adaptors.postgres_cdc import rights
from transporter_adaptors.postgres_cdc import server as servers
from transporter_adaptors.postgres_cdc import slot as slots
from transporter_adaptors.postgres_cdc.item_changes import find_item_changes
from transporter_adaptors.postgres_cdc.operating import facts
from transporter_adaptors.postgres_cdc.operating.logged import COPIED_AGAIN
from transporter_adaptors.postgres_cdc.plan import (
    Plan,
    find_left_out,
    find_plan,
    find_published,
    table_problems,
)
from transporter_adaptors.postgres_cdc.publishing import item_problem
from transporter_adaptors.postgres_cdc.session import (
    COMMAND_PATIENCE,
    connect_queries,
    connect_replication,
)
from transporter_adaptors.postgres_cdc.table_states import compare_tables
from transporter_adaptors.postgres_cdc.tables import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres.table import TableName
    from transporter_adaptors.postgres_cdc.config import CdcConfig
    from transporter_adaptors.postgres_cdc.operating.logged import LoggedState


def check_source(config: CdcConfig, logged: LoggedState) -> Iterator[Finding]:
    """Yield findings about the database of *config*, for the reader as *logged*."""
    with closing(connect_queries(config.dsn, COMMAND_PATIENCE)) as queries:
        with translate_errors("cannot look at the database"):
            server = servers.read_server(queries)
        yield Finding(server_text(queries, server.role))
        problems = [str(each) for each in servers.server_problems(server, queries.info.host)]
        yield from (Finding(each, "problem") for each in problems)
        if server.version < servers.OLDEST or server.is_standby:
            return
        with translate_errors("cannot check the database"):
            plan = find_plan(queries, config, server)
            yield from _Checks(queries, config, logged, plan).run()
    if not problems:
        yield from _check_replication(config, logged, server)


class _Checks:
    """The checks in one session."""

    def __init__(
        self, queries: Connection, config: CdcConfig, logged: LoggedState, plan: Plan
    ) -> None:
        self._queries, self._config, self._logged, self._plan = queries, config, logged, plan
        self._version, self._role = plan.server.version, plan.server.role
        self._names = {oid: table.full_name for oid, (table, _, _) in plan.tables.items()}

    def run(self) -> Iterator[Finding]:
        """Yield all findings."""
        yield from self._leave_out_tables()
        problems = list(table_problems(self._config, self._plan))
        yield from (Finding(each, "problem") for each in problems)
        yield from self._check_rights()
        yield from self._check_publications()
        slot = None
        if self._logged.slot:
            slot = slots.find_slot(self._queries, self._logged.slot, self._version)
        yield from self._check_slot(slot)
        yield from _check_limits(self._queries, slot, has_failover=self._config.failover)
        updated = {
            oid: table.full_name
            for oid, (table, item, _) in self._plan.tables.items()
            if not item.insert_only
        }
        yield from _describe_large_values(self._queries, updated)
        if to_copy := self._tables_to_copy():
            yield _describe_copy(self._queries, to_copy)

    def _leave_out_tables(self) -> Iterator[Finding]:
        """Report tables that a running reader leaves out, and check the rest of the plan."""
        if self._logged.state is None:
            return
        left_out = find_left_out(
            self._queries, self._config, self._logged.names, self._plan, self._logged.state
        )
        for problem in left_out.values():
            yield Finding(f"{problem}; until then the reader leaves it out", "warning")
        self._plan = self._plan.without(left_out)
        self._names = {oid: table.full_name for oid, (table, _, _) in self._plan.tables.items()}

    def _tables_to_copy(self) -> set[int]:
        """Return the tables that are not copied completely yet, or are to be copied again."""
        state, position = self._logged.state, self._logged.position
        if state is None or position is None:
            return {oid for oid in self._names if self._is_copied(oid)}
        changes = compare_tables(self._config, self._plan, state)
        copying = {copy.oid for copy in position.copies if not copy.is_complete}
        unfinished = copying | {*state.queue[position.begun :]}
        begun_again = {oid for oid in changes.to_copy if self._is_copied(oid)}
        return {*self._names} & (unfinished | begun_again)

    def _is_copied(self, oid: int) -> bool:
        _, item, _ = self._plan.tables[oid]
        return self._config.copies(item)

    def _check_rights(self) -> Iterator[Finding]:
        copied = {
            oid: (self._names[oid], item.columns)
            for oid, (_, item, _) in self._plan.tables.items()
            if self._is_copied(oid)
        }
        found = rights.copy_problems(self._queries, self._role, copied)
        yield from (Finding(each, "problem") for each in dict.fromkeys(text for _, text in found))

    def _check_publications(self) -> Iterator[Finding]:
        names = self._logged.names
        published = find_published(self._queries, names, self._version, self._logged.state)
        gaps, lost = self._logged.find_gaps(self._config, self._plan, published)
        yield from (Finding(each, "problem") for each in gaps)
        for name, publish in names.kinds.items():
            found, wanted = published.publications.get(name), self._plan.wanted_in(names, name)
            if found is not None:
                partitioned = self._plan.has_partitioned(wanted)
                wrong = pub.publication_problems(found, publish, has_partitioned=partitioned)
                yield from (Finding(each, "problem") for each in wrong)
                others = list(self._check_items(name, found, wanted, published.members))
                yield from others
                if wanted.keys() <= published.members.keys() and not others:
                    yield Finding(f"publication {name}: has all {_count(len(wanted), 'table')}")
            present = {*published.members, *lost}
            if missing := {oid: table for oid, table in wanted.items() if oid not in present}:
                yield self._describe_missing(name, publish, found, missing)

    def _check_items(
        self,
        name: str,
        publication: pub.Publication,
        wanted: Iterable[int],
        members: Mapping[int, pub.Member],
    ) -> Iterator[Finding]:
        """Report tables that are published, or have a key, other than their items ask."""
        present = sorted({*wanted} & members.keys())
        copied = self._logged.tables_to_copy(self._config, self._plan)
        found = find_item_changes(self._plan, name, members, present, self._logged.state)
        for oid, change in found.items():
            problem = item_problem(self._config, name, self._plan, members, oid, change, copied)
            if not problem and change.is_published and not self._may_publish(publication, [oid]):
                statement = pub.replace_statement(name, [self._plan.wanted[oid]]).as_string()
                problem = (
                    f"{change.text}, and role {self._role} may not publish the table: only its "
                    f"owner may; have the owner run {statement}"
                )
            if problem:
                yield Finding(problem, "problem")
            else:
                yield Finding(f"{change.text}; the next open of the reader copies it so")

    def _describe_missing(
        self,
        name: str,
        publish: str,
        found: pub.Publication | None,
        missing: Mapping[int, pub.WantedTable],
    ) -> Finding:
        tables = list(missing.values())
        made = (
            pub.create_statement(name, tables, publish)
            if found is None
            else pub.add_statement(name, tables)
        )
        statement = made.as_string(self._queries)
        lacks = f"publication {name} lacks {listed(table.name for table in missing.values())}"
        if found is None:
            lacks = f"there is no publication {name}"
        if self._config.manage != "all":
            return Finding(
                f"{lacks}, and manage is {self._config.manage}; have the tables' owner run "
                f"{statement}",
                "problem",
            )
        if not self._may_publish(found, missing):
            return Finding(
                f"{lacks}, and role {self._role} may not publish the tables: only their owner may, "
                f"with CREATE on the database; have the owner run {statement}",
                "problem",
            )
        return Finding(f"{lacks}; the next open of the reader mends that")

    def _may_publish(self, found: pub.Publication | None, missing: Iterable[int]) -> bool:
        owned = all(
            each.is_owner for each in rights.table_rights(self._queries, missing, self._role)
        )
        if found is None:
            return owned and facts.database_rights(self._queries, self._role).may_create
        return owned and rights.owns_publication(self._queries, found.oid)

    def _check_slot(self, slot: slots.Slot | None) -> Iterator[Finding]:
        name, position, manage = self._logged.slot, self._logged.position, self._config.manage
        if not name:
            text = "the slot gets its name from the log, which the first start creates"
            if manage == "nothing":
                yield Finding(f"{text}, and manage is nothing: name it by slot", "problem")
            else:
                yield Finding(f"{text} with the slot")
            return
        if slot is None and position is None:
            if manage == "nothing":
                yield Finding(
                    f"slot {name} is missing, and manage is nothing; run SELECT "
                    f"pg_create_logical_replication_slot('{name}', 'pgoutput')",
                    "problem",
                )
            else:
                yield Finding(f"there is no slot {name} yet; the first start creates it")
            return
        if self._logged.is_begun_again(self._config, self._plan):
            wrong = [] if slot is None else list(_problem_of(lambda: slots.check_kind(slot, name)))
            yield from wrong or [Finding(f"slot {name}: {COPIED_AGAIN}")]
            return
        if slot is not None and slot.is_active:
            yield Finding(
                f"slot {name} is active for PID {slot.pid} ({slot.application or 'unknown'}): an "
                "engine reads from it"
            )
            return
        at = None if position is None else position.at
        wrong = list(_problem_of(lambda: slots.check_slot(slot, name, at, self._logged.remedy)))
        yield from wrong or [Finding(f"slot {name}: {slot.status if slot else 'ready'}")]


def _problem_of(check: Callable[[], object]) -> Iterator[Finding]:
    try:
        check()
    except TransporterError as error:
        yield Finding(str(error), "problem")


def _check_limits(
    queries: Connection, slot: slots.Slot | None, *, has_failover: bool
) -> Iterator[Finding]:
    """Yield findings about what the server allows. *slot* is the reader's, if there is one."""
    found = facts.read_limits(queries)
    is_full = slot is None and found.used_slots >= found.slots
    yield Finding(
        f"replication slots: {found.used_slots} of {found.slots} are used"
        + ("; raise max_replication_slots, or drop one" if is_full else ""),
        "problem" if is_full else "fine",
    )
    is_full = not (slot and slot.is_active) and found.used_senders >= found.senders
    yield Finding(
        f"walsenders: {found.used_senders} of {found.senders} are used"
        + ("; raise max_wal_senders" if is_full else ""),
        "problem" if is_full else "fine",
    )
    yield Finding(
        "max_slot_wal_keep_size is unlimited: while the engine is away, the server's log grows "
        "until its disk is full"
        if found.kept_wal == "-1"
        else f"max_slot_wal_keep_size is {found.kept_wal}: a reader that is further behind "
        "loses its slot, and has to copy every table again"
    )
    if found.idle_timeout not in (None, "0"):
        yield Finding(
            f"idle_replication_slot_timeout is {found.idle_timeout}: an engine that is away "
            "for longer loses its slot, and has to copy every table again",
            "warning",
        )
    if has_failover and found.synchronized == "":
        yield Finding(
            "synchronized_standby_slots is empty: after a failover the log may hold "
            "transactions that the new primary does not have; name the standbys' slots there",
            "warning" if found.standbys else "fine",
        )


def _describe_large_values(
    queries: Connection, names: Mapping[int, TableName]
) -> Iterator[Finding]:
    """Yield a note about each of the tables *names*, by number, that may have large values."""
    toasted = facts.toasted_columns(queries, names)
    for oid, columns in toasted.items():
        yield Finding(
            f"{names[oid]}: a large value of {', '.join(columns)} that an update does "
            "not change is not in the entry, whose header pg-unchanged names the column; "
            "REPLICA IDENTITY FULL sends it"
        )


def _describe_copy(queries: Connection, oids: Collection[int]) -> Finding:
    """Return a note about the size of the tables *oids*, which are to be copied."""
    rows = facts.estimate_rows(queries, oids).values()
    known = [each for each in rows if each is not None]
    text = f"to copy: {_count(len(rows), 'table')}, {format_size(facts.total_size(queries, oids))}"
    if known:
        text += f", about {sum(known):,} rows"
    if unknown := len(rows) - len(known):
        text += f" ({_count(unknown, 'table')} never analyzed, so the rows are unknown)"
    return Finding(text)


def _count(number: int, noun: str) -> str:
    """Return *number* with its *noun*."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _check_replication(
    config: CdcConfig, logged: LoggedState, server: servers.Server
) -> Iterator[Finding]:
    """Check a replication session, and the server's history if the log follows one."""
    try:
        with closing(connect_replication(config.dsn, COMMAND_PATIENCE)) as replication:
            servers.check_same_server(server, replication)
            found = servers.identify(replication)
            yield Finding(
                f"a replication session: accepted; system id {found.system_id}, timeline "
                f"{found.timeline}"
            )
            if logged.position is not None:
                servers.check_position(replication, logged.position, config)
    except TransporterError as error:
        yield Finding(str(error), "problem")

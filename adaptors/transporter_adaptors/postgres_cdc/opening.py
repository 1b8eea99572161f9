"""The opening of a reader: checks first, then publication and slot, then the tables' state.

Nothing is created before all checks have passed. What was created and is not in the log yet, after
a crash in between, is found by its name and taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import psycopg

from transporter.errors import EnvironmentFault, SourceUnavailable
from transporter_adaptors.postgres.session import translate_errors
from transporter_adaptors.postgres_cdc import publication as pub
from transporter_adaptors.postgres_cdc import server as servers
from transporter_adaptors.postgres_cdc import slot as slots
from transporter_adaptors.postgres_cdc.state import FollowedTable, TablesState
from transporter_adaptors.postgres_cdc.tables import find_tables, listed, read_definition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from psycopg import sql

    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres_cdc.config import CdcConfig, TableItem
    from transporter_adaptors.postgres_cdc.position import Position
    from transporter_adaptors.postgres_cdc.server import Server, SystemPosition
    from transporter_adaptors.postgres_cdc.tables import FoundTable, TableDefinition

REMEDY: Final = "raise copy_run, which copies every table again"


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a reader's publication and slot."""

    publication: str
    slot: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The tables that the pipeline file asks for, as they are in the database."""

    server: Server
    tables: Mapping[int, tuple[FoundTable, TableItem, TableDefinition]]

    @property
    def wanted(self) -> dict[int, pub.WantedTable]:
        """The tables as the publication is to have them, by number."""
        return {
            oid: pub.WantedTable(table.full_name, item.columns, item.where)
            for oid, (table, item, _) in self.tables.items()
        }

    @property
    def has_partitioned(self) -> bool:
        """Whether a table is partitioned."""
        return any(table.kind == "p" for table, _, _ in self.tables.values())


def names_of(config: CdcConfig, reader: str, log_id: str) -> Names:
    """Return the names of publication and slot of *reader* into the log *log_id*."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in reader.lower())
    slot = config.slot or f"transporter_{plain[:42]}_{log_id[:8].lower()}"
    return Names(config.publication or f"transporter_{plain[:50]}", slot)


def plan_tables(queries: Connection, config: CdcConfig, host: str) -> Plan:
    """Find the tables to read, and check them and the server.

    Raises:
        EnvironmentFault: something must be changed there or in the pipeline file.
        SourceUnavailable: the server is a standby.

    """
    with translate_errors("cannot look at the database"):
        server = servers.read_server(queries)
        servers.check_server(server, host)
        plan = find_plan(queries, config, server)
    for problem in table_problems(config, plan):
        raise EnvironmentFault(problem)
    return plan


def find_plan(queries: Connection, config: CdcConfig, server: Server) -> Plan:
    """Find the tables to read on *server*, without any check."""
    found = {}
    for table in find_tables(queries):
        item = config.item_of(table.full_name)
        if item is None or (item.is_pattern and (table.problem or table.is_partition)):
            continue
        found[table.oid] = (table, item, read_definition(queries, table.oid))
    return Plan(server, found)


def table_problems(config: CdcConfig, plan: Plan) -> Iterator[str]:
    """Yield every reason why the tables of *plan* cannot be read."""
    known = {table.full_name for table, _, _ in plan.tables.values()}
    missing = [
        item.name
        for item in config.tables
        if not item.is_pattern and not item.excludes and item.name not in known
    ]
    if missing:
        yield f"there is no table {listed(missing)}; create it, or correct tables"
    elif not known:
        yield "no table matches tables; correct the patterns, or create a table"
    for table, item, definition in plan.tables.values():
        if problem := table.problem:
            yield f"{table.full_name} {problem}; leave it out of tables"
            continue
        yield from (
            f"{table.full_name}{problem}"
            for problem in _definition_problems(config, plan.server, table, item, definition)
        )


def _definition_problems(
    config: CdcConfig,
    server: Server,
    table: FoundTable,
    item: TableItem,
    definition: TableDefinition,
) -> Iterator[str]:
    if table.identity_problem:
        yield f" {table.identity_problem}"
    if (item.columns or item.where) and server.version < pub.COLUMN_LISTS:
        yield (
            f": columns and where need PostgreSQL 15, and this is {server.version // 10000}; leave "
            "them out of its item of tables"
        )
    if not key_of(item, definition):
        yield (
            " has no primary key, so its entries would have no key; name unique columns by key in "
            "its item of tables"
        )
    nullable = {column.name for column in definition.columns if not column.not_null}
    unknown = {*item.key} - {column.name for column in definition.columns}
    if unknown or nullable & {*item.key}:
        wrong = min(unknown or nullable & {*item.key})
        yield f": key names {wrong}, which is not a column that is NOT NULL"
    if config.copy_tables == "all" and not definition.copy_key:
        yield (
            " has no unique columns that are NOT NULL, so it cannot be copied in an order; add a "
            "primary key, or write copy: none"
        )


def key_of(item: TableItem, definition: TableDefinition) -> tuple[str, ...]:
    """Return the columns that become the key of the table's entries."""
    if item.key:
        return item.key
    for key in sorted(definition.keys, key=lambda each: not each.is_identity):
        return tuple(key.columns)
    return ()


def ensure_publication(
    queries: Connection, config: CdcConfig, names: Names, plan: Plan
) -> tuple[pub.Publication, dict[int, pub.Member]]:
    """Return the publication with all tables of *plan* in it, created or altered if necessary.

    Raises:
        EnvironmentFault: it lacks something, and is not ours to change.

    """
    wanted = plan.wanted
    with translate_errors(f"cannot prepare the publication {names.publication}"):
        found = pub.find_publication(queries, names.publication)
        if found is None:
            _publish(queries, config, names, list(wanted.values()), pub.create_statement)
            found = pub.find_publication(queries, names.publication)
        assert found is not None  # noqa: S101 - it was created
        pub.check_publication(found, needs_roots=plan.has_partitioned)
        members = _members(queries, names, plan)
        if missing := [table for oid, table in wanted.items() if oid not in members]:
            _publish(queries, config, names, missing, pub.add_statement)
            members = _members(queries, names, plan)
    return found, {oid: member for oid, member in members.items() if oid in plan.tables}


def _members(queries: Connection, names: Names, plan: Plan) -> dict[int, pub.Member]:
    found = pub.find_members(queries, names.publication, plan.server.version)
    return {member.oid: member for member in found}


def _publish(
    queries: Connection,
    config: CdcConfig,
    names: Names,
    tables: Sequence[pub.WantedTable],
    make_statement: Callable[[str, Sequence[pub.WantedTable]], sql.Composed],
) -> None:
    """Publish *tables*, if that is this reader's to do."""
    statement = make_statement(names.publication, tables)
    if config.manage != "all":
        raise EnvironmentFault(
            f"publication {names.publication} lacks {listed(table.name for table in tables)}, and "
            f"manage is {config.manage}; have the tables' owner run {statement.as_string()}"
        )
    try:
        queries.execute(statement)
    except psycopg.errors.InsufficientPrivilege as error:
        raise EnvironmentFault(
            f"may not publish the tables ({error.diag.message_primary}): only their owner may, "
            f"with CREATE on the database; have the owner run {statement.as_string()}"
        ) from error


def identify(replication: Connection) -> SystemPosition:
    """Return the identity of the server of the session *replication*."""
    with translate_errors("cannot identify the server"):
        return servers.identify_system(replication)


def check_same_server(server: Server, replication: Connection) -> None:
    """Check that both sessions are on *server*, in one run of its process.

    Raises:
        SourceUnavailable: they are not, as while another server takes over.

    """
    with translate_errors("cannot look at the server"):
        other = servers.read_server(replication)
    if (other.system_id, other.started) != (server.system_id, server.started):
        raise SourceUnavailable(
            "the dsn leads to two servers, or the server was started again meanwhile; trying again "
            "may help"
        )


def stream_options(names: Names) -> dict[str, str]:
    """Return the options of the plugin."""
    # Names in the list are separated by commas and may be quoted.
    quoted = '"' + names.publication.replace('"', '""') + '"'
    return {"proto_version": "1", "publication_names": quoted}


def first_transaction(queries: Connection) -> int:
    """Return the number of a transaction that begins now (rule 1 of the hand-over)."""
    with translate_errors("cannot begin the copy"):
        row = queries.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM has a row
    return int(row[0])


def make_state(
    config: CdcConfig,
    plan: Plan,
    publication: pub.Publication,
    members: Mapping[int, pub.Member],
    begun: int,
) -> TablesState:
    """Return the state of a reader that begins, whose copies begin after *begun*."""
    tables = {}
    for oid, (table, item, definition) in plan.tables.items():
        tables[oid] = FollowedTable(
            oid=oid,
            schema=table.schema,
            name=table.name,
            membership=members[oid].membership,
            key=key_of(item, definition),
            copy_key=definition.copy_key,
            begun=begun,
            run=config.run_of(item),
        )
    queue = tuple(tables) if config.copy_tables == "all" else ()
    return TablesState(publication.oid, tables, queue)


@dataclass(frozen=True, slots=True)
class Changes:
    """What the pipeline file asks for beside what the log has."""

    added: frozenset[int]
    removed: frozenset[int]
    repeated: frozenset[int]

    @property
    def to_copy(self) -> frozenset[int]:
        """Tables that are copied, for the first time or once more."""
        return self.added | self.repeated

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.repeated)


def compare_tables(config: CdcConfig, plan: Plan, state: TablesState) -> Changes:
    """Compare the tables of *plan* with those of *state*."""
    known, wanted = state.tables, plan.tables
    repeated = {
        oid
        for oid, (_, item, _) in wanted.items()
        if oid in known and config.run_of(item) > known[oid].run
    }
    return Changes(
        frozenset(wanted.keys() - known.keys()),
        frozenset(known.keys() - wanted.keys()),
        frozenset(repeated),
    )


def next_state(
    config: CdcConfig,
    state: TablesState,
    fresh: TablesState,
    changes: Changes,
    waiting: Sequence[int],
) -> TablesState:
    """Return the state after *changes*, with the tables of *fresh* where they are copied.

    *waiting* are the tables of the old queue whose copies have not begun.
    """
    tables = {
        oid: replace(table, is_repeated=oid in changes.repeated and not config.copy_from_empty)
        if oid in changes.to_copy
        else replace(state.tables[oid], schema=table.schema, name=table.name)
        for oid, table in fresh.tables.items()
    }
    queue = [oid for oid in waiting if oid in tables and oid not in changes.to_copy]
    if config.copy_tables == "all":
        queue += [oid for oid in tables if oid in changes.to_copy]
    return TablesState(fresh.publication, tables, tuple(queue))


def check_state(
    state: TablesState,
    publication: pub.Publication,
    members: Mapping[int, pub.Member],
    repeated: frozenset[int] = frozenset(),
) -> None:
    """Check that the tables were published all the time since *state* was logged.

    Those that are *repeated* need not have been, because they are copied again.

    Raises:
        EnvironmentFault: changes may be missing.

    """
    if publication.oid != state.publication and not state.tables.keys() <= repeated:
        raise EnvironmentFault(
            f"publication {publication.name} was dropped and created again (OID "
            f"{state.publication}, now {publication.oid}): changes in between were never sent; "
            f"{REMEDY}"
        )
    for oid, table in state.tables.items():
        member = members.get(oid)
        if oid in repeated or member is None:
            continue
        if member.membership != table.membership:
            raise EnvironmentFault(
                f"table {table.full_name} left the publication {publication.name} and came back: "
                f"changes in between were never sent; {REMEDY}"
            )


def check_position(
    replication: Connection, position: Position, config: CdcConfig
) -> SystemPosition:
    """Check that the server has all that is logged, and return its identity.

    Raises:
        EnvironmentFault: it is another server, or has lost some of that.

    """
    with translate_errors("cannot look at the server's history"):
        found = servers.identify_system(replication)
        fork = None
        if found.timeline != position.timeline and found.system_id == position.system_id:
            fork = servers.fork_of(replication, found.timeline, position.timeline)
    ours = config.server or position.system_id
    servers.check_history((ours, position.timeline), position.reached, found, fork)
    return found


def create_slot(
    replication: Connection, queries: Connection, config: CdcConfig, names: Names, version: int
) -> int:
    """Create the slot, or take one that an earlier run has created and not logged.

    Returns:
        The LSN from which it has everything.

    """
    with translate_errors(f"cannot create the replication slot {names.slot}"):
        found = slots.find_slot(queries, names.slot, version)
        if found is not None:
            slots.check_slot(found, names.slot, None, REMEDY)
            return found.confirmed_lsn
        if config.manage == "nothing":
            raise EnvironmentFault(
                f"slot {names.slot} is missing, and manage is nothing; run SELECT "
                f"pg_create_logical_replication_slot('{names.slot}', 'pgoutput')"
            )
        return slots.create_slot(replication, names.slot, version, failover=config.failover)


def drop_slot(queries: Connection, names: Names, version: int) -> None:
    """Drop the slot, if it is there: every table is copied again, and needs nothing of it.

    Raises:
        SourceUnavailable: a session is reading from it.

    """
    with translate_errors(f"cannot drop the replication slot {names.slot}"):
        found = slots.find_slot(queries, names.slot, version)
        if found is None:
            return
        if found.is_active:
            slots.check_slot(replace(found, status=None, reason=None), names.slot, None, REMEDY)
        queries.execute("SELECT pg_drop_replication_slot(%s)", [names.slot])


def drop_removed(
    queries: Connection,
    config: CdcConfig,
    names: Names,
    state: TablesState,
    removed: frozenset[int],
) -> None:
    """Take tables that are no longer to be read out of the publication, if it is ours."""
    if config.manage != "all" or not removed:
        return
    with translate_errors(f"cannot alter the publication {names.publication}"):
        there = {
            member.oid
            for member in pub.find_members(queries, names.publication, queries.info.server_version)
        }
        gone = [state.tables[oid].full_name for oid in removed if oid in there]
        if gone:
            pub.drop_tables(queries, names.publication, gone)

"""The opening of a reader: checks first, then publication and slot, then the tables' state.

Nothing is created before all checks have passed. What was created and is not in the log yet, after
a crash in between, is found by its name and taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from transporter.errors import EnvironmentFault, SourceUnavailable, TransporterError
from transporter_adaptors.postgres.session import translate_errors
from transporter_adaptors.postgres_cdc import publication as pub
from transporter_adaptors.postgres_cdc import rights, slot_creation
from transporter_adaptors.postgres_cdc import server as servers
from transporter_adaptors.postgres_cdc import slot as slots
from transporter_adaptors.postgres_cdc.columns import LoggedColumn
from transporter_adaptors.postgres_cdc.state import FollowedTable, TablesState
from transporter_adaptors.postgres_cdc.tables import (
    find_files,
    find_tables,
    listed,
    read_definition,
)

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Container,
        Generator,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from transporter_adaptors.postgres.session import BoundedConnection, Connection
    from transporter_adaptors.postgres.table import TableName
    from transporter_adaptors.postgres_cdc.config import CdcConfig, TableItem
    from transporter_adaptors.postgres_cdc.position import Position
    from transporter_adaptors.postgres_cdc.server import Server, SystemPosition
    from transporter_adaptors.postgres_cdc.tables import FoundTable, TableDefinition


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a reader's publication and slot.

    ``inserts`` is the publication of tables of which only INSERT and TRUNCATE are published, where
    there are such.
    """

    publication: str
    slot: str
    inserts: str | None = None

    @property
    def kinds(self) -> dict[str, str]:
        """The kinds of changes by publication."""
        return {self.publication: pub.EVERYTHING} | (
            {self.inserts: pub.INSERTS} if self.inserts else {}
        )

    def publication_of(self, *, insert_only: bool) -> str:
        """Return the publication of a table."""
        return self.inserts if insert_only and self.inserts else self.publication


@dataclass(frozen=True, slots=True)
class Plan:
    """The tables that the pipeline file asks for, as they are in the database."""

    server: Server
    tables: Mapping[int, tuple[FoundTable, TableItem, TableDefinition]]

    @property
    def wanted(self) -> dict[int, pub.WantedTable]:
        """The tables as the publications are to have them, by number."""
        return {
            oid: pub.WantedTable(table.full_name, item.columns, item.where, item.insert_only)
            for oid, (table, item, _) in self.tables.items()
        }

    def wanted_in(self, names: Names, publication: str) -> dict[int, pub.WantedTable]:
        """Return those of :attr:`wanted` that *publication* is to have."""
        return {
            oid: table
            for oid, table in self.wanted.items()
            if names.publication_of(insert_only=table.insert_only) == publication
        }

    def new_of_patterns(self, state: TablesState) -> list[int]:
        """Return the tables that a pattern matches and that *state* does not follow."""
        return [
            oid
            for oid, (_, item, _) in self.tables.items()
            if item.is_pattern and oid not in state.tables
        ]

    def only(self, oids: Container[int]) -> Plan:
        """Return the plan of the tables *oids*."""
        kept = {oid: each for oid, each in self.tables.items() if oid in oids}
        return Plan(self.server, kept)

    def without(self, oids: Container[int]) -> Plan:
        """Return the plan without the tables *oids*."""
        kept = {oid: each for oid, each in self.tables.items() if oid not in oids}
        return Plan(self.server, kept)

    def has_partitioned(self, oids: Iterable[int]) -> bool:
        """Return whether one of the tables *oids* is partitioned."""
        return any(self.tables[oid][0].kind == "p" for oid in oids)


def names_of(config: CdcConfig, reader: str, log_id: str) -> Names:
    """Return the names of publication and slot of *reader* into the log *log_id*."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in reader.lower())
    slot = config.slot or f"transporter_{plain[:42]}_{log_id[:8].lower()}"
    name = config.publication or f"transporter_{plain[:42]}"
    return Names(name, slot, f"{name[:55]}_inserts" if config.has_insert_only else None)


def plan_tables(
    queries: Connection,
    config: CdcConfig,
    names: Names,
    host: str,
    state: TablesState | None = None,
    leave_out: Callable[[FoundTable, str], None] = lambda *_: None,
) -> Plan:
    """Find the tables to read, and check them and the server.

    Tables that :func:`find_left_out` returns are passed to *leave_out*. One of the tables of
    *state* may be gone.

    Raises:
        EnvironmentFault: something must be changed there or in the pipeline file.
        SourceUnavailable: the server is a standby.

    """
    followed = {} if state is None else state.tables
    with translate_errors("cannot look at the database"), queries.transaction():
        # One snapshot, in which a table that is dropped meanwhile still has its columns and keys.
        queries.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        server = servers.read_server(queries)
        servers.check_server(server, host)
        found = find_plan(queries, config, server)
        left_out = {} if state is None else find_left_out(queries, config, names, found, state)
        plan = found.without(left_out)
        lacking = _lacking_rights(queries, config, plan, followed)
    for oid, problem in left_out.items():
        table, *_ = found.tables[oid]
        leave_out(table, problem)
    for oid, (table, item, definition) in plan.tables.items():
        for problem in _problems_of(config, server, table, item, definition):
            raise EnvironmentFault(problem)
        if oid in lacking:
            raise EnvironmentFault(lacking[oid])
    known = {table.full_name for table in followed.values()}
    for problem in _absences(config, known | {each.full_name for each, *_ in plan.tables.values()}):
        raise EnvironmentFault(problem)
    return plan


def find_left_out(
    queries: Connection, config: CdcConfig, names: Names, plan: Plan, state: TablesState
) -> dict[int, str]:
    """Return why new tables of patterns cannot be read, by number.

    A reader goes on without them: an application that creates a table must not end it.
    """
    plan = plan.only(plan.new_of_patterns(state))
    if not plan.tables:
        return {}
    lacking = _lacking_rights(queries, config, plan, state.tables)
    unpublished = _find_unpublished(queries, config, names, plan)
    found = {}
    for oid in sorted(plan.tables):
        problems = _problems_of(config, plan.server, *plan.tables[oid])
        if problem := next(problems, lacking.get(oid) or unpublished.get(oid)):
            found[oid] = problem
    return found


def _find_unpublished(
    queries: Connection, config: CdcConfig, names: Names, plan: Plan
) -> dict[int, str]:
    """Return the tables of *plan* that only their owner may publish, with the statement."""
    published = find_published(queries, names, plan.server.version)
    found = rights.table_rights(queries, plan.tables, plan.server.role)
    owned = {each.oid for each in found if each.is_owner}
    problems = {}
    for oid, wanted in plan.wanted.items():
        if oid in published.members:
            continue
        name = names.publication_of(insert_only=wanted.insert_only)
        publication = published.publications.get(name)
        if publication is None or (
            config.manage == "all"
            and oid in owned
            and rights.owns_publication(queries, publication.oid)
        ):
            continue
        statement = pub.add_statement(name, [wanted]).as_string()
        problems[oid] = f"{wanted.name} is not published; have its owner run {statement}"
    return problems


def _lacking_rights(
    queries: Connection, config: CdcConfig, plan: Plan, followed: Mapping[int, FollowedTable]
) -> dict[int, str]:
    """Return why our role cannot copy tables of *plan* that are to be copied from now on.

    A right on a table that is *followed* already is needed only if it is copied again.
    """
    copied = {
        oid: (table.full_name, item.columns)
        for oid, (table, item, _) in plan.tables.items()
        if config.copies(item) and (oid not in followed or config.run_of(item) > followed[oid].run)
    }
    found = list(rights.copy_problems(queries, plan.server.role, copied))
    return dict(reversed(found))  # The first of each.


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
    yield from _absences(config, {table.full_name for table, _, _ in plan.tables.values()})
    for table, item, definition in plan.tables.values():
        yield from _problems_of(config, plan.server, table, item, definition)


def _absences(config: CdcConfig, known: Collection[TableName]) -> Iterator[str]:
    missing = [
        item.name
        for item in config.tables
        if not item.is_pattern and not item.excludes and item.name not in known
    ]
    if missing:
        yield f"there is no table {listed(missing)}; create it, or correct tables"
    elif not known:
        yield "no table matches tables; correct the patterns, or create a table"


def _problems_of(
    config: CdcConfig,
    server: Server,
    table: FoundTable,
    item: TableItem,
    definition: TableDefinition,
) -> Iterator[str]:
    """Yield every reason why *table* cannot be read as *item* says."""
    name = table.full_name
    if table.problem:
        yield f"{name} {table.problem}; leave it out of tables"
        return
    if table.identity_problem and not item.insert_only:
        yield f"{name} {table.identity_problem}"
    if (item.columns or item.where) and server.version < pub.COLUMN_LISTS:
        yield (
            f"{name}: columns and where need PostgreSQL 15, and this is "
            f"{server.version // 10000}; leave them out of its item of tables"
        )
    yield from _key_problems(table, item, definition)
    if config.copies(item) and not definition.copy_key:
        yield (
            f"{name} has no unique columns that are NOT NULL, so it cannot be copied in an order; "
            "add a primary key, or write copy: none in its item of tables"
        )


def _key_problems(table: FoundTable, item: TableItem, definition: TableDefinition) -> Iterator[str]:
    name, key = table.full_name, key_of(item, definition)
    if not key and not item.insert_only:
        yield (
            f"{name} has no primary key, so its entries would have no key; name unique columns by "
            "key in its item of tables"
        )
    not_null = {column.name for column in definition.columns if column.not_null}
    if unfit := {*item.key} - not_null:
        yield f"{name}: key names {min(unfit)}, which is not a column that is NOT NULL"
        return
    if lacking := {*key, *definition.copy_key} - {*(item.columns or key + definition.copy_key)}:
        yield f"{name}: columns lacks {min(lacking)}, which is part of its key; add it"
    foreign = {*key} - {*definition.identity(table)}
    if foreign and not item.insert_only and not table.identity_problem:
        yield (
            f"{name}: key names {min(foreign)}, which is not part of its replica identity, so a "
            f"DELETE would come without a key; run ALTER TABLE {name} REPLICA IDENTITY FULL, or "
            "USING INDEX with a unique index of these columns"
        )


def key_of(item: TableItem, definition: TableDefinition) -> tuple[str, ...]:
    """Return the columns that become the key of the table's entries."""
    if item.key:
        return item.key
    for key in sorted(definition.keys, key=lambda each: not each.is_identity):
        return tuple(key.columns)
    return ()


@dataclass(frozen=True, slots=True)
class Published:
    """Publications of a reader by name, and tables that are in them by number."""

    publications: Mapping[str, pub.Publication]
    members: Mapping[int, pub.Member]


def ensure_published(queries: Connection, config: CdcConfig, names: Names, plan: Plan) -> Published:
    """Create or alter the publications so that all tables of *plan* are in them.

    Raises:
        EnvironmentFault: one lacks something, and is not this reader's to change.
        SourceUnavailable: a table went away meanwhile.

    """
    publications, members = dict[str, pub.Publication](), dict[int, pub.Member]()
    for name, publish in names.kinds.items():
        wanted = plan.wanted_in(names, name)
        has_partitioned = plan.has_partitioned(wanted)
        with translate_errors(f"cannot prepare the publication {name}"):
            found = pub.find_publication(queries, name)
            if found is None:
                tables = list(wanted.values())
                _publish(queries, config, name, tables, pub.create_statement(name, tables, publish))
                found = pub.find_publication(queries, name)
            assert found is not None  # noqa: S101 - it was created
            pub.check_publication(found, publish, has_partitioned=has_partitioned)
            there = _members(queries, name, plan.server.version)
            if missing := [table for oid, table in wanted.items() if oid not in there]:
                _publish(queries, config, name, missing, pub.add_statement(name, missing))
                there = _members(queries, name, plan.server.version)
        if gone := [table.name for oid, table in wanted.items() if oid not in there]:
            raise SourceUnavailable(
                f"{listed(gone)} was dropped and created again meanwhile; trying again may help"
            )
        publications[name] = found
        members |= {oid: member for oid, member in there.items() if oid in wanted}
    return Published(publications, members)


def publish_new(
    queries: Connection,
    config: CdcConfig,
    names: Names,
    plan: Plan,
    state: TablesState,
    leave_out: Callable[[FoundTable, str], None],
) -> Plan:
    """Publish the new tables of patterns one by one; return *plan* without those that fail.

    These are passed to *leave_out* with the reason.

    Raises:
        SourceUnavailable: the publications cannot be read, or the session was lost.

    """
    new = plan.only(plan.new_of_patterns(state)).wanted
    if not new:
        return plan
    with translate_errors("cannot look at the publications"):
        published = find_published(queries, names, plan.server.version)
    failed = set()
    for oid in sorted(new.keys() - published.members.keys()):
        table, wanted = plan.tables[oid][0], new[oid]
        name = names.publication_of(insert_only=wanted.insert_only)
        if (publication := published.publications.get(name)) is None:
            continue
        try:
            if table.kind == "p":
                pub.check_publication(publication, names.kinds[name], has_partitioned=True)
            with translate_errors(f"cannot publish {wanted.name}"):
                _publish(queries, config, name, [wanted], pub.add_statement(name, [wanted]))
        except TransporterError as error:
            if queries.broken:
                raise
            failed.add(oid)
            leave_out(table, str(error))
    return plan.without(failed)


def find_published(queries: Connection, names: Names, version: int) -> Published:
    """Return those of the publications that are there, with all their tables."""
    publications, members = dict[str, pub.Publication](), dict[int, pub.Member]()
    for name in names.kinds:
        if (found := pub.find_publication(queries, name)) is not None:
            publications[name] = found
            members |= _members(queries, name, version)
    return Published(publications, members)


def _members(queries: Connection, name: str, version: int) -> dict[int, pub.Member]:
    return {member.oid: member for member in pub.find_members(queries, name, version)}


def _publish(
    queries: Connection,
    config: CdcConfig,
    name: str,
    tables: Sequence[pub.WantedTable],
    statement: sql.Composed,
) -> None:
    """Publish *tables* by *statement*, if that is this reader's to do.

    Raises:
        EnvironmentFault: it is not, or the server refuses.
        SourceUnavailable: one of the tables was created again, and is published.

    """
    if config.manage != "all":
        lacking = f" lacks {listed(table.name for table in tables)}" if tables else " is missing"
        raise EnvironmentFault(
            f"publication {name}{lacking}, and manage is {config.manage}; have the tables' owner "
            f"run {statement.as_string()}"
        )
    try:
        with queries.transaction():
            queries.execute(statement)
            _check_changeable(queries, tables)
    except psycopg.errors.DuplicateObject as error:
        raise SourceUnavailable(
            f"{listed(table.name for table in tables)} was dropped and created again meanwhile; "
            "trying again may help"
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise EnvironmentFault(
            f"may not publish the tables ({error.diag.message_primary}): only their owner may, "
            f"with CREATE on the database; have the owner run {statement.as_string()}"
        ) from error


def _check_changeable(queries: Connection, tables: Iterable[pub.WantedTable]) -> None:
    """Check that the application can still change *tables*, in the transaction that publishes them.

    The server refuses UPDATE and DELETE of a table whose row filter or column list does not fit
    its replica identity, and of one with a partition that has none. It does so when a statement is
    planned, too.

    Raises:
        EnvironmentFault: it would refuse them.

    """
    for table in tables:
        if table.insert_only:
            continue
        try:
            queries.execute(sql.SQL("EXPLAIN DELETE FROM {}").format(table.name.identifier))
        except psycopg.errors.InvalidColumnReference as error:
            raise EnvironmentFault(
                f"with this item of tables every UPDATE and DELETE of {table.name} would fail in "
                f"the application ({error.diag.message_detail}): where may name only columns of "
                "the replica identity, and columns has to have all of them; correct the item, or "
                f"run ALTER TABLE {table.name} REPLICA IDENTITY FULL, or USING INDEX"
            ) from error
        except psycopg.errors.ObjectNotInPrerequisiteState as error:
            raise EnvironmentFault(
                f"once {table.name} is published, every UPDATE and DELETE of it would fail in the "
                f"application ({error.diag.message_primary}); run ALTER TABLE {table.name} REPLICA "
                "IDENTITY FULL, also for each of its partitions"
            ) from error


def identify(replication: Connection) -> SystemPosition:
    """Return the identity of the server of the session *replication*."""
    with translate_errors("cannot identify the server"):
        return servers.identify_system(replication)


def check_same_server(server: Server, session: Connection) -> None:
    """Check that *session* is on *server*, too, in the same run of its process.

    Raises:
        SourceUnavailable: they are not, as while another server takes over.

    """
    with translate_errors("cannot look at the server"):
        other = servers.read_server(session)
    if (other.system_id, other.started) != (server.system_id, server.started):
        raise SourceUnavailable(
            "the dsn leads to two servers, or the server was started again meanwhile; trying again "
            "may help"
        )


def stream_options(names: Names, *, messages: bool) -> dict[str, str]:
    """Return the options of the plugin, for a stream with or without logical *messages*."""
    # Names in the list are separated by commas and may be quoted.
    quoted = ['"' + name.replace('"', '""') + '"' for name in names.kinds]
    options = {"proto_version": "1", "publication_names": ",".join(quoted)}
    return options | ({"messages": "true"} if messages else {})


def _first_transaction(queries: Connection) -> int:
    """Return the number of a transaction that begins now (rule 1 of the hand-over)."""
    row = queries.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM has a row
    return int(row[0])


def make_state(
    queries: Connection, config: CdcConfig, plan: Plan, published: Published
) -> TablesState:
    """Return the state of a reader that begins now, when all tables are published."""
    with translate_errors("cannot begin the copy"):
        begun = _first_transaction(queries)
        files = find_files(queries, plan.tables)
    tables, queue = {}, []
    for oid, (table, item, definition) in plan.tables.items():
        member = published.members[oid]
        tables[oid] = FollowedTable(
            oid=oid,
            schema=table.schema,
            name=table.name,
            membership=member.membership,
            key=key_of(item, definition),
            copy_key=definition.copy_key,
            begun=begun,
            run=config.run_of(item),
            is_repeated=bool(item.copy_where),
            insert_only=item.insert_only,
            columns=logged_columns(definition, member),
            files=files[oid].files if oid in files else 0,
            partitions=files[oid].partitions if oid in files else 0,
        )
        if config.copies(item):
            queue.append(oid)
    publications = {name: found.oid for name, found in published.publications.items()}
    versions = {name: found.version for name, found in published.publications.items()}
    return TablesState(publications, tables, tuple(queue), versions)


def logged_columns(definition: TableDefinition, member: pub.Member) -> tuple[LoggedColumn, ...]:
    """Return the columns of a table that are in its entries."""
    return tuple(
        LoggedColumn(column.name, column.type_oid, column.modifier)
        for column in member.published(definition.columns)
    )


@dataclass(frozen=True, slots=True)
class Changes:
    """What the pipeline file asks for beside what the log has.

    Those ``recreated`` are new tables with the name of one that is gone; those ``moved`` have other
    partitions.
    """

    added: frozenset[int]
    removed: frozenset[int]
    repeated: frozenset[int]
    recreated: frozenset[int] = frozenset()
    renamed: bool = False
    moved: frozenset[int] = frozenset()

    @property
    def to_copy(self) -> frozenset[int]:
        """Tables that are copied, for the first time or once more."""
        return self.added | self.repeated

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.repeated or self.renamed or self.moved)


def compare_tables(
    config: CdcConfig, plan: Plan, state: TablesState, moved: frozenset[int] = frozenset()
) -> Changes:
    """Compare the tables of *plan* with those of *state*, of which some were *moved*."""
    known, wanted = state.tables, plan.tables
    repeated = {
        oid
        for oid, (_, item, _) in wanted.items()
        if oid in known and config.run_of(item) > known[oid].run
    }
    added, removed = wanted.keys() - known.keys(), known.keys() - wanted.keys()
    gone = {known[oid].full_name for oid in removed}
    return Changes(
        frozenset(added),
        frozenset(removed),
        frozenset(repeated),
        frozenset(oid for oid in added if wanted[oid][0].full_name in gone),
        any(wanted[oid][0].full_name != known[oid].full_name for oid in wanted.keys() & known),
        moved,
    )


def moved_tables(queries: Connection, state: TablesState) -> frozenset[int]:
    """Return the tables of *state* that have other partitions now."""
    partitioned = [oid for oid, table in state.tables.items() if table.partitions]
    if not partitioned:
        return frozenset()
    with translate_errors("cannot look at the partitions"):
        found = find_files(queries, partitioned)
    return frozenset(
        oid for oid, files in found.items() if files.partitions != state.tables[oid].partitions
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
        oid: replace(
            table,
            is_repeated=table.is_repeated
            or (oid in changes.repeated and not config.copy_from_empty),
        )
        if oid in changes.to_copy
        else replace(
            state.tables[oid],
            schema=table.schema,
            name=table.name,
            partitions=table.partitions,
            files=table.files if oid in changes.moved else state.tables[oid].files,
        )
        for oid, table in fresh.tables.items()
    }
    queue = [oid for oid in waiting if oid in tables and oid not in changes.to_copy]
    queue += [oid for oid in fresh.queue if oid in changes.to_copy]
    return TablesState(fresh.publications, tables, tuple(queue), fresh.versions)


def check_state(
    state: TablesState, names: Names, published: Published, repeated: frozenset[int] = frozenset()
) -> None:
    """Check that the tables were published all the time since *state* was logged.

    Those that are *repeated* need not have been, because they are copied again.

    Raises:
        EnvironmentFault: changes may be missing.

    """
    for oid, table in state.tables.items():
        member = published.members.get(oid)
        if oid in repeated or member is None:
            continue
        name = names.publication_of(insert_only=table.insert_only)
        publication, before = published.publications[name], state.publications.get(name)
        if publication.oid != before:
            was = (
                "is not the one that the log follows"
                if before is None
                else (f"was dropped and created again (OID {before}, now {publication.oid})")
            )
            raise EnvironmentFault(
                f"publication {name} {was}: changes in between were never sent; {state.remedy}"
            )
        if publication.version != state.versions.get(name, publication.version):
            raise EnvironmentFault(
                f"publication {name} was altered (ALTER PUBLICATION … SET or OWNER): some kinds of "
                f"changes may not have been sent meanwhile; {state.remedy}"
            )
        if member.membership != table.membership:
            raise EnvironmentFault(
                f"table {table.full_name} left the publication {name} and came back: "
                f"changes in between were never sent; {state.remedy}"
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
        if found.timeline > position.timeline and found.system_id == position.system_id:
            fork = servers.fork_of(replication, found.timeline, position.timeline)
    ours = (position.system_id, position.timeline)
    if config.server == found.system_id != position.system_id:
        # An accepted server has timelines of its own.
        ours = (found.system_id, found.timeline)
    servers.check_history(ours, position.reached, found, fork)
    return found


def check_slot_room(queries: Connection, names: Names) -> None:
    """Check that there is room for the slot, before anything is created."""
    with translate_errors("cannot look at the replication slots"):
        slots.check_room(queries, names.slot)


def create_slot(
    replication: BoundedConnection,
    queries: Connection,
    config: CdcConfig,
    names: Names,
    version: int,
    report: Callable[..., None],
) -> Generator[None, float, int]:
    """Create the slot, or take one that an earlier run has created and not logged.

    Yields before each wait for transactions, and takes the seconds that it may last. Waits that
    are long are passed to *report* as events.

    Returns:
        The LSN from which it has everything.

    """
    with translate_errors(f"cannot create the replication slot {names.slot}"):
        found = slots.find_slot(queries, names.slot, version)
        if found is not None:
            slots.check_slot(found, names.slot, None, "drop it, and the next open makes another")
            return found.confirmed_lsn
        if config.manage == "nothing":
            raise EnvironmentFault(
                f"slot {names.slot} is missing, and manage is nothing; run SELECT "
                f"pg_create_logical_replication_slot('{names.slot}', 'pgoutput')"
            )
        command = slots.create_statement(names.slot, version, failover=config.failover)
        return (
            yield from slot_creation.create(
                replication,
                queries,
                command,
                lambda problem: report("slot-waits", slot=names.slot, problem=problem),
            )
        )


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
            slots.check_slot(replace(found, status=None, reason=None), names.slot, None, "")
        queries.execute("SELECT pg_drop_replication_slot(%s)", [names.slot])


def drop_unwanted(
    queries: Connection, config: CdcConfig, names: Names, plan: Plan, state: TablesState
) -> None:
    """Take tables that were read, and are not now, out of the publications, if they are ours."""
    if config.manage != "all":
        return
    for name in names.kinds:
        with translate_errors(f"cannot alter the publication {name}"):
            found = _members(queries, name, plan.server.version)
            # Nothing leaves a publication of schemas, or of all tables, by itself.
            there = {oid: member for oid, member in found.items() if member.is_listed}
            gone = there.keys() & state.tables.keys() - plan.wanted_in(names, name).keys()
            if gone:
                pub.drop_tables(queries, name, [state.tables[oid].full_name for oid in gone])

"""The plan of an opening: names of publication and slot, tables to follow, and their problems.

Nothing is created before all checks have passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from transporter.errors import EnvironmentFault
from transporter_adaptors.postgres.session import translate_errors
from transporter_adaptors.postgres_cdc import publication as pub
from transporter_adaptors.postgres_cdc import rights
from transporter_adaptors.postgres_cdc import server as servers
from transporter_adaptors.postgres_cdc.state import TablesState
from transporter_adaptors.postgres_cdc.tables import find_tables, listed, read_definition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping

    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres.table import TableName
    from transporter_adaptors.postgres_cdc.config import CdcConfig, TableItem
    from transporter_adaptors.postgres_cdc.server import Server
    from transporter_adaptors.postgres_cdc.state import FollowedTable, TablesState
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
        if not key_of(item, definition):
            yield (
                f"{name} has no primary key and no replica identity: in a publication every UPDATE "
                "and DELETE of it would fail in the application, and its entries would have no "
                f'key; add a primary key, leave it out of tables with "!{name}", or list it with '
                "insert_only: true and copy: none"
            )
            return
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
            "key in its item of tables, or write insert_only: true and copy: none there, and "
            "deliver it by a route with mode: append"
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


def stream_options(publications: Iterable[str], *, messages: bool) -> dict[str, str]:
    """Return the plugin's options for *publications*, with or without logical *messages*."""
    # Names in the list are separated by commas and may be quoted.
    quoted = ['"' + name.replace('"', '""') + '"' for name in publications]
    options = {"proto_version": "1", "publication_names": ",".join(quoted)}
    return options | ({"messages": "true"} if messages else {})


@dataclass(frozen=True, slots=True)
class Published:
    """Publications of a reader by name, and tables that are in them by number."""

    publications: Mapping[str, pub.Publication]
    members: Mapping[int, pub.Member]


def find_published(
    queries: Connection, names: Names, version: int, state: TablesState | None = None
) -> Published:
    """Return those of the publications that are there, with all their tables.

    A table that is in several is a member of the one in which *state* has it.
    """
    followed = {} if state is None else state.tables
    publications, members = dict[str, pub.Publication](), dict[int, pub.Member]()
    for name in names.kinds:
        if (found := pub.find_publication(queries, name)) is not None:
            publications[name] = found
            for oid, member in pub.find_members(queries, name, version).items():
                known = followed.get(oid)
                if known is None or name == names.publication_of(insert_only=known.insert_only):
                    members[oid] = member
                else:
                    members.setdefault(oid, member)
    return Published(publications, members)


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
        if config.copies(item)
        and (oid not in followed or config.run_of(item) > followed[oid].asked_run)
    }
    found = list(rights.copy_problems(queries, plan.server.role, copied))
    return dict(reversed(found))  # The first of each.

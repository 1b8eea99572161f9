"""Publication of the planned tables, and the withdrawal of those that are not planned any more.

Publications that were created and are not in the log yet, after a crash in between, are found by
their names and taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from transporter.errors import EnvironmentFault, SourceUnavailable, TransporterError
from transporter_adaptors.postgres.session import translate_errors
from transporter_adaptors.postgres_cdc import publication as pub
from transporter_adaptors.postgres_cdc.item_changes import find_item_changes
from transporter_adaptors.postgres_cdc.plan import Published, find_published
from transporter_adaptors.postgres_cdc.tables import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres_cdc.config import CdcConfig
    from transporter_adaptors.postgres_cdc.item_changes import ItemChange
    from transporter_adaptors.postgres_cdc.plan import Names, Plan
    from transporter_adaptors.postgres_cdc.state import TablesState
    from transporter_adaptors.postgres_cdc.tables import FoundTable


def ensure_published(
    queries: Connection,
    config: CdcConfig,
    names: Names,
    plan: Plan,
    state: TablesState | None = None,
    copied: Collection[int] | None = None,
) -> Published:
    """Create or alter the publications so that all tables of *plan* are in them as asked for.

    The columns and the row filter of a table change only if it is *copied* now. All are, if that is
    ``None``. *state* is the logged one.

    Raises:
        EnvironmentFault: one lacks something, and is not this reader's to change, or a table that
            is not copied again would be published otherwise, or have another key.
        SourceUnavailable: a table went away meanwhile.

    """
    publications, members = dict[str, pub.Publication](), dict[int, pub.Member]()
    for name, publish in names.kinds.items():
        wanted = plan.wanted_in(names, name)
        has_partitioned = plan.has_partitioned(wanted)
        with translate_errors(f"cannot prepare the publication {name}"):
            found = create_missing(queries, config, names, name, plan)
            pub.check_publication(found, publish, has_partitioned=has_partitioned)
            there = pub.find_members(queries, name, plan.server.version)
            if missing := [table for oid, table in wanted.items() if oid not in there]:
                _publish(queries, config, name, missing, pub.add_statement(name, missing))
                there = pub.find_members(queries, name, plan.server.version)
            present = wanted.keys() & there.keys()
            if item_changes := find_item_changes(plan, name, there, sorted(present), state):
                others = wanted.keys() if copied is None else copied
                _apply_items(queries, config, name, plan, there, item_changes, others)
                there = pub.find_members(queries, name, plan.server.version)
        if gone := [table.name for oid, table in wanted.items() if oid not in there]:
            raise SourceUnavailable(
                f"{listed(gone)} was dropped and created again meanwhile; trying again may help"
            )
        publications[name] = found
        members |= {oid: member for oid, member in there.items() if oid in wanted}
    return Published(publications, members)


def create_missing(
    queries: Connection, config: CdcConfig, names: Names, name: str, plan: Plan
) -> pub.Publication:
    """Return the publication *name*, which is created, with its tables of *plan*, if need be."""
    with translate_errors(f"cannot prepare the publication {name}"):
        if (found := pub.find_publication(queries, name)) is None:
            tables = list(plan.wanted_in(names, name).values())
            statement = pub.create_statement(name, tables, names.kinds[name])
            _publish(queries, config, name, tables, statement)
            found = pub.find_publication(queries, name)
    assert found is not None  # noqa: S101 - it was created
    return found


def _apply_items(
    queries: Connection,
    config: CdcConfig,
    name: str,
    plan: Plan,
    members: Mapping[int, pub.Member],
    changes: Mapping[int, ItemChange],
    copied: Collection[int],
) -> None:
    """Publish the tables of *changes* as their items ask, if they are *copied*.

    Raises:
        EnvironmentFault: that is not this reader's to do, or they are not copied.

    """
    for oid, change in changes.items():
        if problem := item_problem(config, name, plan, members, oid, change, copied):
            raise EnvironmentFault(problem)
    tables = [plan.wanted[oid] for oid, change in changes.items() if change.is_published]
    if tables:
        _publish(queries, config, name, tables, pub.replace_statement(name, tables))


def item_problem(
    config: CdcConfig,
    name: str,
    plan: Plan,
    members: Mapping[int, pub.Member],
    oid: int,
    change: ItemChange,
    copied: Collection[int],
) -> str:
    """Return why the item of a table cannot take effect, with the next action, or an empty text.

    *members* are the tables of the publication *name*, and the *copied* are copied now.
    """
    mends = _mending(config, name, plan.wanted[oid], members[oid]) if change.is_published else ""
    if oid not in copied:
        return (
            f"{change.text}; that takes effect when the table is copied again: raise copy_run to "
            f"{change.next_run} in its item of tables"
            + (f", and {mends}" if mends else "")
            + "; or let the item be as it was"
        )
    if not mends:
        return ""
    why = f"manage is {config.manage}" if members[oid].is_listed else "it is not published by name"
    return f"{change.text}; {why}; {mends}"


def _mending(config: CdcConfig, name: str, table: pub.WantedTable, member: pub.Member) -> str:
    """Return what a person has to do to have *table* published as asked, or an empty text."""
    if not member.is_listed:
        return (
            "a publication of whole schemas, or of all tables, has neither lists of columns nor "
            "row filters: have its owner name the tables in it, this one by "
            f"{pub.add_statement(name, [table]).as_string()}"
        )
    if config.manage == "all":
        return ""
    statement = pub.replace_statement(name, [table]).as_string()
    return f"have the tables' owner run {statement}"


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
    failed = set[int]()
    for name in published.publications:
        present = sorted(plan.wanted_in(names, name).keys() & new.keys() & published.members.keys())
        found = find_item_changes(plan, name, published.members, present, state)
        for oid, change in found.items():
            if problem := item_problem(
                config, name, plan, published.members, oid, change, copied=new
            ):
                failed.add(oid)
                leave_out(plan.tables[oid][0], problem)
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
        SourceUnavailable: one of the tables was created again, and is published, or a schema is
            gone.

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
    except psycopg.errors.InvalidSchemaName as error:
        raise SourceUnavailable(
            f"the schema of {listed(table.name for table in tables)} was dropped or renamed "
            "meanwhile; trying again may help"
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


def drop_unwanted(
    queries: Connection, config: CdcConfig, names: Names, plan: Plan, state: TablesState
) -> None:
    """Take tables that were read, and are not now, out of the publications, if they are ours."""
    if config.manage != "all":
        return
    for name in names.kinds:
        with translate_errors(f"cannot alter the publication {name}"):
            found = pub.find_members(queries, name, plan.server.version)
            # Nothing leaves a publication of schemas, or of all tables, by itself.
            there = {oid: member for oid, member in found.items() if member.is_listed}
            gone = there.keys() & state.tables.keys() - plan.wanted_in(names, name).keys()
            if gone:
                # The state may have names from before a rename.
                pub.drop_tables(queries, name, [there[oid].full_name for oid in gone])

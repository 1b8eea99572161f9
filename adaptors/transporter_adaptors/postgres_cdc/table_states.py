"""The state of the followed tables at an opening: made, compared with the plan, and checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from transporter.errors import EnvironmentFault
from transporter_adaptors.postgres.session import translate_errors
from transporter_adaptors.postgres_cdc.columns import LoggedColumn
from transporter_adaptors.postgres_cdc.plan import Names, Plan, key_of
from transporter_adaptors.postgres_cdc.state import AskedItem, FollowedTable, TablesState
from transporter_adaptors.postgres_cdc.tables import find_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres.table import TableName
    from transporter_adaptors.postgres_cdc import publication as pub
    from transporter_adaptors.postgres_cdc.config import CdcConfig, TableItem
    from transporter_adaptors.postgres_cdc.plan import Published
    from transporter_adaptors.postgres_cdc.tables import TableDefinition

_PARTITIONED: Final = "SELECT oid::bigint FROM pg_class WHERE oid = ANY(%s) AND relkind = 'p'"
_NAMES_LEFT: Final = 1000
"""Names of earlier tables that a state keeps, the latest ones."""


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
            asked=_asked(item, config.run_of(item)),
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

    Those ``recreated`` are new, or ``renamed``, and have a name that a table had before, perhaps
    they themselves: rows of then are in the sinks by it. Those ``moved`` have other partitions.
    """

    added: frozenset[int]
    removed: frozenset[int]
    repeated: frozenset[int]
    recreated: frozenset[int] = frozenset()
    renamed: frozenset[int] = frozenset()
    moved: frozenset[int] = frozenset()

    @property
    def to_copy(self) -> frozenset[int]:
        """Tables that are copied, for the first time or once more."""
        return self.added | self.repeated | self.recreated

    def copies_all(self, plan: Plan) -> bool:
        """Return whether all tables of *plan* are copied, and not only because they are new."""
        return bool(self.repeated) and plan.tables.keys() <= self.to_copy

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
        if oid in known and config.run_of(item) > known[oid].asked_run
    }
    added, removed = wanted.keys() - known.keys(), known.keys() - wanted.keys()
    owners = _owners(state)
    renamed = frozenset(
        oid for oid in wanted.keys() & known if wanted[oid][0].full_name != known[oid].full_name
    )
    return Changes(
        frozenset(added),
        frozenset(removed),
        frozenset(repeated),
        frozenset(
            oid
            for oid, (table, *_) in wanted.items()
            if owners.get(table.full_name, oid) != oid
            or (oid in renamed and table.full_name in owners)
        ),
        renamed,
        moved,
    )


def keeps_slot(config: CdcConfig, plan: Plan, state: TablesState) -> bool:
    """Return whether the stream of before can go on beside another copy of every table.

    That is where only items ask for it. The reader's own copy_run begins anew whatever there is.
    """
    return all(
        state.tables[oid].asked_run >= config.copy_run
        for oid in plan.tables.keys() & state.tables.keys()
    )


def _asked(item: TableItem, run: int) -> AskedItem:
    return AskedItem(run, item.columns, item.where, item.key)


def _asked_again(asked: AskedItem | None, table: FollowedTable) -> AskedItem | None:
    return asked and replace(asked, run=table.asked_run)


def record_items(state: TablesState, plan: Plan) -> TablesState:
    """Return *state* with the items of *plan*, none of which asks for a copy or other columns."""
    tables = {
        oid: replace(table, asked=_asked(plan.tables[oid][1], table.asked_run))
        for oid, table in state.tables.items()
    }
    return replace(state, tables=tables)


def _owners(state: TablesState) -> dict[TableName, int]:
    """Return the tables whose rows sinks may have, by the names under which they have them."""
    return {**state.left, **{table.full_name: oid for oid, table in state.tables.items()}}


def _names_left(state: TablesState, tables: Mapping[int, FollowedTable]) -> dict[TableName, int]:
    """Return the names of *state* that none of *tables* has, the latest last."""
    present = {table.full_name for table in tables.values()}
    left = [(name, oid) for name, oid in _owners(state).items() if name not in present]
    return dict(left[-_NAMES_LEFT:])


def moved_tables(queries: Connection, state: TablesState) -> frozenset[int]:
    """Return the tables of *state* that have other partitions now."""
    with translate_errors("cannot look at the partitions"):
        # The hash of a partitioned table without partitions is that of any other table.
        rows = queries.execute(_PARTITIONED, [[*state.tables]]).fetchall()
        found = find_files(queries, [oid for (oid,) in rows]) if rows else {}
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
            # Another number than before, because ids of entries have it.
            run=max(table.run, state.tables[oid].run + 1) if oid in state.tables else table.run,
            is_repeated=table.is_repeated
            or (oid in changes.repeated - changes.recreated and not config.copy_from_empty),
        )
        if oid in changes.to_copy
        else replace(
            state.tables[oid],
            schema=table.schema,
            name=table.name,
            partitions=table.partitions,
            files=table.files if oid in changes.moved else state.tables[oid].files,
            # Not under its new name.
            is_described=state.tables[oid].is_described and oid not in changes.renamed,
            asked=_asked_again(table.asked, state.tables[oid]),
        )
        for oid, table in fresh.tables.items()
    }
    queue = [oid for oid in waiting if oid in tables and oid not in changes.to_copy]
    queue += [oid for oid in fresh.queue if oid in changes.to_copy]
    left = _names_left(state, tables)
    return TablesState(fresh.publications, tables, tuple(queue), fresh.versions, left)


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

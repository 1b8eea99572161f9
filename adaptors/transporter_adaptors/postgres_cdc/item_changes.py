"""Differences between the items of ``tables`` and the tables as they are published and followed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from transporter_adaptors.postgres_cdc.columns import follow_renames
from transporter_adaptors.postgres_cdc.plan import key_of
from transporter_adaptors.postgres_cdc.table_states import logged_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from transporter_adaptors.postgres_cdc import publication as pub
    from transporter_adaptors.postgres_cdc.config import TableItem
    from transporter_adaptors.postgres_cdc.plan import Plan
    from transporter_adaptors.postgres_cdc.state import AskedItem, FollowedTable, TablesState
    from transporter_adaptors.postgres_cdc.tables import TableDefinition


@dataclass(frozen=True, slots=True)
class ItemChange:
    """A table that is not published, or has not the key, as its item asks.

    ``text`` describes that. Only a table that ``is_published`` otherwise needs another publication.
    ``next_run`` is the ``copy_run`` with which the item takes effect.
    """

    text: str
    is_published: bool
    next_run: int


def find_item_changes(
    plan: Plan,
    publication: str,
    members: Mapping[int, pub.Member],
    oids: Iterable[int],
    state: TablesState | None,
) -> dict[int, ItemChange]:
    """Return the tables of *plan* among *oids* whose items ask for something else, by number.

    *members* are the tables of *publication*. *state* is the one that is logged, if there is one.
    """
    followed = {} if state is None else state.tables
    changes = {}
    for oid in oids:
        table, item, definition = plan.tables[oid]
        known, member = followed.get(oid), members[oid]
        # What was asked for under another name was another item.
        is_renamed = known is not None and known.full_name != table.full_name
        asked = None if known is None or is_renamed else known.asked
        is_same = known is not None and known.membership == member.membership
        published = list(_publication_changes(publication, item, member, asked, is_same=is_same))
        keys = [] if known is None else _key_changes(item, definition, member, known, asked)
        if texts := [*published, *keys]:
            run = 0 if known is None else known.asked_run
            text = f"{table.full_name}: {', and '.join(texts)}"
            changes[oid] = ItemChange(text, bool(published), run + 1)
    return changes


def _publication_changes(
    publication: str,
    item: TableItem,
    member: pub.Member,
    asked: AskedItem | None,
    *,
    is_same: bool,
) -> Iterator[str]:
    """Yield what is published otherwise. *asked* is the item of before, if that is known.

    A table that ``is_same`` has not left the publication since, so its list is the one of before,
    perhaps with columns that have other names now. An item without a list or filter takes what the
    publication has, which may be another's.
    """
    has = f"the publication {publication} has"
    is_asked = is_same and asked is not None and {*asked.columns} == {*item.columns}
    was_listed = bool(asked and asked.columns) and member.column_list is not None
    wants = _columns_text(item.columns)
    if {*item.columns} != {*(member.column_list or ())} and (
        was_listed if not item.columns else not is_asked
    ):
        yield f"{has} {_columns_text(member.column_list)}, and the item of tables asks for {wants}"
    if item.where and member.where is None:
        yield f"{has} no row filter, and the item of tables has a where"
    elif is_same and asked is not None and asked.where.strip() != item.where.strip():
        yield "where has changed in its item of tables"


def _key_changes(
    item: TableItem,
    definition: TableDefinition,
    member: pub.Member,
    known: FollowedTable,
    asked: AskedItem | None,
) -> Iterator[str]:
    """Yield whether the key is another one than that of the entries so far."""
    if not item.key and not (asked and asked.key):
        return
    # The stream may be behind a rename.
    now = follow_renames(known.key, known.columns, logged_columns(definition, member))
    wanted = key_of(item, definition)
    if wanted not in {known.key, now}:
        yield (
            f"its entries have the key {', '.join(known.key)}, and the item of tables asks for "
            f"{', '.join(wanted)}"
        )


def _columns_text(columns: Collection[str] | None) -> str:
    if not columns:
        return "all columns"
    return f"the columns {', '.join(columns)}"

"""Entries from the stream: which changes are logged beside the copy, and as which messages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from transporter.errors import EnvironmentFault, SourceUnavailable
from transporter.message import Message
from transporter_adaptors.postgres.session import translate_errors
from transporter_adaptors.postgres.table import TableName
from transporter_adaptors.postgres_cdc.chunks import find_key_types, rank_keys
from transporter_adaptors.postgres_cdc.columns import LoggedColumn
from transporter_adaptors.postgres_cdc.entries import (
    EntryForm,
    Place,
    TableEntries,
    transaction_headers,
)
from transporter_adaptors.postgres_cdc.large_values import LargeValues
from transporter_adaptors.postgres_cdc.logical import logical_entry
from transporter_adaptors.postgres_cdc.messages import (
    UNCHANGED,
    Delete,
    Insert,
    LogicalMessage,
    Relation,
    Truncate,
    Update,
)
from transporter_adaptors.postgres_cdc.run_batches import RunBatch, encode_run
from transporter_adaptors.postgres_cdc.runs import Change, LooseMessage, Run, WholeUpTo
from transporter_adaptors.postgres_cdc.schema_log import NewColumns, SchemaLog
from transporter_adaptors.postgres_cdc.state import BEGIN_ANEW
from transporter_adaptors.postgres_cdc.tables import read_definition

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres_cdc.config import CdcConfig
    from transporter_adaptors.postgres_cdc.handover import Handover, Key
    from transporter_adaptors.postgres_cdc.json_text import TextError
    from transporter_adaptors.postgres_cdc.key_order import KeyType
    from transporter_adaptors.postgres_cdc.messages import Value
    from transporter_adaptors.postgres_cdc.plan import Names
    from transporter_adaptors.postgres_cdc.position import Inside
    from transporter_adaptors.postgres_cdc.state import FollowedTable, TablesState
    from transporter_adaptors.postgres_cdc.transactions import Item
    from transporter_adaptors.postgres_cdc.types import TypeCatalog


@dataclass(slots=True)
class RowPart:
    """A change of one key: the row behind it, and the row before, where they are known.

    There is no row if it is gone, and a part of it alone would be of no use.
    """

    op: str
    new: Sequence[Value] | None
    old: Sequence[Value] | None
    key: Key
    rank: int = 0


@dataclass(slots=True)
class PreparedChange:
    """A change with its table's definition at that moment, split by keys."""

    change: Change
    entries: TableEntries
    parts: list[RowPart]

    @property
    def inside(self) -> Inside:
        """The place behind it in its transaction."""
        return self.change.inside


Prepared = Change | WholeUpTo | PreparedChange | RunBatch | NewColumns | LooseMessage


class ChangeTranslator:
    """Turns the stream's items into messages. Belongs to one thread."""

    def __init__(
        self,
        queries: Connection,
        config: CdcConfig,
        types: TypeCatalog,
        state: TablesState,
        report: Callable[..., None],
        names: Names,
    ) -> None:
        """Look definitions up by the session *queries*, and pass events to *report*.

        The changes are those that the publications of *names* publish.
        """
        self._queries, self._config, self._types = queries, config, types
        self.state = state
        self._report = report
        self.schema_log = SchemaLog(queries, wants_entries=config.schema_entries == "entries")
        self._large_values = LargeValues(queries, names)
        self._tables: dict[int, TableEntries] = {}
        self._unfollowed: dict[int, Relation] = {}
        """Definitions of other tables. The server may send none when one is followed from then on.
        """
        self._key_types: dict[int, list[KeyType]] = {}
        self._items = {item.prefix: item for item in config.messages}
        self._form = EntryForm(config.key == "json", config.old, config.transaction)
        self._malformed: set[tuple[int, str]] = set()
        self._gone: set[int] = set()
        """Tables with rows that were gone, of which the hand-over does not know yet."""

    def namespace(self, oid: int) -> str:
        """Return the namespace of the table *oid*."""
        return self._config.namespace_of(self.state.tables[oid].full_name)

    def use(self, state: TablesState) -> None:
        """Follow the tables of *state* from now on."""
        for oid in [*self._tables]:
            table = state.tables.get(oid)
            if table is None or table.keys != self._tables[oid].keys:
                self._unfollowed[oid] = self._tables.pop(oid).relation
        self.state = state

    def forget_all_but(self, oids: Container[int]) -> None:
        """Forget the definitions of tables that nobody asks for, or that are gone."""
        self._unfollowed = {oid: each for oid, each in self._unfollowed.items() if oid in oids}

    def use_names(self) -> None:
        """Log what comes of each table by its name of now, also before its next definition."""
        for oid, entries in self._tables.items():
            namespace = self._config.namespace_of(self._name_of(entries.relation))
            self._tables[oid] = entries.under(namespace)

    def _name_of(self, relation: Relation) -> TableName:
        """Return the name of a table by its definition in the stream.

        The table may have another by now. If that of the stream belongs to another table, by the
        state, the state's counts: no change may come among the rows of the other. It counts, too,
        where nothing asks for that of the stream, as between a rename and the end of the table.
        """
        name, now = TableName(relation.name, relation.schema), self.state.tables[relation.oid]
        if name == now.full_name:
            return name
        is_taken = any(table.full_name == name for table in self.state.tables.values())
        is_asked_for = self._config.item_of(name) or self.state.left.get(name) == relation.oid
        return name if is_asked_for and not is_taken else now.full_name

    def prepare(self, items: Iterable[Item], handover: Handover) -> list[Prepared]:
        """Return *items* for :meth:`messages`, relations aside, with keys compared at once.

        The bounds of *handover* must not move until all have been taken.
        """
        self._large_values.forget()
        prepared: list[Prepared] = []
        to_rank: dict[int, list[RowPart]] = {}
        latest: dict[int, FollowedTable] = {}
        for item in self._decode_runs(self._define_followed(items), handover):
            if isinstance(item, Relation):
                if (found := self._define(item, latest, handover)) is not None:
                    prepared.append(found)
                    latest[item.oid] = found.table
                continue
            if not isinstance(item, Change) or isinstance(item.what, Truncate | LogicalMessage):
                prepared.append(item)
                continue
            for made in self._prepare_change(item, handover):
                if made.entries.relation.oid in handover.copies:
                    to_rank.setdefault(made.entries.relation.oid, []).extend(made.parts)
                prepared.append(made)
        for oid, parts in to_rank.items():
            self._rank(oid, parts, handover)
        self._record_gone(handover)
        return prepared

    def _define_followed(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield *items*, with the definition of a table that was sent before it was followed."""
        waiting = self._unfollowed.keys() & self.state.tables.keys()
        for item in items:
            for oid in _tables_of(item) & waiting if waiting else ():
                if (relation := self._unfollowed.pop(oid, None)) is not None:
                    yield relation
            yield item

    def _decode_runs(
        self, items: Iterable[Item], handover: Handover
    ) -> Iterator[Change | RunBatch | Relation | WholeUpTo | LooseMessage]:
        """Yield *items* with large runs as batches, and others change by change."""

        def translate(change: Change) -> list[Message]:
            return [
                message
                for made in self._prepare_change(change, handover)
                for message in self.messages(made, handover)
            ]

        for item in items:
            if not isinstance(item, Run):
                yield item
            # Changes of a table that is being copied are compared with its chunks, one by one.
            elif self._may_encode(_tables_of(item), handover) and (
                batch := encode_run(item, self._tables, translate)
            ):
                yield batch
            else:
                yield from item.items()

    def _may_encode(self, oids: set[int], handover: Handover) -> bool:
        """Return whether none of the tables is being copied, and those followed are defined."""
        return handover.copies.keys().isdisjoint(oids) and not (
            (oids - self._tables.keys()) & self.state.tables.keys()
        )

    def _prepare_change(self, change: Change, handover: Handover) -> list[PreparedChange]:
        """Return *change* of a row in its parts, or nothing where its table is not followed."""
        what = change.what
        if isinstance(what, Truncate | LogicalMessage):
            return []
        try:
            if (entries := self._tables.get(what.oid)) is None:
                self._check_defined(what.oid)
                return []
            split = [*self._split(entries, change)]
        except EnvironmentFault:
            # It is from before the table had its present key or identity.
            if handover.has_all_of(what.oid, change.begin.xid):
                return []
            raise
        parts = [self._complete(entries, part, change, handover) for part in split]
        return [PreparedChange(change, entries, parts)]

    def _check_defined(self, oid: int) -> None:
        """Check that the table *oid*, which has no entries, is not followed.

        Raises:
            EnvironmentFault: it is, and its definition lacks its key.
            SourceUnavailable: it is, and has no definition. Another session gets one.

        """
        if (table := self.state.tables.get(oid)) is None:
            return
        if (relation := self._unfollowed.get(oid)) is None:
            raise SourceUnavailable(
                f"a change of {table.full_name} came without the table's definition; trying again "
                "may help"
            )
        _check_key(table, _columns_of(relation))

    def messages(self, item: PreparedChange, handover: Handover) -> list[Message]:
        """Return the entries of *item* that are to be logged."""
        change, entries = item.change, item.entries
        begin, found = change.begin, list[Message]()
        for number, part in enumerate(item.parts):
            if not handover.is_logged(entries.relation.oid, part.rank, begin.xid, begin.commit_lsn):
                continue
            if part.new is None:
                continue
            place = _place_of(change, number)
            match part.op:
                case "insert":
                    found.append(entries.inserted(part.new, place))
                case "update":
                    found.append(entries.updated(part.new, part.old, place))
                case _:
                    found.append(entries.deleted(part.new, place))
        return found

    def truncations(self, change: Change, handover: Handover) -> list[Message]:
        """Return the entries of a TRUNCATE, one for each table."""
        what, begin, found = change.what, change.begin, list[Message]()
        assert isinstance(what, Truncate)  # noqa: S101 - the caller has checked
        for number, oid in enumerate(what.oids):
            entries = self._tables.get(oid)
            if entries is None:
                if not handover.has_all_of(oid, begin.xid):
                    self._check_defined(oid)
                continue
            handover.truncate(oid, begin.xid)
            if self._config.truncate == "ignore":
                continue
            found.append(
                entries.truncated(
                    _place_of(change, number),
                    cascade=what.cascade,
                    restart_identity=what.restart_identity,
                )
            )
        return found

    def logical(self, item: Change | LooseMessage) -> list[Message]:
        """Return the entry of a logical message, if the settings name its prefix."""
        what = item.what
        assert isinstance(what, LogicalMessage)  # noqa: S101 - the caller has checked
        found = self._items.get(what.prefix)
        if found is None:
            return []
        if isinstance(item, Change):
            place = replace(_place_of(item, 0), number=-1)
        else:
            place = Place(what.lsn, item.sent_at, what.lsn, -1)
        made = logical_entry(what, found, place)
        if self._config.transaction and isinstance(item, Change):
            made = replace(made, headers=made.headers + transaction_headers(place))
        return [made]

    def _report_malformed(self, oid: int, column: str, error: TextError) -> None:
        if (oid, column) not in self._malformed:
            self._malformed.add((oid, column))
            name = str(self.state.tables[oid].full_name)
            self._report("value-as-text", table=name, column=column, problem=str(error))

    def _define(
        self, relation: Relation, latest: Mapping[int, FollowedTable], handover: Handover
    ) -> NewColumns | None:
        table = latest.get(relation.oid) or self.state.tables.get(relation.oid)
        if table is None:
            if self._config.item_of(TableName(relation.name, relation.schema)) is not None:
                self._unfollowed[relation.oid] = relation
            return None
        columns, name = _columns_of(relation), self._name_of(relation)
        with translate_errors(f"cannot look up the columns of {table.full_name}"):
            found = self.schema_log.compare(table, columns, name)
        table = table if found is None else found.table
        try:
            _check_key(table, columns)
        except EnvironmentFault:
            if relation.oid not in handover.copies:
                raise
            # Its changes are perhaps from before the table had its key, and in the copy.
            self._tables.pop(relation.oid, None)
            self._unfollowed[relation.oid] = relation
            return None
        self._unfollowed.pop(relation.oid, None)
        oids = [column.type_oid for column in relation.columns]
        with translate_errors(f"cannot look up the types of {table.full_name}"):
            self._types.load(self._queries, oids)
        self._key_types.pop(relation.oid, None)
        self._large_values.forget()
        self._tables[relation.oid] = TableEntries(
            relation,
            self._config.namespace_of(name),
            [self._types.rule(oid) for oid in oids],
            table.key,
            table.copy_key,
            self._form,
            partial(self._report_malformed, relation.oid),
        )
        return found

    def _split(self, entries: TableEntries, change: Change) -> Iterator[RowPart]:
        what = change.what
        match what:
            case Insert(new=new):
                yield RowPart("insert", new, None, entries.copy_key_of(new))
            case Delete(old=old, is_whole_old=is_whole):
                known = old if is_whole else entries.identity_only(old)
                entries.check_identity(known)
                yield RowPart("delete", known, None, entries.copy_key_of(old))
            case Update(new=new, old=old, is_whole_old=is_whole):
                yield from self._split_update(entries, new, old, is_whole=is_whole)

    def _split_update(
        self,
        entries: TableEntries,
        new: Sequence[Value],
        old: Sequence[Value] | None,
        *,
        is_whole: bool,
    ) -> Iterator[RowPart]:
        if old is None:
            yield RowPart("update", new, None, entries.copy_key_of(new))
            return
        known = old if is_whole else entries.identity_only(old)
        entries.check_identity(known)
        filled = entries.fill(new, known)
        before, after = entries.copy_key_of(old), entries.copy_key_of(filled)
        if before == after and entries.key_of(old) == entries.key_of(filled):
            yield RowPart("update", filled, known, after)
            return
        # Another key is another row, for the copy as well as for sinks.
        yield RowPart("delete", known, None, before)
        yield RowPart("insert", filled, None, after)

    def _complete(
        self, entries: TableEntries, part: RowPart, change: Change, handover: Handover
    ) -> RowPart:
        """Return *part* with large values that the change left out, where no sink may have them.

        That is a row with another key, because no earlier entry has it, and see
        :meth:`Handover.may_lack_row`. The values may be newer than the change. If the row is gone,
        its end follows in the stream, and this change of it is left out. So are the parts of it
        that come until then.
        """
        oid, begin = entries.relation.oid, change.begin
        is_new = part.op == "insert"
        is_update = part.op == "update" and (
            oid in self._gone or handover.may_lack_row(oid, begin.commit_lsn)
        )
        if part.new is None or UNCHANGED not in part.new or not (is_new or is_update):
            return part
        new = self._reselect(entries, part.new, begin.xid)
        if new is None and is_new:
            self._gone.add(oid)
        return replace(part, new=new)

    def _record_gone(self, handover: Handover) -> None:
        """Let *handover* know where the rows that were gone have their end at the latest."""
        if self._gone:
            with translate_errors("cannot look at the end of the server's log"):
                end = self._large_values.flushed_end_of_log()
            handover.gone |= dict.fromkeys(self._gone, end)
            self._gone.clear()

    def _reselect(
        self, entries: TableEntries, values: Sequence[Value], xid: int
    ) -> Sequence[Value] | None:
        """Return *values* with the present ones in place of those left out, if there is the row."""
        with translate_errors(f"cannot read a large value of {entries.namespace}"):
            return self._large_values.fill(entries, values, xid)

    def _rank(self, oid: int, parts: Sequence[RowPart], handover: Handover) -> None:
        copy = handover.copies[oid]
        if not copy.bounds:
            return
        table = self.state.tables[oid]
        with translate_errors(f"cannot compare keys of {table.full_name}"):
            if oid not in self._key_types:
                definition = read_definition(self._queries, oid)
                if not definition.columns:
                    return  # The table is gone, and ends here.
                known = {each.name for each in definition.columns}
                # The stream may be behind a rename.
                key = table.copy_key if {*table.copy_key} <= known else definition.copy_key
                self._key_types[oid] = find_key_types(self._queries, table, definition, key)
            ranks = rank_keys(
                self._queries, self._key_types[oid], copy.bounds, [part.key for part in parts]
            )
        for part, rank in zip(parts, ranks, strict=True):
            part.rank = rank


def _tables_of(item: Item) -> set[int]:
    """Return the tables that *item* changes."""
    if isinstance(item, Run):
        return {oid for _, oid, _ in item.relations()}
    if isinstance(item, Change) and isinstance(item.what, Truncate):
        return {*item.what.oids}
    return set()


def _columns_of(relation: Relation) -> tuple[LoggedColumn, ...]:
    return tuple(LoggedColumn(each.name, each.type_oid, each.modifier) for each in relation.columns)


def _check_key(table: FollowedTable, columns: Iterable[LoggedColumn]) -> None:
    """Check that *columns* have the key of *table*.

    Raises:
        EnvironmentFault: a column of it was dropped.

    """
    if missing := {*table.key, *table.copy_key} - {column.name for column in columns}:
        raise EnvironmentFault(
            f"table {table.full_name} has come without its column {min(missing)}, which is part of "
            f"its key; {BEGIN_ANEW}"
        )


def _place_of(change: Change, number: int) -> Place:
    begin = change.begin
    return Place(
        begin.commit_lsn,
        begin.committed_at_us,
        change.lsn,
        2 * (change.count - 1) + number,
        begin.xid,
        change.order,
    )

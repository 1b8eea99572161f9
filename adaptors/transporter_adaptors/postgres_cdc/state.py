"""The tables that a reader follows: what rarely changes about them, as kept beside the log. Pure.

Positions name it. It has what a change behind the reader's back would alter: the objects' numbers
in the catalog, the columns, the files.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from transporter.errors import EnvironmentFault
from transporter_adaptors.postgres.table import TableName
from transporter_adaptors.postgres_cdc.columns import LoggedColumn
from transporter_adaptors.postgres_cdc.handover import TableCopy

if TYPE_CHECKING:
    from collections.abc import Mapping

BEGIN_ANEW: Final = (
    "raise the reader's copy_run above those of its items, which copies every table again by a new "
    "slot"
)
"""What helps against all that the stream of before cannot give any more."""
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class AskedItem:
    """What the pipeline file asked for when a table was published or copied last.

    ``run`` is the number of the copy that it asked for, and the others are as in its item.
    """

    run: int
    columns: tuple[str, ...] = ()
    where: str = ""
    key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FollowedTable:
    """One table.

    Attributes:
        oid: its number. Another one is another table.
        schema: its schema.
        name: its name.
        membership: see :class:`~transporter_adaptors.postgres_cdc.publication.Member`.
        key: the columns that become the key.
        copy_key: the columns in whose order it is copied, none for a table without a copy.
        begun: the transaction after which its copy may begin.
        run: the number of the present copy. It may be higher than the one that was asked for.
        is_repeated: whether earlier rows are before it in the log, with no TRUNCATE in between,
            or some rows are not copied: no change is left to the copy then.
        insert_only: whether it is in the publication with INSERT and TRUNCATE.
        columns: the columns as they were logged last, see
            :class:`~transporter_adaptors.postgres_cdc.columns.LoggedColumn`.
        files: a hash of the numbers of its files, which are others once it was rewritten.
        partitions: a hash of the numbers of its partitions.
        is_described: whether an entry about its columns is logged.
        asked: what the pipeline file asked for, ``None`` where an older version wrote the state.

    """

    oid: int
    schema: str
    name: str
    membership: int
    key: tuple[str, ...]
    copy_key: tuple[str, ...] = ()
    begun: int = 0
    run: int = 1
    is_repeated: bool = False
    insert_only: bool = False
    columns: tuple[LoggedColumn, ...] = ()
    files: int = 0
    partitions: int = 0
    is_described: bool = False
    asked: AskedItem | None = None

    @property
    def full_name(self) -> TableName:
        """The name with its schema."""
        return TableName(self.name, self.schema)

    @property
    def keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The columns of its keys: of entries, and of the copy."""
        return self.key, self.copy_key

    @property
    def asked_run(self) -> int:
        """The number of the copy that the pipeline file asked for last."""
        return self.run if self.asked is None else self.asked.run


@dataclass(frozen=True, slots=True)
class TablesState:
    """All tables by their numbers, the order in which they are copied, and the publications.

    Those are numbers by name, and so are their versions: the transactions that altered them last.
    ``left`` are names that followed tables had, by which sinks may still have their rows, with the
    numbers of these tables.
    """

    publications: Mapping[str, int]
    tables: Mapping[int, FollowedTable]
    queue: tuple[int, ...] = ()
    versions: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[TableName, int] = field(default_factory=dict)

    @property
    def copies(self) -> list[TableCopy]:
        """The copies of the queue, before any of them has begun."""
        found = (self.tables[oid] for oid in self.queue if oid in self.tables)
        return [TableCopy(table.oid, table.begun, table.run, table.is_repeated) for table in found]

    @property
    def remedy(self) -> str:
        """Advice that has every table copied again. A table may be at a higher run than others."""
        run = max((table.run for table in self.tables.values()), default=0) + 1
        return f"raise the reader's copy_run to {run}, which copies every table again"

    def __str__(self) -> str:
        tables = [asdict(table) for table in self.tables.values()]
        asked = [(table["oid"], item) for table in tables if (item := table.pop("asked"))]
        fields: dict[str, Any] = {
            "v": _VERSION,
            "publications": dict(self.publications),
            "versions": dict(self.versions),
            "tables": tables,
            "queue": self.queue,
        }
        # An older version reads a state with further fields here, but not with any in a table.
        if asked:
            fields["asked"] = {str(oid): item for oid, item in asked}
        if self.left:
            fields["left"] = [[name.schema, name.name, oid] for name, oid in self.left.items()]
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> TablesState:
        """Read what ``str`` has made.

        Raises:
            EnvironmentFault: another version wrote it.

        """
        fields: dict[str, Any] = json.loads(text)
        if (version := fields.get("v")) != _VERSION:
            raise EnvironmentFault(
                f"the state of the tables has format {version}, and this transporter reads "
                f"{_VERSION}; use the version that wrote it"
            )
        asked = fields.get("asked", {})
        tables = [_table_of(each, asked.get(str(each["oid"]))) for each in fields["tables"]]
        return cls(
            fields["publications"],
            {table.oid: table for table in tables},
            tuple(fields["queue"]),
            fields.get("versions", {}),
            {TableName(name, schema): oid for schema, name, oid in fields.get("left", ())},
        )


def _table_of(fields: dict[str, Any], asked: dict[str, Any] | None) -> FollowedTable:
    tuples = {name: tuple(fields[name]) for name in ("key", "copy_key")}
    columns = tuple(LoggedColumn(*each) for each in fields["columns"])
    item = None
    if asked is not None:
        lists = {name: tuple(asked[name]) for name in ("columns", "key")}
        item = AskedItem(**{**asked, **lists})
    return FollowedTable(**{**fields, **tuples, "columns": columns, "asked": item})

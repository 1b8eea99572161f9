"""The columns of tables as they change in the stream or between two chunks of a copy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from transporter.message import Message
from transporter_adaptors.postgres_cdc.columns import (
    SCHEMA_TYPE,
    ColumnChanges,
    LoggedColumn,
    compare_columns,
    follow_renames,
    schema_document,
)
from transporter_adaptors.postgres_cdc.tables import PARTS, find_files, read_definition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres.table import TableName
    from transporter_adaptors.postgres_cdc.config import CdcConfig
    from transporter_adaptors.postgres_cdc.state import FollowedTable

_DEFAULTS: Final = f"""
SELECT {PARTS} JOIN pg_attribute a ON a.attrelid = c.oid
WHERE a.attname = ANY(%s) AND a.atthasmissing LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class NewColumns:
    """Other columns of a table from here on, or columns that are not logged yet.

    ``document`` is the data of an entry about them, if there is to be one. With ``fills`` existing
    rows have values in them that were never sent. ``name`` is the table's in the stream, where the
    state has another.
    """

    table: FollowedTable
    changes: ColumnChanges
    document: bytes | None = None
    fills: bool = False
    name: TableName | None = None

    def entry(self, config: CdcConfig) -> Message | None:
        """Return the entry about the columns, if there is to be one."""
        if self.document is None:
            return None
        namespace = config.namespace_of(self.name or self.table.full_name)
        return Message(namespace, self.document, None, "command", content_type=SCHEMA_TYPE)


class SchemaLog:
    """Compares a table's columns with those that are logged. Belongs to one thread."""

    def __init__(self, queries: Connection, *, wants_entries: bool) -> None:
        """Look types up by the session *queries*; make entries if *wants_entries*."""
        self._queries, self._wants_entries = queries, wants_entries

    def compare(
        self,
        table: FollowedTable,
        columns: tuple[LoggedColumn, ...],
        name: TableName | None = None,
    ) -> NewColumns | None:
        """Return what is new about the *columns* of *table*, or ``None`` if nothing is.

        With another *name* than the state's the table is described under that one, too.

        Raises:
            psycopg.Error: the catalog cannot be read.

        """
        changes = compare_columns(table.columns, columns)
        name = name or table.full_name
        is_described = table.is_described and name == table.full_name
        if not changes and (is_described or not self._wants_entries):
            return None
        files = find_files(self._queries, [table.oid]).get(table.oid)
        made = replace(
            table,
            columns=columns,
            key=follow_renames(table.key, table.columns, columns),
            copy_key=follow_renames(table.copy_key, table.columns, columns),
            is_described=self._wants_entries and (table.is_described or name == table.full_name),
            files=files.files if files else table.files,
            partitions=files.partitions if files else table.partitions,
        )
        document = self._describe(made, name) if self._wants_entries else None
        fills = bool(changes.added or changes.retyped) and (
            made.files != table.files
            # A renamed column has the values of before.
            or follow_renames(changes.dropped, table.columns, columns) != changes.dropped
            or self._has_defaults(table.oid, changes.added)
        )
        return NewColumns(made, changes, document, fills, name)

    def _has_defaults(self, oid: int, added: Sequence[str]) -> bool:
        """Return whether existing rows have got a constant in *added* columns, without a rewrite.

        Such a default is in the catalog.
        """
        return self._queries.execute(_DEFAULTS, [[oid], [*added]]).fetchone() is not None

    def _describe(self, table: FollowedTable, name: TableName) -> bytes:
        definition = read_definition(self._queries, table.oid)
        not_null = {column.name: column.not_null for column in definition.columns}
        columns = [
            (column.name, kind, not_null.get(column.name, False))
            for column, kind in zip(table.columns, self._type_names(table.columns), strict=True)
        ]
        return schema_document(columns, table.key, name.schema or "", name.name)

    def _type_names(self, columns: Sequence[LoggedColumn]) -> list[str]:
        rows = self._queries.execute(
            "SELECT coalesce(format_type(t::oid, m), 'text')"
            " FROM unnest(%s::bigint[], %s::int[]) WITH ORDINALITY u (t, m, n) ORDER BY n",
            [[each.type_oid for each in columns], [each.modifier for each in columns]],
        )
        return [row[0] for row in rows.fetchall()]

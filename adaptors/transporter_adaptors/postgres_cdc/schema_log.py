"""The columns of tables as they change in the stream or between two chunks of a copy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from transporter.message import Message
from transporter_adaptors.postgres_cdc.columns import (
    SCHEMA_TYPE,
    ColumnChanges,
    LoggedColumn,
    compare_columns,
    follow_renames,
    schema_document,
)
from transporter_adaptors.postgres_cdc.tables import find_files, read_definition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres_cdc.state import FollowedTable


@dataclass(frozen=True, slots=True)
class NewColumns:
    """Other columns of a table from here on, or columns that are not logged yet.

    ``document`` is the data of an entry about them, if there is to be one. ``is_rewritten`` is
    whether the table has other files than before: existing rows may have got other values.
    """

    table: FollowedTable
    changes: ColumnChanges
    document: bytes | None = None
    is_rewritten: bool = False

    def entry(self, namespace: str) -> Message | None:
        """Return the entry about the columns, if there is to be one."""
        if self.document is None:
            return None
        return Message(namespace, self.document, None, "command", content_type=SCHEMA_TYPE)


class SchemaLog:
    """Compares a table's columns with those that are logged. Belongs to one thread."""

    def __init__(self, queries: Connection, *, wants_entries: bool) -> None:
        """Look types up by the session *queries*; make entries if *wants_entries*."""
        self._queries, self._wants_entries = queries, wants_entries

    def compare(self, table: FollowedTable, columns: tuple[LoggedColumn, ...]) -> NewColumns | None:
        """Return what is new about the *columns* of *table*, or ``None`` if nothing is.

        Raises:
            psycopg.Error: the catalog cannot be read.

        """
        changes = compare_columns(table.columns, columns)
        if not changes and (table.is_described or not self._wants_entries):
            return None
        files = find_files(self._queries, [table.oid]).get(table.oid)
        made = replace(
            table,
            columns=columns,
            key=follow_renames(table.key, table.columns, columns),
            copy_key=follow_renames(table.copy_key, table.columns, columns),
            is_described=self._wants_entries,
            files=files.files if files else table.files,
            partitions=files.partitions if files else table.partitions,
        )
        document = self._describe(made) if self._wants_entries else None
        return NewColumns(made, changes, document, is_rewritten=made.files != table.files)

    def _describe(self, table: FollowedTable) -> bytes:
        definition = read_definition(self._queries, table.oid)
        not_null = {column.name: column.not_null for column in definition.columns}
        columns = [
            (column.name, kind, not_null.get(column.name, False))
            for column, kind in zip(table.columns, self._type_names(table.columns), strict=True)
        ]
        return schema_document(columns, table.key, table.schema, table.name)

    def _type_names(self, columns: Sequence[LoggedColumn]) -> list[str]:
        rows = self._queries.execute(
            "SELECT coalesce(format_type(t::oid, m), 'text')"
            " FROM unnest(%s::bigint[], %s::int[]) WITH ORDINALITY u (t, m, n) ORDER BY n",
            [[each.type_oid for each in columns], [each.modifier for each in columns]],
        )
        return [row[0] for row in rows.fetchall()]

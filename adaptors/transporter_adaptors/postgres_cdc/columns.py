"""The columns of a table as the log has them, and the differences to those of now. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA_TYPE: Final = "application/vnd.transporter.schema+json"
"""The content type of an entry with a table's columns."""


class LoggedColumn(NamedTuple):
    """A published column: its name, the number of its type, and the type's modifier (or -1)."""

    name: str
    type_oid: int
    modifier: int


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    """Names of columns that came, went, or have another type. A renamed one went and came."""

    added: tuple[str, ...]
    dropped: tuple[str, ...]
    retyped: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.dropped or self.retyped)


def compare_columns(before: Sequence[LoggedColumn], now: Sequence[LoggedColumn]) -> ColumnChanges:
    """Return the differences between the columns *before* and *now*."""
    old, new = ({column.name: column for column in columns} for columns in (before, now))
    return ColumnChanges(
        tuple(name for name in new if name not in old),
        tuple(name for name in old if name not in new),
        tuple(name for name in new if name in old and new[name] != old[name]),
    )


def schema_document(
    columns: Sequence[tuple[str, str, bool]], key: Sequence[str], schema: str, table: str
) -> bytes:
    """Return the data of an entry with a table's columns: name, SQL type, NOT NULL of each."""
    fields = {
        "command": "schema",
        "schema": schema,
        "table": table,
        "columns": [
            {"name": name, "type": kind, "not_null": not_null} for name, kind, not_null in columns
        ],
        "key": list(key),
    }
    return json.dumps(fields, ensure_ascii=False).encode(errors="surrogateescape")


def follow_renames(
    names: tuple[str, ...], before: Sequence[LoggedColumn], columns: Sequence[LoggedColumn]
) -> tuple[str, ...]:
    """Return *names*, which are some of the columns *before*, as those of now call them.

    A column that was renamed has kept its place and its type. The name of one that is gone is
    returned as it was.
    """
    known, now = {column.name for column in before}, {column.name for column in columns}
    renamed = {
        old.name: new.name
        for old, new in zip(before, columns, strict=False)
        if old.name not in now and new.name not in known and old.type_oid == new.type_oid
    }
    return tuple(renamed.get(name, name) for name in names)

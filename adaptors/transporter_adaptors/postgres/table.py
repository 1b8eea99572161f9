"""The name of the outbox table, and the statement that creates the table of terms."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from psycopg import sql

_PART: Final = r'"(?:[^"\0]|"")+"|[A-Za-z_][A-Za-z_0-9$]*'
_NAME: Final = re.compile(rf"(?:({_PART})\.)?({_PART})")
_PLAIN: Final = re.compile(r"[a-z_][a-z_0-9$]*")


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's name as the database spells it, with its schema when that is known."""

    name: str
    schema: str | None = None

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read *text* as SQL would: unquoted parts are folded to lower case.

        Raise ``ValueError`` when it is not one name or ``schema.name``.
        """
        found = _NAME.fullmatch(text.strip())
        if found is None:
            raise ValueError(
                "is not a table name; write name, schema.name, "
                'or quote the parts as in SQL ("Order Outbox")'
            )
        schema, name = found.groups()
        return cls(_unquote(name), _unquote(schema) if schema else None)

    def __str__(self) -> str:
        return ".".join(_quote(part) for part in self._parts)

    @property
    def identifier(self) -> sql.Identifier:
        """The name, safely quoted, for a composed statement."""
        return sql.Identifier(*self._parts)

    @property
    def in_query(self) -> sql.Composable:
        """The name for a statement with parameters, where a % of its own must be doubled."""
        return escape_percent(self.identifier)

    def sibling(self, name: str) -> TableName:
        """Return the name of another object in the same schema."""
        return replace(self, name=name)

    @property
    def _parts(self) -> tuple[str, ...]:
        return (self.schema, self.name) if self.schema else (self.name,)


def escape_percent(identifier: sql.Identifier) -> sql.Composable:
    """Return *identifier* for a statement with parameters, which begin with a per cent sign."""
    return sql.SQL(identifier.as_string().replace("%", "%%"))


def _unquote(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.lower()


def _quote(part: str) -> str:
    if _PLAIN.fullmatch(part):
        return part
    return '"' + part.replace('"', '""') + '"'


def term_ddl(terms: TableName) -> str:
    """Return the SQL that creates *terms*, the table that numbers the readers' terms."""
    return (
        f"CREATE TABLE {terms.identifier.as_string()} (\n"
        "    outbox      TEXT PRIMARY KEY,\n"
        "    term        BIGINT NOT NULL,\n"
        "    leader_id   UUID NOT NULL,\n"
        "    acquired_at TIMESTAMPTZ NOT NULL\n"
        ");\n"
    )

"""The names of an outbox's columns."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from psycopg import sql
from pydantic import AfterValidator, BaseModel, ConfigDict, model_serializer, model_validator

from transporter.message import JSON
from transporter_adaptors.postgres.table import TableName, escape_percent

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST: Final = 63
"""Most bytes of a name. PostgreSQL truncates a longer one with no more than a notice."""


@dataclass(frozen=True, slots=True)
class OutboxColumns:
    """The columns of an outbox as the database spells them, by role."""

    id: str = "id"
    created: str = "create_time"
    topic: str = "kafka_topic"
    key: str = "kafka_key"
    value: str = "kafka_value"
    header_keys: str = "kafka_header_keys"
    header_values: str = "kafka_header_values"
    leader: str = "leader_id"

    @property
    def content_type(self) -> str | None:
        """Content type of the values, or ``None`` for bytes that are not parsed."""
        return JSON

    def items(self) -> Iterator[tuple[str, str]]:
        """Yield each role, as the settings name it, with its column."""
        return ((field.name, getattr(self, field.name)) for field in fields(self))

    def in_query(self, alias: str) -> dict[str, sql.Composable]:
        """Return every column of *alias*, by role, for a statement with parameters."""
        return {role: escape_percent(sql.Identifier(alias, name)) for role, name in self.items()}


def _normalize_column(text: str) -> str:
    try:
        found = TableName.parse(text)
    except ValueError:
        found = None
    if found is None or found.schema is not None:
        raise ValueError(
            'is not a column name; write name, or quote it as in SQL ("Order Id"); '
            "unquoted letters are a to z, and become lower case"
        )
    if len(found.name.encode()) > LONGEST:
        raise ValueError(f"is longer than the {LONGEST} bytes of a name")
    return str(found)


ColumnName = Annotated[str, AfterValidator(_normalize_column)]


class ColumnsConfig(BaseModel):
    """Names of columns, each written as in SQL. Columns left out have their usual names."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    id: ColumnName = "id"
    """Numbers the rows: integers from a sequence, with a unique index on this column alone."""
    created: ColumnName = "create_time"
    """Time at which the row was made."""
    topic: ColumnName = "kafka_topic"
    """Becomes the namespace."""
    key: ColumnName = "kafka_key"
    """Key whose messages stay in order."""
    value: ColumnName = "kafka_value"
    """The data, or NULL for a tombstone."""
    header_keys: ColumnName = "kafka_header_keys"
    """Names of the headers, as an array."""
    header_values: ColumnName = "kafka_header_values"
    """Values of the headers, as an array of the same length."""
    leader: ColumnName = "leader_id"
    """UUID of the leader that marked the row."""

    @model_validator(mode="after")
    def _check_distinct(self) -> Self:
        names: dict[str, Any] = dict(self)
        ((name, times),) = Counter(names.values()).most_common(1)
        if times > 1:
            roles = " and ".join(role for role, each in names.items() if each == name)
            # The name was folded to lower case, so the redaction of secrets would not match it.
            raise ValueError(f"names one column for {roles}; each needs one of its own")
        return self

    @model_serializer
    def _dump_unusual(self) -> dict[str, str]:
        """Dump only the names that differ from the usual ones."""
        return {role: name for role, name in self if name != type(self).model_fields[role].default}

    @property
    def names(self) -> OutboxColumns:
        """The columns' names as the database spells them."""
        return OutboxColumns(**{role: TableName.parse(text).name for role, text in self})

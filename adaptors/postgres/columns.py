"""What the columns of an outbox are called."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from psycopg import sql
from pydantic import AfterValidator, BaseModel, ConfigDict, model_serializer, model_validator

from adaptors.postgres.table import TableName, doubled
from transporter.message import JSON

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST: Final = 63
"""Bytes of a name; PostgreSQL cuts a longer one, with no more than a notice."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of an outbox as the database spells them, by what they hold."""

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
        """What the values are; ``None`` for bytes that are not looked at."""
        return JSON

    def items(self) -> Iterator[tuple[str, str]]:
        """Yield each role, as the settings call it, with its column."""
        return ((field.name, getattr(self, field.name)) for field in fields(self))

    def in_query(self, alias: str) -> dict[str, sql.Composable]:
        """Return every column of *alias*, by role, for a statement with parameters."""
        return {role: doubled(sql.Identifier(alias, name)) for role, name in self.items()}


def _column(text: str) -> str:
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


ColumnName = Annotated[str, AfterValidator(_column)]


class ColumnsConfig(BaseModel):
    """Names of columns, each written as in SQL; what is left out has its usual name."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    id: ColumnName = "id"
    """Numbers the rows; whole numbers from a sequence, one unique index on it alone."""
    created: ColumnName = "create_time"
    """When the row was made."""
    topic: ColumnName = "kafka_topic"
    """Becomes the namespace."""
    key: ColumnName = "kafka_key"
    """What order is kept for."""
    value: ColumnName = "kafka_value"
    """The data; NULL is a tombstone."""
    header_keys: ColumnName = "kafka_header_keys"
    """Names of the headers, an array."""
    header_values: ColumnName = "kafka_header_values"
    """Values of the headers, an array of the same length."""
    leader: ColumnName = "leader_id"
    """Who has marked the row, a UUID."""

    @model_validator(mode="after")
    def _different(self) -> Self:
        names: dict[str, Any] = dict(self)
        ((name, times),) = Counter(names.values()).most_common(1)
        if times > 1:
            roles = " and ".join(role for role, each in names.items() if each == name)
            # Its name was folded to lower case, so what hides secrets would not know it.
            raise ValueError(f"names one column for {roles}; each needs one of its own")
        return self

    @model_serializer
    def _unusual(self) -> dict[str, str]:
        """Show only what is not as usual."""
        return {role: name for role, name in self if name != type(self).model_fields[role].default}

    @property
    def names(self) -> Columns:
        """The columns as the database spells them."""
        return Columns(**{role: TableName.parse(text).name for role, text in self})

"""Settings of the PostgreSQL writer."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from transporter.adaptor import AdaptorConfig
from transporter.election.config import Dsn
from transporter_adaptors.postgres.table import TableName
from transporter_adaptors.templates import fields_of

_FIELDS: Final = frozenset({"namespace"})
_UPSERT_ONLY: Final = frozenset(
    {"key", "key_format", "delete", "truncate", "extra", "missing", "missing_row"}
)
_Name = Annotated[str, Field(min_length=1, max_length=63)]


def _check_table(template: str) -> str:
    unknown = fields_of(template) - _FIELDS
    if unknown:
        raise ValueError(f"has the unknown field {{{min(unknown)}}}; use {{namespace}}")
    return template


def split_name(text: str) -> TableName:
    """Return the table that *text* names: ``schema.table``, split at the first dot, or a name.

    Both are spelled as in the database. Without a schema the search path decides.
    """
    schema, dot, name = text.partition(".")
    return TableName(name, schema) if dot and schema and name else TableName(text)


class _Choice(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )


class Mark(_Choice):
    """Deletes that mark their row."""

    mark: _Name
    """A column of the type boolean, or of a time."""


class Rest(_Choice):
    """A column for the fields that have none."""

    column: _Name
    """A column of the type jsonb or json."""


class PostgresWriterConfig(AdaptorConfig):
    """The database, its tables, and the treatment of entries that do not fit."""

    dsn: Dsn
    """Connection string of the primary: the server itself, or a pool in session mode."""

    table: Annotated[str, Field(min_length=1), AfterValidator(_check_table)] = "{namespace}"
    """Table of an entry. ``{namespace}`` stands for the entry's. A name with a dot is
    ``schema.table``, both as the database spells them."""

    tables: dict[str, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    """Tables by namespace, where ``table`` does not fit."""

    mode: Literal["upsert", "append"] = "upsert"
    """``upsert``: a row for each key. ``append``: a row for each entry."""

    key: tuple[_Name, ...] = ()
    """Columns of the key, in the order of the entry's key. By default the primary key."""

    key_format: Literal["value", "json"] = "value"
    """Form of an entry's key if one column is the key: ``value`` is its text, ``json`` an array.
    Several columns are always an array."""

    delete: Literal["apply", "ignore"] | Mark = "apply"
    """Whether a delete removes its row, is ignored, or marks its row: ``{mark: column}``."""

    truncate: Literal["apply", "refuse", "ignore"] = "apply"
    """Whether a TRUNCATE empties the table, is refused, or is ignored. It cannot be applied
    with ``parallelism``."""

    extra: Literal["refuse", "ignore"] | Rest = "refuse"
    """Whether an entry with a field that has no column is refused, written without it, or written
    with it in another column: ``{column: rest}``."""

    missing: Literal["keep", "null", "default"] = "keep"
    """Value of a column that the entry does not have: the present one, NULL or the default."""

    missing_row: Literal["reject", "ignore"] = "reject"
    """Whether an entry that has only a part of its row is refused or ignored if the row is not
    there."""

    evolve: Literal["none", "add", "create"] = "none"
    """Whether entries with a table's columns (``schema: entries`` of ``postgres-cdc``) add columns
    to the table, and with ``create`` also create it. Not with ``parallelism``."""

    constraints: Literal["check", "replica"] = "check"
    """``replica``: foreign keys are not checked, and triggers not run. Needs the right to set
    ``session_replication_role``."""

    progress: _Name = "transporter_progress"
    """Table of the stored offsets, in this database. Created if it is missing."""

    @property
    def upserts(self) -> bool:
        """Whether the newest row of a key replaces the previous one."""
        return self.mode == "upsert"

    @property
    def fixed_tables(self) -> tuple[TableName, ...]:
        """The tables that are known before the first entry."""
        literal = () if fields_of(self.table) else (self.table_of(""),)
        return (*literal, *map(split_name, self.tables.values()))

    def table_of(self, namespace: str) -> TableName:
        """Return the table of entries of *namespace*."""
        named = self.tables.get(namespace)
        return split_name(self.table.format(namespace=namespace) if named is None else named)

    @model_validator(mode="after")
    def _check_effects(self) -> Self:
        without = sorted(_UPSERT_ONLY & self.model_fields_set)
        if self.mode == "append" and without:
            raise ValueError(f"has mode: append, which has no use for {', '.join(without)}")
        if len(set(self.key)) < len(self.key):
            raise ValueError("names a column of key twice")
        if self.key_format == "json" and len(self.key) > 1:
            raise ValueError("has key_format: json, and several columns are always an array")
        return self

"""Settings of the ``postgres-cdc`` reader."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from transporter.adaptor import AdaptorConfig, Duration, Size
from transporter.election.config import Dsn
from transporter_adaptors.postgres.table import TableName
from transporter_adaptors.templates import fields_of

_PATTERN: Final = re.compile(r"[*?]")
_SLOT: Final = re.compile(r"[a-z0-9_]{1,63}")


def _check_slot(text: str) -> str:
    if not _SLOT.fullmatch(text):
        raise ValueError("is not a slot's name: use a-z, 0-9 and _, at most 63 characters")
    return text


def _check_namespace(template: str) -> str:
    unknown = fields_of(template) - {"schema", "table"}
    if unknown:
        raise ValueError(f"has the unknown field {{{min(unknown)}}}; use {{schema}} and {{table}}")
    return template


def _item(value: Any) -> Any:  # noqa: ANN401 - a text or a mapping of the pipeline file
    return {"table": value} if isinstance(value, str) else value


class TableItem(BaseModel):
    """One item of ``tables``: a table or a pattern, with settings for it."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    table: Annotated[str, Field(min_length=1)]
    """``schema.name``, or a pattern such as ``sales.*``. ``!`` before it leaves tables out."""
    columns: tuple[str, ...] = ()
    """The columns to publish, all by default (PostgreSQL 15 or newer), with the key."""
    where: str = ""
    """A condition in SQL for the rows to publish (PostgreSQL 15 or newer)."""
    key: tuple[str, ...] = ()
    """Columns that become the key, by default those of the replica identity or primary key."""
    insert_only: bool = False
    """Whether only INSERT and TRUNCATE are published, as a table without a key needs it."""
    copy_table: Annotated[Literal["all", "none"] | None, Field(alias="copy")] = None
    """Whether its rows are copied, by default as the reader's ``copy`` says."""
    copy_where: str = ""
    """A condition in SQL for the rows to copy. Changes of all rows are followed."""
    copy_run: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """A higher number than before has the table copied again."""

    @model_validator(mode="after")
    def _check(self) -> TableItem:
        if not _PATTERN.search(self.table):
            TableName.parse(self.table.removeprefix("!"))
        return self

    @property
    def excludes(self) -> bool:
        """Whether matching tables are left out."""
        return self.table.startswith("!")

    @property
    def is_pattern(self) -> bool:
        """Whether it may match several tables."""
        return bool(_PATTERN.search(self.table))

    @property
    def name(self) -> TableName:
        """The table of an item without a pattern; without a schema it is in ``public``."""
        found = TableName.parse(self.table.removeprefix("!"))
        return found if found.schema else TableName(found.name, "public")

    def matches(self, table: TableName) -> bool:
        """Return whether *table*, with its schema, is meant."""
        if self.is_pattern:
            return fnmatchcase(f"{table.schema}.{table.name}", self.table.removeprefix("!"))
        return table == self.name


class MessageItem(BaseModel):
    """One item of ``messages``: logical messages of one prefix, and their entries."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    prefix: Annotated[str, Field(min_length=1)] = "transporter"
    """The prefix, as in ``pg_logical_emit_message(true, prefix, content)``."""
    format: Literal["record", "raw"] = "record"
    """``record``: a JSON document with namespace, key, headers and data; ``raw``: only the data."""
    namespace: str = ""
    """The namespace of a raw message, by default its prefix."""


Item = Annotated[TableItem, BeforeValidator(_item, json_schema_input_type=str | TableItem)]


class CdcConfig(AdaptorConfig):
    """The database, its tables, and the shape of the messages."""

    # Invariant 20: the error about a refused DSN does not quote it.
    model_config = ConfigDict(hide_input_in_errors=True)

    dsn: Dsn
    """Connection string of the primary: the server itself, or a pool in session mode that accepts
    replication sessions."""

    tables: Annotated[tuple[Item, ...], Field(min_length=1)]
    """Tables to read: names and patterns (``public.*``, ``sales.orders``, ``"!public.tmp_*"``). An
    item may be a mapping with ``table`` and settings for it. The last item that matches counts."""

    publication: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """Name of the publication, by default ``transporter_<reader>``."""

    slot: Annotated[str, AfterValidator(_check_slot)] | None = None
    """Name of the replication slot, by default ``transporter_<reader>_<log>``, with the
    beginning of the log's id, so that two logs never share one."""

    manage: Literal["all", "slot", "nothing"] = "all"
    """What is created where it is missing: publication and slot, the slot, or nothing."""

    copy_tables: Annotated[Literal["all", "none"], Field(alias="copy")] = "all"
    """Whether the rows that are there at the beginning are read, too."""

    copy_rows: Annotated[int, Field(ge=1, le=1_000_000)] = 50_000
    """Maximum rows of one chunk of the copy."""

    copy_bytes: Annotated[Size, Field(ge=1024, le=64 * 1024**2)] = 4 * 1024**2
    """Bytes at which a chunk of the copy ends."""

    copy_rate: Annotated[Size, Field(ge=1024)] | None = None
    """Bytes a second of the copy at most, to spare the server. No limit by default."""

    copy_run: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """A higher number than before has every table copied again."""

    copy_from_empty: bool = False
    """Whether a repeated copy begins with an entry that empties the table. Without it, rows stay in
    the sinks that were deleted unseen."""

    batch_rows: Annotated[int, Field(ge=1, le=100_000)] = 20_000
    """Maximum rows of one batch."""

    batch_bytes: Annotated[Size, Field(ge=1024, le=7 * 1024**2)] = 6 * 1024**2
    """Maximum bytes of one batch, as it came from the server."""

    namespace: Annotated[str, AfterValidator(_check_namespace)] = "{schema}.{table}"
    """Template of the namespace, with the fields ``{schema}`` and ``{table}``."""

    key: Literal["value", "json"] = "value"
    """Form of the key: ``value`` is the text of a single column and a JSON array of several;
    ``json`` is always an array."""

    old: bool = False
    """Whether the header ``pg-old`` has the old row, as far as the replica identity has it."""

    transaction: bool = False
    """Whether the headers ``pg-xid`` and ``pg-order`` have the number of the transaction, and the
    place of the change in it."""

    truncate: Literal["command", "ignore"] = "command"
    """Whether a TRUNCATE becomes an entry of the op ``command``."""

    messages: tuple[MessageItem, ...] = ()
    """Logical messages that become entries: an outbox without a table."""

    schema_entries: Annotated[Literal["events", "entries"], Field(alias="schema")] = "events"
    """Whether a table's columns are also logged: before its first row, and when they change."""

    failover: bool = True
    """Whether the slot is synchronized to standbys (PostgreSQL 17 or newer)."""

    server: str = ""
    """System id of the server to accept in place of the one that the log follows, as after an
    upgrade."""

    heartbeat: Annotated[Duration, Field(ge=1, le=3600)] | None = None
    """Seconds between two messages that this reader writes into the server's log, to measure its
    lag while nothing else is written. The slot moves on without them."""

    watch: Annotated[Duration, Field(ge=1, le=3600)] = 10.0
    """Seconds between two looks at slot, publication and tables."""

    @property
    def has_insert_only(self) -> bool:
        """Whether some tables are in a publication of their own, with INSERT and TRUNCATE."""
        return any(item.insert_only for item in self.tables)

    def copies(self, item: TableItem) -> bool:
        """Return whether the rows of a table of *item* are copied."""
        return (item.copy_table or self.copy_tables) == "all"

    def run_of(self, item: TableItem) -> int:
        """Return the number of the copy that a table of *item* is to have."""
        return max(self.copy_run, item.copy_run)

    def namespace_of(self, table: TableName) -> str:
        """Return the namespace of the entries of *table*."""
        return self.namespace.format(schema=table.schema, table=table.name)

    def item_of(self, table: TableName) -> TableItem | None:
        """Return the item that *table* falls under, or ``None`` if it is not to be read."""
        found = None
        for item in self.tables:
            if item.matches(table):
                found = None if item.excludes else item
        return found

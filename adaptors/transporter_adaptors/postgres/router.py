"""The outbox table of Debezium's event router, read without changes to its own columns.

Expressions computed by the server turn its columns into those of our own table, so the other
modules read both alike. Columns that order needs, and that table may lack, are added as ours.
Applications that insert by column name are not affected.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from psycopg import sql
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from transporter.message import JSON
from transporter_adaptors.postgres.columns import ColumnName, OutboxColumns
from transporter_adaptors.postgres.table import TableName, escape_percent

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUTED: Final = "{routed_by}"
"""Placeholder in a topic for the routing column's value."""
NUMBER: Final = "transporter_id"
"""Default name of the column that numbers the rows."""


def _check_topic(topic: str) -> str:
    if ROUTED not in topic:
        raise ValueError(
            f"does not hold {ROUTED}, which stands for the value of route_by "
            "(Debezium's ${routedByValue})"
        )
    return topic


class Additional(BaseModel):
    """A further column, and the place of its value in the message."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    column: ColumnName
    """The column."""
    placement: Literal["header", "envelope"]
    """``header`` for a header of its own, or ``envelope`` for a field beside ``payload``."""
    alias: Annotated[str, Field(min_length=1)] | None = None
    """Name of the header or field, by default the column's name."""


class RouterConfig(BaseModel):
    """Columns and topics of Debezium's event router, with Debezium's defaults."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    event_id: ColumnName = "id"
    """Names the event, and becomes the header ``id``."""
    event_key: ColumnName = "aggregateid"
    """Becomes the key."""
    payload: ColumnName = "payload"
    """Becomes the data: ``json``, ``jsonb``, ``text`` or ``varchar``."""
    binary: bool = False
    """Whether the payload is ``bytea`` (such as Avro), which becomes the data byte for byte."""
    route_by: ColumnName = "aggregatetype"
    """Chooses the topic."""
    topic: Annotated[str, AfterValidator(_check_topic)] = f"outbox.event.{ROUTED}"
    """The namespace, and so the topic. ``{routed_by}`` stands for the value of ``route_by``."""
    timestamp: ColumnName | None = None
    """Time of the event, by default the column that ``columns: {created: …}`` names."""
    additional: tuple[Additional, ...] = ()
    """Further columns, as headers or as fields of an envelope."""

    @model_validator(mode="after")
    def _check_envelope(self) -> Self:
        if self.binary and any(each.placement == "envelope" for each in self.additional):
            raise ValueError(
                "binary and an envelope exclude one another, because an envelope is JSON; "
                "write placement: header"
            )
        return self

    def columns(self, columns: dict[str, str], *, marks: bool) -> RoutedColumns:
        """Return the table's columns. *columns* holds our columns' names that are not default."""
        own = {"id": NUMBER, **columns}
        if self.timestamp is not None:
            own["created"] = self.timestamp
        if not marks:
            own["leader"] = ""
        names = {role: TableName.parse(name).name if name else "" for role, name in own.items()}
        return RoutedColumns(
            **names,
            topic=TableName.parse(self.route_by).name,
            key=TableName.parse(self.event_key).name,
            value=TableName.parse(self.payload).name,
            header_keys="header names",
            header_values="header values",
            router=self,
        )


@dataclass(frozen=True, slots=True)
class RoutedColumns(OutboxColumns):
    """The columns of an event router's table. ``leader`` is empty where rows are not marked."""

    router: RouterConfig = field(kw_only=True)

    @property
    def content_type(self) -> str | None:
        """Content type of the values, or ``None`` for bytes that are not parsed."""
        return None if self.router.binary else JSON

    def items(self) -> Iterator[tuple[str, str]]:
        """Yield each role with its name in errors: the column from which it is made."""
        return ((role, name) for role, name in OutboxColumns.items(self) if role != "router")

    def in_query(self, alias: str) -> dict[str, sql.Composable]:
        """Return an expression over *alias* for each role, for a statement with parameters."""
        router = self.router

        def column(name: str, *, parsed: bool = False) -> sql.Composable:
            found = name if parsed else TableName.parse(name).name
            return escape_percent(sql.Identifier(alias, found))

        headers = [("id", column(router.event_id))]
        fields = [("payload", column(router.payload))]
        for each in router.additional:
            name = each.alias or TableName.parse(each.column).name
            (headers if each.placement == "header" else fields).append((name, column(each.column)))
        before, _, after = router.topic.partition(ROUTED)
        return {
            "id": column(self.id, parsed=True),
            "created": sql.SQL("{}::timestamptz").format(column(self.created, parsed=True)),
            "topic": sql.SQL("({} || {}::text || {})").format(
                _text_literal(before), column(router.route_by), _text_literal(after)
            ),
            "key": sql.SQL("{}::text").format(column(router.event_key)),
            "value": fields[0][1] if router.binary else _json_value(fields),
            "header_keys": _text_array([_text_literal(name) for name, _ in headers]),
            "header_values": _text_array([value for _, value in headers]),
            "leader": column(self.leader, parsed=True) if self.leader else sql.SQL("NULL::uuid"),
        }


def _text_literal(text: str) -> sql.Composable:
    return sql.SQL(sql.Literal(text).as_string().replace("%", "%%"))


def _json_value(fields: list[tuple[str, sql.Composable]]) -> sql.Composable:
    (_, payload), *others = fields
    if not others:
        return sql.SQL("{}::text").format(payload)
    parts = [part for name, value in fields for part in (_text_literal(name), value)]
    return sql.SQL("json_build_object({})::text").format(sql.SQL(", ").join(parts))


def _text_array(values: list[sql.Composable]) -> sql.Composable:
    texts = [sql.SQL("{}::text").format(value) for value in values]
    return sql.SQL("ARRAY[{}]").format(sql.SQL(", ").join(texts))

"""``debezium-envelope``: the step that turns changes of rows into Debezium's change events."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from transporter.errors import StepFailed
from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.route_options import NotEmpty
from transporter.pipeline.steps.debezium_events import EventMaker
from transporter.pipeline.steps.debezium_rows import UnsupportedEntry
from transporter.pipeline.steps.debezium_source import SourceNames
from transporter.pipeline.steps.json_grammar import UnsupportedJson
from transporter.pipeline.steps.per_message import replace_messages
from transporter.pipeline.steps.remap import Text
from transporter.pipeline.steps.step import StepSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from transporter.message import Entry, Message

Name = Annotated[Text, Field(min_length=1)]
_FIELD: Final = re.compile(r"(\{[^{}]*\})")
_GROUPS: Final = {"{schema}": "(?P<schema>.+?)", "{table}": "(?P<table>.+?)"}


def _template_pattern(template: str) -> re.Pattern[str]:
    """Return a pattern of the namespaces that *template* makes. Its first field is the shortest.

    Raise :class:`ValueError` when it does not show which part is the table.
    """
    parts = _FIELD.split(template)
    fields = parts[1::2]
    if not {*fields} <= {*_GROUPS} or fields.count("{table}") != 1 or fields.count("{schema}") > 1:
        raise ValueError("needs the field {table} once, and may have {schema} once")
    if len(fields) > 1 and not parts[2]:
        raise ValueError("needs a separator between {schema} and {table}")
    found = "".join(_GROUPS.get(part, re.escape(part)) for part in parts)
    return re.compile(found, re.DOTALL)


def _check_distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len({*names}) < len(names):
        raise ValueError("names a column twice")
    return names


Columns = Annotated[tuple[Name, ...], AfterValidator(_check_distinct)]


class DebeziumEnvelopeSettings(StepSettings):
    """The names in the events, and the forms of keys and deletions."""

    name: Name
    db: Name
    template: Name = "{schema}.{table}"
    schema_name: Annotated[Name | None, Field(alias="schema")] = None
    key: Annotated[Columns, NotEmpty] | None = None
    keys: dict[Text, Columns] = Field(default_factory=dict)
    key_as: Literal["struct", "value"] = "struct"
    tombstones: bool = True
    unavailable: Text = "__debezium_unavailable_value"
    version: Name = "transporter"

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: str) -> str:
        _template_pattern(template)
        return template

    @model_validator(mode="after")
    def _check_names(self) -> DebeziumEnvelopeSettings:
        if ("{schema}" in self.template) == (self.schema_name is not None):
            raise ValueError("needs either {schema} in template, or schema")
        if self.key_as == "struct" and self.key is None and not self.keys:
            raise ValueError(
                "needs key, the names of the key's columns, for example key: [id]; or key_as: value"
            )
        return self


def debezium_envelope(
    settings: DebeziumEnvelopeSettings,
    folder: Path,  # noqa: ARG001 - as every step
) -> DebeziumEnvelopeStep:
    """Return the step that makes change events by *settings*."""
    names = SourceNames(
        version=settings.version,
        name=settings.name,
        db=settings.db,
        template=settings.template,
        pattern=_template_pattern(settings.template),
        schema=settings.schema_name,
    )
    maker = EventMaker(
        names,
        settings.key,
        settings.keys,
        is_struct_key=settings.key_as == "struct",
        tombstones=settings.tombstones,
        unavailable=settings.unavailable,
    )
    return DebeziumEnvelopeStep(NamespaceFilter(settings.namespace), maker)


@dataclass(frozen=True, slots=True)
class DebeziumEnvelopeStep:
    """A :class:`Step` that replaces changes of rows in its namespaces by change events.

    A deletion becomes two messages, the event and its tombstone, which are acknowledged together.
    """

    namespace: NamespaceFilter
    maker: EventMaker

    def apply(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Return *entries* with events in the place of changes."""
        return replace_messages(entries, self.namespace, self._transform)

    def _transform(self, entries: Iterable[Entry]) -> Iterator[tuple[Message, ...]]:
        for offset, logged_at, message in entries:
            try:
                yield self.maker.events(message, logged_at)
            except (UnsupportedEntry, UnsupportedJson) as error:
                raise StepFailed(f"debezium-envelope: {error}", offset) from error

"""``debezium-envelope``: the step that turns changes of rows into Debezium's change events.

The events have the format of Debezium's PostgreSQL connector, and are made of entries of the reader
``postgres-cdc``. A row's JSON is embedded byte for byte, so that decimals and long integers stay
exact.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

from pydantic import AfterValidator, Field, field_validator, model_validator

from transporter.errors import StepFailed
from transporter.message import JSON, NOOP, Message
from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.route_options import NotEmpty, Text
from transporter.pipeline.steps.debezium_rows import (
    ArrayItems,
    MemberFinder,
    UnsupportedEntry,
    add_members,
    join_members,
    names_in,
)
from transporter.pipeline.steps.debezium_source import Place, SourceNames
from transporter.pipeline.steps.documents import is_json
from transporter.pipeline.steps.fields import encode_name
from transporter.pipeline.steps.json_edits import check_object
from transporter.pipeline.steps.json_grammar import UnsupportedJson
from transporter.pipeline.steps.per_message import replace_messages
from transporter.pipeline.steps.step import StepSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from transporter.message import Entry
    from transporter.pipeline.steps.debezium_source import TableSource

OLD_HEADER: Final = "pg-old"
UNCHANGED_HEADER: Final = "pg-unchanged"
XID_HEADER: Final = "pg-xid"
"""Headers of ``postgres-cdc`` that an event has in its value, and no more as headers."""
_HEADERS: Final = frozenset((OLD_HEADER, UNCHANGED_HEADER, XID_HEADER))
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


class _Table(NamedTuple):
    source: TableSource
    key: Sequence[str] | None


class EventMaker:
    """Maker of change events. Belongs to one thread.

    Args:
        names: The names in ``source``.
        key: Names of the key's columns in tables that *keys* does not list, if known.
        keys: Names of the key's columns by namespace. An empty list is a table without a key.
        is_struct_key: Whether an event's key is an object of the key's columns.
        tombstones: Whether a message without data follows the event of a deletion.
        unavailable: The value of a column that a change has left out.

    """

    def __init__(
        self,
        names: SourceNames,
        key: Sequence[str] | None,
        keys: Mapping[str, Sequence[str]],
        *,
        is_struct_key: bool,
        tombstones: bool,
        unavailable: str,
    ) -> None:
        self._names, self._key, self._keys = names, key, keys
        self._is_struct_key, self._tombstones = is_struct_key, tombstones
        self._unavailable = encode_name(unavailable)
        self._members, self._items = MemberFinder(), ArrayItems()
        self._tables: dict[str, _Table] = {}

    def events(self, message: Message, logged_at: int) -> tuple[Message, ...]:
        """Return the events of *message*: one, and its tombstone where it is a deletion.

        Args:
            message: An entry of ``postgres-cdc``. One of the op ``noop`` is returned as it is.
            logged_at: Its time in the log, in microseconds since the epoch.

        Raises:
            UnsupportedEntry: No event can be made of it.
            UnsupportedJson: Its data are not a JSON object.

        """
        if message.op == NOOP:
            return (message,)
        place = Place.parse(message.source_id)
        match message.op:
            case "insert" | "update":
                return (self._of_row(message, place, logged_at),)
            case "delete":
                return self._of_deletion(message, place, logged_at)
            case "command":
                return (self._of_truncation(message, place, logged_at),)
        raise UnsupportedEntry(
            f"an entry of the op {message.op!r} is not a change of a row; leave it out with "
            "opfilter before this step"
        )

    def _of_row(self, message: Message, place: Place, logged_at: int) -> Message:
        headers, row, table = dict(message.headers), _document(message), self._table(message)
        old, unchanged = _old_row(headers), headers.get(UNCHANGED_HEADER)
        if self._is_struct_key and table.key:
            key: bytes | None = self._struct_key(message, table.key, row)
        else:
            check_object(row)
            key = None if self._is_struct_key else message.key
        after = row if unchanged is None else self._filled(row, unchanged)
        op = b"u"
        if message.op == "insert":
            op = b"r" if message.phase == "copy" else b"c"
        source = table.source.text(message, place, logged_at, headers.get(XID_HEADER))
        return _event(message, key, _value(old, after, source, op, logged_at))

    def _of_deletion(self, message: Message, place: Place, logged_at: int) -> tuple[Message, ...]:
        if message.data is not None:
            raise UnsupportedEntry(
                "a delete with data is not of postgres-cdc; make the events before other changes"
            )
        headers, table = dict(message.headers), self._table(message)
        old = _old_row(headers)
        known = self._deleted_key(message, table, old)
        key = message.key
        if self._is_struct_key:
            if known is None and table.key:
                raise UnsupportedEntry(
                    f"the key of the row that was deleted in {message.namespace!r} is a text whose "
                    "type is unknown; set old: true at the reader, or key_as: value here"
                )
            key = known
        source = table.source.text(message, place, logged_at, headers.get(XID_HEADER))
        before = known if old is None else old
        event = _event(message, key, _value(before, None, source, b"d", logged_at))
        if not self._tombstones or key is None:
            return (event,)
        return event, replace(event, data=None, content_type=None)

    def _of_truncation(self, message: Message, place: Place, logged_at: int) -> Message:
        command = self._members.value(_document(message), "command")
        if command != b'"truncate"':
            raise UnsupportedEntry(
                "a command other than truncate has no change event; leave it out with opfilter "
                "before this step"
            )
        xid = dict(message.headers).get(XID_HEADER)
        source = self._table(message).source.text(message, place, logged_at, xid)
        return _event(message, None, _value(None, None, source, b"t", logged_at))

    def _table(self, message: Message) -> _Table:
        namespace = message.namespace
        found = self._tables.get(namespace)
        if found is None:
            key = self._keys.get(namespace, self._key)
            if key is None and self._is_struct_key:
                raise UnsupportedEntry(
                    f"the columns of the key of {namespace!r} are unknown; list them in keys, or "
                    "set key_as: value"
                )
            found = self._tables[namespace] = _Table(self._names.table_source(namespace), key)
        return found

    def _struct_key(self, message: Message, names: Sequence[str], row: bytes) -> bytes:
        """Return the key of a row that is there, which is checked on the way."""
        values = self._members.values(row, names)
        if values is None:
            lacking = next(name for name in names if self._members.value(row, name) is None)
            raise UnsupportedEntry(
                f"a row of {message.namespace!r} has no column {lacking!r}, which the step's key "
                "names; correct key or keys"
            )
        return join_members(names, values)

    def _deleted_key(self, message: Message, table: _Table, old: bytes | None) -> bytes | None:
        """Return the key of a deleted row as an object, as far as its values are known as JSON."""
        names = table.key or ()
        if not names:
            return None
        values = None if old is None else self._members.values(old, names)
        if values is None and len(names) > 1:
            # A single column's text may look like an array, and several are always one.
            values = self._items(message.key)
        if values is None or len(values) != len(names):
            return None
        return join_members(names, values)

    def _filled(self, row: bytes, unchanged: bytes) -> bytes:
        """Return *row* with the placeholder in the columns that the change has left out."""
        names = [name for name in names_in(unchanged) if self._members.value(row, name) is None]
        if not names:
            return row
        added = join_members(names, [self._unavailable] * len(names))
        return add_members(row, added[1:-1])


def _document(message: Message) -> bytes:
    """Return the data of *message*, which by their content type are JSON."""
    if message.data is None:
        raise UnsupportedEntry(f"an entry of the op {message.op!r} has no data")
    if not is_json(message.content_type):
        raise UnsupportedEntry(f"data of the content type {message.content_type!r} is not JSON")
    return message.data


def _old_row(headers: Mapping[str, bytes | None]) -> bytes | None:
    old = headers.get(OLD_HEADER)
    if old is None:
        return None
    try:
        check_object(old)
    except UnsupportedJson as error:
        raise UnsupportedEntry("the header pg-old is not a JSON object") from error
    return old


def _value(
    before: bytes | None, after: bytes | None, source: bytes, op: bytes, logged_at: int
) -> bytes:
    parts = (b"null" if before is None else before, b"null" if after is None else after, source)
    times = (logged_at // 1000, logged_at, logged_at * 1000)
    return b'{"before":%b,"after":%b,"source":%b,"transaction":null,"op":"%b",' % (*parts, op) + (
        b'"ts_ms":%d,"ts_us":%d,"ts_ns":%d}' % times
    )


def _event(message: Message, key: bytes | None, value: bytes) -> Message:
    headers = message.headers
    if headers:
        headers = tuple(pair for pair in headers if pair[0] not in _HEADERS)
    # By position: `replace` takes three times as long.
    return Message(
        message.namespace,
        value,
        key,
        message.op,
        message.phase,
        message.timestamp,
        message.source_id,
        JSON,
        headers,
    )

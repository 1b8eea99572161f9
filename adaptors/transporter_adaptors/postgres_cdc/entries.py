"""Messages for the log from the changes of a table. Pure."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from transporter.errors import EnvironmentFault
from transporter.message import JSON, Message
from transporter_adaptors.postgres_cdc.json_text import (
    NULL,
    TextError,
    json_raw,
    json_string,
    member_heads,
)
from transporter_adaptors.postgres_cdc.messages import UNCHANGED
from transporter_adaptors.postgres_cdc.state import BEGIN_ANEW

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transporter_adaptors.postgres_cdc.handover import Key
    from transporter_adaptors.postgres_cdc.json_text import Rule
    from transporter_adaptors.postgres_cdc.messages import Relation, Value


_NEVER: Final = object()


class RowEncoder:
    """The JSON objects of the rows of one relation.

    Args:
        columns: Name and rule of each column, in the order of the values.
        absent: A marker. Columns whose value is this object are left out.
        on_malformed: Is called with a column's name and the problem of a text that is not one of
            its type, as after an ALTER TYPE. The text is written as a string then.
    """

    def __init__(
        self,
        columns: Sequence[tuple[str, Rule]],
        absent: object = _NEVER,
        on_malformed: Callable[[str, TextError], None] | None = None,
    ) -> None:
        self._on_malformed = on_malformed
        heads = member_heads([name for name, _ in columns])
        self._absent = absent
        self._names = [name for name, _ in columns]
        # A rule that changes nothing is not called.
        rules = [None if rule is json_raw else rule for _, rule in columns]
        nulls = [head + NULL for head in heads]
        self._columns = list(zip(heads, nulls, rules, strict=True))

    def encode(self, values: Sequence[Any]) -> bytes:
        """Return the JSON object of a row.

        Args:
            values: The text of each column, ``None`` for NULL, or the marker.

        Raises:
            TextError: A text is not one of its column's type, and nothing is called then.
            ValueError: There are more or fewer values than columns.
        """
        absent = self._absent
        parts: list[bytes] = []
        append = parts.append
        index = -1
        for (head, null, rule), value in zip(self._columns, values, strict=True):
            index += 1
            if value is None:
                append(null)
            elif value is not absent:
                append(head)
                try:
                    append(value if rule is None else rule(value))
                except TextError as error:
                    append(self._as_string(index, value, error))
        if not parts:
            return b"{}"
        if values[0] is absent:
            parts[0] = b"{" + parts[0][1:]
        append(b"}")
        return b"".join(parts)

    def _as_string(self, index: int, value: bytes, error: TextError) -> bytes:
        if self._on_malformed is None:
            raise error.in_column(self._names[index]) from error
        self._on_malformed(self._names[index], error)
        return json_string(value)


UNCHANGED_HEADER: Final = "pg-unchanged"
"""Names of columns, as a JSON array, that the data lacks because the change left them alone."""
OLD_HEADER: Final = "pg-old"
"""The old row, as JSON, as far as the replica identity has it."""


XID_HEADER: Final = "pg-xid"
"""The number of the transaction, as of ``pg_current_xact_id()`` modulo 2^32."""
ORDER_HEADER: Final = "pg-order"
"""The place of the change among those of its transaction, from 1."""
ENTRY_SIZE: Final = 256
"""Bytes of an entry besides data, key and headers, about."""


def truncation(*, cascade: bool = False, restart_identity: bool = False) -> bytes:
    """Return the data of an entry that empties a table."""
    fields = {"command": "truncate", "cascade": cascade, "restart_identity": restart_identity}
    return json.dumps(fields).encode()


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a change: its transaction's commit and time (µs UTC), its LSN, a number.

    A logical message has the number -1. ``xid`` is the transaction's number (32 bits), and
    ``order`` counts its changes from 1.
    """

    commit_lsn: int
    committed_at: int
    lsn: int
    number: int = 0
    xid: int = 0
    order: int = 0

    @property
    def source_id(self) -> str:
        """The id of the entry. It sorts by commit, and is the same when it is read again."""
        number = "m" if self.number < 0 else self.number
        return f"{self.commit_lsn:016X}/{self.lsn:016X}/{number}"


@dataclass(frozen=True, slots=True)
class EntryForm:
    """What entries have by the settings: keys as arrays, the old row, the transaction."""

    is_json_key: bool
    keeps_old: bool
    has_transaction: bool = False


def size_of(message: Message) -> int:
    """Return the bytes that *message* takes in a frame, about."""
    headers = sum(len(name) + len(value or b"") for name, value in message.headers)
    return len(message.data or b"") + len(message.key or b"") + headers + ENTRY_SIZE


class TableEntries:
    """Makes entries of the changes of one table, by its definition in the stream. Immutable.

    Attributes:
        relation: the definition.
        keys: the columns of the key, and of that of the copy.
        namespace: the namespace of the entries.
        names: the names of the columns.
        rules: the rules of the columns.
        heads: the JSON before the value of each column.
        row_overhead: the bytes of the JSON of a row of NULLs, about.
        key_places: the places of the key's columns.
        identity_places: the places of the columns whose change makes another row of it.
        row_places: the places of the columns by which the row is found in the table.
        is_json_key: whether the key is a JSON array.
        form: the form of the entries by the settings.

    """

    def __init__(
        self,
        relation: Relation,
        namespace: str,
        rules: Sequence[Rule],
        key: Sequence[str],
        copy_key: Sequence[str],
        form: EntryForm,
        on_malformed: Callable[[str, TextError], None] | None = None,
    ) -> None:
        """Prepare for *relation*, whose columns have these *rules*."""
        names = [column.name for column in relation.columns]
        self.relation, self.namespace = relation, namespace
        self.keys = (tuple(key), tuple(copy_key))
        self.names, self.rules = names, list(rules)
        self.heads = member_heads(names)
        self.row_overhead = sum(len(head) + len(NULL) for head in self.heads)
        self._row = RowEncoder(list(zip(names, rules, strict=True)), UNCHANGED, on_malformed)
        self.key_places = [names.index(name) for name in key if name in names]
        self._copy_key = [names.index(name) for name in copy_key if name in names]
        self.identity_places = sorted({*self.key_places, *self._copy_key})
        self.row_places = self._copy_key or self.key_places
        self.is_json_key = form.is_json_key or len(self.key_places) > 1
        self.form = form

    def under(self, namespace: str) -> TableEntries:
        """Return the same for entries in *namespace*."""
        if namespace == self.namespace:
            return self
        made = copy(self)
        made.namespace = namespace
        return made

    def key_of(self, values: Sequence[Value]) -> bytes | None:
        """Return the key of a row, or ``None`` for a table without one."""
        if not self.key_places:
            return None
        texts = [values[place] for place in self.key_places]
        if not self.is_json_key:
            (text,) = texts
            return text if isinstance(text, bytes) else None
        parts = [
            self.rules[place](text) if isinstance(text, bytes) else b"null"
            for place, text in zip(self.key_places, texts, strict=True)
        ]
        return b"[" + b", ".join(parts) + b"]"

    def copy_key_of(self, values: Sequence[Value]) -> Key:
        """Return the values of the key in whose order the table is copied."""
        return tuple(
            value.decode(errors="surrogateescape") if isinstance(value, bytes) else ""
            for value in (values[place] for place in self._copy_key)
        )

    def check_identity(self, old: Sequence[Value]) -> None:
        """Check that the *old* row of a change has its key.

        Raises:
            EnvironmentFault: the replica identity has other columns.

        """
        places = self.key_places + self._copy_key
        missing = [self.names[at] for at in places if not isinstance(old[at], bytes)]
        if missing:
            raise EnvironmentFault(
                f"a change of {self.relation.schema}.{self.relation.name} came without "
                f"{missing[0]}, which is part of its key: the replica identity of the table, or "
                "of a partition, has other columns; run ALTER TABLE … REPLICA IDENTITY FULL, or "
                f"USING INDEX with the key's index, and {BEGIN_ANEW}"
            )

    def data_of(self, values: Sequence[Value]) -> bytes:
        """Return the data of a row."""
        return self._row.encode(values)

    def inserted(self, values: Sequence[Value], place: Place) -> Message:
        """Return the entry of a new row."""
        return self._message("insert", self._row.encode(values), self.key_of(values), place)

    def updated(
        self, values: Sequence[Value], old: Sequence[Value] | None, place: Place
    ) -> Message:
        """Return the entry of a changed row."""
        headers: dict[str, bytes] = {}
        if UNCHANGED in values:
            pairs = zip(self.names, values, strict=True)
            missing = [name for name, value in pairs if value is UNCHANGED]
            headers[UNCHANGED_HEADER] = json.dumps(missing, ensure_ascii=False).encode(
                errors="surrogateescape"
            )
        self._add_old(headers, old)
        data, key = self._row.encode(values), self.key_of(values)
        return self._message("update", data, key, place, headers)

    def deleted(self, old: Sequence[Value], place: Place) -> Message:
        """Return the entry of a row that is gone: without data, its key only."""
        headers: dict[str, bytes] = {}
        self._add_old(headers, old)
        return self._message("delete", None, self.key_of(old), place, headers)

    def truncated(self, place: Place, *, cascade: bool, restart_identity: bool) -> Message:
        """Return the entry of a TRUNCATE."""
        data = truncation(cascade=cascade, restart_identity=restart_identity)
        return self._message("command", data, None, place)

    def identity_only(self, old: Sequence[Value]) -> list[Value]:
        """Return *old* with the columns of the replica identity alone: the others are unknown."""
        return [
            value if column.is_key else UNCHANGED
            for value, column in zip(old, self.relation.columns, strict=True)
        ]

    def fill(self, values: Sequence[Value], old: Sequence[Value] | None) -> list[Value]:
        """Return *values* with those left out taken from the *old* row, where that has them."""
        if old is None:
            return list(values)
        return [
            before if value is UNCHANGED else value
            for value, before in zip(values, old, strict=True)
        ]

    def _add_old(self, headers: dict[str, bytes], old: Sequence[Value] | None) -> None:
        if self.form.keeps_old and old is not None:
            headers[OLD_HEADER] = self._row.encode(old)

    def _message(
        self,
        op: str,
        data: bytes | None,
        key: bytes | None,
        place: Place,
        headers: dict[str, bytes] | None = None,
    ) -> Message:
        pairs = tuple((headers or {}).items())
        if self.form.has_transaction:
            pairs += transaction_headers(place)
        return Message(
            self.namespace,
            data,
            key,
            op,
            "sync",
            place.committed_at,
            place.source_id,
            JSON if data is not None else None,
            pairs,
        )


def transaction_headers(place: Place) -> tuple[tuple[str, bytes], ...]:
    """Return the headers with the transaction of a change, and its place in that."""
    return (XID_HEADER, b"%d" % place.xid), (ORDER_HEADER, b"%d" % place.order)

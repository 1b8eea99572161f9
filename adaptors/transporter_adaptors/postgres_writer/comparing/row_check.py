"""Comparison of expected rows, as JSON, with those of the sink.

The sink's server converts the JSON as it does for the writer, by the types of the columns. So rows
are equal if the writer would write the values that are there, in any spelling of numbers, times or
documents. Values are compared by their text, because not every type has an equality.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson
import psycopg

from transporter.comparison import RowDifference
from transporter_adaptors.postgres_writer.changes import parse_object
from transporter_adaptors.postgres_writer.failures import is_data
from transporter_adaptors.postgres_writer.session import RawJson
from transporter_adaptors.postgres_writer.statements import literal, quote, typed_columns, value_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transporter_adaptors.postgres_writer.comparing.key_ranges import Key
    from transporter_adaptors.postgres_writer.comparing.sink_tables import SinkTables
    from transporter_adaptors.postgres_writer.comparing.table_side import ComparedColumns
    from transporter_adaptors.postgres_writer.table import Table

_UNCUT: Final = frozenset({"character varying", "character", "bit", "bit varying"})
"""Types that refuse a value that their modifier would cut. A cast would cut it."""

Texts = dict[str, str | None]


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """An expected row beside that of the sink.

    Attributes:
        version: the version of the sink's row, or ``None`` without one. Another one is another
            state.
        columns: the columns that differ.
        is_wrong: whether the expected row cannot be converted.
        expected: texts of the expected values.
        found: texts of the values of the sink's row.

    """

    version: str | None
    columns: tuple[str, ...] = ()
    is_wrong: bool = False
    expected: Texts | None = None
    found: Texts | None = None

    @property
    def is_equal(self) -> bool:
        """Whether the row is there, as expected."""
        return self.version is not None and not self.columns and not self.is_wrong

    def difference(self, table: str, key: Mapping[str, str]) -> RowDifference:
        """Return the difference of an expected row of *table*, which is not equal."""
        if self.version is None and not self.is_wrong:
            return RowDifference(table, "missing", key, expected=self.expected)
        return RowDifference(table, "different", key, self.columns, self.expected, self.found)


VERSION: Final = "o.xmin::text || ' ' || o.tableoid::text || ' ' || o.ctid::text"
"""The version of a row, which every change of it changes, also one to the same values."""


class RowCheck:
    """Checks of rows of one table of the sink."""

    def __init__(
        self,
        sink: SinkTables,
        table: Table,
        compared: ComparedColumns,
        *,
        with_values: bool,
    ) -> None:
        """Check rows of *table* in *sink*, of which the *compared* columns are looked at."""
        self._connection, self._table, self._compared = sink.connection, table, compared
        self._refuses_extra, self._with_values = sink.config.extra == "refuse", with_values
        self._full_types = sink.full_types(table)

    def check(self, documents: Mapping[Key, bytes]) -> dict[Key, CheckedRow]:
        """Return the result for each of these rows, which are JSON objects, by their keys."""
        shapes: dict[tuple[str, ...], list[Key]] = defaultdict(list)
        checked: dict[Key, CheckedRow] = {}
        for key, data in documents.items():
            fields = parse_object(data)
            if fields is None:
                checked[key] = CheckedRow(None, is_wrong=True)
            else:
                shapes[tuple(fields)].append(key)
        for names, keys in shapes.items():
            checked |= self._check_some(names, keys, documents)
        return checked

    def texts(self) -> str:
        """Return the expression of the texts of a row of the sink."""
        return _texts([f"o.{quote(name)}" for name in self._compared.columns])

    def _check_some(
        self, fields: Sequence[str], keys: Sequence[Key], documents: Mapping[Key, bytes]
    ) -> dict[Key, CheckedRow]:
        """Check rows of one shape. One that cannot be converted is found by halving them."""
        try:
            return self._query(fields, keys, [documents[key] for key in keys])
        except psycopg.Error as error:
            if not is_data(error):
                raise
        if len(keys) == 1:
            return {keys[0]: CheckedRow(None, is_wrong=True)}
        half = len(keys) // 2
        return self._check_some(fields, keys[:half], documents) | self._check_some(
            fields, keys[half:], documents
        )

    def _query(
        self, fields: Sequence[str], keys: Sequence[Key], documents: Sequence[bytes]
    ) -> dict[Key, CheckedRow]:
        given = set(fields)
        names = [name for name in self._compared.columns if name in given]
        query, texts = self._text(tuple(names))
        rows = RawJson(b"[" + b",".join(documents) + b"]")
        # A failure must not end a transaction around it.
        with self._connection.transaction():
            found = self._connection.execute(query, [rows]).fetchall()
        extra = [name for name in fields if name not in self._table.columns]
        result = {}
        for place, version, columns, *values in found:
            data = documents[place - 1]
            more = self._find_extra(data, extra) if version is not None else {}
            expected, present = (
                None if each is None else dict(zip(texts, each, strict=True))
                for each in values or (None, None)
            )
            if expected is not None:
                expected |= more
            result[keys[place - 1]] = CheckedRow(
                version, (*columns, *more), expected=expected, found=present
            )
        return result

    def _find_extra(self, data: bytes, names: Sequence[str]) -> Texts:
        """Return those of the fields *names*, which have no column, that should be written."""
        if not names or not self._refuses_extra:
            return {}
        fields = parse_object(data) or {}
        return {
            name: orjson.dumps(fields[name]).decode()
            for name in names
            if fields.get(name) is not None
        }

    def _text(self, names: tuple[str, ...]) -> tuple[str, list[str]]:
        """Return the query for rows with these columns, and the columns whose texts it returns."""
        table, compared = self._table, self._compared
        keys = [name for name in table.key if name not in names]
        differing = ", ".join(
            f"CASE WHEN {self._same(name)} THEN NULL ELSE {literal(name)} END" for name in names
        )
        columns = f"array_remove(ARRAY[{differing}]::text[], NULL)"
        same_key = " AND ".join(f"o.{quote(name)} = r.{quote(name)}" for name in table.key)
        join = " AND ".join([same_key, *compared.conditions])
        values = ""
        if self._with_values:
            expected = _texts([self._value(name) for name in names])
            found = _texts([f"o.{quote(name)}" for name in names])
            values = f", {expected}, CASE WHEN o.ctid IS NOT NULL THEN {found} END"
        query = (
            f"SELECT e.n, {VERSION}, "  # noqa: S608 - quoted
            f"CASE WHEN o.ctid IS NOT NULL THEN {columns} ELSE ARRAY[]::text[] END{values} "
            "FROM pg_catalog.json_array_elements(%s) WITH ORDINALITY AS e (doc, n) "
            f"CROSS JOIN LATERAL pg_catalog.json_to_record(e.doc) "
            f"AS r ({typed_columns(table, [*names, *keys])}) "
            f"LEFT JOIN {compared.source} ON {join}"
        )
        return query, list(names)

    def _same(self, name: str) -> str:
        expected, found = self._value(name), f"o.{quote(name)}"
        return (
            f"(num_nulls({expected}), {self._comparable(name, expected)}) IS NOT DISTINCT FROM "
            f"(num_nulls({found}), {self._comparable(name, found)})"
        )

    def _comparable(self, name: str, value: str) -> str:
        text = f"format('%%s', {value})"
        # Blanks at the end do not count, and the expected value is not padded.
        if self._table.columns[name].type == "character":
            text = f"rtrim({text})"
        return f'({text} COLLATE "C")'

    def _value(self, name: str) -> str:
        """Return the expected value, rounded as the column rounds it."""
        value, column = value_of(self._table, name), self._table.columns[name]
        if column.type in _UNCUT:
            return value
        return f"({value})::{self._full_types[name].replace('%', '%%')}"


def _texts(values: Sequence[str]) -> str:
    texts = (f"CASE WHEN num_nulls({each}) = 0 THEN format('%%s', {each}) END" for each in values)
    return f"ARRAY[{', '.join(texts)}]::text[]"

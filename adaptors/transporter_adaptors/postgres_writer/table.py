"""A table of the target: its columns, and the keys of entries as values of its key. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final
from uuid import UUID

import orjson

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from transporter_adaptors.postgres.table import TableName

_NUMBERS: Final = frozenset({"numeric", "real", "double precision"})
_INTEGERS: Final = frozenset({"smallint", "integer", "bigint"})
_TEXTS: Final = frozenset({"text", "character varying"})
_CLEAR: Final = _INTEGERS | _TEXTS | {"uuid"}
"""Types whose equal values have one canonical form here. Others are only known to the server."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column. ``type`` is as in SQL, without a modifier, by which a cast would cut values."""

    name: str
    type: str
    not_null: bool
    has_default: bool
    is_always_identity: bool
    is_generated: bool

    @property
    def is_json(self) -> bool:
        """Whether its values are JSON."""
        return self.type in {"json", "jsonb"}

    @property
    def is_required(self) -> bool:
        """Whether a new row must have a value for it."""
        return self.not_null and not self.has_default and not self.is_generated


@dataclass(frozen=True, slots=True)
class Table:
    """A table with the columns of its key, in the order of the entries' keys."""

    oid: int
    name: TableName
    columns: dict[str, Column]
    key: tuple[str, ...]
    is_array_key: bool = False
    statements: dict[Hashable, str] = field(default_factory=dict, compare=False, repr=False)
    """Statements that were made for it."""
    has_exact_key: bool = field(init=False)
    """Whether the key has no numbers that are spelled in several ways, as 1.0 and 1.00."""
    has_clear_key: bool = field(init=False)
    """Whether :meth:`identity` differs for two keys if and only if they are of two rows."""

    def __post_init__(self) -> None:
        """Look at the types of the key once, because this is needed for every row."""
        types = {self.columns[name].type for name in self.key}
        object.__setattr__(self, "has_exact_key", not types & _NUMBERS)
        object.__setattr__(self, "has_clear_key", types <= _CLEAR)

    def key_values(self, key: bytes) -> list[str]:
        """Return the JSON values of an entry's *key*, in the order of the columns.

        Raises:
            ValueError: It is not such a key.
        """
        try:
            return [*map(encode_json, self.parse_key(key))]
        except RecursionError:
            raise self._too_deep() from None

    def parse_key(self, key: bytes) -> list[object]:
        """Return the parsed values of an entry's *key*, in which numbers are texts.

        Raises:
            ValueError: It is not such a key.
        """
        try:
            text = key.decode()
            if "\0" in text:
                raise ValueError  # noqa: TRY301 - as if it were not text
            if not self.is_array_key:
                return [text]
            values = json.loads(text, parse_int=_Number, parse_float=_Number)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, list) or len(values) != len(self.key):
            raise ValueError(
                f"{self.name}: the key of the entry must be a JSON array of the values of "
                f"{', '.join(self.key)}"
                if self.is_array_key
                else f"{self.name}: the key of the entry is not text in UTF-8, without NUL"
            )
        return values

    def identity(self, key: bytes) -> Hashable:
        """Return a value that is the same for the texts of one key: 1.0 is 1.00, and 01 is 1.

        Raises:
            ValueError: It is not such a key.
        """
        if self.is_array_key:
            return self.canonical(self._parse_quickly(key) or self.parse_key(key))
        kind = self.columns[self.key[0]].type
        if kind in _INTEGERS:
            try:
                return int(key)
            except ValueError:
                pass
        if kind in _TEXTS or (kind not in _CLEAR and kind not in _NUMBERS):
            return key
        return _canonical(key.decode(errors="replace"), kind)

    def _parse_quickly(self, key: bytes) -> list[object] | None:
        """Return the values of a *key* of texts and integers. Others would not be exact."""
        try:
            values = orjson.loads(key)
        except ValueError:
            return None
        if not isinstance(values, list) or len(values) != len(self.key):
            return None
        return values if all(type(value) in {int, str} for value in values) else None

    def is_key_of(self, key: bytes, values: Iterable[object]) -> bool:
        """Return whether an entry's *key* is that of parsed *values*.

        Raises:
            ValueError: It is not such a key, or the values are nested too deep.
        """
        parsed = self.parse_key(key) if self.is_array_key else [key.decode(errors="replace")]
        return self.canonical(parsed) == self.canonical(values)

    def canonical(self, values: Iterable[object]) -> tuple[Hashable, ...]:
        """Return parsed *values* of the key in a form in which equal ones are the same.

        Raises:
            ValueError: They are nested too deep.
        """
        try:
            return tuple(
                _canonical(value, self.columns[name].type)
                for name, value in zip(self.key, values, strict=True)
            )
        except RecursionError:
            raise self._too_deep() from None

    def key_texts(self, values: Iterable[object]) -> tuple[str, ...]:
        """Return parsed *values* of a clear key as the server writes them.

        Raises:
            ValueError: They are not values of the key.
        """
        texts = []
        for name, value in zip(self.key, values, strict=True):
            kind = self.columns[name].type
            found = _canonical(value, kind)
            if value is None or (kind in _INTEGERS and not isinstance(found, int)):
                raise ValueError(f"{self.name}: {name} has no such value")
            texts.append(str(UUID(hex=str(found)) if kind == "uuid" else found))
        return tuple(texts)

    def _too_deep(self) -> ValueError:
        return ValueError(f"{self.name}: the key of the entry is nested too deep")


class _Number(str):
    """A number as it was spelled."""

    __slots__ = ()


def encode_json(value: object) -> str:
    """Return a parsed *value* as JSON, with numbers as they were spelled."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, list):
        return f"[{','.join(map(encode_json, value))}]"
    if isinstance(value, dict):
        members = (f"{json.dumps(name)}:{encode_json(each)}" for name, each in value.items())
        return f"{{{','.join(members)}}}"
    return json.dumps(value)


def parse_exactly(data: bytes) -> object:
    """Return *data* parsed as JSON, in which numbers are texts.

    Raises:
        ValueError: It is not JSON.
        RecursionError: It is nested too deep.
    """
    return json.loads(data, parse_int=_Number, parse_float=_Number)


def _canonical(value: object, kind: str) -> Hashable:
    if type(value) is int and kind in _INTEGERS:
        return value
    is_plain = isinstance(value, str) or type(value) is int
    text = str(value) if is_plain else encode_json(value)
    if kind in _INTEGERS:
        return _as_integer(text)
    if kind == "uuid":
        return text.strip().strip("{}").replace("-", "").lower()
    if kind in _NUMBERS:
        return _as_number(text)
    return text


def _as_integer(text: str) -> Hashable:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return int(text, 0)  # Such as 0x1f.
    except ValueError:
        return text


def _as_number(text: str) -> Hashable:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    return "NaN" if number.is_nan() else number

"""A table of the target: its columns, and the keys of entries as values of its key. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

    from transporter_adaptors.postgres.table import TableName

_NUMBERS: Final = frozenset({"numeric", "real", "double precision"})
"""Types whose values have several texts."""


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
    """Whether two different texts are always two keys."""

    def __post_init__(self) -> None:
        """Look at the types of the key once, because this is needed for every row."""
        is_exact = not any(self.columns[name].type in _NUMBERS for name in self.key)
        object.__setattr__(self, "has_exact_key", is_exact)

    def key_values(self, key: bytes) -> list[str]:
        """Return the JSON values of an entry's *key*, in the order of the columns.

        Raises:
            ValueError: It is not such a key.
        """
        try:
            text = key.decode()
            if "\0" in text:
                raise ValueError  # noqa: TRY301 - as if it were not text
            if not self.is_array_key:
                return [json.dumps(text)]
            values = json.loads(text, parse_int=_Number, parse_float=_Number)
        except ValueError:
            values = None
        if not isinstance(values, list) or len(values) != len(self.key):
            raise ValueError(
                f"{self.name}: the key of the entry must be a JSON array of the values of "
                f"{', '.join(self.key)}"
                if self.is_array_key
                else f"{self.name}: the key of the entry is not text in UTF-8, without NUL"
            )
        return [_encode(value) for value in values]

    def identity(self, key: bytes) -> Hashable:
        """Return a value that is the same for all texts of one key: 1.0 is 1.00."""
        if self.has_exact_key:
            return key
        values = (json.loads(each, parse_float=Decimal) for each in self.key_values(key))
        return tuple(
            _as_number(value) if self.columns[name].type in _NUMBERS else json.dumps(value)
            for name, value in zip(self.key, values, strict=True)
        )


class _Number(str):
    """A number as it was spelled."""

    __slots__ = ()


def _encode(value: object) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, list):
        return f"[{','.join(map(_encode, value))}]"
    if isinstance(value, dict):
        members = (f"{json.dumps(name)}:{_encode(each)}" for name, each in value.items())
        return f"{{{','.join(members)}}}"
    return json.dumps(value)


def _as_number(value: object) -> object:
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return value
    return "NaN" if number.is_nan() else number

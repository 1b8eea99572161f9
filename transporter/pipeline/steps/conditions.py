"""Conditions on a value of a document: an operator, and the value to compare with."""

from __future__ import annotations

import json
import operator
import re
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import partial
from itertools import chain
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.steps.json_grammar import NUMBER, UnsupportedJson

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

OPERATORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        spelling: spellings[0]
        for spellings in (
            ("==", "eq", "$eq"),
            ("=~",),
            (">", "gt", "$gt"),
            (">=", "gte", "$gte"),
            ("<", "lt", "$lt"),
            ("<=", "lte", "$lte"),
        )
        for spelling in spellings
    }
)
"""Every spelling of an operator, with the operator."""

_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = MappingProxyType(
    {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
)
_KINDS: Final = MappingProxyType(
    {b'"': "text", b"{": "an object", b"[": "an array", b"t": "a boolean", b"f": "a boolean"}
)
_DIGITS: Final = 15
"""Digits of a number in the pipeline file that are sure to survive as a float."""
_NUMBER: Final = re.compile(NUMBER.decode()).fullmatch
_FLAT: Final = MappingProxyType({b"true": True, b"false": False, b"null": None})

Plain = str | int | float | bool | None


class WrongType(UnsupportedJson):
    """A value of a type that the operator cannot compare."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the values found in a document. Immutable.

    ``read`` turns a value as it is written into the form that ``test`` compares, and raises
    :class:`WrongType`. ``test`` takes all values that were read at once.
    """

    read: Callable[[bytes], Any]
    test: Callable[[Sequence[Any]], Iterable[bool]] = field(repr=False)  # it holds the value

    def holds(self, found: Sequence[Sequence[Any]]) -> list[bool]:
        """Return for each document whether the condition holds for any of its values."""
        values = list(chain.from_iterable(found))
        results = iter(self.test(values))
        if len(values) == len(found) and all(found):
            return list(results)  # one value each
        return [sum(next(results) for _ in values) > 0 for values in found]


def make_condition(spelling: str, value: Plain) -> Condition:
    """Return the condition that *spelling* of an operator and *value* stand for.

    Raise :class:`ValueError` when the operator cannot compare with *value*.
    """
    name = OPERATORS[spelling]
    if name == "==":
        return Condition(_read_comparable, partial(_test_equality, _equal_values(value)))
    if name == "=~":
        return Condition(_read_text, partial(_test_match, _parse_pattern(value)))
    return Condition(_read_number, partial(_test_order, _ORDERS[name], _parse_limit(value)))


def _equal_values(value: Plain) -> list[tuple[str, object]]:
    """Return the values equal to *value*, each with its type. Text may stand for a number too."""
    if isinstance(value, bool):
        return [("a boolean", value)]
    if value is None:
        return [("null", None)]
    number = _setting_number(value)
    numbers: list[tuple[str, object]] = [] if number is None else [("a number", number)]
    return [("text", value), *numbers] if isinstance(value, str) else numbers


def _parse_pattern(value: Plain) -> NamespaceFilter:
    if not isinstance(value, str):
        raise ValueError("must be a regular expression for the operator =~")  # noqa: TRY004 - pydantic reports ValueError
    return NamespaceFilter(value)


def _parse_limit(value: Plain) -> Decimal:
    number = None if value is None or isinstance(value, bool) else _setting_number(value)
    if number is None:
        raise ValueError("must be a number for this operator")
    return number


def _setting_number(value: str | float) -> Decimal | None:
    """Return the exact number of a setting, or ``None`` for text that is not a number."""
    if isinstance(value, str):
        return _exact_number(value) if _NUMBER(value) else None
    if isinstance(value, float) and not isfinite(value):
        raise ValueError("is not a number that a document can hold")
    number = Decimal(str(value)) if isinstance(value, float) else Decimal(value)
    if isinstance(value, float) and len(number.as_tuple().digits) > _DIGITS:
        raise ValueError("has more digits than YAML keeps; quote it")
    return number


def _exact_number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise WrongType("holds an exponent that is too large to compare") from None


def _test_equality(wanted: list[tuple[str, object]], values: Sequence[object]) -> list[bool]:
    return [value in wanted for value in values]


def _test_match(pattern: NamespaceFilter, values: Sequence[str | None]) -> list[bool]:
    texts = pa.array(values, pa.string())
    matches = iter(pattern.mask(texts.drop_null()).to_pylist())
    return [value is not None and next(matches) for value in values]


def _test_order(
    order: Callable[[Decimal, Decimal], bool], limit: Decimal, values: Sequence[Decimal | None]
) -> list[bool]:
    return [value is not None and order(value, limit) for value in values]


def _kind(value: bytes) -> str:
    return "null" if value == b"null" else _KINDS.get(value[:1], "a number")


def _string_text(value: bytes) -> str:
    """Return the text that a JSON string stands for."""
    # Few have escapes, and json.loads takes ten times as long.
    return json.loads(value) if b"\\" in value else value[1:-1].decode()


def _read_comparable(value: bytes) -> tuple[str, object]:
    """Return the type and the content of *value*. Objects and arrays are equal to nothing."""
    if value.startswith(b'"'):
        return "text", _string_text(value)
    kind = _kind(value)
    if kind == "a number":
        return kind, _exact_number(value.decode())
    return kind, _FLAT.get(value)


def _read_text(value: bytes) -> str | None:
    """Return text, or ``None`` for null."""
    if value == b"null":
        return None
    if not value.startswith(b'"'):
        raise WrongType(f"is {_kind(value)}; =~ compares text")
    text = _string_text(value)
    if b"\\" in value and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise WrongType("holds an unpaired surrogate, which =~ cannot read")
    return text


def _read_number(value: bytes) -> Decimal | None:
    """Return a number, also one that is written as text, or ``None`` for null."""
    if value == b"null":
        return None
    is_text = value.startswith(b'"')
    text = _string_text(value) if is_text else value.decode()
    if _NUMBER(text):
        return _exact_number(text)
    kind = "text that is not a number" if is_text else _kind(value)
    raise WrongType(f"is {kind}; this operator compares numbers")

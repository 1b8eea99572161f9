"""``only`` and ``skip``: steps that pass or skip entries by a field of their document.

A condition is an operator and the value to compare with.
"""

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
from typing import TYPE_CHECKING, Annotated, Any, Final

import pyarrow as pa
from pydantic import AfterValidator, ValidationInfo, WithJsonSchema, field_validator

from transporter.errors import StepFailed
from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.pipeline.problems import suggestion
from transporter.pipeline.steps.documents import document_mask, replace_chosen
from transporter.pipeline.steps.json_grammar import NUMBER, UnsupportedJson
from transporter.pipeline.steps.json_rewrite import Finder
from transporter.pipeline.steps.paths import FieldPath, path_text
from transporter.pipeline.steps.step import StepSettings

if TYPE_CHECKING:
    import pathlib
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

_Plain = str | int | float | bool | None


def _check_operator(operator: str) -> str:
    if operator not in OPERATORS:
        raise ValueError(f"is not an operator{suggestion(operator, OPERATORS, 'operators')}")
    return operator


class ChoiceSettings(StepSettings):
    """The field, the operator and the value to compare with."""

    field: FieldPath
    operator: Annotated[
        str, AfterValidator(_check_operator), WithJsonSchema({"enum": list(OPERATORS)})
    ]
    value: Annotated[Any, WithJsonSchema({"type": ["string", "number", "boolean", "null"]})]

    @field_validator("value")
    @classmethod
    def _check_value(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, str | int | float | None):
            raise ValueError("must be text, a number, a boolean or null")  # noqa: TRY004 - pydantic reports ValueError
        if "operator" in info.data:  # else the operator is wrong, and reported itself
            make_condition(info.data["operator"], value)
        return value


def only(settings: ChoiceSettings, folder: pathlib.Path) -> ChoiceStep:  # noqa: ARG001 - as every step
    """Return the step that lets through the documents for which *settings* hold."""
    return _make_step("only", settings, passing=True)


def skip(settings: ChoiceSettings, folder: pathlib.Path) -> ChoiceStep:  # noqa: ARG001 - as every step
    """Return the step that leaves out the documents for which *settings* hold."""
    return _make_step("skip", settings, passing=False)


def _make_step(name: str, settings: ChoiceSettings, *, passing: bool) -> ChoiceStep:
    namespace, field = NamespaceFilter(settings.namespace), path_text(settings.field)
    # Data that is not a document must not vanish like a document without the field.
    finder = Finder(settings.field, check=passing)
    compared = make_condition(settings.operator, settings.value)
    return ChoiceStep(name, namespace, field, finder, compared, passing)


@dataclass(frozen=True, slots=True)
class ChoiceStep:
    """A :class:`Step` that passes documents of *namespace* for which *condition* is *passing*.

    Entries that hold no document pass.
    """

    name: str
    namespace: NamespaceFilter
    field: str
    finder: Finder
    condition: Condition
    passing: bool

    @property
    def thorough(self) -> bool:
        """True if data that is not a document fails, also where it cannot hold the field."""
        return self.passing

    def apply(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Return the *entries* that pass."""
        documents, offsets = entries.column("data"), entries.column("offset")
        chosen = document_mask(entries, self.namespace)
        if chosen is not None:
            documents, offsets = documents.filter(chosen), offsets.filter(chosen)
        holds = self.condition.holds(self._find_values(documents.to_pylist(), offsets))
        if holds.count(self.passing) == len(holds):
            return entries
        passes = pa.array([each is self.passing for each in holds], pa.bool_())
        if chosen is not None:
            every = pa.repeat(pa.scalar(value=True), entries.num_rows)
            passes = replace_chosen(passes, every, chosen)
        return entries.filter(passes)

    def _find_values(self, documents: list[bytes], offsets: pa.Array) -> list[list[Any]]:
        """Return the values read from each document."""
        found: list[list[Any]] = []
        find, read = self.finder, self.condition.read
        try:
            for document in documents:
                found.append([*map(read, find(document))])  # noqa: PERF401 - its length marks the failed document
        except _WrongType as error:
            text = f"{self.name}: {self.field!r} {error}"
            raise StepFailed(text, offsets[len(found)].as_py()) from error
        except UnsupportedJson as error:
            raise StepFailed(f"{self.name}: {error}", offsets[len(found)].as_py()) from error
        return found


class _WrongType(UnsupportedJson):
    """A value of a type that the operator cannot compare."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the values found in a document. Immutable.

    ``read`` turns a value as it is written into the form that ``test`` compares, and raises
    :class:`_WrongType`. ``test`` takes all values that were read at once.
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


def make_condition(spelling: str, value: _Plain) -> Condition:
    """Return the condition that *spelling* of an operator and *value* stand for.

    Raise :class:`ValueError` when the operator cannot compare with *value*.
    """
    name = OPERATORS[spelling]
    if name == "==":
        return Condition(_read_comparable, partial(_test_equality, _equal_values(value)))
    if name == "=~":
        return Condition(_read_text, partial(_test_match, _parse_pattern(value)))
    return Condition(_read_number, partial(_test_order, _ORDERS[name], _parse_limit(value)))


def _equal_values(value: _Plain) -> list[tuple[str, object]]:
    """Return the values equal to *value*, each with its type. Text may stand for a number too."""
    if isinstance(value, bool):
        return [("a boolean", value)]
    if value is None:
        return [("null", None)]
    number = _setting_number(value)
    numbers: list[tuple[str, object]] = [] if number is None else [("a number", number)]
    return [("text", value), *numbers] if isinstance(value, str) else numbers


def _parse_pattern(value: _Plain) -> NamespaceFilter:
    if not isinstance(value, str):
        raise ValueError("must be a regular expression for the operator =~")  # noqa: TRY004 - pydantic reports ValueError
    return NamespaceFilter(value)


def _parse_limit(value: _Plain) -> Decimal:
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
        raise _WrongType("holds an exponent that is too large to compare") from None


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
        raise _WrongType(f"is {_kind(value)}; =~ compares text")
    text = _string_text(value)
    if b"\\" in value and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise _WrongType("holds an unpaired surrogate, which =~ cannot read")
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
    raise _WrongType(f"is {kind}; this operator compares numbers")

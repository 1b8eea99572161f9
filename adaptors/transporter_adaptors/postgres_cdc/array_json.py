"""The rule that turns PostgreSQL's text of an array into JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from transporter_adaptors.postgres_cdc.json_text import NULL, TextError, json_number, json_raw

if TYPE_CHECKING:
    from transporter_adaptors.postgres_cdc.json_text import Rule

_SPACE: Final = b" \t\n\r\v\f"
_MARK_QUOTED: Final = bytes.maketrans(_SPACE + b'{}"\\', b"{" * 10)
NUMERIC: Final = b"0123456789+-.e"
_OPEN, _CLOSE, _DELIMITER, _ITEM = range(4)
# What may follow each kind of token in the text of an array.
_FOLLOWING: Final = (
    frozenset((_OPEN, _ITEM)),
    frozenset((_CLOSE, _DELIMITER)),
    frozenset((_OPEN, _ITEM)),
    frozenset((_CLOSE, _DELIMITER)),
)
_NESTING: Final = (1, -1, 0)
_SPELLING: Final = (b"[", b"]", b",")
_BOUNDS: Final = re.compile(rb"(?:\[[+-]?\d+:[+-]?\d+\])++=").match


class ArrayRule:
    """The rule of arrays of any dimension. Their bounds are not part of the JSON. Immutable.

    Attributes:
        element: The rule of the elements.
        delimiter: The byte between elements, as in ``pg_type.typdelim`` of their type.

    """

    def __init__(self, type_name: str, element: Rule, delimiter: bytes = b",") -> None:
        """Prepare for the type *type_name*, which errors name."""
        self.element, self.delimiter = element, delimiter
        self.is_numeric = element is json_raw or element is json_number
        self._type_name = type_name
        self._digits = NUMERIC + delimiter
        self._tokens = _array_tokens(delimiter)

    def __call__(self, text: bytes) -> bytes:
        """Return the JSON of an array."""
        if text[:1] == b"[":
            bounds = _BOUNDS(text)
            if bounds is None:
                raise TextError(self._type_name, 0, "the bounds are incomplete")
            return self._convert_dimensions(text, bounds.end())
        inner = text[1:-1]
        if text[:1] != b"{" or inner.translate(_MARK_QUOTED) is not inner or text[-1:] != b"}":
            return self._convert_dimensions(text, 0)
        if not inner:
            return b"[]"
        items = inner.split(self.delimiter)
        if b"" in items:
            return self._convert_dimensions(text, 0)  # It reports the position.
        if self.is_numeric and not inner.translate(None, self._digits):
            return b"[" + b",".join(items) + b"]"
        element = self.element
        return b"[" + b",".join([NULL if i == b"NULL" else element(i) for i in items]) + b"]"

    def _convert_dimensions(self, text: bytes, start: int) -> bytes:
        return _convert_tokens(text, start, (self._type_name, self._tokens, self.element))


def _array_tokens(delimiter: bytes) -> re.Pattern[bytes]:
    """Return the pattern of a token: an opening, a closing, a delimiter, a plain or quoted item."""
    between = re.escape(delimiter)
    return re.compile(
        rb'(\{)|(\})|(%b)|([^{}"\\\s%b]++)|"((?:[^"\\]++|\\["\\])*+)"' % (between, between)
    )


def _convert_tokens(text: bytes, start: int, rules: tuple[str, re.Pattern[bytes], Rule]) -> bytes:
    """Return the JSON of an array by its tokens, which are JSON's but for their spelling."""
    type_name, pattern, element = rules
    if text[start : start + 1] != b"{":
        raise TextError(type_name, start, "a brace is expected")
    if text[start:] == b"{}":
        return b"[]"
    parts: list[bytes] = []
    depth, depth_of_items, before = 0, 0, _DELIMITER
    position = start
    while position < len(text):
        found = pattern.match(text, position)
        if found is None or (depth == 0 and parts):
            raise TextError(type_name, position, "no such character is expected here")
        group = found.lastindex or 0
        kind = min(group - 1, _ITEM)
        if kind not in _FOLLOWING[before]:
            raise TextError(type_name, position, "no such character is expected here")
        if kind == _ITEM:
            if depth != (depth_of_items := depth_of_items or depth):
                raise TextError(type_name, position, "its dimensions differ")
            parts.append(_convert_item(found[group], element, is_quoted=group > _ITEM + 1))
        else:
            depth += _NESTING[kind]
            parts.append(_SPELLING[kind])
        before, position = kind, found.end()
    if depth:
        raise TextError(type_name, position, "it ends before its last brace")
    return b"".join(parts)


def _convert_item(item: bytes, element: Rule, *, is_quoted: bool) -> bytes:
    if is_quoted:
        if b"\\" in item:
            halves = item.split(b"\\\\")
            item = b"\\".join([half.replace(b'\\"', b'"') for half in halves])
        return element(item)
    return NULL if item == b"NULL" else element(item)

"""Rules that turn PostgreSQL's text of a value into the JSON that ``row_to_json`` gives.

The text is that of the type's output function under ``DateStyle=ISO``, ``TimeZone=UTC``,
``IntervalStyle=iso_8601``, ``extra_float_digits=1``, ``bytea_output=hex`` and ``lc_monetary=C``.
Everything works on bytes, so no byte of a text is ever lost to an encoding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring
from typing import Final

Rule = Callable[[bytes], bytes]
"""The JSON of a value, from its text. Raises :class:`TextError` for a malformed text."""

NULL: Final = b"null"
_ESCAPED: Final = bytes(range(0x20)) + b'"\\'
# Maps each byte that needs an escape to another one. A text without such bytes is returned as is.
_MARK_ESCAPED: Final = bytes.maketrans(_ESCAPED, b"x" * len(_ESCAPED))
_SPACE: Final = b" \t\n\r\v\f"
_MARK_QUOTED: Final = bytes.maketrans(_SPACE + b'{}"\\', b"{" * 10)
_NOT_NUMBERS: Final = frozenset((b"NaN", b"Infinity", b"-Infinity"))
_NUMERIC: Final = b"0123456789+-.e"
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
_FIELD: Final = re.compile(rb'(?:"((?:[^"\\]++|""|\\\\)*+)"|([^"\\(),\s]*+))([,)])').match


class TextError(ValueError):
    """A text that the output function of its type does not produce.

    The message names the type and the position, never the value, which may be a secret.
    The type is the innermost one, and the position is that in its own text.
    """

    def __init__(self, type_name: str, position: int, problem: str, column: str = "") -> None:
        """Describe the *problem* at byte *position* in the text of a value of *type_name*."""
        place = f"column {column}: " if column else ""
        super().__init__(
            f"{place}the text of a value of type {type_name} is malformed at byte {position}: "
            f"{problem}"
        )
        self.type_name = type_name
        self.position = position
        self.problem = problem

    def in_column(self, column: str) -> TextError:
        """Return the same error with the name of the column."""
        return TextError(self.type_name, self.position, self.problem, column)


def json_string(text: bytes) -> bytes:
    """Return *text* as a JSON string, escaped as the server does."""
    if text.translate(_MARK_ESCAPED) is text:
        return b'"' + text + b'"'
    # As Latin-1 each byte is one character, so bytes beyond ASCII pass unchanged.
    return encode_basestring(text.decode("latin-1")).encode("latin-1")


def json_quoted(text: bytes) -> bytes:
    """Return *text* in quotes, for types whose texts never need an escape."""
    return b'"' + text + b'"'


def json_raw(text: bytes) -> bytes:
    """Return *text*, which is JSON: that of an integer or a JSON document."""
    return text


def json_boolean(text: bytes) -> bytes:
    """Return the JSON of a boolean."""
    if text == b"t":
        return b"true"
    if text == b"f":
        return b"false"
    raise TextError("boolean", 0, "it is neither t nor f")


def json_number(text: bytes) -> bytes:
    """Return the JSON of a number: a string if it is ``NaN`` or infinite."""
    # The server ends every number with a digit.
    if text[-1:].isdigit():
        return text
    if text in _NOT_NUMBERS:
        return b'"' + text + b'"'
    raise TextError("numeric", 0, "it is not a number")


def json_bytes(text: bytes) -> bytes:
    r"""Return the JSON of a bytea, whose text ``\x…`` needs one escape."""
    if text[:2] == b"\\x":
        return b'"\\' + text + b'"'
    return json_string(text)


def json_timestamp(text: bytes) -> bytes:
    """Return the JSON of a timestamp: with a T in place of the first blank."""
    return b'"' + text.replace(b" ", b"T", 1) + b'"'


def json_timestamptz(text: bytes) -> bytes:
    """Return the JSON of a timestamp with time zone, whose zone always has minutes."""
    if text[-3:] == b"+00":
        return b'"' + text.replace(b" ", b"T", 1) + b':00"'
    moment, era = (text[:-3], text[-3:]) if text.endswith(b" BC") else (text, b"")
    minutes = b":00" if moment[-3:-2] in {b"+", b"-"} else b""
    return b'"' + moment.replace(b" ", b"T", 1) + minutes + era + b'"'


def vector_rule(type_name: str, element: Rule) -> Rule:
    """Return the rule of ``int2vector`` or ``oidvector``, whose elements stand between blanks."""

    def convert(text: bytes) -> bytes:
        if text.translate(None, b"-0123456789 "):
            raise TextError(type_name, 0, "it has other characters than digits and blanks")
        return b"[" + b",".join(map(element, text.split())) + b"]"

    return convert


def array_rule(type_name: str, element: Rule, delimiter: bytes = b",") -> Rule:
    """Return the rule of arrays of any dimension. Their bounds are not part of the JSON.

    Args:
        type_name: The name of the array's type, for errors.
        element: The rule of the elements.
        delimiter: The byte between elements, as in ``pg_type.typdelim`` of their type.
    """
    is_numeric = element is json_raw or element is json_number
    digits = _NUMERIC + delimiter
    tokens = _array_tokens(delimiter)

    def convert(text: bytes) -> bytes:
        if text[:1] == b"[":
            bounds = _BOUNDS(text)
            if bounds is None:
                raise TextError(type_name, 0, "the bounds are incomplete")
            return convert_dimensions(text, bounds.end())
        inner = text[1:-1]
        if text[:1] != b"{" or inner.translate(_MARK_QUOTED) is not inner or text[-1:] != b"}":
            return convert_dimensions(text, 0)
        if not inner:
            return b"[]"
        items = inner.split(delimiter)
        if b"" in items:
            return convert_dimensions(text, 0)  # It reports the position.
        if is_numeric and not inner.translate(None, digits):
            return b"[" + b",".join(items) + b"]"
        return b"[" + b",".join([NULL if i == b"NULL" else element(i) for i in items]) + b"]"

    def convert_dimensions(text: bytes, start: int) -> bytes:
        return _convert_tokens(text, start, (type_name, tokens, element))

    return convert


def composite_rule(type_name: str, fields: Sequence[tuple[str, Rule]]) -> Rule:
    """Return the rule of a composite type with *fields* in order, without dropped ones."""
    heads = member_heads([name for name, _ in fields])
    members = [(head, rule) for head, (_, rule) in zip(heads, fields, strict=True)]

    def convert(text: bytes) -> bytes:
        if text[:1] != b"(":
            raise TextError(type_name, 0, "it does not begin with a parenthesis")
        if not members:
            if text != b"()":
                raise TextError(type_name, 1, "it has values, but the type has no attributes now")
            return b"{}"
        parts = []
        position, end = 1, b","
        for head, rule in members:
            found = _FIELD(text, position) if end == b"," else None
            if found is None:
                raise TextError(type_name, position, _describe_field(end, members))
            quoted, plain, end = found.groups()
            position = found.end()
            parts.append(head)
            if quoted is not None:
                parts.append(rule(quoted.replace(b'""', b'"').replace(b"\\\\", b"\\")))
            else:
                parts.append(rule(plain) if plain else NULL)
        if end != b")" or position != len(text):
            raise TextError(type_name, position, _describe_field(end, members))
        parts.append(b"}")
        return b"".join(parts)

    return convert


def member_heads(names: Sequence[str]) -> list[bytes]:
    """Return for each member of an object the JSON before its value, beginning with ``{``."""
    keys = [json_string(name.encode("utf-8", "surrogateescape")) for name in names]
    return [(b"," if index else b"{") + key + b":" for index, key in enumerate(keys)]


def _describe_field(end: bytes, members: Sequence[object]) -> str:
    if end == b")":
        return f"it ends, or has fewer values than the type's {len(members)} attributes of now"
    return f"not a value, or more values than the type's {len(members)} attributes of now"


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

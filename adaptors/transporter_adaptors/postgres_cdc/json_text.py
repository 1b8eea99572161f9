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
_NOT_NUMBERS: Final = frozenset((b"NaN", b"Infinity", b"-Infinity"))
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

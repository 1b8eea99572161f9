"""Values of PostgreSQL as JSON, from their text: the bytes that ``row_to_json`` writes for them.

The text is that of DateStyle ISO and TimeZone UTC. See "JSON Functions and Operators" and "Array
Input and Output Syntax" in PostgreSQL's manual. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

Rule = Callable[[bytes], bytes]
"""Turns a value's text into JSON."""

_SPECIAL: Final = re.compile(rb'[\x00-\x1f"\\]')
_ESCAPES: Final = {
    **{bytes([code]): b"\\u%04x" % code for code in range(0x20)},
    b"\b": b"\\b",
    b"\f": b"\\f",
    b"\n": b"\\n",
    b"\r": b"\\r",
    b"\t": b"\\t",
    b'"': b'\\"',
    b"\\": b"\\\\",
}
_BOUNDS: Final = re.compile(rb"(?:\[[+-]?\d+:[+-]?\d+\])+=")
_QUOTED_FIELD: Final = re.compile(rb'"([^"\\]*(?:(?:\\.|"")[^"\\]*)*)"', re.DOTALL)
_BACKSLASHED: Final = re.compile(rb"\\(.)", re.DOTALL)
_FIELD_ESCAPE: Final = re.compile(rb'\\(.)|"(")', re.DOTALL)


class UnexpectedText(ValueError):
    """A value's text that the server would not have written."""


def quote(text: bytes) -> bytes:
    """Return *text* as a JSON string."""
    if _SPECIAL.search(text) is None:
        return b'"' + text + b'"'
    return b'"' + _SPECIAL.sub(lambda found: _ESCAPES[found[0]], text) + b'"'


def as_is(text: bytes) -> bytes:
    """Return the *text* of an integer or a JSON document."""
    return text


def boolean(text: bytes) -> bytes:
    """Return the JSON of ``t`` or ``f``."""
    return b"true" if text == b"t" else b"false"


def number(text: bytes) -> bytes:
    """Return the JSON of a numeric or a float, whose NaN and infinities become strings."""
    return text if text[-1:].isdigit() else b'"' + text + b'"'


def timestamp(text: bytes) -> bytes:
    """Return the JSON of a timestamp: ``T`` in the place of the blank."""
    return b'"' + text.replace(b" ", b"T", 1) + b'"'


def timestamp_with_zone(text: bytes) -> bytes:
    """Return the JSON of a timestamp in UTC, whose zone is written with minutes."""
    return timestamp(text.replace(b"+00", b"+00:00", 1))


def vector_rule(item: Rule) -> Rule:
    """Return the rule of int2vector and oidvector, whose elements are separated by blanks."""

    def rule(text: bytes) -> bytes:
        return b"[" + b",".join(map(item, text.split())) + b"]"

    return rule


def array_rule(item: Rule, delimiter: bytes = b",") -> Rule:
    """Return the rule of an array of any dimension, whose bounds are left out."""
    mark = re.escape(delimiter)
    tokens = re.compile(
        rb"(?P<mark>[{}]|" + mark + rb')|"(?P<quoted>[^"\\]*(?:\\.[^"\\]*)*)"'
        rb'|(?P<plain>[^{}"\\' + mark + rb"]+)",
        re.DOTALL,
    )
    marks = {b"{": b"[", b"}": b"]", delimiter: b","}

    def rule(text: bytes) -> bytes:
        bounds = _BOUNDS.match(text)
        at, parts = bounds.end() if bounds else 0, list[bytes]()
        if text[at : at + 1] != b"{" or text[-1:] != b"}":
            raise _unexpected("an array", text, at)
        for found in tokens.finditer(text, at):
            if found.start() != at:
                break
            at = found.end()
            if found["mark"]:
                parts.append(marks[found["mark"]])
            elif found["quoted"] is not None:
                parts.append(item(_BACKSLASHED.sub(rb"\1", found["quoted"])))
            else:
                parts.append(b"null" if found[0] == b"NULL" else item(found[0]))
        if at != len(text):
            raise _unexpected("an array", text, at)
        return b"".join(parts)

    return rule


def composite_rule(fields: Sequence[tuple[str, Rule]]) -> Rule:
    """Return the rule of a composite type with these *fields*."""
    names = [quote(name.encode(errors="surrogateescape")) + b":" for name, _ in fields]
    rules = [rule for _, rule in fields]

    def rule(text: bytes) -> bytes:
        if text[:1] != b"(":
            raise _unexpected("a composite", text, 0)
        at, parts = 1, list[bytes]()
        for name, field in zip(names, rules, strict=True):
            value, at = _field(text, at)
            parts.append(name + (b"null" if value is None else field(value)))
            if text[at : at + 1] not in (b",", b")"):
                raise _unexpected("a composite", text, at)
            at += 1
        if not fields:
            at += 1
        if at != len(text):
            raise _unexpected("a composite", text, at)
        return b"{" + b",".join(parts) + b"}"

    return rule


_PLAIN_FIELD: Final = re.compile(rb'[^,()"\\]*')


def _field(text: bytes, at: int) -> tuple[bytes | None, int]:
    """Return the field of a composite that begins at *at*, and the place behind it."""
    if text[at : at + 1] == b'"':
        found = _match(_QUOTED_FIELD, text, at, "a composite")
        return _FIELD_ESCAPE.sub(lambda part: part[1] or part[2], found[1]), found.end()
    found = _match(_PLAIN_FIELD, text, at, "a composite")
    return found[0] or None, found.end()


def _match(pattern: re.Pattern[bytes], text: bytes, at: int, kind: str) -> re.Match[bytes]:
    found = pattern.match(text, at)
    if found is None:
        raise _unexpected(kind, text, at)
    return found


def _unexpected(kind: str, text: bytes, at: int) -> UnexpectedText:
    # Without the text itself, which is somebody's data (Invariant 20).
    return UnexpectedText(f"the text of {kind} is malformed at byte {at} of {len(text)}")

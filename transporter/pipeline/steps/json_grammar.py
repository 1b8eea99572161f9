"""JSON's grammar over bytes: patterns that skip whole values, and never recurse.

A value nested up to :data:`FLAT_DEPTH` levels is one match of a regular expression, at the speed of
the expression engine. A deeper one is walked with a stack of our own, so that no document can
exhaust Python's. Quantifiers are possessive throughout: nothing is tried twice, time is linear, and
passed bytes take no memory. Those on groups are made by :func:`possessive` and used with ``match``,
because not every Python has them right. Positions count bytes. The caller checks that strings are
UTF-8.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    Match = Callable[[bytes, int], re.Match[bytes] | None]

FLAT_DEPTH: Final = 3
MAX_DEPTH: Final = 512
"""The deepest nesting. Deeper values are refused, and real documents do not need them."""


def possessive(body: bytes) -> bytes:
    """Return a possessive pattern of *body*, as often as it comes, for every Python.

    Python before 3.11.5 goes on behind the part of *body* that did match where the whole did not.
    It does so from where the last alternative failed, which is here at the beginning. Before 3.11.2
    such a pattern cannot be used with ``fullmatch``. It must not hold groups that capture.
    """
    return rb"(?:" + body + rb"|(?!))*+"


SPACE: Final = rb"[ \t\n\r]*+"
_PLAIN: Final = rb'[^"\\\x00-\x1f]*+'
PLAIN_STRING: Final = rb'"' + _PLAIN + rb'"'
_ESCAPED: Final = possessive(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})' + _PLAIN)
STRING: Final = rb'"' + _PLAIN + _ESCAPED + rb'"'
NUMBER: Final = rb"-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++|)(?:[eE][-+]?+[0-9]++|)"
COLON: Final = SPACE + rb":" + SPACE
_OBJECT_END, _ARRAY_END = ord("}"), ord("]")


class UnsupportedJson(ValueError):
    """A document that a step cannot work on. The text is the reason, and never repeats data."""


class NotJson(UnsupportedJson):
    """Data that is not a JSON object, or not one that we read."""

    def __init__(self, expected: str, position: int) -> None:
        """Make a text from the *expected* syntax and the byte. The data is never repeated."""
        super().__init__(f"data is not a JSON object: expected {expected} at byte {position}")


def member_end() -> bytes:
    """Return the pattern behind an object's member: a comma before another key, or its end."""
    return SPACE + rb"(?:," + SPACE + rb'(?=")|(?=\}))'


@cache
def flat_value() -> bytes:
    """Return the pattern of a value that is nested at most :data:`FLAT_DEPTH` deep."""
    plain = STRING + rb"|" + NUMBER + rb"|true|false|null"
    value = rb"(?:" + plain + rb")"
    for _ in range(FLAT_DEPTH):
        pair = STRING + COLON + value + member_end()
        item = value + SPACE + rb"(?:," + SPACE + rb"(?!\])|(?=\]))"
        pairs = rb"\{" + SPACE + possessive(pair) + rb"\}"
        items = rb"\[" + SPACE + possessive(item) + rb"\]"
        value = rb"(?:" + plain + rb"|" + pairs + rb"|" + items + rb")"
    return value


def member() -> bytes:
    """Return the pattern of an object's member with a flat value (1: its name, 2: its value)."""
    return rb"(" + STRING + rb")" + COLON + rb"(" + flat_value() + rb")" + member_end()


@cache
def _flat_matcher() -> Match:
    return re.compile(flat_value()).match


@cache
def _opening_matcher() -> Match:
    """Match a bracket and all up to the first value in it (1: of an object, 2: of an array)."""
    return re.compile(rb"(\{)" + SPACE + STRING + COLON + rb"|(\[)" + SPACE).match


@cache
def _behind_matcher(closer: int) -> Match:
    """Match all up to the next value in a bracket (1: there is none, it is closed)."""
    key = STRING + COLON if closer == _OBJECT_END else b""
    end = re.escape(bytes([closer]))
    return re.compile(SPACE + rb"(?:," + SPACE + key + rb"|(" + end + rb"))").match


def value_end(data: bytes, position: int) -> int:
    """Return the end of the value that begins at *position*, or raise :class:`NotJson`."""
    closers: list[int] = []
    while True:
        flat = _flat_matcher()(data, position)
        if flat is None:
            position = _enter(data, position, closers)
            continue
        position = _leave(data, flat.end(), closers)
        if not closers:
            return position


def _enter(data: bytes, position: int, closers: list[int]) -> int:
    """Step into the bracket at *position*, and return the start of its first value."""
    opened = _opening_matcher()(data, position)
    if opened is None:
        raise NotJson("a value", position)
    if len(closers) == MAX_DEPTH - FLAT_DEPTH:
        raise NotJson(f"at most {MAX_DEPTH} levels", position)
    closers.append(_OBJECT_END if opened.lastindex == 1 else _ARRAY_END)
    return opened.end()


def _leave(data: bytes, position: int, closers: list[int]) -> int:
    """Close the brackets that end here. Return the start of the next value, or the end of all."""
    while closers:
        behind = _behind_matcher(closers[-1])(data, position)
        if behind is None:
            raise NotJson("a comma or the end", position)
        position = behind.end()
        if behind.lastindex is None:
            return position
        closers.pop()
    return position

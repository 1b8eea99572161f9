"""JSON's grammar over bytes: patterns that jump over whole values, and never recurse.

A value nested up to :data:`FLAT_DEPTH` levels is one match of a regular
expression, at the speed of the expression engine. A deeper one is walked with a
stack of our own, so that no document can exhaust Python's. Quantifiers are
possessive throughout: nothing is tried twice, time is linear, and what has been
passed takes no memory. Those on groups are made by :func:`repeated`, and met by
``match``, for not every Python has them right. Byte positions only; that
strings are UTF-8 is the caller's to check.
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
"""Deeper values are refused; no real document needs them."""


def repeated(body: bytes) -> bytes:
    """Return the pattern of *body* as often as it comes, possessively, on every Python.

    Python before 3.11.5 goes on behind the part of *body* that did match where
    the whole did not; it does so from where the last alternative failed, which
    is here at the beginning. Before 3.11.2 such a pattern cannot be met by
    ``fullmatch``. It must not hold groups that capture.
    """
    return rb"(?:" + body + rb"|(?!))*+"


SPACE: Final = rb"[ \t\n\r]*+"
_PLAIN: Final = rb'[^"\\\x00-\x1f]*+'
PLAIN_STRING: Final = rb'"' + _PLAIN + rb'"'
_ESCAPED: Final = repeated(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})' + _PLAIN)
STRING: Final = rb'"' + _PLAIN + _ESCAPED + rb'"'
NUMBER: Final = rb"-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++|)(?:[eE][-+]?+[0-9]++|)"
COLON: Final = SPACE + rb":" + SPACE
_OBJECT_END, _ARRAY_END = ord("}"), ord("]")


class Refused(ValueError):
    """A document that a step cannot work on; says why, and never repeats what it holds."""


class NotJson(Refused):
    """The data is no JSON object, or not one that we read."""

    def __init__(self, expected: str, position: int) -> None:
        """Say what was *expected* at which byte; the data itself is never repeated."""
        super().__init__(f"data is no JSON object: expected {expected} at byte {position}")


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
        pairs = rb"\{" + SPACE + repeated(pair) + rb"\}"
        items = rb"\[" + SPACE + repeated(item) + rb"\]"
        value = rb"(?:" + plain + rb"|" + pairs + rb"|" + items + rb")"
    return value


def member() -> bytes:
    """Return the pattern of an object's member with a flat value; 1: its name, 2: its value."""
    return rb"(" + STRING + rb")" + COLON + rb"(" + flat_value() + rb")" + member_end()


@cache
def _flat() -> Match:
    return re.compile(flat_value()).match


@cache
def _opening() -> Match:
    """Match a bracket and all up to the first value in it; 1: of an object, 2: of an array."""
    return re.compile(rb"(\{)" + SPACE + STRING + COLON + rb"|(\[)" + SPACE).match


@cache
def _behind(closer: int) -> Match:
    """Match all up to the next value in a bracket; 1: there is none, it is closed."""
    key = STRING + COLON if closer == _OBJECT_END else b""
    end = re.escape(bytes([closer]))
    return re.compile(SPACE + rb"(?:," + SPACE + key + rb"|(" + end + rb"))").match


def value_end(data: bytes, position: int) -> int:
    """Return where the value that begins at *position* ends; raise :class:`NotJson`."""
    closers: list[int] = []
    while True:
        flat = _flat()(data, position)
        if flat is None:
            position = _enter(data, position, closers)
            continue
        position = _leave(data, flat.end(), closers)
        if not closers:
            return position


def _enter(data: bytes, position: int, closers: list[int]) -> int:
    """Step into the bracket at *position*; return where its first value begins."""
    opened = _opening()(data, position)
    if opened is None:
        raise NotJson("a value", position)
    if len(closers) == MAX_DEPTH - FLAT_DEPTH:
        raise NotJson(f"at most {MAX_DEPTH} levels", position)
    closers.append(_OBJECT_END if opened.lastindex == 1 else _ARRAY_END)
    return opened.end()


def _leave(data: bytes, position: int, closers: list[int]) -> int:
    """Return where the next value begins, having closed what ends here; the end if all did."""
    while closers:
        behind = _behind(closers[-1])(data, position)
        if behind is None:
            raise NotJson("a comma or the end", position)
        position = behind.end()
        if behind.lastindex is None:
            return position
        closers.pop()
    return position

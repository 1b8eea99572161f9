"""Which bytes of a document change: a walk over its members that copies nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from transporter.pipeline.steps.grammar import (
    COLON,
    SPACE,
    STRING,
    NotJson,
    member_end,
    value_end,
)

if TYPE_CHECKING:
    from transporter.pipeline.steps.fields import Fields

_OPEN: Final = re.compile(SPACE + rb"\{" + SPACE).match
_NAME: Final = re.compile(rb"(" + STRING + rb")" + COLON).match
_MEMBER_END: Final = re.compile(member_end()).match
_END: Final = re.compile(SPACE + rb"\Z").match
_SPACES: Final = b" \t\n\r"
_CLOSING, _COMMA = b"},"


class FieldTaken(ValueError):
    """A new name is that of another field in the same object."""


Edit = tuple[int, int, bytes]
"""The bytes from a start to an end give way to a text."""

Member = tuple[int, int, int, int, int]
"""Where a member of an object lies.

Its name begins, its name ends, its value begins, its value ends, the next
member begins (or the object ends).
"""


def edits_of(data: bytes, fields: Fields) -> list[Edit]:
    """Return the edits that change *fields* in the document, ascending.

    Every member of that name counts, however it is spelt. Raise
    :class:`NotJson` when *data* is no JSON object, else :class:`FieldTaken`.
    """
    if not data.isascii():
        check_text(data)
    opened = _OPEN(data)
    if opened is None:
        raise NotJson("an object", 0)
    edits: list[Edit] = []
    end = _object(data, opened.end(), fields, edits)
    if not _END(data, end):
        raise NotJson("nothing more", end)
    return edits


def apply(data: bytes, edits: list[Edit]) -> bytes:
    """Return *data* with *edits*, which ascend, made."""
    parts, position = [], 0
    for start, end, text in edits:
        parts += [data[position:start], text]
        position = end
    parts.append(data[position:])
    return b"".join(parts)


def cut(data: bytes, start: int, value_end: int, end: int) -> Edit:
    """Return the edit that removes a member, or a run of them, and one comma with it.

    It begins at *start*, its last value ends at *value_end*, the next begins at *end*.
    """
    if data[end] != _CLOSING:
        return start, end, b""
    # The last one takes the comma before it along, and leaves the space behind it.
    before = start - 1
    while data[before] in _SPACES:
        before -= 1
    return (before if data[before] == _COMMA else start), value_end, b""


def check_text(data: bytes) -> None:
    """Raise :class:`NotJson` where *data* is not UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise NotJson("UTF-8", error.start) from None


def _object(data: bytes, position: int, fields: Fields, edits: list[Edit]) -> int:
    """Add the edits of the object whose first member is at *position*; return where it ends."""
    seen: set[str] = set()
    while True:
        found = fields.next_member(data, position)
        if found.lastindex == 3:  # noqa: PLR2004 - the third group of `next_member`
            _refuse_taken(seen, fields)
            return found.end()
        member = _flat_member(found) if found.lastindex else _deep_member(data, found.end())
        seen.add(_change(data, member, fields, edits))
        position = member[-1]


def _flat_member(found: re.Match[bytes]) -> Member:
    """Return the member that *found*, a match of its name and its value, lies at."""
    return *found.span(1), *found.span(2), found.end()


def _deep_member(data: bytes, position: int) -> Member:
    name = _NAME(data, position)
    if name is None:
        raise NotJson("a field", position)
    end = value_end(data, name.end())
    behind = _MEMBER_END(data, end)
    if behind is None:
        raise NotJson("a comma or the end", end)
    return *name.span(1), name.end(), end, behind.end()


def _change(data: bytes, member: Member, fields: Fields, edits: list[Edit]) -> str:
    """Add the edits of *member*; return its name."""
    start, name_end, value, value_end, end = member
    name, change = fields.change(data[start:name_end])
    if change is None:
        return name
    if change.key == b"":
        _add_cut(data, (start, value_end, end), edits)
        return name
    if change.key is not None:
        edits.append((start, name_end, change.key))
    below = _OPEN(data, value) if change.below is not None else None
    if change.below is not None and below is not None:
        _object(data, below.end(), change.below, edits)
    return name


def _add_cut(data: bytes, place: tuple[int, int, int], edits: list[Edit]) -> None:
    """Add the removal of the member at *place*, as one with that of the member before it."""
    start, value_end, end = place
    if edits and edits[-1][1] == start and not edits[-1][2]:
        start = edits.pop()[0]
    edits.append(cut(data, start, value_end, end))


def _refuse_taken(seen: set[str], fields: Fields) -> None:
    for old, new in fields.renamed:
        if old in seen and new in seen:
            raise FieldTaken(f"{old!r} cannot become {new!r}: there is such a field beside it")

"""Edits of a JSON document's bytes: a walk over its members that copies nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, cast

from transporter.pipeline.steps.json_grammar import (
    COLON,
    SPACE,
    STRING,
    NotJson,
    UnsupportedJson,
    member_end,
    value_end,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.pipeline.steps.fields import FieldChange, Fields, Items

    Always = Callable[[bytes, int], re.Match[bytes]]

_OPEN: Final = re.compile(SPACE + rb"\{" + SPACE).match
_NAME: Final = re.compile(rb"(" + STRING + rb")" + COLON).match
_MEMBER_END: Final = re.compile(member_end()).match
_END: Final = re.compile(SPACE + rb"\Z").match
_OPEN_ITEMS: Final = cast("Always", re.compile(rb"\[" + SPACE).match)
_ITEM_END: Final = cast("Always", re.compile(SPACE + rb"(?:," + SPACE + rb"|)").match)
_START: Final = cast("Always", re.compile(SPACE).match)
_SPACES: Final = b" \t\n\r"
_OBJECT, _ARRAY, _COMMA = b"{[,"
_CLOSING: Final = b"}]"


class FieldTaken(UnsupportedJson):
    """A new name that another field in the same object has."""


Edit = tuple[int, int, bytes]
"""A start, an end, and the text that replaces the bytes between them."""

Member = tuple[int, int, int, int, int]
"""The byte positions of a member of an object.

Its name begins, its name ends, its value begins, its value ends, the next member begins (or the
object ends).
"""


def edits_of(data: bytes, fields: Fields) -> list[Edit]:
    """Return the edits that change *fields* in the document, ascending.

    Every member of that name counts, however it is spelt. Raise :class:`NotJson` when *data* is not
    a JSON object, else :class:`FieldTaken`.
    """
    position = _first_member(data)
    edits: list[Edit] = []
    _check_end(data, _edit_object(data, position, fields, edits))
    return edits


def check_object(data: bytes) -> None:
    """Raise :class:`NotJson` unless *data* is a JSON object."""
    _first_member(data)
    _check_value(data)


def is_document(data: bytes) -> bool:
    """Return whether *data* is JSON of any kind that we read."""
    try:
        if not data.isascii():
            check_text(data)
        _check_value(data)
    except UnsupportedJson:
        return False
    return True


def _check_value(data: bytes) -> None:
    _check_end(data, value_end(data, _START(data, 0).end()))


def _first_member(data: bytes) -> int:
    """Return the start of the first member in the object that *data* seems to be."""
    if not data.isascii():
        check_text(data)
    opened = _OPEN(data)
    if opened is None:
        raise NotJson("an object", 0)
    return opened.end()


def _check_end(data: bytes, end: int) -> None:
    if not _END(data, end):
        raise NotJson("nothing more", end)


def apply_edits(data: bytes, edits: list[Edit]) -> bytes:
    """Return *data* with *edits* applied, which ascend."""
    parts, position = [], 0
    for start, end, text in edits:
        parts += [data[position:start], text]
        position = end
    parts.append(data[position:])
    return b"".join(parts)


def removal_edit(data: bytes, start: int, value_end: int, end: int) -> Edit:
    """Return the edit that removes a member or item, or a run of them, and one comma with it.

    It begins at *start*, its last value ends at *value_end*, the next begins at *end*.
    """
    if data[end] not in _CLOSING:
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


def _edit_object(data: bytes, position: int, fields: Fields, edits: list[Edit]) -> int:
    """Add the edits of the object whose first member is at *position*, and return its end."""
    seen: set[str] = set()
    while True:
        found = fields.next_member(data, position)
        if fields.only:
            _cut_run(data, position, _passed_end(found), edits)
        if found.lastindex == 3:  # noqa: PLR2004 - the third group of `next_member`
            _refuse_taken(seen, fields)
            return found.end()
        member = _flat_member(found) if found.lastindex else _deep_member(data, found.end())
        seen.add(_edit_member(data, member, fields, edits))
        position = member[-1]


def _flat_member(found: re.Match[bytes]) -> Member:
    """Return the member at *found*, a match of its name and its value."""
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


def _passed_end(found: re.Match[bytes]) -> int:
    """Return the end of the members that `next_member` has passed over."""
    if found.lastindex is None:
        return found.end()
    return found.start(3 if found.lastindex == 3 else 1)  # noqa: PLR2004 - see `_object`


def _edit_member(data: bytes, member: Member, fields: Fields, edits: list[Edit]) -> str:
    """Add the edits of *member*, and return its name."""
    start, name_end, value, value_end, end = member
    name, change = fields.change(data[start:name_end])
    if fields.only if change is None else change.removes(data[value]):
        _add_cut(data, (start, value_end, end), edits)
    elif change is not None:
        if change.key is not None:
            edits.append((start, name_end, change.key))
        _edit_value(data, (value, value_end), change, edits)
    return name


def _edit_value(
    data: bytes, place: tuple[int, int], change: FieldChange, edits: list[Edit]
) -> None:
    """Add the edits of the value that begins and ends at *place*, which stays."""
    start, end = place
    if change.taken:
        edits.append((start, end, data[start:end]))
    if change.below is not None and data[start] == _OBJECT:
        _edit_object(data, _START(data, start + 1).end(), change.below, edits)
    if change.items is not None and data[start] == _ARRAY:
        _edit_array(data, place, change.items, edits)


def _edit_array(data: bytes, place: tuple[int, int], items: Items, edits: list[Edit]) -> None:
    """Add the edits of the array that begins and ends at *place*, and is known to be whole."""
    position, closing = _OPEN_ITEMS(data, place[0]).end(), place[1] - 1
    index, count = 0, items.count
    while position < closing and index != count:
        end = value_end(data, position)
        following = _ITEM_END(data, end).end()
        change = items.change(index)
        if items.only if change is None else change.removes(data[position]):
            _add_cut(data, (position, end, following), edits)
        elif change is not None:
            _edit_value(data, (position, end), change, edits)
        position, index = following, index + 1
    if items.only:
        _cut_run(data, position, closing, edits)


def _cut_run(data: bytes, start: int, end: int, edits: list[Edit]) -> None:
    """Add the removal of all members or items from *start* to *end*, where the next begins."""
    if start == end:
        return
    last = end
    while data[end] in _CLOSING and data[last - 1] in _SPACES:
        last -= 1
    _add_cut(data, (start, last, end), edits)


def _add_cut(data: bytes, place: tuple[int, int, int], edits: list[Edit]) -> None:
    """Add the removal of the member at *place*, as one with that of the member before it."""
    start, value_end, end = place
    if edits and edits[-1][1] == start and not edits[-1][2]:
        start = edits.pop()[0]
    edits.append(removal_edit(data, start, value_end, end))


def _refuse_taken(seen: set[str], fields: Fields) -> None:
    for old, new in fields.renamed:
        if old in seen and new in seen:
            raise FieldTaken(f"{old!r} cannot become {new!r}: the object already has that field")

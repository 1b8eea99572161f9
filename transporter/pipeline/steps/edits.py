"""Which bytes of a document change: a walk over its members that copies nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

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
_OPENING, _CLOSING, _COMMA = b"{},"


class Member(NamedTuple):
    """Where a member of an object lies; at *end* the next one begins, or the object ends."""

    start: int
    name_end: int
    value: int
    value_end: int
    end: int


class Edit(NamedTuple):
    """The bytes from *start* to *end* give way to *text*."""

    start: int
    end: int
    text: bytes


def edits_of(data: bytes, fields: Fields) -> list[Edit]:
    """Return the edits that change *fields* in the document, ascending.

    Every member of that name counts, however it is spelt. Raise
    :class:`NotJson` when *data* is no JSON object, or a new name is taken.
    """
    if not data.isascii():
        _check_text(data)
    opened = _OPEN(data)
    if opened is None:
        raise NotJson("no object", 0)
    edits: list[Edit] = []
    end = _object(data, opened.end(), fields, edits)
    if not _END(data, end):
        raise NotJson("something behind the document", end)
    return edits


def apply(data: bytes, edits: list[Edit]) -> bytes:
    """Return *data* with *edits*, which ascend, made."""
    parts, position = [], 0
    for edit in edits:
        parts += [data[position : edit.start], edit.text]
        position = edit.end
    return b"".join([*parts, data[position:]])


def cut(data: bytes, start: int, member: Member) -> Edit:
    """Return the edit that removes the members from *start* to *member*, and one comma."""
    if data[member.end] != _CLOSING:
        return Edit(start, member.end, b"")
    # The last one takes the comma before it along, and leaves the space behind it.
    before = start
    while data[before - 1] in _SPACES:
        before -= 1
    return Edit(before - 1 if data[before - 1] == _COMMA else start, member.value_end, b"")


def _check_text(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise NotJson("not UTF-8", error.start) from None


def _object(data: bytes, position: int, fields: Fields, edits: list[Edit]) -> int:
    """Add the edits of the object whose first member is at *position*; return where it ends."""
    seen: set[str] = set()
    while True:
        found = fields.next_member(data, position)
        if found.lastindex == 3:  # noqa: PLR2004 - the third group of `next_member`
            _refuse_taken(seen, fields, position)
            return found.end()
        member = _flat_member(found) if found.lastindex else _deep_member(data, found.end())
        seen.add(_change(data, member, fields, edits))
        position = member.end


def _flat_member(found: re.Match[bytes]) -> Member:
    return Member(found.start(1), found.end(1), found.start(2), found.end(2), found.end())


def _deep_member(data: bytes, position: int) -> Member:
    name = _NAME(data, position)
    if name is None:
        raise NotJson("no field", position)
    end = value_end(data, name.end())
    behind = _MEMBER_END(data, end)
    if behind is None:
        raise NotJson("neither a comma nor the end", end)
    return Member(position, name.end(1), name.end(), end, behind.end())


def _change(data: bytes, member: Member, fields: Fields, edits: list[Edit]) -> str:
    """Add the edits of *member*; return its name."""
    name, change = fields.change(data[member.start : member.name_end])
    if change is None:
        return name
    if change.key == b"":
        follows = edits and edits[-1].end == member.start and not edits[-1].text
        edits.append(cut(data, edits.pop().start if follows else member.start, member))
        return name
    if change.key is not None:
        edits.append(Edit(member.start, member.name_end, change.key))
    if change.below is not None and data[member.value] == _OPENING:
        opened = _OPEN(data, member.value)
        _object(data, opened.end(), change.below, edits)
    return name


def _refuse_taken(seen: set[str], fields: Fields, position: int) -> None:
    for old, new in fields.renamed:
        if old in seen and new in seen:
            raise NotJson(f"already a field {new!r} beside {old!r}", position)

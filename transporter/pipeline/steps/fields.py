"""The fields of a document that a step keeps, omits or renames."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

from transporter.pipeline.steps.json_grammar import (
    COLON,
    PLAIN_STRING,
    SPACE,
    flat_value,
    member,
    member_end,
    possessive,
)
from transporter.pipeline.steps.paths import EVERY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from transporter.pipeline.steps.paths import Part, Path

_OBJECT, _ARRAY = b"{["


def encode_name(name: str) -> bytes:
    """Return *name* as written in a document that escapes only where it must."""
    return json.dumps(name, ensure_ascii=False).encode()


def may_hold(data: bytes, tokens: Iterable[bytes]) -> bool:
    """Return whether a document can hold a field of one of these names, at its top or below."""
    for each in tokens:
        if each in data:
            return True
    # A name may be spelt with escapes. UTF-16, which is refused, holds NUL bytes.
    return b"\\" in data or b"\0" in data


@dataclass(frozen=True, slots=True)
class FieldChange:
    """The change of one value, and of those below it.

    ``key`` is written in the place of its name. An empty ``key`` removes the whole value, and
    ``None`` keeps it. ``below`` is for an object, ``items`` for an array. With ``only``, any other
    value is removed. With ``taken`` the value is recorded as an edit that changes nothing.
    """

    key: bytes | None = None
    below: Fields | None = None
    items: Items | None = None
    only: bool = False
    taken: bool = False

    def removes(self, opening: int) -> bool:
        """Return whether a value that begins with the byte *opening* is removed."""
        if not self.only:
            return self.key == b""
        wanted = (self.below and opening == _OBJECT) or (self.items and opening == _ARRAY)
        return not wanted


KEPT: Final = FieldChange()
TAKEN: Final = FieldChange(taken=True)
_GONE: Final = FieldChange(key=b"")


@dataclass(frozen=True, slots=True, eq=False)
class Fields:
    """The fields of one object that a step looks at. With ``only``, all others are removed.

    ``renamed`` holds old and new names where the new one might be taken. ``next_member`` passes
    over all other members, and matches the next of these (1: its name, 2: its value), the end of
    the object (3), or nothing.
    """

    changes: Mapping[str, FieldChange]
    renamed: tuple[tuple[str, str], ...]
    next_member: Callable[[bytes, int], re.Match[bytes]]
    only: bool = False

    def change(self, key: bytes) -> tuple[str, FieldChange | None]:
        """Return the name that *key*, a JSON string, stands for, and the change of that field."""
        name: str = json.loads(key) if b"\\" in key else key[1:-1].decode()
        return name, self.changes.get(name)


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """The items of one array that a step looks at. With ``only``, all others are removed.

    They are counted from 0 in the document before any change. ``at`` is empty where ``every`` item
    is looked at.
    """

    at: Mapping[int, FieldChange]
    every: FieldChange | None
    only: bool = False

    @property
    def count(self) -> int | None:
        """The number of items, from the first on, that may change, or ``None`` for all."""
        return None if self.every else max(self.at) + 1

    def change(self, index: int) -> FieldChange | None:
        """Return the change of the item at *index*."""
        return self.every or self.at.get(index)


Target = str | FieldChange | None
"""A field's new name, or the change of its value, or ``None`` to remove it."""


def make_fields(targets: Mapping[Path, Target], *, only: bool = False) -> Fields:
    """Return the changes of an object by those of each path. With *only*, the rest is removed."""
    changes = {
        str(name): _make_change(rest, only=only) for name, rest in _by_first(targets).items()
    }
    own = {
        str(path[0]): new
        for path, new in targets.items()
        if len(path) == 1 and isinstance(new, str)
    }
    renamed = tuple((old, new) for old, new in own.items() if new not in own)
    looked_at = {new: FieldChange() for _, new in renamed} | changes
    return Fields(looked_at, renamed, _next_member(looked_at), only)


def _by_first(targets: Mapping[Path, Target]) -> dict[Part, dict[Path, Target]]:
    below: dict[Part, dict[Path, Target]] = {}
    for path, target in targets.items():
        below.setdefault(path[0], {})[path[1:]] = target
    return below


def _make_change(targets: Mapping[Path, Target], *, only: bool) -> FieldChange:
    own = _own_change(targets[()]) if () in targets else FieldChange(only=only)
    rest = {path: target for path, target in targets.items() if path}
    if not rest or own is _GONE or own is KEPT:
        return own
    names = {path: target for path, target in rest.items() if isinstance(path[0], str)}
    items = {path: target for path, target in rest.items() if path not in names}
    return replace(
        own,
        below=make_fields(names, only=only) if names else None,
        items=_make_items(items, only=only) if items else None,
    )


def _own_change(target: Target) -> FieldChange:
    if target is None:
        return _GONE
    return FieldChange(key=encode_name(target)) if isinstance(target, str) else target


def _make_items(targets: Mapping[Path, Target], *, only: bool) -> Items:
    changes = {part: _make_change(rest, only=only) for part, rest in _by_first(targets).items()}
    at = {part: change for part, change in changes.items() if isinstance(part, int)}
    return Items(at, changes.get(EVERY), only)


def _next_member(names: Iterable[str]) -> Callable[[bytes, int], re.Match[bytes]]:
    pattern = _other_members(names) + rb"(?:" + member() + rb"|(\})|)"
    return cast("Callable[[bytes, int], re.Match[bytes]]", re.compile(pattern).match)


def _other_members(names: Iterable[str]) -> bytes:
    """Return the pattern that passes over all members but those of *names*."""
    tokens = b"|".join(re.escape(encode_name(name)) for name in names)
    # A name that is written with escapes may be one of ours: it is not passed over.
    other = rb"(?!" + tokens + rb")" + PLAIN_STRING + COLON + flat_value() + member_end()
    return possessive(other)


def match_only_member(
    path: tuple[str, ...], new: str | None
) -> Callable[[bytes], re.Match[bytes] | None]:
    """Match a document in which there is one field at *path*, and none beside it named *new*.

    Matches fewer documents than it might. So a match proves that there is such a field, and no
    match proves nothing. Groups are 1: its name, 2: its value, 3: the space or comma behind.
    """
    *above, name = path
    others = _other_members([name] if new is None else [name, new])
    own = rb"(" + re.escape(encode_name(name)) + rb")" + COLON
    own += rb"(" + flat_value() + rb")(" + member_end() + rb")"
    body = others + own + others
    for parent in reversed(above):
        others = _other_members([parent])
        key = re.escape(encode_name(parent)) + COLON
        body = others + key + rb"\{" + SPACE + body + rb"\}" + member_end() + others
    return re.compile(SPACE + rb"\{" + SPACE + body + rb"\}" + SPACE + rb"\Z").match


def match_few_members(names: tuple[str, ...]) -> Callable[[bytes], re.Match[bytes] | None]:
    """Match a document in which at most as many members as *names* have one of these names.

    Proves no more than :func:`match_only_member` does. Group 1 is all up to the first member.
    Then comes one group for each member found, with the comma behind it. The last is the rest.
    """
    others = _other_members(names)
    tokens = b"|".join(re.escape(encode_name(name)) for name in names)
    own = rb"((?:" + tokens + rb")" + COLON + flat_value() + member_end() + rb")"
    body = others + (rb"(?:" + own + others) * len(names) + rb"|)" * len(names)
    return re.compile(
        rb"(" + SPACE + rb"\{" + SPACE + rb")" + body + rb"(\}" + SPACE + rb")\Z"
    ).match

"""Which fields of a document a step is about, and what becomes of each."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from pydantic import PlainValidator

from transporter.pipeline.steps.grammar import (
    COLON,
    PLAIN_STRING,
    SPACE,
    flat_value,
    member,
    member_end,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MAX_PARTS: Final = 32
_NAME: Final = r"(?:[^.\\]|\\[.\\])+"
_PATH: Final = re.compile(rf"{_NAME}(?:\.{_NAME})*")

Path = tuple[str, ...]


def parse_path(text: str) -> Path:
    r"""Return the names in a dotted path; ``\.`` is a dot inside a name, ``\\`` a backslash.

    Raise :class:`ValueError` for what is no path, and for too long a one.
    """
    if not _PATH.fullmatch(text):
        raise ValueError(r"is no path of field names; write a.b.c, and \. for a dot in a name")
    names = [re.sub(r"\\(.)", r"\1", part) for part in re.findall(_NAME, text)]
    if len(names) > MAX_PARTS:
        raise ValueError(f"has more than {MAX_PARTS} parts")
    if not text.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("holds half a character")
    return tuple(names)


def parse_name(text: str) -> str:
    """Return the one name that *text*, written as in a path, stands for."""
    names = parse_path(text)
    if len(names) > 1:
        raise ValueError(r"is a path; write the new name only, and \. for a dot in it")
    return names[0]


def _parsed(parse: Callable[[str], Any]) -> PlainValidator:
    def parsed(value: object) -> object:
        if not isinstance(value, str):
            raise ValueError("must be text; quote it if it looks like a number")  # noqa: TRY004 - pydantic reports ValueError
        return parse(value)

    return PlainValidator(parsed)


FieldPath = Annotated[Path, _parsed(parse_path)]
FieldName = Annotated[str, _parsed(parse_name)]
"""A path, and a name, as settings."""


def token(name: str) -> bytes:
    """Return *name* as a document writes it that escapes nothing without need."""
    return json.dumps(name, ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one field, and of those below it.

    ``key`` is written in the place of its name; empty, the whole field goes;
    ``None``, it stays as it is.
    """

    key: bytes | None = None
    below: Fields | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Fields:
    """The fields of one object that a step looks at.

    ``renamed`` holds old and new names where the new one might be taken.
    ``next_member`` passes over all other members, and matches the next of these
    (1: its name, 2: its value), the end of the object (3), or nothing.
    """

    changes: Mapping[str, Change]
    renamed: tuple[tuple[str, str], ...]
    next_member: Callable[[bytes, int], re.Match[bytes]]

    def change(self, key: bytes) -> tuple[str, Change | None]:
        """Return the name that *key*, a JSON string, stands for, and what becomes of that."""
        name: str = json.loads(key) if b"\\" in key else key[1:-1].decode()
        return name, self.changes.get(name)


def fields(targets: Mapping[Path, str | None]) -> Fields:
    """Return what becomes of an object, given the new name of each path; ``None``: it goes."""
    below: dict[str, dict[Path, str | None]] = {}
    for path, new in targets.items():
        below.setdefault(path[0], {})[path[1:]] = new
    changes = {name: _change(rest) for name, rest in below.items()}
    own = {path[0]: new for path, new in targets.items() if len(path) == 1 and new is not None}
    renamed = tuple((old, new) for old, new in own.items() if new not in own)
    looked_at = {new: Change() for _, new in renamed} | changes
    return Fields(looked_at, renamed, _next_member(looked_at))


def _change(targets: Mapping[Path, str | None]) -> Change:
    rest = {path: new for path, new in targets.items() if path}
    if () not in targets:
        return Change(below=fields(rest))
    new = targets[()]
    if new is None:
        return Change(key=b"")
    return Change(key=token(new), below=fields(rest) if rest else None)


def _next_member(names: Iterable[str]) -> Callable[[bytes, int], re.Match[bytes]]:
    pattern = _others(names) + rb"(?:" + member() + rb"|(\}))?"
    return cast("Callable[[bytes, int], re.Match[bytes]]", re.compile(pattern).match)


def _others(names: Iterable[str]) -> bytes:
    """Return the pattern that passes over all members but those of *names*."""
    tokens = b"|".join(re.escape(token(name)) for name in names)
    # A name that is written with escapes may be one of ours: it is not passed over.
    other = rb"(?!" + tokens + rb")" + PLAIN_STRING + COLON + flat_value() + member_end()
    return rb"(?:" + other + rb")*+"


def only_member(path: Path, new: str | None) -> Callable[[bytes], re.Match[bytes] | None]:
    """Match a document in which there is one field at *path*, and none beside it named *new*.

    Matches fewer documents than it might, so it proves that there is, never
    that there is not. 1: its name, 2: its value, 3: the space or comma behind.
    """
    *above, name = path
    others = _others([name] if new is None else [name, new])
    own = rb"(" + re.escape(token(name)) + rb")" + COLON
    own += rb"(" + flat_value() + rb")(" + member_end() + rb")"
    body = others + own + others
    for parent in reversed(above):
        others = _others([parent])
        key = re.escape(token(parent)) + COLON
        body = others + key + rb"\{" + SPACE + body + rb"\}" + member_end() + others
    return re.compile(SPACE + rb"\{" + SPACE + body + rb"\}" + SPACE).fullmatch

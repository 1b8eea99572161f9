"""Paths to the fields of documents, as settings write them."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, PlainValidator, WithJsonSchema

from transporter.pipeline.route_options import NotEmpty

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MAX_PARTS: Final = 32
_TEXT: Final = WithJsonSchema({"type": "string"})
_NAME: Final = r"(?:[^.\\\[\]]|\\[.\\\[\]])+"
_ITEM: Final = r"\[(?:0|[1-9][0-9]{0,8}|\*)\]"
_PATH: Final = re.compile(rf"{_NAME}(?:{_ITEM})*(?:\.{_NAME}(?:{_ITEM})*)*")
_PART: Final = re.compile(rf"{_NAME}|{_ITEM}")


class Every(Enum):
    """The part of a path that stands for every item of an array."""

    ITEM = "*"


EVERY: Final = Every.ITEM

Part = str | int | Every
"""A field's name, or the place of an array's item, or every item."""
Path = tuple[Part, ...]

_Paths = TypeVar("_Paths", bound="Iterable[Path]")


def parse_path(text: str) -> Path:
    r"""Return the parts of a path such as ``a.b[0].c`` or ``a[*]``, which begins with a name.

    A backslash before a dot, a bracket or a backslash makes it part of a name. Raise
    :class:`ValueError` for text that is not a path, and for too long a one.
    """
    if not _PATH.fullmatch(text):
        reason = r"is not a path of field names; use a.b.c or a[0].b or a[*].b"
        raise ValueError(reason + r", and \. or \[ for a dot or a bracket in a name")
    parts = [_parse_part(part) for part in _PART.findall(text)]
    if len(parts) > MAX_PARTS:
        raise ValueError(f"has more than {MAX_PARTS} parts")
    if not text.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("holds an unpaired surrogate")
    return tuple(parts)


def _parse_part(text: str) -> Part:
    if not text.startswith("["):
        return re.sub(r"(?s)\\(.)", r"\1", text)
    return EVERY if text == "[*]" else int(text[1:-1])


def parse_name(text: str) -> str:
    """Return the one name that *text*, written as in a path, stands for."""
    parts = parse_path(text)
    if len(parts) > 1:
        raise ValueError(r"is a path; write the new name only, and \. for a dot in it")
    return str(parts[0])


def path_text(path: Path) -> str:
    """Return the text that :func:`parse_path` reads as *path*."""
    texts = [
        "." + re.sub(r"([.\\\[\]])", r"\\\1", part)
        if isinstance(part, str)
        else f"[{'*' if part is EVERY else part}]"
        for part in path
    ]
    return "".join(texts).removeprefix(".")


def _text_validator(parse: Callable[[str], Any]) -> PlainValidator:
    def parsed(value: object) -> object:
        if not isinstance(value, str):
            raise ValueError("must be text; quote it if it looks like a number")  # noqa: TRY004 - pydantic reports ValueError
        return parse(value)

    return PlainValidator(parsed)


def _refuse_two_ways(paths: _Paths) -> _Paths:
    """Refuse paths that name an item of an array, and every item of the same one.

    A value that both reach would be changed twice. So a value is never reached in two ways.
    """
    every: dict[Path, bool] = {}
    for path in paths:
        for place, part in enumerate(path):
            if isinstance(part, str):
                continue
            if every.setdefault(path[:place], part is EVERY) != (part is EVERY):
                array = path_text(path[:place])
                raise ValueError(f"names items of {array!r} by number and by [*]; use two steps")
    return paths


FieldPath = Annotated[Path, _text_validator(parse_path), _TEXT]
FieldName = Annotated[str, _text_validator(parse_name), _TEXT]
"""A path, and a name, as settings."""

OneWay: Final = AfterValidator(_refuse_two_ways)
"""The check that no value is reached in two ways."""

FieldPaths = Annotated[tuple[FieldPath, ...], NotEmpty, OneWay]
"""Some paths, as a setting."""

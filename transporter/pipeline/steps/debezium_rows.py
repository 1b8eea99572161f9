"""Members, keys and placeholders in the JSON of rows, whose own bytes are never encoded again."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from transporter.pipeline.steps.fields import encode_name
from transporter.pipeline.steps.json_edits import is_document
from transporter.pipeline.steps.json_rewrite import Finder
from transporter.pipeline.steps.paths import EVERY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SPACES: Final = b" \t\n\r"


class UnsupportedEntry(ValueError):
    """An entry of which no change event can be made. The text is the reason, without any data."""


class MemberFinder:
    """Finder of values by name at the top of JSON objects. Belongs to one thread."""

    def __init__(self) -> None:
        self._finders: dict[str, Finder] = {}

    def value(self, document: bytes, name: str) -> bytes | None:
        """Return the value of *name* as it is written, or ``None``.

        Args:
            document: A JSON object, which is checked on the way.
            name: The name of a member, not a path.

        Raises:
            UnsupportedJson: *document* is not a JSON object.

        """
        finder = self._finders.get(name)
        if finder is None:
            finder = self._finders[name] = Finder((name,), check=True)
        found = finder(document)
        return found[-1] if found else None

    def values(self, document: bytes, names: Iterable[str]) -> list[bytes] | None:
        """Return the values of all *names*, or ``None`` if any is missing."""
        found = [self.value(document, name) for name in names]
        return None if None in found else [each for each in found if each is not None]


_ITEMS: Final = ("k", EVERY)


class ArrayItems:
    """Finder of the items of JSON arrays, as they are written. Immutable."""

    def __init__(self) -> None:
        self._find = Finder(_ITEMS, check=False)

    def __call__(self, text: bytes | None) -> list[bytes] | None:
        """Return the items of *text*, or ``None`` if it is not a JSON array."""
        if text is None or not text.startswith(b"[") or not is_document(text):
            return None
        return self._find(b'{"k":' + text + b"}")


def join_members(names: Sequence[str], values: Sequence[bytes]) -> bytes:
    """Return the JSON object of *names* and *values*, which are JSON already."""
    pairs = zip(names, values, strict=True)
    return b"{" + b",".join([_member_head(name) + value for name, value in pairs]) + b"}"


@lru_cache(4096)
def _member_head(name: str) -> bytes:
    """Return what stands before the value of *name*: the same few for every row."""
    return encode_name(name) + b":"


def add_members(document: bytes, members: bytes) -> bytes:
    """Return the JSON object *document*, already checked, with *members* behind its own."""
    head = document.rstrip(_SPACES)[:-1].rstrip(_SPACES)
    return head + (b"" if head.endswith(b"{") else b",") + members + b"}"


def names_in(header: bytes) -> list[str]:
    """Return the names in *header*, a JSON array of texts.

    Raises:
        UnsupportedEntry: It is something else.

    """
    try:
        found = json.loads(header)
        "".join(found).encode()
    except (ValueError, TypeError):
        found = None
    if not isinstance(found, list):
        raise UnsupportedEntry("the header pg-unchanged is not a JSON array of names")
    return found

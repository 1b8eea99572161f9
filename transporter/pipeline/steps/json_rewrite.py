"""Documents with some fields left out, kept or renamed, and every other byte as it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from transporter.pipeline.steps.fields import (
    KEPT,
    TAKEN,
    encode_name,
    make_fields,
    match_few_members,
    match_only_member,
    may_hold,
)
from transporter.pipeline.steps.json_edits import (
    apply_edits,
    check_object,
    check_text,
    edits_of,
    removal_edit,
)

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Mapping

    from transporter.pipeline.steps.paths import Path

_SPACES: Final = b" \t\n\r"
_FEW: Final = 4
"""The most fields that get a pattern of their own. Each takes some 15 ms to make, once."""


class Rewriter:
    """Rewriter of fields in documents. Immutable, and safe to share between threads."""

    def __init__(self, targets: Mapping[Path, str | None]) -> None:
        """Give the field at each path its new name, or with ``None`` leave it out.

        Items of arrays have no name and can only be left out.

        Paths are those of the document before any change. This takes some ten milliseconds, to be
        spent once for many documents.
        """
        self._fields = make_fields(targets)
        self._tokens = tuple(map(encode_name, self._fields.changes))
        self._single = self._new = None
        if len(targets) == 1:
            ((path, new),) = targets.items()
            self._single = _Single.for_path(path, new)
            self._new = None if new is None else encode_name(new)

    def __call__(self, data: bytes) -> bytes:
        """Return *data* itself, or a copy with the changes. Errors are those of :func:`edits_of`.

        A document that cannot hold any of the fields is not looked at further.
        """
        found = self._single(data) if self._single else None
        if found is not None:
            return self._change_field(data, found)
        if not may_hold(data, self._tokens):
            return data
        edits = edits_of(data, self._fields)
        return apply_edits(data, edits) if edits else data

    def _change_field(self, data: bytes, found: re.Match[bytes]) -> bytes:
        """Return *data* with the change to the one field *found*."""
        if self._new is not None:
            start, end = found.span(1)
            return data[:start] + self._new + data[end:]
        start, end, _ = removal_edit(data, found.start(1), found.end(2), found.end(3))
        return data[:start] + data[end:]


@dataclass(frozen=True, slots=True)
class _Single:
    """Finder of a field that is there once and plainly spelt, in half the time of a whole walk."""

    name: bytes
    match: Callable[[bytes], re.Match[bytes] | None]

    @classmethod
    def for_path(cls, path: Path, new: str | None = None) -> Self | None:
        """Return a finder of *path* with no *new* beside it, or ``None`` if the path has items."""
        names = tuple(part for part in path if isinstance(part, str))
        return cls(encode_name(names[0]), match_only_member(names, new)) if names == path else None

    def __call__(self, data: bytes) -> re.Match[bytes] | None:
        """Return the match of ``match_only_member``, if it proves the field and *data* is UTF-8."""
        found = self.match(data) if self.name in data else None
        if found is not None and not data.isascii():
            check_text(data)
        return found


class Picker:
    """Picker of fields in documents, which leaves out all others. Immutable, as a rewriter is."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Keep the values at *paths*, which are those of the document before any change."""
        targets = dict.fromkeys(paths, KEPT)
        self._fields = make_fields(targets, only=True)
        names = tuple(str(path[0]) for path in targets)
        flat = len(names) <= _FEW and all(len(path) == 1 for path in targets)
        self._few = match_few_members(names) if flat else None

    def __call__(self, data: bytes) -> bytes:
        """Return *data* itself, or a copy of the kept fields. For errors see :func:`edits_of`."""
        found = self._few(data) if self._few else None
        if found is not None:
            return _keep_fields(data, found)
        edits = edits_of(data, self._fields)
        return apply_edits(data, edits) if edits else data


def _keep_fields(data: bytes, found: re.Match[bytes]) -> bytes:
    """Return the kept fields of a document that :func:`match_few_members` has matched."""
    if not data.isascii():
        check_text(data)
    count = found.re.groups
    first, end = found.end(1), found.start(count)
    places = [found.span(group) for group in range(2, count)]
    kept = b"".join([data[start:stop] for start, stop in places if start >= 0])
    if len(kept) == end - first:
        return data
    if end not in (stop for _, stop in places):
        # The last one of all goes: with the comma before it, and without the space behind it.
        kept = kept.rstrip(_SPACES)[:-1]
        end = len(data[:end].rstrip(_SPACES))
    return b"".join((data[:first], kept, data[end:]))


class Finder:
    """Finder of the values at a path in documents. Immutable, as a rewriter is."""

    def __init__(self, path: Path, *, check: bool) -> None:
        """Look at *path*. With *check*, refuse a document that is not an object in any case."""
        self._fields = make_fields({path: TAKEN})
        self._tokens = tuple(map(encode_name, self._fields.changes))
        self._single = _Single.for_path(path)
        self._check = check

    def __call__(self, data: bytes) -> list[bytes]:
        """Return the values as they are written. There are several for repeated names, or ``[*]``.

        Errors are those of :func:`edits_of`.
        """
        found = self._single(data) if self._single else None
        if found is not None:
            return [found[2]]
        if may_hold(data, self._tokens):
            return [value for _, _, value in edits_of(data, self._fields)]
        if self._check:
            check_object(data)
        return []

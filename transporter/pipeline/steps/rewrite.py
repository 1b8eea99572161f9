"""Documents with some fields left out, kept or renamed, and every other byte as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.pipeline.steps.edits import apply, check_object, check_text, cut, edits_of
from transporter.pipeline.steps.fields import KEPT, TAKEN, fields, may_hold, only_member, token

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from transporter.pipeline.steps.paths import Path


class Rewriter:
    """Changes fields of documents. Immutable; safe to share between threads."""

    def __init__(self, targets: Mapping[Path, str | None]) -> None:
        """Give the field at each path its new name, or with ``None`` leave it out.

        Items of arrays have no name and can only be left out.

        Paths are those of the document before any change. This takes some ten
        milliseconds, to be spent once for many documents.
        """
        self._fields = fields(targets)
        self._tokens = tuple(map(token, self._fields.changes))
        self._only = self._new = None
        if len(targets) == 1:
            ((path, new),) = targets.items()
            names = tuple(part for part in path if isinstance(part, str))
            self._only = only_member(names, new) if names == path else None
            self._new = None if new is None else token(new)

    def __call__(self, data: bytes) -> bytes:
        """Return *data* itself, or a copy with the changes; see :func:`edits_of` for errors.

        A document that cannot hold any of the fields is not looked at further.
        """
        if not may_hold(data, self._tokens):
            return data
        done = self._one(data)
        return self._every(data) if done is None else done

    def _every(self, data: bytes) -> bytes:
        edits = edits_of(data, self._fields)
        return apply(data, edits) if edits else data

    def _one(self, data: bytes) -> bytes | None:
        """Do as :meth:`_every` twice as fast, where the field is there once and plainly spelt."""
        found = self._only(data) if self._only else None
        if found is None:
            return None
        if not data.isascii():
            check_text(data)
        if self._new is not None:
            return data[: found.start(1)] + self._new + data[found.end(1) :]
        start, end, _ = cut(data, found.start(1), found.end(2), found.end(3))
        return data[:start] + data[end:]


class Picker:
    """Keeps fields of documents and leaves out all others. Immutable, as a rewriter is."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Keep what is at *paths*, which are those of the document before any change."""
        self._fields = fields(dict.fromkeys(paths, KEPT), only=True)

    def __call__(self, data: bytes) -> bytes:
        """Return *data* itself, or a copy of what is kept; see :func:`edits_of` for errors."""
        edits = edits_of(data, self._fields)
        return apply(data, edits) if edits else data


class Finder:
    """Finds the values at a path of documents. Immutable, as a rewriter is."""

    def __init__(self, path: Path, *, check: bool) -> None:
        """Look at *path*; with *check*, refuse what is no object even if it cannot hold that."""
        self._fields = fields({path: TAKEN})
        self._tokens = tuple(map(token, self._fields.changes))
        self._check = check

    def __call__(self, data: bytes) -> list[bytes]:
        """Return the values as they are written; several where a name repeats, or for ``[*]``.

        See :func:`edits_of` for errors.
        """
        if may_hold(data, self._tokens):
            return [value for _, _, value in edits_of(data, self._fields)]
        if self._check:
            check_object(data)
        return []

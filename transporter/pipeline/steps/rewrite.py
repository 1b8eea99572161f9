"""Documents with some fields left out or renamed, and every other byte as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.pipeline.steps.edits import apply, check_text, cut, edits_of
from transporter.pipeline.steps.fields import fields, only_member, token

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transporter.pipeline.steps.fields import Path


class Rewriter:
    """Changes fields of documents. Immutable; safe to share between threads."""

    def __init__(self, targets: Mapping[Path, str | None]) -> None:
        """Give the field at each path its new name, or with ``None`` leave it out.

        Paths are those of the document before any change. This takes some ten
        milliseconds, to be spent once for many documents.
        """
        self._fields = fields(targets)
        self._tokens = tuple(map(token, self._fields.changes))
        self._only = self._new = None
        if len(targets) == 1:
            ((path, new),) = targets.items()
            self._only = only_member(path, new)
            self._new = None if new is None else token(new)

    def __call__(self, data: bytes) -> bytes:
        """Return *data* itself, or a copy with the changes; see :func:`edits_of` for errors.

        A document that cannot hold any of the fields is not looked at further.
        """
        for each in self._tokens:
            if each in data:
                break
        else:
            # A name may be spelt with escapes; UTF-16, which is refused, holds NUL bytes.
            if b"\\" not in data and b"\0" not in data:
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

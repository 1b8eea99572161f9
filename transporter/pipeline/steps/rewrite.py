"""Documents with some fields left out or renamed, and every other byte as it was."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import SchemaValidator, ValidationError, core_schema

from transporter.pipeline.steps.edits import Edit, Member, apply, cut, edits_of
from transporter.pipeline.steps.fields import token
from transporter.pipeline.steps.grammar import member

if TYPE_CHECKING:
    from transporter.pipeline.steps.fields import Change, Fields
    from transporter.pipeline.steps.grammar import Match

_SHORT_ESCAPES: Final = re.compile(r'["\\/\x00-\x1f]').search


class Rewriter:
    """Changes the *fields* of documents. Immutable; safe to share between threads."""

    def __init__(self, fields: Fields) -> None:
        """Prepare for many documents: this takes milliseconds."""
        self._fields = fields
        self._plain = not _escapable(fields)
        self._find = SchemaValidator(_schema(fields)).validate_json
        # A name may be spelt with an escape; UTF-16, which is refused, holds NUL bytes.
        escape = b"\\u" if self._plain else b"\\"
        self._needles = (*map(token, fields.changes), escape, b"\0")

    def __call__(self, data: bytes) -> bytes:
        """Return *data* itself, or a copy with the changes; raise :class:`NotJson`.

        A document that cannot hold any of the fields is not looked at further.
        """
        for needle in self._needles:
            if needle in data:
                break
        else:
            return data
        done = self._one(data) if self._plain else None
        if done is not None:
            return done
        edits = edits_of(data, self._fields)
        return apply(data, edits) if edits else data

    def _one(self, data: bytes) -> bytes | None:
        r"""Change the one field that is there, three times faster; ``None`` if it is not so simple.

        A parser written in Rust tells which of the fields there are. In a valid
        document without ``\u`` a field is spelt as its token, so that token, if
        it is there only once, is the field and nothing else.
        """
        if b"\\u" in data or b"NaN" in data or b"Infinity" in data:
            return None  # JSON knows no NaN; the parser does
        try:
            found = self._find(data)
        except ValidationError:
            return None
        changes = self._fields.changes
        while len(found) == 1:
            name, value = found.popitem()
            change = changes[name]
            if change.key is not None:
                return _changed(data, token(name), change)
            if change.below is None:
                return data
            found, changes = value, change.below.changes
        return None if found else data


def _escapable(fields: Fields) -> bool:
    r"""Tell whether a name, here or below, can be spelt with another escape than ``\u``."""
    below = (change.below for change in fields.changes.values() if change.below)
    return any(map(_SHORT_ESCAPES, fields.changes)) or any(map(_escapable, below))


def _schema(fields: Fields) -> Any:  # noqa: ANN401 - a mapping of pydantic's own
    """Describe an object of which nothing but *fields* is wanted."""
    wanted = {
        name: core_schema.typed_dict_field(
            _schema(change.below) if change.below else core_schema.any_schema(), required=False
        )
        for name, change in fields.changes.items()
    }
    return core_schema.typed_dict_schema(wanted, extra_behavior="ignore")


@cache
def _member() -> Match:
    return re.compile(member()).match


def _changed(data: bytes, key: bytes, change: Change) -> bytes | None:
    if change.below or data.count(key) != 1:
        return None
    found = _member()(data, data.find(key))
    if found is None:
        return None  # its value is nested too deeply for that
    if change.key:
        return data[: found.start(1)] + change.key + data[found.end(1) :]
    place = Member(found.start(1), found.end(1), found.start(2), found.end(2), found.end())
    edit: Edit = cut(data, place.start, place)
    return data[: edit.start] + data[edit.end :]

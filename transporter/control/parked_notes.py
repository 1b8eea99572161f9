"""Notes of operators about parked entries, which are lines of the audit file. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from transporter.audit import read_audit
from transporter.errors import ActionRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ACTION: Final = "parked note"
LONGEST: Final = 1_000
"""Characters of a note."""
_MARKS: Final = (b'"parked note"', b'"offsets rename"', b'"route forget"', b'"offsets delete"')


@dataclass(frozen=True, slots=True)
class ParkedNote:
    """A note about a parked entry, its author, and its time in seconds since 1970."""

    text: str
    who: str
    at: float

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def check_note(text: str) -> None:
    """Raise :class:`ActionRefused` if *text* cannot be a note. An empty one removes the note."""
    if len(text) > LONGEST:
        raise ActionRefused(f"a note has at most {LONGEST:,} characters, not {len(text):,}")
    if not text.isprintable():
        raise ActionRefused("a note is one line without control characters")


def read_notes(lines: Iterable[bytes], route: str) -> dict[int, ParkedNote]:
    """Return the notes about *route*'s entries by offset, from the *lines* of an audit file.

    The newest one of an entry counts. Notes follow a route that was renamed, and go with one
    that was forgotten.
    """
    notes: defaultdict[str, dict[int, ParkedNote]] = defaultdict(dict)
    for change in read_audit(_relevant(lines)):
        if str(change["outcome"] or "").startswith("failed"):
            continue
        name = str(change.get("route"))
        match change["action"]:
            case "parked note":
                _add_note(notes[name], change)
            case "offsets rename":
                notes[str(change.get("new"))] = notes.pop(name, {})
            case "route forget" | "offsets delete":
                notes.pop(name, None)
    return notes[route]


def _relevant(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of changes that matter for notes, and their outcomes."""
    changes: set[bytes] = set()
    for line in lines:
        if any(mark in line for mark in _MARKS):
            changes.add(_value_of(line, "id"))
            yield line
        elif b'"of"' in line and _value_of(line, "of") in changes:
            yield line


def _value_of(line: bytes, name: str) -> bytes:
    try:
        return str(json.loads(line)[name]).encode()
    except (ValueError, RecursionError, TypeError, LookupError):
        return b""  # a line that a crash tore


def _add_note(notes: dict[int, ParkedNote], change: dict[str, Any]) -> None:
    offset, text, at = change.get("offset"), change.get("note"), change.get("at")
    if not (isinstance(offset, int) and isinstance(text, str) and isinstance(at, int | float)):
        return
    at = at if isfinite(at) else 0.0
    if text:
        notes[offset] = ParkedNote(text, str(change.get("who", "")), at)
    else:
        notes.pop(offset, None)

"""The page of parked entries: groups by error, and the entries of each. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from transporter.console.acts import ranges_text
from transporter.console.formats import count_text, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_NUMBER: Final = re.compile(r"[0-9][0-9.,:_-]*")
_LONGEST_KEY: Final = 200
"""Letters of a key that are looked at."""
_KEYS: Final = 5
"""Keys of a group that are named."""


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """One parked entry, small enough that a page may have many."""

    offset: int
    parked_at: str
    key: str
    attempts: int
    error: str
    behind: int | None
    retry_requested: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class ParkedGroup:
    """Entries of one route that were parked for the same error, the oldest first."""

    error: str
    count: str
    first: ParkedRow
    last: ParkedRow
    keys: str
    rows: tuple[ParkedRow, ...]
    ranges: str


def normalized_error(error: str) -> str:
    """Return *error* with numbers and quoted values blanked, so that like ones are alike."""
    return _NUMBER.sub("#", _QUOTED.sub("'…'", one_line(error)))


def group_parked(rows: Sequence[ParkedRow]) -> tuple[ParkedGroup, ...]:
    """Return the *rows* of parked entries in groups by error, the largest first.

    An entry that only waits behind another one of its key is in the group of that one.
    """
    errors = {each.offset: normalized_error(each.error) for each in rows}
    groups: defaultdict[str, list[ParkedRow]] = defaultdict(list)
    for each in rows:
        head = each.behind if each.behind is not None else each.offset
        groups[errors.get(head, errors[each.offset])].append(each)
    found = [_group(error, members) for error, members in groups.items()]
    return tuple(sorted(found, key=lambda each: (-len(each.rows), each.first.offset)))


def _group(error: str, rows: Sequence[ParkedRow]) -> ParkedGroup:
    keys = list(dict.fromkeys(each.key for each in rows))
    named = ", ".join(keys[:_KEYS])
    more = len(keys) - _KEYS
    return ParkedGroup(
        error=error,
        count=count_text(len(rows)),
        first=rows[0],
        last=rows[-1],
        keys=f"{named} and {count_text(more)} more" if more > 0 else named,
        rows=tuple(rows),
        ranges=ranges_text(each.offset for each in rows),
    )


def _note_text(note: Mapping[str, Any] | None) -> str:
    return "" if note is None else one_line(f"{note['text']} ({note['who']})", 300)


def parked_row(parked: Mapping[str, Any]) -> ParkedRow:
    """Return the plain values of a *parked* entry as a row."""
    key = parked["entry"].get("key", "hidden")
    text = "null" if key is None else key if isinstance(key, str) else key["base64"]
    return ParkedRow(
        offset=parked["offset"],
        parked_at=str(parked["parked_at"]).replace("+00:00", "Z"),
        key=one_line(text[:_LONGEST_KEY], 40),
        attempts=parked["attempts"],
        error=one_line(parked["error"], 400),
        behind=parked["behind"],
        retry_requested=parked["retry_requested"],
        note=_note_text(parked.get("note")),
    )

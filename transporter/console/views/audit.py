"""The page of changes to a log. Pure."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from transporter.console.formats import iso_text, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_APART: Final = frozenset(
    {
        *("id", "at", "who", "known_by", "loginuid", "uid", "pid", "by", "via", "from"),
        *("action", "route", "reader", "reason", "outcome"),
    }
)


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One change, with who made it, why, and its outcome."""

    at: str
    who: str
    action: str
    part: str
    what: str
    reason: str
    outcome: str
    tone: str


def change_rows(changes: Iterable[Mapping[str, Any]]) -> tuple[ChangeRow, ...]:
    """Return *changes* as rows, the newest first."""
    return tuple(map(_row, changes))[::-1]


def matching_changes(
    changes: Iterable[Mapping[str, Any]], who: str = "", action: str = "", route: str = ""
) -> list[Mapping[str, Any]]:
    """Return the *changes* whose author and action contain these texts, and of this route."""
    return [
        each
        for each in changes
        if who.lower() in str(each.get("who", "")).lower()
        and action.lower() in str(each.get("action", "")).lower()
        and route in {"", each.get("route")}
    ]


def _row(change: Mapping[str, Any]) -> ChangeRow:
    more = {name: value for name, value in change.items() if name not in _APART and value != ""}
    what = " ".join(f"{name}={_value_text(value)}" for name, value in more.items())
    outcome = change.get("outcome")
    failed = str(outcome or "").startswith("failed")
    unknown = outcome is None and "known_by" in change
    return ChangeRow(
        at=_time_text(change.get("at")),
        who=one_line(change.get("who", ""), 80),
        action=one_line(change.get("action", ""), 40),
        part=one_line(change.get("route") or change.get("reader") or "", 70),
        what=one_line(what, 300),
        reason=one_line(change.get("reason", ""), 300),
        outcome=one_line(outcome or ("unknown" if unknown else ""), 120),
        tone="bad" if failed else "warn" if unknown else "idle",
    )


def _time_text(at: object) -> str:
    if not isinstance(at, int | float) or not math.isfinite(at):
        return ""
    return iso_text(at)


def _value_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)

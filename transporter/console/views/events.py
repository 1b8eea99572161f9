"""The page of an engine's events. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from transporter.console.formats import one_line
from transporter.console.views.privacy import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SHOWN: Final = 200
"""Events on a page: the newest."""
OPEN: Final = frozenset(
    {
        *("number", "timestamp", "event", "level", "route", "reader", "shard"),
        *("action", "who", "via", "from", "state", "leader", "holder"),
        *("version", "master", "file", "url", "routes", "readers"),
    }
)
"""Fields that everybody may see, because the engine itself or the audit makes them.

Others may quote a message. Numbers quote nothing.
"""
_APART: Final = frozenset({"number", "timestamp", "event", "level", "route", "reader"})
_LEADERSHIP: Final = ("leader-", "worker-", "spark-", "reader-")


class EventRow(NamedTuple):
    """One event."""

    at: str
    level: str
    event: str
    part: str
    details: str


def event_rows(events: Iterable[Mapping[str, Any]]) -> list[EventRow]:
    """Return *events* as rows, the newest first."""
    return [_row(each) for each in events][::-1]


def cluster_events(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the *events* about leadership, workers, readers and Spark."""
    return [each for each in events if each["event"].startswith(_LEADERSHIP)]


def event_without_texts(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return *event* without what may quote a message."""
    return {
        name: value if name in OPEN or not value or isinstance(value, int | float) else HIDDEN
        for name, value in event.items()
    }


def _row(event: Mapping[str, Any]) -> EventRow:
    details = " ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in event.items()
        if name not in _APART and value not in ("", None)
    )
    part = event.get("route") or event.get("reader") or ""
    return EventRow(
        at=str(event["timestamp"]).replace("+00:00", "Z"),
        level=event["level"],
        event=one_line(event["event"]),
        part=one_line(part),
        details=one_line(details, 600),
    )

"""The newest events of an engine, kept in memory for operators who look later."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from transporter.engine.events import LEVELS, level_of

if TYPE_CHECKING:
    from transporter.engine.events import Observer

KEPT: Final = 1_000
"""Events in memory. The oldest make room for new ones."""
MOST: Final = 100
"""Events in one answer at most, which keeps it below the limit of answers (Invariant 17)."""
LONGEST: Final = 1_000
"""Characters of one field. Longer texts are cut."""
_UNKEPT: Final = frozenset({"meter-read"})
"""Measurements in a regular rhythm, which would displace the events of hours."""


class _KeptEvent(NamedTuple):
    number: int
    at: float
    event: str
    details: dict[str, Any]


class EventRing:
    """Keeps the newest events on their way to *observe*. Thread-safe.

    Events are numbered from 1 in each run of the engine, so a reader notices the ones that made
    room for others before it came. ``run`` tells one run's numbers from those of another.
    """

    def __init__(self, observe: Observer, size: int = KEPT) -> None:
        """Keep the newest *size* events, which must hold no secret (Invariant 20)."""
        self._observe, self._lock = observe, threading.Lock()
        self._kept: deque[_KeptEvent] = deque(maxlen=size)
        self._newest = 0
        self.run = uuid.uuid4().hex[:16]

    def __call__(self, event: str, **details: Any) -> None:  # noqa: ANN401 - plain values
        """Keep the event, and pass it on."""
        if event not in _UNKEPT:
            bounded = {name: _bounded(value) for name, value in details.items()}
            with self._lock:
                self._newest += 1
                self._kept.append(_KeptEvent(self._newest, time.time(), event, bounded))
        self._observe(event, **details)

    def read(self, after: int, level: str, route: str, most: int) -> dict[str, Any]:
        """Return at most *most* events after number *after*, the oldest first, as plain values.

        Only those of *level* or above, and with *route* only those of that route. ``next`` is
        the number to continue after, and ``dropped`` counts the events after *after* that are no
        longer kept, whatever their level and route.
        """
        with self._lock:
            kept, newest = list(self._kept), self._newest
        oldest = newest - len(kept) + 1
        found: list[dict[str, Any]] = []
        following = newest
        for each in kept[max(0, after - oldest + 1) :]:
            if _matches(each, level, route):
                found.append(_as_line(each))
                if len(found) >= most:
                    following = each.number
                    break
        dropped = max(0, oldest - 1 - after)
        return {
            "run": self.run,
            "oldest": oldest,
            "newest": newest,
            "next": following,
            "dropped": dropped,
            "events": found,
        }


def _matches(kept: _KeptEvent, level: str, route: str) -> bool:
    if route and kept.details.get("route") != route:
        return False
    return LEVELS.index(level_of(kept.event)) >= LEVELS.index(level)


def _as_line(kept: _KeptEvent) -> dict[str, Any]:
    """Return the event as its line on stderr has it, with its number."""
    at = datetime.fromtimestamp(kept.at, UTC).isoformat(timespec="microseconds")
    return {
        "number": kept.number,
        "timestamp": at.replace("+00:00", "Z"),
        "event": kept.event,
        "level": level_of(kept.event),
        **kept.details,
    }


def _bounded(value: object) -> object:
    """Return *value* as a plain value of its own, a long one as the beginning of its text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if len(value) <= LONGEST else f"{value[:LONGEST]}…"
    try:
        text = json.dumps(value, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(value)[:LONGEST]  # An observer never raises.
    return json.loads(text) if len(text) <= LONGEST else f"{text[:LONGEST]}…"

"""Events and history of a running engine, of which each is fetched once for all viewers."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from transporter.control.event_cursor import EventCursor
from transporter.control.requests import History

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transporter.control.requests import ReadRequest

KEPT: Final = 1_000
"""Events in memory: as many as an engine keeps."""
HISTORY_FRESH: Final = 5.0
"""Seconds between two points of an engine's history."""
EVENTS_FRESH: Final = 0.5
"""Seconds for which all viewers share the events."""
LEVELS: Final = ("info", "warning", "error")


class EngineMemory:
    """The newest events and the history of the engine on one log. Thread-safe.

    When the engine ends, both stay as they were last seen.
    """

    def __init__(
        self,
        ask: Callable[[ReadRequest], Mapping[str, Any] | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Fetch by *ask*, which returns ``None`` if no engine answers."""
        self._ask, self._clock = ask, clock
        self._lock = threading.Lock()
        self._cursor = EventCursor()
        self._events: deque[Mapping[str, Any]] = deque(maxlen=KEPT)
        self._history: Mapping[str, Any] | None = None
        self._history_at = self._events_at = float("-inf")

    def events(self, level: str = "info", route: str = "") -> list[Mapping[str, Any]]:
        """Return the newest events of *level* or above, the oldest first, of *route* if given."""
        least = LEVELS.index(level) if level in LEVELS else 0
        with self._lock:
            if self._clock() - self._events_at >= EVENTS_FRESH:
                self._fetch_events()
                self._events_at = self._clock()
            return [
                each
                for each in self._events
                if LEVELS.index(each["level"]) >= least
                and (not route or each.get("route") == route)
            ]

    def history(self) -> Mapping[str, Any] | None:
        """Return the last half hour of all readers and routes, ``None`` without any."""
        with self._lock:
            if self._clock() - self._history_at >= HISTORY_FRESH:
                self._history = self._ask(History()) or self._history
                self._history_at = self._clock()
            return self._history

    def _fetch_events(self) -> None:
        """Fetch the events that are new. Those of another run of the engine replace all others."""
        for page in self._cursor.read(self._ask):
            if page.is_restart:
                self._events.clear()
            self._events.extend(page.events)

"""Counts of engine events: retries, restarts, skipped entries, freed bytes."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transporter.engine.events import Observer

_Labels = tuple[str, ...]
_ONES: Final[Mapping[str, tuple[str, tuple[str, ...], _Labels]]] = {
    # event: metric, the fields that give its labels, and labels that are fixed
    "spark-host-lost": ("transporter_spark_restarts_total", (), ()),
    "reader-unavailable": ("transporter_reader_retries_total", ("reader",), ()),
    "route-retrying": ("transporter_route_retries_total", ("route",), ()),
    "worker-lost": ("transporter_route_worker_restarts_total", ("route",), ()),
    **{
        f"leader-{change}": ("transporter_leader_changes_total", ("reader",), (change,))
        for change in ("acquired", "refreshed", "revoked", "fenced")
    },
    "entry-parked": ("transporter_route_given_up_entries_total", ("route",), ("parked",)),
    "entry-skipped": ("transporter_route_given_up_entries_total", ("route",), ("skipped",)),
}
_SUMS: Final[Mapping[str, Mapping[str, str]]] = {
    # event: metrics, and the field that each of them sums up
    "log-compacted": {
        "transporter_compacted_segments_total": "segments",
        "transporter_compaction_dropped_entries_total": "dropped",
        "transporter_compaction_freed_bytes_total": "freed",
    },
    "segment-removed": {"transporter_retention_removed_bytes_total": "bytes"},
}


class EventCounts:
    """Counts events on their way to *observe*: an ``engine.events.Observer``. Thread-safe."""

    def __init__(self, observe: Observer) -> None:
        self._observe, self._lock = observe, threading.Lock()
        self._counts: Counter[tuple[str, _Labels]] = Counter()

    def __call__(self, event: str, **details: Any) -> None:  # noqa: ANN401 - plain values
        """Count, and pass it on."""
        with self._lock:
            if event in _ONES:
                metric, fields, fixed = _ONES[event]
                self._counts[metric, (*(details[each] for each in fields), *fixed)] += 1
            for metric, field in _SUMS.get(event, {}).items():
                self._counts[metric, ()] += details[field]
            if event == "entries-released":
                released = details["last"] - details["first"] + 1
                self._counts["transporter_released_entries_total", (details["route"],)] += released
        self._observe(event, **details)

    def count(self, metric: str, *labels: str) -> int:
        """Return the count of *metric* with these *labels*."""
        with self._lock:
            return self._counts[metric, labels]

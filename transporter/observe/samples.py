"""Samples of all metrics: from the engine's status, counts of its events, and ages of lags."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from transporter.engine.events import State
from transporter.errors import TransporterError
from transporter.log.reader import LogReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from transporter.engine.events import EngineStatus, Observer, ReaderStatus, RouteStatus
    from transporter.engine.meters import Histogram
    from transporter.observe.span_export import SpanCounts

Reading = tuple[str, tuple[str, ...], "float | Histogram"]
"""A metric's name, the values of its labels in the table's order, and its value."""
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
_SECOND: Final = 1_000_000


def readings(
    status: EngineStatus,
    counts: EventCounts,
    age: Callable[[RouteStatus], LagAge | None],
    *,
    ready: bool,
    version: str,
    spans: SpanCounts | None = None,
) -> Iterator[Reading]:
    """Yield the samples of every metric of the table."""
    yield "transporter_info", (version,), 1
    yield "transporter_ready", (), ready
    yield "transporter_dead_threads", (), len(status.dead) + len(status.hung)
    yield "transporter_spark_up", (), status.spark
    yield from _log_readings(status)
    for metric in (
        "transporter_spark_restarts_total",
        "transporter_compacted_segments_total",
        "transporter_compaction_dropped_entries_total",
        "transporter_compaction_freed_bytes_total",
        "transporter_retention_removed_bytes_total",
    ):
        yield metric, (), counts.count(metric)
    if spans is not None:
        yield "transporter_spans_exported_total", (), spans.exported
        yield "transporter_spans_dropped_total", (), spans.dropped
    for reader in status.readers:
        yield from _reader_readings(reader, counts)
    for route in status.routes:
        yield from _route_readings(route, counts)
        if (found := age(route)) is not None:
            yield "transporter_route_oldest_unacked_age_seconds", (route.name,), found.oldest
            yield "transporter_route_lag_seconds", (route.name,), found.lag


def _log_readings(status: EngineStatus) -> Iterator[Reading]:
    yield "transporter_log_last_offset", (), status.last
    yield "transporter_log_bytes", (), status.size
    if status.max_bytes is not None:
        yield "transporter_log_used_bytes", (), status.used
        yield "transporter_log_budget_bytes", (), status.max_bytes
    yield "transporter_log_fsync_seconds", (), status.syncs
    waiting = sum(each.state is State.WAITING for each in status.readers)
    yield "transporter_readers_waiting_for_space", (), waiting


def _reader_readings(reader: ReaderStatus, counts: EventCounts) -> Iterator[Reading]:
    name = (reader.name,)
    yield "transporter_reader_entries_total", name, reader.logged
    yield "transporter_reader_bytes_total", name, reader.size
    yield "transporter_reader_log_latency_seconds", name, reader.latency
    retries = "transporter_reader_retries_total"
    yield retries, name, counts.count(retries, reader.name)
    yield "transporter_reader_term", name, reader.term or 0
    changes = "transporter_leader_changes_total"
    for change in ("acquired", "refreshed", "revoked", "fenced"):
        yield changes, (reader.name, change), counts.count(changes, reader.name, change)
    for gauge, value in reader.measured.items():
        yield f"transporter_source_{gauge}", name, value
    for state in State:
        yield "transporter_reader_state", (reader.name, state.value), reader.state is state


def _route_readings(route: RouteStatus, counts: EventCounts) -> Iterator[Reading]:
    name = (route.name,)
    yield "transporter_route_delivered_entries_total", name, route.delivered
    yield "transporter_route_delivered_bytes_total", name, route.size
    yield "transporter_route_skipped_entries_total", name, route.skipped
    yield "transporter_route_parked_entries", name, route.parked
    yield "transporter_route_watermark_offset", name, route.watermark
    yield "transporter_route_lag_entries", name, route.lag
    yield "transporter_route_still_seconds", name, route.still
    yield "transporter_route_slice_seconds", name, route.slices
    yield "transporter_route_ack_latency_seconds", name, route.latency
    yield "transporter_route_replaying", name, route.replaying
    for metric in (
        "transporter_released_entries_total",
        "transporter_route_retries_total",
        "transporter_route_worker_restarts_total",
    ):
        yield metric, name, counts.count(metric, route.name)
    given_up = "transporter_route_given_up_entries_total"
    for action in ("parked", "skipped"):
        yield given_up, (route.name, action), counts.count(given_up, route.name, action)
    for state in State:
        yield "transporter_route_state", (route.name, state.value), route.state is state


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


@dataclass(frozen=True, slots=True)
class LagAge:
    """How long ago the oldest unsettled entry was logged, and how long before the newest one."""

    oldest: float = 0.0
    lag: float = 0.0


class LagAges:
    """Looks log times up, once for each offset that a route waits at. Thread-safe."""

    def __init__(self, directory: Path, clock: Callable[[], int]) -> None:
        """Read the log in *directory*. *clock* returns the wall time in µs UTC (Invariant 16)."""
        self._reader, self._clock = LogReader(directory), clock
        self._lock = threading.Lock()
        self._log_times: dict[str, tuple[int, int]] = {}

    def close(self) -> None:
        """Close open files."""
        with self._lock:
            self._reader.close()

    def age_of(self, route: RouteStatus, last: int) -> LagAge | None:
        """Return the age in seconds of *route*'s lag, in a log that ends at *last*.

        ``None`` if its oldest entry cannot be read, which the route will report.
        """
        if route.lag <= 0:
            return LagAge()
        with self._lock:
            oldest = self._log_time(f"route {route.name}", route.watermark + 1, last)
            newest = self._log_time("the newest", last, last)
        if oldest is None or newest is None:
            return None
        return LagAge(
            max(0, self._clock() - oldest) / _SECOND,
            max(0, newest - oldest) / _SECOND,
        )

    def _log_time(self, key: str, offset: int, last: int) -> int | None:
        if (known := self._log_times.get(key)) is not None and known[0] == offset:
            return known[1]
        try:
            frame = next(self._reader.frames(offset, last)).frame
        except (TransporterError, StopIteration):
            # Segments may have been replaced or removed: the next call reopens them.
            self._reader.clear_cache()
            return None
        self._log_times[key] = offset, frame.logged_at
        return frame.logged_at

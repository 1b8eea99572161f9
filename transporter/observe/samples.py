"""Samples of all metrics, from one status of the engine. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.engine.events import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transporter.engine.events import EngineStatus, ReaderStatus, RouteStatus
    from transporter.engine.meters import Histogram
    from transporter.observe.event_counts import EventCounts
    from transporter.observe.lag_ages import LagAge
    from transporter.observe.span_export import SpanCounts

Reading = tuple[str, tuple[str, ...], "float | Histogram"]
"""A metric's name, the values of its labels in the table's order, and its value."""


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

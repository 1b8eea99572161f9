"""Every metric there is: the one table that registration, docs, dashboard and alerts follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. Every one has the label ``pipeline`` besides its own.

    Labels take only names from the pipeline file and words from the code, so
    there are never more series than the file gives rise to.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    unit: str
    help: str


PIPELINE: Final = "pipeline"
"""The label that every metric has."""

_READER: Final = ("reader",)
_ROUTE: Final = ("route",)

METRICS: Final = (
    Metric("transporter_info", "gauge", ("version",), "", "Always 1, with the version"),
    Metric("transporter_ready", "gauge", (), "", "1 while /readyz is green, else 0"),
    Metric(
        "transporter_dead_threads",
        "gauge",
        (),
        "threads",
        "Threads that should run and do not, or hang; /healthz is red unless it is 0",
    ),
    Metric("transporter_spark_up", "gauge", (), "", "1 while Spark is up, else 0"),
    Metric(
        "transporter_spark_restarts_total",
        "counter",
        (),
        "restarts",
        "Losses of the Spark host, each followed by a new start",
    ),
    Metric("transporter_log_last_offset", "gauge", (), "offset", "The last durable offset"),
    Metric(
        "transporter_log_bytes",
        "gauge",
        (),
        "bytes",
        "Size of the segments on the disk, including preallocated space",
    ),
    Metric(
        "transporter_log_used_bytes",
        "gauge",
        (),
        "bytes",
        "Bytes that count against log.max_bytes; only with such a budget",
    ),
    Metric(
        "transporter_log_budget_bytes",
        "gauge",
        (),
        "bytes",
        "log.max_bytes; only with such a budget",
    ),
    Metric("transporter_log_fsync_seconds", "histogram", (), "seconds", "Duration of syncs"),
    Metric(
        "transporter_compacted_segments_total",
        "counter",
        (),
        "segments",
        "Segments that compaction has rewritten",
    ),
    Metric(
        "transporter_compaction_dropped_entries_total",
        "counter",
        (),
        "entries",
        "Entries that compaction has dropped",
    ),
    Metric(
        "transporter_compaction_freed_bytes_total",
        "counter",
        (),
        "bytes",
        "Bytes that compaction has freed",
    ),
    Metric(
        "transporter_retention_removed_bytes_total",
        "counter",
        (),
        "bytes",
        "Bytes of the segments that retention has removed",
    ),
    Metric(
        "transporter_released_entries_total",
        "counter",
        _ROUTE,
        "entries",
        "Offsets that on_full: stop-route dropped undelivered",
    ),
    Metric(
        "transporter_readers_waiting_for_space",
        "gauge",
        (),
        "readers",
        "Readers whose append found no space and that wait for it",
    ),
    Metric(
        "transporter_reader_entries_total",
        "counter",
        _READER,
        "entries",
        "Entries that this run has logged",
    ),
    Metric(
        "transporter_reader_bytes_total",
        "counter",
        _READER,
        "bytes",
        "Bytes of these entries in memory, before compression",
    ),
    Metric(
        "transporter_reader_log_latency_seconds",
        "histogram",
        _READER,
        "seconds",
        "From a message's own timestamp to its durable append; see below",
    ),
    Metric(
        "transporter_reader_term",
        "gauge",
        _READER,
        "",
        "The number of the term under which it leads; 0 while it does not",
    ),
    Metric(
        "transporter_leader_changes_total",
        "counter",
        ("reader", "change"),
        "changes",
        "Times that its leadership was acquired, refreshed, revoked or fenced",
    ),
    Metric(
        "transporter_reader_retries_total",
        "counter",
        _READER,
        "retries",
        "Times that the source was unavailable",
    ),
    Metric(
        "transporter_source_backlog_messages",
        "gauge",
        _READER,
        "messages",
        "Messages that its source holds for it, perhaps estimated; only where it is measured",
    ),
    Metric(
        "transporter_source_lag_seconds",
        "gauge",
        _READER,
        "seconds",
        "Age of the oldest of these messages; 0 without any; only where it is measured",
    ),
    Metric(
        "transporter_source_lag_bytes",
        "gauge",
        _READER,
        "bytes",
        "Size of the server's log behind the reader's position; of `postgres-cdc`",
    ),
    Metric(
        "transporter_source_retained_bytes",
        "gauge",
        _READER,
        "bytes",
        "Size of the server's log that the slot keeps; of `postgres-cdc`",
    ),
    Metric(
        "transporter_source_safe_bytes",
        "gauge",
        _READER,
        "bytes",
        "What the server may write until the slot is in danger, if it has a limit; of "
        "`postgres-cdc`",
    ),
    Metric(
        "transporter_source_spilled_bytes",
        "gauge",
        _READER,
        "bytes",
        "What the server has written to its disk for large transactions, in total; of "
        "`postgres-cdc`",
    ),
    Metric(
        "transporter_source_catalog_xmin_age",
        "gauge",
        _READER,
        "transactions",
        "Age of the oldest transaction whose catalog the slot keeps from VACUUM; of `postgres-cdc`",
    ),
    Metric(
        "transporter_source_copy_rows_left",
        "gauge",
        _READER,
        "rows",
        "Rows left to copy, estimated from the server's statistics; of `postgres-cdc`",
    ),
    Metric(
        "transporter_source_tables_waiting",
        "gauge",
        _READER,
        "tables",
        "Tables whose copy has not begun; of `postgres-cdc`",
    ),
    Metric(
        "transporter_source_tables_copying",
        "gauge",
        _READER,
        "tables",
        "Tables that are being copied; of `postgres-cdc`",
    ),
    Metric(
        "transporter_source_tables_in_sync",
        "gauge",
        _READER,
        "tables",
        "Tables of which the log has everything; of `postgres-cdc`",
    ),
    Metric(
        "transporter_reader_state",
        "gauge",
        ("reader", "state"),
        "",
        "1 for the state that the reader is in, else 0",
    ),
    Metric(
        "transporter_route_delivered_entries_total",
        "counter",
        _ROUTE,
        "entries",
        "Entries that this run has delivered",
    ),
    Metric(
        "transporter_route_delivered_bytes_total",
        "counter",
        _ROUTE,
        "bytes",
        "Bytes of data that this run has delivered",
    ),
    Metric(
        "transporter_route_skipped_entries_total",
        "counter",
        _ROUTE,
        "entries",
        "Entries that the filter or a step has left out in this run",
    ),
    Metric(
        "transporter_route_given_up_entries_total",
        "counter",
        ("route", "action"),
        "entries",
        "Entries that failed too often, parked or skipped according to on_error",
    ),
    Metric(
        "transporter_route_parked_entries",
        "gauge",
        _ROUTE,
        "entries",
        "Entries parked now, including those behind others of their key",
    ),
    Metric(
        "transporter_route_watermark_offset",
        "gauge",
        _ROUTE,
        "offset",
        "Every entry up to this offset is settled",
    ),
    Metric(
        "transporter_route_lag_entries",
        "gauge",
        _ROUTE,
        "entries",
        "Offsets between the watermark and the end of the log",
    ),
    Metric(
        "transporter_route_lag_seconds",
        "gauge",
        _ROUTE,
        "seconds",
        "Log time between the oldest unsettled entry and the newest one of the log; 0 without lag",
    ),
    Metric(
        "transporter_route_oldest_unacked_age_seconds",
        "gauge",
        _ROUTE,
        "seconds",
        "Time since the oldest unsettled entry was logged; 0 without lag",
    ),
    Metric(
        "transporter_route_still_seconds",
        "gauge",
        _ROUTE,
        "seconds",
        "Time in which the route has settled nothing although it could",
    ),
    Metric(
        "transporter_route_slice_seconds",
        "histogram",
        _ROUTE,
        "seconds",
        "From handing a slice to the worker to its outcome",
    ),
    Metric(
        "transporter_route_ack_latency_seconds",
        "histogram",
        _ROUTE,
        "seconds",
        "From an entry's log time to the ack of its first delivery; see below",
    ),
    Metric(
        "transporter_route_retries_total",
        "counter",
        _ROUTE,
        "retries",
        "Times that the route had to wait and retry",
    ),
    Metric(
        "transporter_route_worker_restarts_total",
        "counter",
        _ROUTE,
        "restarts",
        "Times that the route has lost its worker and started another",
    ),
    Metric("transporter_route_replaying", "gauge", _ROUTE, "", "1 while a replay is going on"),
    Metric(
        "transporter_route_state",
        "gauge",
        ("route", "state"),
        "",
        "1 for the state that the route is in, else 0",
    ),
    Metric(
        "transporter_spans_exported_total",
        "counter",
        (),
        "spans",
        "Spans that a collector has accepted; only with observe.tracing",
    ),
    Metric(
        "transporter_spans_dropped_total",
        "counter",
        (),
        "spans",
        "Spans that were not exported, because the collector was slow or away",
    ),
)

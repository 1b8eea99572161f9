"""The counts of events on their way."""

from __future__ import annotations

from engine_tools import Events

from transporter.engine.events import EVENTS
from transporter.observe import samples
from transporter.observe.metric_table import METRICS
from transporter.observe.samples import EventCounts

TABLE = {metric.name: metric for metric in METRICS}


def test_events_are_counted_and_passed_on() -> None:
    """An event counts for its route or adds up its fields, and every event is passed on."""
    events = Events()
    counted = EventCounts(events)
    progress = {"problem": "down", "retry_in": 1, "watermark": 0, "delivered": 0}
    for route in ("a", "a", "b"):
        counted("route-retrying", route=route, **progress)
    counted("log-compacted", segments=2, dropped=5, freed=100)
    counted("log-compacted", segments=1, dropped=1, freed=10)
    counted("entries-released", route="a", first=3, last=7)
    counted("entry-skipped", route="a", offset=3, attempts=1, problem="x")
    assert counted.count("transporter_route_retries_total", "a") == 2
    assert counted.count("transporter_route_retries_total", "b") == 1
    assert counted.count("transporter_route_retries_total", "c") == 0
    assert counted.count("transporter_compaction_freed_bytes_total") == 110
    assert counted.count("transporter_released_entries_total", "a") == 5
    assert counted.count("transporter_route_given_up_entries_total", "a", "skipped") == 1
    assert len(events.all) == 7


def test_only_events_and_metrics_that_exist_are_counted() -> None:
    """Each counted field is a field of its event, and each metric is a counter."""
    for event, (metric, fields, fixed) in samples._ONES.items():
        assert set(fields) <= set(EVENTS[event].fields)
        assert TABLE[metric].kind == "counter"
        assert len(TABLE[metric].labels) == len(fields) + len(fixed)
    for event, sums in samples._SUMS.items():
        assert set(sums.values()) <= set(EVENTS[event].fields)
        assert all(TABLE[metric].labels == () for metric in sums)

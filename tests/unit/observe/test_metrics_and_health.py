"""The pages about a real engine, without Spark, in all its states."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import promql_tools
import pytest
from acceptance_tools import page
from engine_tools import Events, SparklessHost, make_pipeline, offsets, until
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from transporter.engine.engine import Engine
from transporter.engine.meters import RouteMeter
from transporter.observe.http_server import PortTaken
from transporter.observe.metric_table import METRICS
from transporter.observe.metrics_and_health import Monitor
from transporter.pipeline.observe_config import ListenAddress, ObserveConfig
from transporter.protocol.messages import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.pipeline.config import Pipeline

ANY = ObserveConfig(listen=ListenAddress("127.0.0.1", 0), unready_after=0.2)


class Watched:
    """A running engine and the pages about it."""

    def __init__(self, engine: Engine, url: str, events: Events) -> None:
        self.engine, self.url, self.events = engine, url, events

    def get(self, name: str, accept: str = "") -> tuple[int, str]:
        """Return the status and the body of a page."""
        return page(f"{self.url}/{name}", Accept=accept)

    def ready(self) -> bool:
        """Return whether /readyz is green."""
        return self.get("readyz")[0] == 200

    def reasons(self) -> list[dict[str, Any]]:
        """Return the reasons why it is not."""
        return json.loads(self.get("readyz")[1])["reasons"]

    def value(self, name: str, **labels: str) -> float:
        """Return the value of the one series of this name and these labels."""
        found = [
            sample.value
            for family in text_string_to_metric_families(self.get("metrics")[1])
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(found) == 1, (name, labels, found)
        return found[0]


@contextmanager
def watched(pipeline: Pipeline, host: SparklessHost | None = None) -> Iterator[Watched]:
    """Run and watch *pipeline* for the length of a ``with`` block."""
    events = Events()
    pipeline = pipeline.model_copy(update={"observe": ANY})
    with Monitor(pipeline, events, "1.2.3") as monitor:
        engine = Engine(pipeline, host or SparklessHost(), monitor.observe)
        monitor.start(engine)
        engine.start()
        try:
            yield Watched(engine, str(monitor.url), events)
        finally:
            engine.stop(0)


def test_a_route_that_gets_on(tmp_path: Path) -> None:
    """Readers and routes are counted exactly, and everything is green."""
    pipeline = make_pipeline(
        tmp_path, ["a x", "b yy", "a zzz"], end=False, out={"namespace": "^a$"}
    )
    with watched(pipeline) as seen:
        until(lambda: seen.value("transporter_route_watermark_offset") == 2)
        assert seen.value("transporter_reader_entries_total", reader="in") == 3
        assert seen.value("transporter_reader_bytes_total", reader="in") > 6
        assert seen.value("transporter_route_delivered_entries_total", route="out") == 2
        assert seen.value("transporter_route_delivered_bytes_total", route="out") == 4
        assert seen.value("transporter_route_skipped_entries_total", route="out") == 1
        assert seen.value("transporter_route_slice_seconds_count", route="out") >= 1
        assert seen.value("transporter_log_fsync_seconds_count") >= 1
        assert seen.value("transporter_route_lag_entries", route="out") == 0
        assert seen.value("transporter_route_oldest_unacked_age_seconds", route="out") == 0
        assert seen.value("transporter_route_state", route="out", state="running") == 1
        assert seen.value("transporter_info", version="1.2.3", pipeline="pipeline") == 1
        assert seen.value("transporter_ready") == 1
        assert seen.ready()
        assert json.loads(seen.get("healthz")[1]) == {"healthy": True, "dead": [], "hung": []}
        assert promql_tools.firing(seen.get("metrics")[1]) == {}


def test_the_exposition_is_what_prometheus_reads(tmp_path: Path) -> None:
    """Both formats parse, every metric has its type, and histograms grow towards +Inf."""
    with watched(make_pipeline(tmp_path, ["a x"], end=False, out={})) as seen:
        until(lambda: seen.value("transporter_route_watermark_offset") == 0)
        families = list(text_string_to_metric_families(seen.get("metrics")[1]))
        opened = list(open_metrics(seen.get("metrics", "application/openmetrics-text")[1]))
    kinds = {family.name: family.type for family in families}
    budget = {"transporter_log_used_bytes", "transporter_log_budget_bytes"}
    for metric in METRICS:
        assert kinds[metric.name.removesuffix("_total")] == metric.kind, metric.name
    assert {family.name for family in opened} >= set(kinds) - budget - {"process_start_time"}
    for family in families:
        if family.type == "histogram":
            counts = [each.value for each in family.samples if each.name.endswith("_bucket")]
            assert counts == sorted(counts)


def test_a_poison_entry_shows_until_it_is_dealt_with(tmp_path: Path) -> None:
    """A stopped route turns readiness red with the reason and raises the alert."""
    out = {"writer": {"reject": [1]}}
    with watched(make_pipeline(tmp_path, ["a x", "a y", "a z"], end=False, out=out)) as seen:
        until(lambda: not seen.engine.wait(0) and seen.engine.halted == ["out"])
        (reason,) = seen.reasons()
        assert (reason["name"], reason["state"]) == ("out", "stopped")
        assert "no 1 here" not in str(reason)
        assert seen.value("transporter_ready") == 0
        assert seen.value("transporter_route_lag_entries") == 2
        assert 0 < seen.value("transporter_route_oldest_unacked_age_seconds") < 60
        alerts = promql_tools.firing(seen.get("metrics")[1])
        assert set(alerts) == {"TransporterNotReady", "TransporterRouteStopped"}
        assert alerts["TransporterRouteStopped"][0]["route"] == "out"


def test_parked_entries_show(tmp_path: Path) -> None:
    """Parked entries are counted and alerted, and the route stays ready."""
    out = {"on_error": "park", "writer": {"reject": [1]}}
    with watched(make_pipeline(tmp_path, ["a x", "a y", "a z"], end=False, out=out)) as seen:
        until(lambda: seen.value("transporter_route_watermark_offset") == 2)
        assert seen.value("transporter_route_parked_entries") == 1
        name = "transporter_route_given_up_entries_total"
        assert seen.value(name, action="parked") == 1
        assert seen.value("transporter_route_retries_total") >= 1
        until(seen.ready)
        assert set(promql_tools.firing(seen.get("metrics")[1])) == {"TransporterEntriesParked"}


def test_a_dead_sink_turns_readiness_red_and_its_return_green(tmp_path: Path) -> None:
    """Readiness turns red only after unready_after, and green again once the sink is back."""
    down = tmp_path / "out.down"
    down.write_text("write")
    with watched(make_pipeline(tmp_path, ["a x"], end=False, out={})) as seen:
        seen.events.await_count("route-retrying")
        until(lambda: not seen.ready())
        until(lambda: [each["state"] for each in seen.reasons()] == ["retrying"])
        alerts = promql_tools.firing(seen.get("metrics")[1])
        assert "TransporterRouteRetrying" in alerts
        down.unlink()
        until(seen.ready)
    assert offsets(tmp_path / "out.jsonl") == [0]


def test_a_slice_that_hangs_turns_readiness_red(tmp_path: Path) -> None:
    """A running route that settles nothing is not ready."""
    paused = tmp_path / "out.paused"
    paused.touch()
    out = {"writer": {"pause_at": 1}}
    with watched(make_pipeline(tmp_path, ["a x", "a y"], end=False, out=out)) as seen:
        until((tmp_path / "out.waiting").exists)
        until(lambda: not seen.ready())
        assert seen.value("transporter_route_state", state="running") == 1
        assert seen.value("transporter_route_still_seconds") > 0.2
        paused.unlink()
        until(seen.ready)


def test_spark_that_is_not_up_is_seen(tmp_path: Path) -> None:
    """Before Spark is up the engine is not ready, healthy, and its readers work."""
    host = SparklessHost(["slow"])
    with watched(make_pipeline(tmp_path, ["a x"], end=False, out={}), host) as seen:
        until(lambda: seen.value("transporter_reader_entries_total") == 1)
        assert seen.value("transporter_spark_up") == 0
        assert [each["state"] for each in seen.reasons()] == ["starting"]
        assert seen.get("healthz")[0] == 200


def test_a_thread_that_is_gone_is_no_health(tmp_path: Path) -> None:
    """A thread that ended without a request turns /healthz red, with its name."""
    with watched(make_pipeline(tmp_path, ["a x"], end=False, out={})) as seen:
        until(seen.ready)
        ended = threading.Thread(target=str, name="committer")
        ended.start()
        ended.join()
        committer, seen.engine._committer.thread = seen.engine._committer.thread, ended
        assert seen.get("healthz")[0] == 503
        assert json.loads(seen.get("healthz")[1])["dead"] == ["committer"]
        assert seen.value("transporter_dead_threads") == 1
        seen.engine._committer.thread = committer
        assert seen.get("healthz")[0] == 200


def test_a_lost_worker_is_counted(tmp_path: Path) -> None:
    """A worker that dies is counted for its route."""
    out = {"writer": {"die_at": 1}}
    with watched(make_pipeline(tmp_path, ["a x", "a y"], end=False, out=out)) as seen:
        until(lambda: seen.value("transporter_route_watermark_offset") == 1)
        assert seen.value("transporter_route_worker_restarts_total", route="out") == 1


def test_scrapes_in_parallel(tmp_path: Path) -> None:
    """Many parallel scrapes beside a working route all get whole answers."""
    pipeline = make_pipeline(
        tmp_path, [f"a {n}" for n in range(300)], end=False, out={"slice_rows": 3}
    )
    answers = []
    with watched(pipeline) as seen:
        scrapers = [
            threading.Thread(target=lambda: answers.extend(seen.get("metrics") for _ in range(5)))
            for _ in range(6)
        ]
        for each in scrapers:
            each.start()
        for each in scrapers:
            each.join()
    assert [code for code, _ in answers] == [200] * 30
    assert all(list(text_string_to_metric_families(text)) for _, text in answers)


def test_a_port_that_the_pipeline_names_must_be_free(tmp_path: Path) -> None:
    """A port named in the file and in use is an error, raised before the log is opened."""
    pipeline = make_pipeline(tmp_path, ["a x"], out={})
    with Monitor(pipeline.model_copy(update={"observe": ANY}), Events(), "1") as first:
        port = int(str(first.url).rpartition(":")[2])
        taken = ObserveConfig(listen=ListenAddress("127.0.0.1", port))
        with pytest.raises(PortTaken, match=r"set observe\.listen"):
            Monitor(pipeline.model_copy(update={"observe": taken}), Events(), "1")
    assert not (tmp_path / "log").exists()


def test_the_default_port_may_be_taken(tmp_path: Path) -> None:
    """With the default port in use the engine runs unwatched and reports it."""
    pipeline = make_pipeline(tmp_path, ["a x"], out={})
    events = Events()
    with Monitor(pipeline.model_copy(update={"observe": ANY}), Events(), "1") as first:
        port = int(str(first.url).rpartition(":")[2])
        unnamed = ObserveConfig.model_construct(set(), listen=ListenAddress("127.0.0.1", port))
        second = Monitor(pipeline.model_copy(update={"observe": unnamed}), events, "1")
        assert second.url is None
        second.stop()
    assert "cannot listen on" in events.named("endpoint-unavailable")[0]["problem"]


def test_nothing_listens_when_it_is_off(tmp_path: Path) -> None:
    """``listen: off`` opens no endpoint and starts no thread for one."""
    pipeline = make_pipeline(tmp_path, ["a x"], out={})
    off = pipeline.model_copy(update={"observe": ObserveConfig(listen="off")})
    before = threading.active_count()
    with Monitor(off, Events(), "1") as monitor:
        assert monitor.url is None
        assert threading.active_count() == before


def test_what_is_counted_costs_next_to_nothing(tmp_path: Path) -> None:
    """Timing and counting a slice takes less than a hundredth of a slice of one entry."""
    lines = [f"a {n}" for n in range(200)]
    pipeline = make_pipeline(tmp_path, lines, end=False, out={"slice_rows": 1})
    with watched(pipeline) as seen:
        until(lambda: seen.value("transporter_route_watermark_offset") == 199)
        (route,) = seen.engine.status().routes
    assert sum(route.slices.counts) == 200
    outcome = Outcome(5, 5, 0, 50, {})

    def once() -> float:
        meter, begun = RouteMeter(), time.perf_counter()
        for _ in range(10_000):
            meter.add(0, outcome, time.monotonic())
        return (time.perf_counter() - begun) / 10_000

    # The machine may be busy, so the best of several times counts.
    assert min(once() for _ in range(20)) < route.slices.total / 200 / 100

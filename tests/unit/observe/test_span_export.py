"""Spans of a real engine, with a collector that speaks OTLP and one that does not."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import Events, SparklessHost, make_pipeline, offsets, until
from otlp_tools import Collector

from transporter.engine.engine import Engine
from transporter.errors import EnvironmentFault
from transporter.message import Message, messages_to_batch
from transporter.observe.metrics_and_health import Monitor
from transporter.observe.span_export import QUEUED, Tracing
from transporter.pipeline.observe_config import ObserveConfig, TracingConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transporter.observe.entry_spans import Span
    from transporter.pipeline.config import Pipeline

ROOT = Path(__file__).parents[3]
NOW = 1_700_000_000_000_000


def traced(pipeline: Pipeline, url: str, **tracing: Any) -> Pipeline:
    """Return *pipeline* with every entry traced to *url*."""
    config = TracingConfig.model_validate({"endpoint": url, "sample": 1, **tracing})
    observe = ObserveConfig(listen="off", tracing=config)
    return pipeline.model_copy(update={"observe": observe})


@contextmanager
def watched(pipeline: Pipeline, events: Events | None = None) -> Iterator[tuple[Engine, Tracing]]:
    """Run and trace *pipeline* for the length of a ``with`` block."""
    with Monitor(pipeline, events or Events(), "1.2.3") as monitor:
        assert monitor.tracer is not None
        engine = Engine(pipeline, SparklessHost(), monitor.observe, tracer=monitor.tracer)
        monitor.start(engine)
        engine.start()
        try:
            yield engine, monitor.tracer
        finally:
            engine.stop(10)


def test_an_entry_has_a_span_to_the_log_and_one_to_each_ack(tmp_path: Path) -> None:
    """Spans of one trace follow each other and contain the entry's place, not its data."""
    pipeline = make_pipeline(
        tmp_path, ["a x", "b y", "a z"], end=False, one={"namespace": "^a$"}, two={}
    )
    with Collector() as collector:
        with watched(traced(pipeline, collector.url)) as (_, tracer):
            until(lambda: tracer.counts().exported == 8)
        logged = {each["offset"]: each for each in collector.named("source -> log")}
        acked = collector.named("log -> ack")
        (headers, request) = collector.requests[0]
    assert sorted(logged) == [0, 1, 2]
    assert {(each["route"], each["offset"]) for each in acked} == {
        *(("one", offset) for offset in (0, 2)),
        *(("two", offset) for offset in (0, 1, 2)),
    }
    for each in acked:
        begun = logged[each["offset"]]
        assert (each["trace"], each["parent"]) == (begun["trace"], begun["span"])
        assert begun["start"] <= begun["end"] == each["start"] <= each["end"]
        assert (each["pipeline"], each["namespace"]) == ("pipeline", begun["namespace"])
    assert {each["parent"] for each in logged.values()} == {""}
    assert len({each["trace"] for each in logged.values()}) == 3
    assert {each["reader"] for each in logged.values()} == {"in"}
    assert headers["content-type"] == "application/x-protobuf"
    resource = {
        each.key: each.value.string_value for each in request.resource_spans[0].resource.attributes
    }
    assert resource["service.name"] == "transporter"
    assert b"zzz" not in request.SerializeToString()


def test_a_replay_is_not_traced(tmp_path: Path) -> None:
    """Only an entry's first delivery is traced."""
    with (
        Collector() as collector,
        watched(traced(make_pipeline(tmp_path, ["a x"], end=False, out={}), collector.url)) as (
            engine,
            tracer,
        ),
    ):
        until(lambda: tracer.counts().exported == 2)
        found = engine.route("out")
        assert found is not None
        found[1].begin_replay(0, 0)
        until(lambda: offsets(tmp_path / "out.jsonl") == [0, 0])
        until(lambda: found[1].state.replay is None)
        assert tracer.counts() == (2, 0)


class Sink:
    """An exporter that keeps spans, or fails with a given problem."""

    def __init__(self, problem: str = "") -> None:
        self.spans: list[Span] = []
        self.problem, self.held, self.asked = problem, threading.Event(), threading.Event()
        self.held.set()

    def export(self, spans: Sequence[Span]) -> bool:
        self.asked.set()
        self.held.wait()
        if self.problem:
            raise OSError(self.problem)
        self.spans += spans
        return True

    def shutdown(self) -> None:
        self.held.set()


def tracing(folder: Path, sink: Sink, events: Events | None = None, **more: Any) -> Tracing:
    """Return the tracing of a pipeline of one route to *sink*."""
    pipeline = traced(
        make_pipeline(folder, ["a x"], out={}), "http://127.0.0.1:1/v1/traces", **more
    )
    assert pipeline.observe.tracing is not None
    return Tracing(pipeline, pipeline.observe.tracing, events or Events(), sink)


def batch(*messages: Message) -> Any:
    """Return *messages* as a reader's batch."""
    return messages_to_batch(list(messages))


def test_the_span_of_a_traced_source_is_the_parent_of_both(tmp_path: Path) -> None:
    """Both spans are children of the producer's span, with its state, whatever the share."""
    with Collector() as collector:
        parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        headers = (("traceparent", parent.encode()), ("tracestate", b"v=1"))
        pipeline = traced(make_pipeline(tmp_path, [], end=False, out={}), collector.url, sample=0)
        message = Message("a", b"", timestamp=NOW, headers=headers)
        with watched(pipeline) as (engine, tracer):
            first, _ = engine.log.append(batch(message), "in")
            tracer.record_logged("in", batch(message), first)
            until(lambda: tracer.counts().exported == 2)
        (logged,), (acked,) = collector.named("source -> log"), collector.named("log -> ack")
    for each in (logged, acked):
        assert each["trace"] == "4bf92f3577b34da6a3ce929d0e0e4736"
        assert (each["parent"], each["state"]) == ("00f067aa0ba902b7", "v=1")
    assert logged["start"] == NOW * 1000


def test_a_source_clock_that_is_ahead_begins_no_span_behind_its_end(tmp_path: Path) -> None:
    """A message from the future, and one without a time, have spans of length 0."""
    sink = Sink()
    traces = tracing(tmp_path, sink)
    ahead = Message("a", b"", timestamp=32_503_680_000_000_000)
    traces.record_logged("in", batch(ahead, Message("a", b"")), 0)
    traces.start()
    traces.stop()
    assert [each.end - each.start for each in sink.spans] == [0, 0]


def test_a_collector_that_hangs_costs_spans_and_nothing_else(tmp_path: Path) -> None:
    """Spans without room in the queue are dropped and counted, and the engine goes on."""
    sink = Sink()
    sink.held.clear()
    traces = tracing(tmp_path, sink)
    traces.start()
    traces.record_logged("in", batch(Message("a", b"")), 0)
    assert sink.asked.wait(20)
    traces.record_logged("in", batch(*[Message("a", b"")] * (QUEUED + 7)), 1)
    assert traces.counts() == (0, 7)
    traces.record_logged("in", batch(Message("a", b"")), 9)
    assert traces.counts() == (0, 8)
    traces.stop()
    assert not traces.thread.is_alive()
    assert traces.counts() == (QUEUED + 1, 8)


@pytest.mark.exhaustive
def test_an_engine_beside_a_collector_that_hangs(tmp_path: Path) -> None:
    """Everything is delivered and the stop ends while a collector's answer is pending."""
    lines = [f"a {n}" for n in range(500)]
    with Collector(hold=True) as collector:
        pipeline = traced(make_pipeline(tmp_path, lines, end=False, out={}), collector.url)
        with watched(pipeline) as (engine, _):
            assert collector.asked.wait(20)
            until(lambda: engine.status().routes[0].delivered == 500)
        collector.released.set()
    assert offsets(tmp_path / "out.jsonl") == list(range(500))


@pytest.mark.exhaustive
def test_a_collector_that_is_away_is_said_once(tmp_path: Path) -> None:
    """An event reports the problem without secrets, and again only after an export succeeded."""
    events, sink = Events(), Sink("no way to c0ll3ctor-t0ken")
    headers = {"x-team": "c0ll3ctor-t0ken"}
    pipeline = make_pipeline(tmp_path, ["a x"], out={})
    traces = tracing(tmp_path, sink, events, headers=headers)
    traces._pipeline = traces._pipeline.model_copy(
        update={"secrets": secrets_of_headers(pipeline, headers)}
    )
    traces.start()
    for count, problem in ((1, sink.problem), (2, sink.problem), (3, ""), (4, sink.problem)):
        sink.problem = problem
        traces.record_logged("in", batch(Message("a", b"")), count)
        until(lambda wanted=count: sum(traces.counts()) == wanted)
    traces.stop()
    said = [each["problem"] for each in events.named("tracing-unavailable")]
    assert said == ["OSError: no way to ***"] * 2
    assert traces.counts() == (1, 3)


def secrets_of_headers(pipeline: Pipeline, headers: dict[str, str]) -> Any:
    """Return the secrets of a pipeline file with these headers."""
    from ruamel.yaml import YAML  # noqa: PLC0415

    from transporter.pipeline.config import load  # noqa: PLC0415

    yaml = YAML(typ="safe", pure=True)
    document = yaml.load(pipeline.file)
    document["observe"] = {"tracing": {"endpoint": "http://c:4318/v1/traces", "headers": headers}}
    with pipeline.file.open("w") as file:
        yaml.dump(document, file)
    return load(pipeline.file, {}).secrets


@pytest.mark.parametrize("status", [400, 503])
def test_what_a_collector_refuses_is_dropped(
    tmp_path: Path, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A refused span is counted and reported as an event, without OpenTelemetry's log lines."""
    events = Events()
    with caplog.at_level(logging.DEBUG), Collector(status=status) as collector:
        pipeline = traced(make_pipeline(tmp_path, ["a x"], end=False, out={}), collector.url)
        with watched(pipeline, events) as (engine, _):
            assert collector.asked.wait(20)
            until(lambda: engine.status().routes[0].delivered == 1)
    assert len(events.named("tracing-unavailable")) == 1
    assert HTTPStatus(status).phrase in events.named("tracing-unavailable")[0]["problem"]
    assert [each.name for each in caplog.records if "opentelemetry" in each.name] == []


def test_a_failure_of_tracing_hurts_nobody(tmp_path: Path) -> None:
    """An entry that cannot be traced is dropped, and neither reader nor route is affected."""
    traces = tracing(tmp_path, Sink())
    traces.record_logged("in", None, 0)  # type: ignore[arg-type]
    traces.record_settled(None, None, None)  # type: ignore[arg-type]
    assert traces.counts() == (0, 2)


def test_headers_are_sent(tmp_path: Path) -> None:
    """A collector's key is sent in a header named as in the file."""
    with Collector() as collector:
        pipeline = traced(
            make_pipeline(tmp_path, ["a x"], end=False, out={}),
            collector.url,
            headers={"x-team": "abcdefgh"},
            service_name="orders",
        )
        with watched(pipeline) as (_, tracer):
            until(lambda: tracer.counts().exported == 2)
        headers, request = collector.requests[0]
    assert headers["x-team"] == "abcdefgh"
    resource = request.resource_spans[0].resource.attributes
    assert "orders" in [each.value.string_value for each in resource]


def test_without_the_extra_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra the error names the package to install, and nothing is started."""
    for name in [each for each in sys.modules if each.startswith("transporter.observe.otlp")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    pipeline = traced(make_pipeline(tmp_path, ["a x"], out={}), "http://127.0.0.1:1/v1/traces")
    with pytest.raises(EnvironmentFault, match=r"pip install 'transporter-engine\[otel\]'"):
        Monitor(pipeline, Events(), "1")
    assert not (tmp_path / "log").exists()


def test_nothing_is_imported_where_nobody_asks_for_it(tmp_path: Path) -> None:
    """Without tracing nothing is imported and no thread is started."""
    pipeline = make_pipeline(tmp_path, ["a x"], out={})
    program = (
        "import sys, threading\n"
        "from pathlib import Path\n"
        "from transporter.observe.metrics_and_health import Monitor\n"
        "from transporter.pipeline.config import load\n"
        f"pipeline = load(Path({str(pipeline.file)!r}), {{}})\n"
        "off = {'observe': type(pipeline.observe)(listen='off')}\n"
        "monitor = Monitor(pipeline.model_copy(update=off), lambda *_, **__: None, '1')\n"
        "assert monitor.tracer is None\n"
        "assert threading.active_count() == 1\n"
        "assert not {'opentelemetry', 'requests'} & {n.partition('.')[0] for n in sys.modules}\n"
    )
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'support'}"}
    subprocess.run([sys.executable, "-c", program], check=True, env=env, timeout=120)

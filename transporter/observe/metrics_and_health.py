"""The monitor of one engine: counts its events, and serves metrics and health."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Self

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from transporter.engine.meters import Histogram
from transporter.engine.readiness import not_ready_reasons, readiness_report
from transporter.log.commit_log import wall_clock
from transporter.observe.http_server import Endpoint, HttpAnswer, PortTaken
from transporter.observe.metric_table import METRICS, PIPELINE
from transporter.observe.samples import EventCounts, LagAges, readings
from transporter.observe.span_export import create_tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client.core import Metric as Family

    from transporter.engine.engine import Engine
    from transporter.engine.events import Observer
    from transporter.observe.metric_table import Metric
    from transporter.observe.samples import Reading
    from transporter.pipeline.config import Pipeline


_FAMILIES = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class EngineSamples(Collector):
    """Collects samples from *read* at every scrape, and keeps none."""

    def __init__(self, pipeline: str, read: Callable[[], Iterable[Reading]]) -> None:
        self._pipeline, self._read = pipeline, read

    def collect(self) -> Iterator[Family]:
        """Yield the metric families of the table, in its order, with their samples."""
        families = {metric.name: _family(metric) for metric in METRICS}
        for name, labels, value in self._read():
            whole = [self._pipeline, *labels]
            if isinstance(value, Histogram):
                families[name].add_metric(whole, _buckets(value), value.total)
            else:
                families[name].add_metric(whole, float(value))
        yield from families.values()


def create_registry(collector: Collector) -> CollectorRegistry:
    """Return a registry with *collector* and the metrics of this process."""
    found = CollectorRegistry()
    found.register(collector)
    ProcessCollector(registry=found)
    return found


def _family(metric: Metric) -> Any:  # noqa: ANN401 - their add_metric differ in their arguments
    # Without the unit: the library would demand it as the name's end, which for some is "_info".
    return _FAMILIES[metric.kind](metric.name, metric.help, labels=[PIPELINE, *metric.labels])


def _buckets(histogram: Histogram) -> list[tuple[str, int]]:
    ends = [*(format(bound, "g") for bound in histogram.bounds), "+Inf"]
    return list(zip(ends, accumulate(histogram.counts), strict=True))


_JSON: Final = "application/json"


class Monitor:
    """The observer of one engine, created before it and stopped after it.

    ``observe`` is the engine's observer. ``tracer`` traces its entries if the pipeline
    configures tracing.
    """

    def __init__(self, pipeline: Pipeline, observe: Observer, version: str) -> None:
        """Bind the address of *pipeline*; events are forwarded to *observe*.

        If the default address is in use, mostly by another engine, this engine runs without
        an endpoint and reports it. An address that the pipeline names must be free.

        Raises:
            EnvironmentFault: the address is not usable, or the extra for tracing is not installed.

        """
        self.observe = EventCounts(observe)
        self._pipeline, self._config = pipeline, pipeline.observe
        self._version = version
        self._engine: Engine | None = None
        self.tracer = create_tracing(pipeline, self._report, version)
        self._ages = LagAges(pipeline.log.dir, wall_clock)
        self._endpoint = self._open_endpoint()

    @property
    def url(self) -> str | None:
        """The address of metrics and health, or ``None`` without an endpoint."""
        return self._endpoint.url if self._endpoint is not None else None

    def start(self, engine: Engine) -> None:
        """Begin to answer for *engine*."""
        self._engine = engine
        engine.version, engine.url = self._version, self.url
        if self.tracer is not None:
            self.tracer.start()
        if self._endpoint is None:
            return
        encode = create_registry(EngineSamples(self._pipeline.name, self._readings))

        def metrics(accept: str) -> HttpAnswer:
            encoder, content_type = choose_encoder(accept)
            return HttpAnswer(200, content_type, encoder(encode))

        pages = {
            "/metrics": metrics,
            "/healthz": self._health_page,
            "/readyz": self._readiness_page,
        }
        self._endpoint.start(pages)
        self._report("endpoint-opened", url=self._endpoint.url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop. May be called in any state."""
        if self._endpoint is not None:
            self._endpoint.stop()
        if self.tracer is not None:
            self.tracer.stop()
        self._ages.close()

    def _open_endpoint(self) -> Endpoint | None:
        listen = self._config.listen
        if listen is None:
            return None
        try:
            return Endpoint(listen, self._config.tls, self._config.token)
        except PortTaken as error:
            if "listen" in self._config.model_fields_set:
                raise
            self.observe("endpoint-unavailable", problem=str(error))
            return None

    def _report(self, event: str, **details: Any) -> None:  # noqa: ANN401 - plain values
        """Report an event as one of the engine, which redacts and keeps it."""
        observe = self.observe if self._engine is None else self._engine.observe
        observe(event, **details)

    def _readings(self) -> Iterator[Reading]:
        status = self._started_engine.status()
        ready = not not_ready_reasons(status, self._config.unready_after)
        return readings(
            status,
            self.observe,
            lambda route: self._ages.age_of(route, status.last),
            ready=ready,
            version=self._version,
            spans=self.tracer.counts() if self.tracer is not None else None,
        )

    @property
    def _started_engine(self) -> Engine:
        assert self._engine is not None  # noqa: S101 - nothing is served before start()
        return self._engine

    def _health_page(self, _accept: str) -> HttpAnswer:
        status = self._started_engine.status()
        healthy = not (status.dead or status.hung)
        found = {"healthy": healthy, "dead": list(status.dead), "hung": list(status.hung)}
        return _json_answer(found, good=healthy)

    def _readiness_page(self, _accept: str) -> HttpAnswer:
        found = readiness_report(self._started_engine.status(), self._config.unready_after)
        return _json_answer(found, good=found["ready"])


def _json_answer(found: dict[str, Any], *, good: bool) -> HttpAnswer:
    return HttpAnswer(200 if good else 503, _JSON, json.dumps(found).encode() + b"\n")

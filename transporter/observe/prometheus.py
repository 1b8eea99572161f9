"""The readings as Prometheus wants them, by its own client library."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from transporter.engine.meters import Histogram
from transporter.observe.metric_table import METRICS, PIPELINE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client.core import Metric as Family

    from transporter.observe.metric_table import Metric
    from transporter.observe.samples import Reading

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

"""Export of spans by OTLP: a bounded queue and a thread, which hold up nothing else."""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from transporter.errors import EnvironmentFault
from transporter.log.commit_log import wall_clock
from transporter.observe.entry_spans import (
    Journal,
    Span,
    Traced,
    columns_of,
    new_id,
    sample_messages,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from transporter.engine.events import Observer
    from transporter.observe.entry_spans import Sample
    from transporter.observe.otlp import OtlpExporter
    from transporter.pipeline.config import Pipeline, RouteConfig
    from transporter.pipeline.observe_config import TracingConfig
    from transporter.protocol.messages import Outcome, Slice

QUEUED: Final = 4096
"""Spans that wait for the exporter. Further ones are dropped and counted."""
BATCH: Final = 512
"""Spans of one request."""
INTERVAL: Final = 1.0
"""Seconds that a span waits for others."""
GRACE: Final = 2.0
"""Seconds that a stop gives to queued spans, and once more to a running request."""
_THREAD: Final = "tracing"


class Exporter(Protocol):
    """A sender of spans."""

    def export(self, spans: Sequence[Span]) -> bool:
        """Send *spans*; return whether they arrived. Takes some seconds at most."""

    def shutdown(self) -> None:
        """End an :meth:`export` that waits for its next try."""


class SpanCounts(NamedTuple):
    """Spans that were exported, and those that were dropped, since the start."""

    exported: int = 0
    dropped: int = 0


class Tracing:
    """Follows sampled entries, and exports their spans: an ``engine.tracing.Tracer``.

    A collector that is slow or away costs spans, and nothing else: they are counted.
    """

    def __init__(
        self, pipeline: Pipeline, config: TracingConfig, observe: Observer, exporter: Exporter
    ) -> None:
        """Trace *pipeline* by *config*."""
        self._pipeline, self._share = pipeline, config.sample
        self._observe, self._exporter = observe, exporter
        self._rng = random.SystemRandom()
        self._journal = Journal(route.name for route in pipeline.routes)
        self._lock = threading.Condition()
        self._queue: deque[Span] = deque()
        self._exported = self._dropped = 0
        self._stopping, self._failing = False, False
        # Left behind if its collector does not answer: see GRACE.
        self.thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)

    def start(self) -> None:
        """Begin to export."""
        self.thread.start()

    def stop(self) -> None:
        """Export the queued spans for at most :data:`GRACE` seconds, and stop."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        if self.thread.ident is not None:
            self.thread.join(GRACE)
            if self.thread.is_alive():
                self._exporter.shutdown()
                self.thread.join(GRACE)

    def counts(self) -> SpanCounts:
        """Return the counts of spans so far, by result."""
        with self._lock:
            return SpanCounts(self._exported, self._dropped)

    def record_logged(self, reader: str, messages: pa.RecordBatch, first: int) -> None:
        """Follow the sampled ones of *messages*, and queue the spans that end here."""
        now = wall_clock()
        with self._count_errors():
            # Without the lock: routes are not to wait for a look at headers.
            room = max(0, QUEUED - len(self._queue))
            samples, beyond = sample_messages(messages, self._share, self._rng, room)
            columns = columns_of(messages, [each.row for each in samples])
            with self._lock:
                self._dropped += beyond
                for sample, namespace, time in zip(samples, *columns, strict=True):
                    self._trace_entry(sample, first + sample.row, namespace, (time, now), reader)

    def record_settled(self, route: RouteConfig, asked: Slice, outcome: Outcome) -> None:
        """Queue the spans of entries that *route* has delivered."""
        now = wall_clock()
        with self._count_errors(), self._lock:
            for entry in list(self._journal.settle(route, asked, outcome, now)):
                self._enqueue(self._ack_span(entry, route.name, now))

    @contextmanager
    def _count_errors(self) -> Iterator[None]:
        """Have whatever goes wrong in a block cost a span, and not a reader or a route."""
        try:
            yield
        except Exception:  # noqa: BLE001 - tracing must not fail the pipeline
            with self._lock:
                self._dropped += 1

    def _trace_entry(
        self, sample: Sample, offset: int, namespace: str, times: tuple[int, int], reader: str
    ) -> None:
        """Queue the span to the log, and wait for acks; *times* are the source's and the log's."""
        context, mine, (made, now) = sample.context, new_id(64, self._rng), times
        trace = context.trace_id if context is not None else new_id(128, self._rng)
        parent = context.span_id if context is not None else None
        state = context.state if context is not None else None
        entry = Traced(offset, namespace, trace, mine if parent is None else parent, state, now)
        start = min(made, now) if made > 0 else now
        of = self._attributes(entry, reader=reader)
        self._enqueue(Span("source -> log", trace, mine, parent, state, start, now, of))
        for route, at in list(self._journal.add(entry)):
            self._enqueue(self._ack_span(entry, route, at))

    def _ack_span(self, entry: Traced, route: str, now: int) -> Span:
        return Span(
            "log -> ack",
            entry.trace_id,
            new_id(64, self._rng),
            entry.parent,
            entry.state,
            min(entry.logged, now),
            now,
            self._attributes(entry, route=route),
        )

    def _attributes(self, entry: Traced, **whose: str) -> dict[str, str | int]:
        named = {f"transporter.{kind}": name for kind, name in whose.items()}
        return {
            "transporter.pipeline": self._pipeline.name,
            **named,
            "transporter.namespace": entry.namespace,
            "transporter.offset": entry.offset,
        }

    def _enqueue(self, span: Span) -> None:
        if len(self._queue) >= QUEUED:
            self._dropped += 1
            return
        self._queue.append(span)
        if len(self._queue) in (1, BATCH):
            self._lock.notify_all()

    def _run(self) -> None:
        with _Quiet(_THREAD) as quiet:
            while (batch := self._next_batch()) is not None:
                quiet.first = ""
                try:
                    sent = self._exporter.export(batch)
                    problem = quiet.first or "the collector did not accept the spans"
                except Exception as error:  # noqa: BLE001 - the next batch may fare better
                    sent, problem = False, f"{type(error).__name__}: {error}"
                self._record_export(len(batch), problem, sent=sent)

    def _next_batch(self) -> list[Span] | None:
        """Return the next spans to export, once there are enough, or ``None`` at the end."""
        with self._lock:
            while not (self._queue or self._stopping):
                self._lock.wait()
            self._lock.wait_for(lambda: self._stopping or len(self._queue) >= BATCH, INTERVAL)
            return [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))] or None

    def _record_export(self, count: int, problem: str, *, sent: bool) -> None:
        with self._lock:
            if sent:
                self._exported += count
            else:
                self._dropped += count
        # Once an outage: the metrics count the lost spans.
        if not (sent or self._failing):
            hidden = self._pipeline.secrets.hide(problem)
            self._observe("tracing-unavailable", problem=hidden)
        self._failing = not sent


class _Quiet(logging.Filter):
    """Keeps log records of OpenTelemetry in one thread from the host's logging.

    ``first`` is the first warning. Records of other threads, which may be the host's own
    tracing, are not touched.
    """

    def __init__(self, thread: str) -> None:
        super().__init__()
        self._thread, self.first = thread, ""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.threadName != self._thread:
            return True
        if record.levelno >= logging.WARNING:
            self.first = self.first or record.getMessage()
        return False

    def __enter__(self) -> Self:
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self)
        return self

    def __exit__(self, *_: object) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self)


_LOGGERS: Final = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.common.http",
    "urllib3.connectionpool",
)


def create_tracing(pipeline: Pipeline, observe: Observer, version: str) -> Tracing | None:
    """Return the tracer of *pipeline*, or ``None`` if its file configures none.

    Raises:
        EnvironmentFault: the extra ``otel`` is not installed, or ``ca_file`` cannot be used.

    """
    config = pipeline.observe.tracing
    if config is None:
        return None
    exporter = _exporter_class()(config, pipeline.name, version)
    return Tracing(pipeline, config, observe, exporter)


def refuse_without_extra(config: TracingConfig | None) -> None:
    """Raise :class:`EnvironmentFault` if *config* needs an extra that is not installed."""
    if config is not None:
        _exporter_class()


def _exporter_class() -> type[OtlpExporter]:
    try:
        from transporter.observe.otlp import OtlpExporter  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("opentelemetry", "requests"):
            raise
        raise EnvironmentFault(
            "observe.tracing needs OpenTelemetry, which is not installed: "
            "pip install 'transporter-engine[otel]'"
        ) from error
    return OtlpExporter

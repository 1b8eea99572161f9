"""OTLP over HTTP, by OpenTelemetry's own exporter: the only module that imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.span import TraceState

from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transporter.observe.entry_spans import Span
    from transporter.pipeline.observe_config import TracingConfig

TIMEOUT: Final = 10.0
"""Seconds for a batch, its retries included."""
_KINDS: Final = {"source -> log": SpanKind.CONSUMER, "log -> ack": SpanKind.PRODUCER}
_NANO: Final = 1000


class OtlpExporter:
    """Sends spans to the collector that a pipeline file names. Belongs to one thread."""

    def __init__(self, config: TracingConfig, pipeline: str, version: str) -> None:
        """Connect to nothing yet.

        Raises:
            EnvironmentFault: the file of certificates cannot be read.

        """
        session = requests.Session()
        # Neither proxies nor passwords that the environment or ~/.netrc name.
        session.trust_env = False
        if config.ca_file is not None and not config.ca_file.is_file():
            raise EnvironmentFault(f"observe.tracing.ca_file: {config.ca_file} is not a file")
        self._exporter = OTLPSpanExporter(
            endpoint=config.endpoint.get_secret_value(),
            certificate_file=str(config.ca_file) if config.ca_file is not None else None,
            headers={name: each.get_secret_value() for name, each in config.headers.items()},
            timeout=TIMEOUT,
            session=session,
        )
        self._resource = Resource(
            {"service.name": config.service_name, "service.version": version}
            | {"service.instance.id": pipeline}
        )
        self._scope = InstrumentationScope("transporter", version)

    def export(self, spans: Sequence[Span]) -> bool:
        """Send *spans*; return whether the collector accepted them."""
        found = [self._readable_span(span) for span in spans]
        return self._exporter.export(found) is SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """End an export that waits for its next try."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _readable_span(self, span: Span) -> ReadableSpan:
        state = TraceState.from_header([span.state]) if span.state else TraceState()
        return ReadableSpan(
            span.name,
            context=_span_context(span.trace_id, span.span_id, state),
            parent=None
            if span.parent is None
            else _span_context(span.trace_id, span.parent, state),
            resource=self._resource,
            attributes=span.attributes,
            kind=_KINDS[span.name],
            instrumentation_scope=self._scope,
            start_time=span.start * _NANO,
            end_time=span.end * _NANO,
        )


def _span_context(trace: int, span: int, state: TraceState) -> SpanContext:
    return SpanContext(
        trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED), trace_state=state
    )

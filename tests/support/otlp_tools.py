"""A collector of traces on loopback: takes OTLP over HTTP and keeps the decoded requests."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    """Answers every export with ``status``. With ``hold`` it answers when it is released."""

    status: int = 200
    hold: bool = False
    requests: list[tuple[dict[str, str], ExportTraceServiceRequest]] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.released, self.asked = threading.Event(), threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """Its URL for traces."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"

    @property
    def spans(self) -> list[Span]:
        """All spans, in the order of arrival."""
        return [
            span
            for _, request in list(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return the spans of this *name*, with their attributes as a dict."""
        return [described(span) for span in self.spans if span.name == name]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.asked.set()
                if collector.hold:
                    collector.released.wait()
                if collector.status == 200:
                    request = ExportTraceServiceRequest.FromString(body)
                    headers = {name.lower(): value for name, value in self.headers.items()}
                    collector.requests.append((headers, request))
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def described(span: Span) -> dict[str, Any]:
    """Return the fields that a test checks."""
    attributes = {
        each.key.removeprefix("transporter."): getattr(each.value, each.value.WhichOneof("value"))
        for each in span.attributes
    }
    return {
        "trace": span.trace_id.hex(),
        "span": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "state": span.trace_state,
        "start": span.start_time_unix_nano,
        "end": span.end_time_unix_nano,
        **attributes,
    }

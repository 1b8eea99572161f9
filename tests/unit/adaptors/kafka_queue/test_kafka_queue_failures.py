"""The meaning of the queue library's errors for a reader and for a route."""

from __future__ import annotations

import pytest
from transporter_adaptors.kafka_queue.failures import sink_error, source_errors

from transporter.errors import (
    ConfigError,
    EnvironmentFault,
    Rejected,
    RouteFault,
    SinkTimeout,
    SinkUnavailable,
    SourceError,
    SourceUnavailable,
    TransporterError,
)
from transporter.queue.failures import (
    MessageRefused,
    QueueClosed,
    QueueFault,
    QueueTimeout,
    QueueUnavailable,
)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (QueueUnavailable("x"), SourceUnavailable),
        (QueueTimeout("x"), SourceUnavailable),
        (QueueFault("x"), EnvironmentFault),
        (QueueClosed("x"), SourceError),
        (MessageRefused("x"), SourceError),
    ],
)
def test_a_reader_is_replaced_only_when_that_may_help(
    error: TransporterError, kind: type[TransporterError]
) -> None:
    """Outages are retried, faults stop the reader, and the cause is kept."""
    with pytest.raises(kind) as caught, source_errors():
        raise error
    assert caught.value.retriable is (kind is SourceUnavailable)
    assert error in (caught.value, caught.value.__cause__)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MessageRefused("x"), Rejected),
        (ConfigError("x"), Rejected),
        (QueueTimeout("x"), SinkTimeout),
        (QueueUnavailable("x"), SinkUnavailable),
        (QueueFault("x"), RouteFault),
    ],
)
def test_a_route_is_told_what_kind_of_failure_it_was(
    error: TransporterError, kind: type[TransporterError]
) -> None:
    """Each failure has its class, and only one about a single entry names it."""
    found = sink_error(error, 7)
    assert type(found) is kind
    assert getattr(found, "offset", None) == (7 if kind is Rejected else None)

"""Meaning of the queue library's errors for a reader, and for a route."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from transporter.errors import (
    ConfigError,
    Rejected,
    RouteFault,
    SinkTimeout,
    SinkUnavailable,
    SourceError,
    SourceUnavailable,
)
from transporter.queue.failures import (
    MessageRefused,
    QueueError,
    QueueTimeout,
    QueueUnavailable,
    TopicsMissing,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.errors import SinkError, TransporterError


@contextmanager
def source_errors() -> Iterator[None]:
    """Translate errors of the queue library inside the block to those that a reader raises.

    Faults of rights and settings remain an ``EnvironmentFault``.
    """
    try:
        yield
    except (QueueUnavailable, TopicsMissing) as error:
        raise SourceUnavailable(str(error)) from error
    except QueueError as error:
        raise SourceError(str(error)) from error


def sink_error(error: TransporterError, offset: int | None = None) -> SinkError:
    """Return *error* as the route's, about the entry at *offset* if that is at fault."""
    if isinstance(error, MessageRefused | ConfigError):
        return Rejected(str(error), offset)
    if isinstance(error, QueueTimeout):
        return SinkTimeout(str(error))
    if isinstance(error, QueueUnavailable | TopicsMissing):
        return SinkUnavailable(str(error))
    return RouteFault(str(error))

"""Meaning of a Kafka error for an entry, a slice or a route, and for a reader."""

# ruff: noqa: SLF001 - the client library's own error codes are public, underscore and all

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError

from transporter.errors import (
    EnvironmentFault,
    Rejected,
    RouteFault,
    SinkTimeout,
    SinkUnavailable,
    SourceError,
    SourceUnavailable,
)
from transporter.kafka.clients import is_transient_auth_error
from transporter.kafka.errors import is_damaged

if TYPE_CHECKING:
    from transporter.errors import SinkError, TransporterError

_TIMEOUTS: Final = frozenset(
    {KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT}
)
_FAULTS: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._INVALID_ARG,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_VERSION,
    }
)
_TOPIC: Final = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
_NOT_CREATED: Final = frozenset(
    {
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REQUEST,
        KafkaError.POLICY_VIOLATION,
    }
)
"""Errors with which brokers refuse to create a topic, however often it is retried."""
_REJECTED: Final = frozenset(
    {
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.POLICY_VIOLATION,
        KafkaError.RECORD_LIST_TOO_LARGE,
    }
)
_RANGE: Final = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError._LOG_TRUNCATION,
        KafkaError.OFFSET_OUT_OF_RANGE,
    }
)
_GROUP: Final = frozenset(
    {
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.GROUP_MAX_SIZE_REACHED,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError.INVALID_GROUP_ID,
        KafkaError.INVALID_SESSION_TIMEOUT,
        KafkaError.OFFSET_METADATA_TOO_LARGE,
    }
)
"""Errors that exclude us from the group, whatever we do."""


class EventKind(Enum):
    """The meaning of an event that the consumer returns in place of a record."""

    END = "the end of a partition was reached"
    RANGE = "the records that were asked for are not there"
    DOUBT = "something has changed or failed: see whether all is well"
    FAILURE = "this cannot go on"


def kind_of(error: KafkaError) -> EventKind:
    """Return the meaning for a reader of an event with *error*."""
    code = error.code()
    if code == KafkaError._PARTITION_EOF:
        return EventKind.END
    if code in _RANGE:
        return EventKind.RANGE
    failed = error.fatal() or is_fault(error) or code in _GROUP or is_damaged(error)
    return EventKind.FAILURE if failed else EventKind.DOUBT


def source_error(error: KafkaError, place: str) -> TransporterError:
    """Translate *error*, which happened at *place*, to the exception for a reader."""
    code, text = error.code(), f"{place}: {error.str()} ({error.name()})"
    if code in _GROUP:
        return EnvironmentFault(f"{text}: check the group, its other members and their settings")
    if is_fault(error):
        return EnvironmentFault(f"{text}: check the rights, the user and the client settings")
    if is_damaged(error):
        return SourceError(f"{text}: the batch there is damaged; move the group past it")
    return SourceUnavailable(f"{text}; trying again may help")


def missing_topic(text: str, offset: int | None = None, *, fixed_topic: bool) -> SinkError:
    """Return the error of a sink whose topic is missing, as *text* describes."""
    if fixed_topic:
        return SinkUnavailable(f"{text}: create it, or set create_topics")
    advice = "create the topic, set create_topics, or filter its namespace out"
    return Rejected(f"{text}: {advice}", offset)


def refused_topic(
    error: KafkaError, place: str, offset: int | None = None, *, fixed_topic: bool
) -> SinkError:
    """Return the error of a sink whose topic at *place* was not created because of *error*.

    A lasting refusal is the entry's fault where its namespace has chosen the topic.
    """
    text = f"{place}: cannot be created: {error.str()} ({error.name()}): check create_topics"
    if not is_fault(error) and error.code() not in _NOT_CREATED:
        return SinkUnavailable(text)
    text += " and the rights, or create it"
    return RouteFault(text) if fixed_topic else Rejected(text, offset)


def is_shared(error: KafkaError) -> bool:
    """Return whether the broker refused a whole batch because of one of its messages."""
    return error.code() in _REJECTED


def is_fault(error: KafkaError) -> bool:
    """Return whether only an operator can help, by changing something."""
    return error.code() in _FAULTS and not is_transient_auth_error(error)


def sink_error(
    error: KafkaError, place: str, offset: int | None = None, *, fixed_topic: bool = True
) -> SinkError:
    """Translate *error*, which happened at *place*, to the exception for the route.

    An unknown topic is awaited when all entries go there (*fixed_topic*), and is the
    entry's fault when its namespace chose it.
    """
    code, text = error.code(), f"{place}: {error.str()} ({error.name()})"
    if is_fault(error):
        return RouteFault(f"{text}: check the topic, the rights and the client settings")
    if code in _TOPIC:
        return missing_topic(text, offset, fixed_topic=fixed_topic)
    if code in _REJECTED:
        return Rejected(text, offset)
    if code in _TIMEOUTS:
        return SinkTimeout(text)
    return SinkUnavailable(text)

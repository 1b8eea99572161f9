"""What a Kafka error means for an entry, a slice or a route."""

# ruff: noqa: SLF001 - the client library's own error codes are public, underscore and all

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError

from transporter.errors import Rejected, RouteFault, SinkTimeout, SinkUnavailable

if TYPE_CHECKING:
    from transporter.errors import SinkError

_BYSTANDER: Final = frozenset(
    {
        KafkaError._FATAL,
        KafkaError._INVALID_DIFFERENT_RECORD,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._PURGE_QUEUE,
    }
)
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


def is_bystander(error: KafkaError) -> bool:
    """Tell whether the message itself is fine: taken back, or lost with another one's failure."""
    return error.code() in _BYSTANDER


def is_shared(error: KafkaError) -> bool:
    """Tell whether the broker refused a whole batch, for the sake of one of its messages."""
    return error.code() in _REJECTED


def is_fault(error: KafkaError) -> bool:
    """Tell whether nothing can be sent until an operator changes something."""
    return error.code() in _FAULTS


def sink_error(
    error: KafkaError, place: str, offset: int | None = None, *, fixed_topic: bool = True
) -> SinkError:
    """Translate *error*, which happened at *place*, to what the route is told.

    An unknown topic is the route's fault when all entries go there
    (*fixed_topic*), and the entry's when its namespace chose it.
    """
    code, text = error.code(), f"{place}: {error.str()} ({error.name()})"
    if code in _FAULTS or (code in _TOPIC and fixed_topic):
        return RouteFault(f"{text}: check the topic, the rights and the client settings")
    if code in _TOPIC:
        return Rejected(f"{text}: create the topic, or filter its namespace out", offset)
    if code in _REJECTED:
        return Rejected(text, offset)
    if code in _TIMEOUTS:
        return SinkTimeout(text)
    return SinkUnavailable(text)

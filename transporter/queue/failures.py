"""What can go wrong with a queue, and what a Kafka error means for it.

::

    TransporterError
    ├── QueueError                   exit 1   a queue cannot do what was asked
    │   ├── MessageRefused                    this one message cannot be sent
    │   ├── QueueClosed                       used after it was closed
    │   └── BadMarker                         bytes that are no marker
    │       └── UnknownMarker                 a marker of a version this one cannot read
    └── EnvironmentFault             exit 3
        ├── QueueUnavailable                  no broker answers, for now (retriable)
        │   └── QueueTimeout                  what was sent is not confirmed in time (retriable)
        └── QueueFault                        topics, rights or settings are not as they must be
            └── TopicsMissing                 topics are not there
"""

# ruff: noqa: SLF001 - the client library's own error codes are public, underscore and all

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, KafkaException

from transporter.errors import EnvironmentFault, TransporterError
from transporter.kafka_clients import may_pass


class QueueError(TransporterError):
    """A queue cannot do what was asked."""


class MessageRefused(QueueError):
    """One message cannot be sent; others can."""


class QueueClosed(QueueError):
    """What is used has been closed."""


class BadMarker(QueueError):
    """The bytes are no marker: written by somebody else, or damaged."""


class UnknownMarker(BadMarker):
    """The marker has a version that this program cannot read."""


class QueueUnavailable(EnvironmentFault):
    """No broker answers, or none confirms; trying again later may help."""

    retriable = True


class QueueTimeout(QueueUnavailable):
    """What was sent was not confirmed in time; it may arrive or not."""


class QueueFault(EnvironmentFault):
    """Nothing can be done until an operator changes a topic, a right or a setting."""


class TopicsMissing(QueueFault):
    """Nothing can be done until somebody creates a topic, or corrects its name."""


_REFUSED: Final = frozenset(
    {
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.POLICY_VIOLATION,
        KafkaError.RECORD_LIST_TOO_LARGE,
    }
)
_FAULTS: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._FATAL,
        KafkaError._FENCED,
        KafkaError._INVALID_ARG,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError.INVALID_GROUP_ID,
        KafkaError.INVALID_SESSION_TIMEOUT,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_VERSION,
    }
)
_MISSING: Final = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
_GENERATION: Final = frozenset(
    {
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._STATE,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.UNKNOWN_MEMBER_ID,
    }
)


def kafka_error(failure: BaseException) -> KafkaError | None:
    """Return what the client says about *failure*, when it is one of the client's."""
    cause = failure if isinstance(failure, KafkaException) else failure.__cause__
    found = cause.args[0] if isinstance(cause, KafkaException) and cause.args else None
    return found if isinstance(found, KafkaError) else None


def is_fault(error: KafkaError) -> bool:
    """Tell whether nothing helps but an operator, or a new client."""
    return error.fatal() or (error.code() in _FAULTS and not may_pass(error))


def is_denied(error: KafkaError) -> bool:
    """Tell whether nothing helps but an operator, who has to change a right or a setting."""
    return error.code() in _FAULTS - {KafkaError._FATAL, KafkaError._FENCED} and not may_pass(error)


def is_at_its_end(error: KafkaError) -> bool:
    """Tell whether this client can do no more, and a new one can without an operator."""
    if error.code() in _FAULTS - {KafkaError._FATAL}:
        return False
    return bool(error.fatal()) or error.code() == KafkaError._FATAL


def is_missing(error: KafkaError) -> bool:
    """Tell whether a topic is not there; one that was there before may be so again."""
    return error.code() in _MISSING


def is_refusal(error: KafkaError) -> bool:
    """Tell whether the broker, or the client, refuses this message for its own sake."""
    return error.code() in _REFUSED


def is_stale(error: KafkaError) -> bool:
    """Tell whether the group has moved on: these partitions may be somebody else's by now."""
    return error.code() in _GENERATION


def translated(error: KafkaError, place: str) -> TransporterError:
    """Return *error*, which happened at *place*, as what the caller is told."""
    text = f"{place}: {error.str()} ({error.name()})"
    if is_refusal(error):
        return MessageRefused(f"{text}; make it smaller, or raise the topics' max.message.bytes")
    if is_at_its_end(error):
        return QueueUnavailable(f"{text}: this client can do no more, a new client may")
    if is_fault(error):
        return QueueFault(f"{text}: check topics, rights and client settings")
    if is_missing(error):
        return TopicsMissing(f"{text}: create the topic, or check its name and your rights")
    return QueueUnavailable(f"{text}: see whether the brokers are up, then try again")

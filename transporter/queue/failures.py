"""Errors of queues, and their classification from Kafka errors.

::

    TransporterError
    ├── QueueError                   exit 1   a queue cannot perform the operation
    │   ├── MessageRefused                    this one message cannot be sent
    │   ├── QueueClosed                       used after close
    │   └── BadMarker                         bytes that are not a marker
    │       └── UnknownMarker                 a marker of a version that cannot be read
    └── EnvironmentFault             exit 3
        ├── QueueUnavailable                  no broker answers, for now (retriable)
        │   └── QueueTimeout                  messages are not confirmed in time (retriable)
        └── QueueFault                        topics, rights or settings are wrong
            └── TopicsMissing                 topics do not exist
"""

# ruff: noqa: SLF001 - the client library's own error codes are public, underscore and all

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError

from transporter.errors import EnvironmentFault, TransporterError
from transporter.kafka.clients import is_transient_auth_error
from transporter.kafka.errors import is_damaged

if TYPE_CHECKING:
    from confluent_kafka import Message


class QueueError(TransporterError):
    """A queue cannot perform the operation."""


class MessageRefused(QueueError):
    """One message cannot be sent, but others can."""


class QueueClosed(QueueError):
    """The consumer or producer has been closed."""


class BadMarker(QueueError):
    """The bytes are not a marker: written by another program, or damaged."""


class UnknownMarker(BadMarker):
    """The marker has a version that this program cannot read."""


class QueueUnavailable(EnvironmentFault):
    """No broker answers, or none confirms. A later retry may help."""

    retriable = True


class QueueTimeout(QueueUnavailable):
    """A message was not confirmed in time. It may arrive or not."""


class QueueFault(EnvironmentFault):
    """Nothing can be done until an operator changes a topic, a right or a setting."""


class TopicsMissing(QueueFault):
    """Nothing can be done until an operator creates a topic, or corrects its name."""


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


def is_fault(error: KafkaError) -> bool:
    """Return whether only an operator, or a new client, can help."""
    return error.fatal() or (error.code() in _FAULTS and not is_transient_auth_error(error))


def is_denied(error: KafkaError) -> bool:
    """Return whether an operator has to change a right or a setting."""
    return error.code() in _FAULTS - {
        KafkaError._FATAL,
        KafkaError._FENCED,
    } and not is_transient_auth_error(error)


def needs_new_client(error: KafkaError) -> bool:
    """Return whether this client is unusable, and a new one works without an operator."""
    if error.code() in _FAULTS - {KafkaError._FATAL}:
        return False
    return bool(error.fatal()) or error.code() == KafkaError._FATAL


def is_missing(error: KafkaError) -> bool:
    """Return whether a topic is missing. A topic that existed before may come back."""
    return error.code() in _MISSING


def is_refusal(error: KafkaError) -> bool:
    """Return whether the broker, or the client, refuses this particular message."""
    return error.code() in _REFUSED


def is_stale(error: KafkaError) -> bool:
    """Return whether the group has rebalanced: another member may own these partitions now."""
    return error.code() in _GENERATION


def is_reading_fault(error: KafkaError) -> bool:
    """Return whether a consumer that meets *error* cannot go on without an operator."""
    return is_damaged(error) or is_fault(error)


def reading_fault(event: Message, place: str, group: str = "") -> TransporterError:
    """Return the exception for the fault of *event*, which came in the place of a record.

    Args:
        event: What the consumer got.
        place: The place of faults that concern no batch.
        group: The consumer group that reads, if there is one.
    """
    error = event.error()
    if not is_damaged(error):
        return translate_error(error, place)
    return QueueFault(
        f"topic {event.topic()}, partition {event.partition()}, offset {event.offset()}: "
        f"{error.str()} ({error.name()}): the batch there is damaged; repair the replica"
        + (f", or move the group {group} past it" if group else "")
    )


def translate_error(error: KafkaError, place: str) -> TransporterError:
    """Return the :class:`TransporterError` for *error*, which happened at *place*."""
    text = f"{place}: {error.str()} ({error.name()})"
    if is_refusal(error):
        return MessageRefused(f"{text}; make it smaller, or raise the topics' max.message.bytes")
    if needs_new_client(error):
        return QueueUnavailable(f"{text}: this client cannot continue; use a new client")
    if is_fault(error):
        return QueueFault(f"{text}: check topics, rights and client settings")
    if is_missing(error):
        return TopicsMissing(f"{text}: create the topic, or check its name and your rights")
    return QueueUnavailable(f"{text}: check whether the brokers are up, then retry")

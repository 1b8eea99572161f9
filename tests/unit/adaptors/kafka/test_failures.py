"""The meaning of each kind of Kafka error for a route, and for a reader."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError
from transporter_adaptors.kafka.failures import EventKind, kind_of, sink_error, source_error

from transporter.errors import (
    EnvironmentFault,
    Rejected,
    RouteFault,
    SinkTimeout,
    SinkUnavailable,
    SourceError,
    SourceUnavailable,
)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError._ALL_BROKERS_DOWN, SinkUnavailable),
        (KafkaError._TRANSPORT, SinkUnavailable),
        (KafkaError._RESOLVE, SinkUnavailable),
        (KafkaError.NOT_ENOUGH_REPLICAS, SinkUnavailable),
        (KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, SinkUnavailable),
        (KafkaError.LEADER_NOT_AVAILABLE, SinkUnavailable),
        (KafkaError._GAPLESS_GUARANTEE, SinkUnavailable),
        (KafkaError._MSG_TIMED_OUT, SinkTimeout),
        (KafkaError.REQUEST_TIMED_OUT, SinkTimeout),
        (KafkaError.MSG_SIZE_TOO_LARGE, Rejected),
        (KafkaError.INVALID_RECORD, Rejected),
        (KafkaError.POLICY_VIOLATION, Rejected),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, RouteFault),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, RouteFault),
        (KafkaError.SASL_AUTHENTICATION_FAILED, RouteFault),
    ],
)
def test_each_error_has_its_class(code: int, expected: type[Exception]) -> None:
    """Outages are retried, missing rights stop the route, and a refusal names its message."""
    error = sink_error(KafkaError(code), "Kafka topic t at b", 7)

    assert type(error) is expected
    assert str(error).startswith("Kafka topic t at b: ")
    assert getattr(error, "offset", 7) == 7


@pytest.mark.parametrize(("fixed", "expected"), [(True, SinkUnavailable), (False, Rejected)])
def test_a_missing_topic_is_blamed_on_who_chose_it(fixed: bool, expected: type[Exception]) -> None:
    """A missing fixed topic is retried, and any other missing topic is the entry's fault."""
    error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)

    assert type(sink_error(error, "place", 7, fixed_topic=fixed)) is expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError._ALL_BROKERS_DOWN, SourceUnavailable),
        (KafkaError._TRANSPORT, SourceUnavailable),
        (KafkaError._TIMED_OUT, SourceUnavailable),
        (KafkaError.COORDINATOR_NOT_AVAILABLE, SourceUnavailable),
        (KafkaError.LEADER_NOT_AVAILABLE, SourceUnavailable),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, EnvironmentFault),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, EnvironmentFault),
        (KafkaError.SASL_AUTHENTICATION_FAILED, EnvironmentFault),
        (KafkaError.INCONSISTENT_GROUP_PROTOCOL, EnvironmentFault),
        (KafkaError.FENCED_INSTANCE_ID, EnvironmentFault),
        (KafkaError._BAD_MSG, SourceError),
        (KafkaError._NOT_IMPLEMENTED, SourceError),
    ],
)
def test_each_error_has_its_class_for_a_reader(code: int, expected: type[Exception]) -> None:
    """Outages are retried, and rights, membership or a bad record stop the reader."""
    error = source_error(KafkaError(code), "Kafka at b")

    assert type(error) is expected
    assert str(error).startswith("Kafka at b: ")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError._PARTITION_EOF, EventKind.END),
        (KafkaError._AUTO_OFFSET_RESET, EventKind.RANGE),
        (KafkaError.OFFSET_OUT_OF_RANGE, EventKind.RANGE),
        (KafkaError._LOG_TRUNCATION, EventKind.RANGE),
        (KafkaError._TRANSPORT, EventKind.DOUBT),
        (KafkaError._MAX_POLL_EXCEEDED, EventKind.DOUBT),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, EventKind.DOUBT),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, EventKind.FAILURE),
        (KafkaError._BAD_MSG, EventKind.FAILURE),
        (KafkaError._NOT_IMPLEMENTED, EventKind.FAILURE),
    ],
)
def test_each_event_has_its_kind(code: int, expected: EventKind) -> None:
    """An end and a missing range are not failures, and temporary errors are looked into."""
    assert kind_of(KafkaError(code)) is expected


def test_a_fatal_error_is_a_failure_whatever_its_code() -> None:
    """A fatal error of the client is a failure, even with a temporary code."""
    assert kind_of(KafkaError(KafkaError._TRANSPORT, "gone", fatal=True)) is EventKind.FAILURE

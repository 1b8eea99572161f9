"""What each kind of Kafka error means for a route."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from adaptors.kafka.failures import sink_error
from transporter.errors import Rejected, RouteFault, SinkTimeout, SinkUnavailable


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
        (KafkaError._AUTHENTICATION, RouteFault),
    ],
)
def test_each_error_has_its_class(code: int, expected: type[Exception]) -> None:
    """Outages are waited out, rights stop the route, and what a message is refused for names it."""
    error = sink_error(KafkaError(code), "Kafka topic t at b", 7)

    assert type(error) is expected
    assert str(error).startswith("Kafka topic t at b: ")
    assert getattr(error, "offset", 7) == 7


@pytest.mark.parametrize(("fixed", "expected"), [(True, RouteFault), (False, Rejected)])
def test_a_missing_topic_is_blamed_on_who_chose_it(fixed: bool, expected: type[Exception]) -> None:
    """A missing topic is the route's fault when it is fixed, else that of the entry."""
    error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)

    assert type(sink_error(error, "place", 7, fixed_topic=fixed)) is expected

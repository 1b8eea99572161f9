"""The errors in the exceptions of the Kafka client."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from transporter.kafka.errors import kafka_error

_REASON = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no rights", fatal=True)


def _wrapped() -> SystemError:
    error = SystemError("<method 'purge'> returned a result with an exception set")
    error.__cause__ = KafkaException(_REASON)
    return error


@pytest.mark.parametrize("failure", [KafkaException(_REASON), _wrapped()])
def test_the_clients_error_is_found(failure: BaseException) -> None:
    """The error is found in the exception itself, and in one that wraps it."""
    assert kafka_error(failure) is _REASON


def test_a_fatal_error_without_its_reason_is_still_fatal() -> None:
    """Of an exception that Python has dropped it is known that the client cannot go on."""
    found = kafka_error(SystemError("<method 'flush'> returned NULL without setting an exception"))
    assert found is not None
    assert found.fatal()
    assert found.code() == KafkaError._FATAL
    assert "log" in found.str()


@pytest.mark.parametrize(
    "failure", [SystemError("odd"), KafkaException("text"), KafkaException(), ValueError("x")]
)
def test_other_exceptions_have_no_error(failure: BaseException) -> None:
    """Other exceptions are not the client's."""
    assert kafka_error(failure) is None

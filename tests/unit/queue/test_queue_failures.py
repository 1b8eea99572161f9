"""Tests of the queue's errors for errors of the Kafka client."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import KafkaError, KafkaException
from transporter_adaptors.kafka_queue.failures import source_errors

from transporter.errors import SourceUnavailable
from transporter.queue import clients, settings_of
from transporter.queue.consumer_state import ConsumerState
from transporter.queue.failures import QueueFault, QueueUnavailable, translate_error
from transporter.queue.in_flight import InFlight

AWAY = "sasl_plaintext://x: Failed to acquire SASL OAUTHBEARER token: 503"
"""The client's error while its provider of tokens is away. The client retries by itself."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KafkaError(KafkaError._FATAL, "out of order", fatal=True), QueueUnavailable),
        (KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "x", fatal=True), QueueUnavailable),
        (KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no", fatal=True), QueueFault),
        (KafkaError(KafkaError.FENCED_INSTANCE_ID, "another", fatal=True), QueueFault),
        (KafkaError(KafkaError._FENCED, "another", fatal=True), QueueFault),
        (KafkaError(KafkaError._AUTHENTICATION, "no"), QueueFault),
        (KafkaError(KafkaError._AUTHENTICATION, AWAY), QueueUnavailable),
    ],
)
def test_a_client_that_is_at_its_end_is_replaced(error: KafkaError, kind: type[Exception]) -> None:
    """An error that a new client cures is an outage, and one for an operator stays a fault."""
    found = translate_error(error, "queue topic q")
    assert type(found) is kind
    assert error.str() in str(found)


def test_a_reader_is_opened_anew_when_its_producer_has_failed_for_good() -> None:
    """A failure of the ack-writing thread reaches the engine as an outage, with its reason."""
    settings = settings_of(bootstrap_servers="127.0.0.1:9")
    exchange = ConsumerState(InFlight(10, 1.0, 1.0, None))
    error = KafkaException(KafkaError(KafkaError._FATAL, "out of order", fatal=True))
    exchange.fail_writing(clients.translate_exception(settings, error))
    with pytest.raises(SourceUnavailable, match=r"out of order.*new client"), source_errors():
        exchange.take(1, 0.0)


def test_the_clients_log_has_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    """Secrets in the client's log, which repeats the token provider's answers, are redacted."""
    secret = "s3cr3t/of ada"  # noqa: S105 - nobody's
    settings = settings_of(
        bootstrap_servers="127.0.0.1:9", client={"sasl.oauthbearer.client.secret": secret}
    )
    log = clients._common_config(settings)["logger"]
    log.log(logging.ERROR, "%s, %s of %s", secret, "s3cr3t%2Fof+ada", "ada")
    assert caplog.messages == ["***, *** of ada"]

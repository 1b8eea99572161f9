"""Errors of a Kafka elector, without a broker."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from confluent_kafka import KafkaError
from pydantic import TypeAdapter

from transporter.election.config import Election
from transporter.election.kafka import KafkaElector, _common_settings

SECRET = "s3cr3t/of ada"  # noqa: S105 - nobody's


@pytest.fixture
def election() -> Any:
    """Return settings with a secret."""
    client = {"sasl.oauthbearer.client.secret": SECRET}
    given = {"kind": "kafka", "bootstrap_servers": "127.0.0.1:9", "topic": "t", "client": client}
    return TypeAdapter(Election).validate_python(given)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"Failed to acquire SASL OAUTHBEARER token: {SECRET} is refused", False),
        ("FindCoordinator response error: Local: Authentication failure", False),
        ("SASL authentication error: Authentication failed: Invalid username or password", True),
    ],
)
def test_a_provider_that_is_away_ends_no_candidacy(
    election: Any, text: str, *, fault: bool
) -> None:
    """A provider's error is retried, a wrong password is a fault, and neither shows a secret."""
    elector = KafkaElector("orders", election)
    elector._note_error(KafkaError(KafkaError._AUTHENTICATION, text))
    assert (elector._fault is not None) is fault
    assert text.replace(SECRET, "***") in elector._problem


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (KafkaError.INVALID_RECORD, True),
        (KafkaError.MSG_SIZE_TOO_LARGE, True),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, True),
        (KafkaError._MSG_TIMED_OUT, False),
        (KafkaError._TRANSPORT, False),
        (KafkaError.INVALID_MSG, False),
        (KafkaError.NOT_ENOUGH_REPLICAS, False),
    ],
)
def test_only_a_refusal_of_a_record_is_a_fault(election: Any, code: int, *, fault: bool) -> None:
    """A record that a later try may write ends no candidacy, and its problem is reported."""
    elector = KafkaElector("orders", election)
    elector._on_delivery(KafkaError(code), None)
    assert (elector._fault is not None) is fault
    assert KafkaError(code).name() in elector._problem


def test_the_clients_log_has_no_secret(election: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A secret that a provider repeats is redacted in the client's log."""
    _common_settings(election)["logger"].log(logging.ERROR, "%s of %s", SECRET, "ada")
    assert caplog.messages == ["*** of ada"]

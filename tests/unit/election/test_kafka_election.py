"""Errors of a Kafka elector, without a broker."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from pydantic import TypeAdapter

from transporter.election.config import Election
from transporter.election.kafka import KafkaElector, _common_settings
from transporter.errors import EnvironmentFault

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


class _Client:
    """A client of an elector without a broker. A producer fails once with *errors*."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def poll(self, _: float) -> None:
        """Return no event."""
        if self.errors:
            raise self.errors.pop()

    def subscribe(self, *_: object, **__: object) -> None:
        """Join nothing."""

    def assign(self, _: object) -> None:
        """Read nothing."""

    def purge(self) -> None:
        """Take nothing back."""

    def flush(self, _: float) -> int:
        """Send nothing."""
        return 0

    def close(self) -> None:
        """Leave nothing."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[_Client]:
    """Give the elector clients without a broker: a member, an observer, then producers."""
    made: list[_Client] = []

    def create(*_: object) -> _Client:
        made.append(_Client())
        return made[-1]

    monkeypatch.setattr("transporter.election.kafka._create_client", create)
    return made


def test_a_producer_that_failed_for_good_is_replaced(election: Any, made: list[_Client]) -> None:
    """A fatal error is the elector's problem, and its next records have another producer."""
    elector = KafkaElector("orders", election)
    elector.pulse(0.0)
    for number, (error, text) in enumerate(
        [
            (KafkaException(KafkaError(KafkaError._FENCED, "as dead", fatal=True)), "as dead"),
            (SystemError("<poll> returned NULL without setting an exception"), "its log has"),
        ],
        start=1,
    ):
        made[-1].errors.append(error)
        problem = elector.pulse(float(number)).problem
        assert "the elector's topic t" in problem
        assert text in problem
        assert len(made) == 3 + number
    assert elector.pulse(9.0).transitions == ()
    elector.close()


def test_a_producer_without_rights_ends_the_candidacy(election: Any, made: list[_Client]) -> None:
    """A fatal error that only an operator can mend is a fault, and no client's exception."""
    elector = KafkaElector("orders", election)
    elector.pulse(0.0)
    refused = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no rights", fatal=True)
    made[-1].errors.append(KafkaException(refused))
    elector.pulse(1.0)
    with pytest.raises(EnvironmentFault, match=r"no rights .*check rights and settings"):
        elector.pulse(2.0)


def test_settings_that_allow_no_other_producer_are_a_fault(
    election: Any, made: list[_Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the failed producer cannot be replaced, the candidacy ends with the reason."""
    elector = KafkaElector("orders", election)
    elector.pulse(0.0)

    def refuse() -> None:
        raise EnvironmentFault("no such certificate")

    assert elector._clients is not None
    monkeypatch.setattr(elector._clients, "_make_producer", refuse)
    made[-1].errors.append(KafkaException(KafkaError(KafkaError._FATAL, "x", fatal=True)))
    elector.pulse(1.0)
    with pytest.raises(EnvironmentFault, match="no such certificate"):
        elector.pulse(2.0)


def test_an_error_of_ours_is_not_the_clients(election: Any, made: list[_Client]) -> None:
    """A SystemError of something else is raised."""
    elector = KafkaElector("orders", election)
    elector.pulse(0.0)
    made[-1].errors.append(SystemError("odd"))
    with pytest.raises(SystemError, match="odd"):
        elector.pulse(1.0)

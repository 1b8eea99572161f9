"""Errors of a Kafka elector, without a broker."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

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


class _Clients:
    """Clients of an elector that fail once with the next of *errors*."""

    errors: ClassVar[list[Exception]] = []
    made: ClassVar[list[_Clients]] = []

    def __init__(self, *_: object) -> None:
        self.producer = self.member = self.observer = self
        self.abandoned = False
        self.made.append(self)

    def poll(self, _: float) -> None:
        """Return no event."""
        if self.errors:
            raise self.errors.pop()

    def produce(self, _: bytes) -> bool:
        """Take no record."""
        return False

    def abandon(self) -> None:
        """Note that new clients are to follow."""
        self.abandoned = True

    def join(self, *_: object) -> None:
        """Join nothing."""

    def read_from_end(self) -> None:
        """Read nothing."""


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> type[_Clients]:
    """Give the elector clients without a broker."""
    monkeypatch.setattr("transporter.election.kafka._Clients", _Clients)
    monkeypatch.setattr(_Clients, "made", [])
    monkeypatch.setattr(_Clients, "errors", [])
    return _Clients


def test_a_client_that_failed_for_good_is_replaced(election: Any, clients: type[_Clients]) -> None:
    """A fatal error is the elector's problem for a pulse, and then new clients take part."""
    elector = KafkaElector("orders", election)
    for error in (
        KafkaException(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "x", fatal=True)),
        SystemError("<poll> returned NULL without setting an exception"),
    ):
        clients.errors.append(error)
        assert "the elector's topic t" in elector.pulse(1.0).problem
        elector.pulse(2.0)
    assert [each.abandoned for each in clients.made] == [True, True, False]


def test_a_client_without_rights_ends_the_candidacy(election: Any, clients: type[_Clients]) -> None:
    """A fatal error that only an operator can mend is a fault, and no client's exception."""
    elector = KafkaElector("orders", election)
    refused = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no rights", fatal=True)
    clients.errors.append(KafkaException(refused))
    elector.pulse(1.0)
    with pytest.raises(EnvironmentFault, match=r"no rights .*check rights and settings"):
        elector.pulse(2.0)


def test_an_error_of_ours_is_not_the_clients(election: Any, clients: type[_Clients]) -> None:
    """A SystemError of something else is raised."""
    clients.errors.append(SystemError("odd"))
    with pytest.raises(SystemError, match="odd"):
        KafkaElector("orders", election).pulse(1.0)

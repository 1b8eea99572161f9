"""Errors of a Kafka elector, without a broker."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from pydantic import TypeAdapter

from transporter.election.config import Election
from transporter.election.kafka import KafkaElector, _common_settings
from transporter.election.state_machine import Standing
from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable

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
        self.events: list[Message] = []
        self.callbacks: dict[str, Callable[..., None]] = {}
        self.readers: list[_Client] = []
        """The clients to which records of this one come back."""

    def poll(self, _: float) -> Message | None:
        """Return the next event."""
        if self.errors:
            raise self.errors.pop()
        return self.events.pop(0) if self.events else None

    def produce(self, topic: str, value: bytes, **_: object) -> None:
        """Write a record that comes back at once."""
        for reader in self.readers:
            reader.events.append(Message(topic=topic, partition=0, offset=7, value=value))

    def subscribe(self, *_: object, **callbacks: Callable[..., None]) -> None:
        """Join without an assignment."""
        self.callbacks = callbacks

    def incremental_assign(self, _: object) -> None:
        """Begin to read nothing."""

    def incremental_unassign(self, _: object) -> None:
        """Read on as before."""

    def pause(self, _: object) -> None:
        """Read on as before."""

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


class _Leader:
    """An elector that leads, as long as its records come back."""

    def __init__(self, election: Any, made: list[_Client]) -> None:
        self.elector, self.now = KafkaElector("orders", election), 0.0
        self.elector.pulse(self.now)
        self.member, self.observer, self.producer = made
        self.producer.readers = [self.observer]
        self.observer.events.append(event(KafkaError._PARTITION_EOF))
        self.member.callbacks["on_assign"](self.member, [TopicPartition("t", 0)])
        self.pass_time(2 * election.term)
        assert self.standing is Standing.LEADER

    @property
    def standing(self) -> Standing:
        """The standing now."""
        return self.elector.standing(self.now)

    def pass_time(self, seconds: float) -> None:
        """Pulse every second for a time."""
        for _ in range(round(seconds)):
            self.now += 1.0
            self.elector.pulse(self.now)

    def revoke(self) -> None:
        """Lose the partition to another member."""
        self.member.callbacks["on_revoke"](self.member, [TopicPartition("t", 0)])
        assert self.standing is Standing.CANDIDATE
        self.elector._transitions.clear()


def event(code: int) -> Message:
    """Return an event with an error in the place of a record."""
    return Message(topic="t", partition=0, error=KafkaError(code, "refused"))


@pytest.mark.parametrize(
    ("client", "code", "seconds"),
    [
        ("observer", KafkaError.TOPIC_AUTHORIZATION_FAILED, 10),
        ("member", KafkaError.TOPIC_AUTHORIZATION_FAILED, 10),
        ("member", KafkaError.GROUP_AUTHORIZATION_FAILED, 60),
    ],
)
def test_a_fault_that_a_leader_has_overcome_is_forgotten(
    election: Any, made: list[_Client], client: str, code: int, seconds: float
) -> None:
    """Its records come back, and the group keeps it, so a later revocation is an ordinary one."""
    leader = _Leader(election, made)
    getattr(leader, client).events.append(event(code))
    leader.pass_time(seconds)
    leader.revoke()
    leader.pass_time(10)
    leader.elector.close()


@pytest.mark.parametrize(
    ("client", "code"),
    [
        ("observer", KafkaError.TOPIC_AUTHORIZATION_FAILED),
        ("member", KafkaError.GROUP_AUTHORIZATION_FAILED),
    ],
)
def test_a_fault_that_ends_a_lead_is_its_reason(
    election: Any, made: list[_Client], client: str, code: int
) -> None:
    """The client reports some faults once. The candidacy that follows ends with the reason."""
    leader = _Leader(election, made)
    getattr(leader, client).events.append(event(code))
    if client == "observer":
        leader.producer.readers = []
    else:
        leader.pass_time(5)
        leader.revoke()
    with pytest.raises(EnvironmentFault, match=r"refused .*check rights and settings"):
        leader.pass_time(30)
    assert leader.standing is not Standing.LEADER
    leader.elector.close()


def test_an_error_that_the_client_repeats_is_no_fault_of_a_leader(
    election: Any, made: list[_Client]
) -> None:
    """A login that brokers refuse for a moment ends no lead, and no candidacy behind it."""
    leader = _Leader(election, made)
    refused = KafkaError(KafkaError._AUTHENTICATION, "Invalid username or password")
    leader.elector._note_repeated_error(refused)
    leader.revoke()
    leader.pass_time(10)
    leader.elector._note_repeated_error(refused)
    with pytest.raises(EnvironmentFault, match="Invalid username"):
        leader.pass_time(1)
    leader.elector.close()


def test_an_error_of_ours_is_not_the_clients(election: Any, made: list[_Client]) -> None:
    """A SystemError of something else is raised."""
    elector = KafkaElector("orders", election)
    elector.pulse(0.0)
    made[-1].errors.append(SystemError("odd"))
    with pytest.raises(SystemError, match="odd"):
        elector.pulse(1.0)

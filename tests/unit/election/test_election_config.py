"""The settings of elections, and the electors made of them."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, ValidationError

from transporter.election.config import Election, KafkaElection, PostgresElection, make_elector
from transporter.election.elector import SoleElector, answer_timeout
from transporter.election.state_machine import Standing, StandingChange

ELECTION: TypeAdapter[Any] = TypeAdapter(
    Annotated[Election, Field()], config=ConfigDict(hide_input_in_errors=True)
)
DSN = SecretStr("host=nowhere dbname=d")
KAFKA = {"kind": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "lead"}


def test_defaults_are_those_that_people_expect() -> None:
    """The term is five seconds, and the session has the brokers' shortest time-out."""
    assert ELECTION.validate_python("none") == "none"
    election = ELECTION.validate_python({"kind": "postgres"})
    assert (election.term, election.dsn) == (5.0, None)
    election = ELECTION.validate_python(KAFKA)
    assert (election.term, election.heartbeat_interval, election.session_seconds) == (5.0, 1.0, 6.0)


@pytest.mark.parametrize(
    ("term", "session"), [(1.0, 6.0), (6.0, 6.0), (30.0, 30.0), (3600.0, 1800.0)]
)
def test_a_session_lasts_as_long_as_a_term_where_brokers_allow_it(
    term: float, session: float
) -> None:
    """The session equals the term within the brokers' default bounds of 6 s to 30 min."""
    assert ELECTION.validate_python({**KAFKA, "term": term}).session_seconds == session


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"kind": "postgres", "term": 0.5}, "greater than or equal to 1"),
        ({"kind": "postgres", "term": 3601.0}, "less than or equal to 3600"),
        ({"kind": "postgres", "topic": "x"}, "Extra inputs"),
        ({"kind": "postgres", "dsn": "postgres//nonsense"}, "not a PostgreSQL connection"),
        ({"kind": "postgres", "dsn": "postgresql://u:p@ss/w@h/d"}, "write an @ of the password"),
        ({"kind": "zookeeper"}, "whose kind is postgres or kafka"),
        ("postgres", "such as {kind: postgres"),
        (None, "use none"),
        ({"kind": "kafka"}, "bootstrap_servers"),
        ({**KAFKA, "topic": "a/b"}, "topic"),
        ({**KAFKA, "heartbeat": 2.6}, "half of term"),
        ({**KAFKA, "session_timeout": 0.5}, "greater than or equal to 1"),
        ({**KAFKA, "client": {"group.id": "x"}}, "may not contain group.id"),
        ({**KAFKA, "client": {"session.timeout.ms": 1}}, "may not contain session.timeout.ms"),
        ({**KAFKA, "client": {"enable.auto.commit": True}}, "may not contain enable.auto.commit"),
        ({**KAFKA, "client": {"linger.ms": 9}}, "may not contain linger.ms"),
        ({**KAFKA, "client": {"socket.timeout.ms": 9}}, "may not contain socket.timeout.ms"),
        ({**KAFKA, "client": {"delivery.timeout.ms": 9}}, "may not contain delivery.timeout.ms"),
    ],
)
def test_what_cannot_be_is_refused_by_name(values: object, text: str) -> None:
    """The error names the setting, and settings that the election depends on are refused."""
    with pytest.raises(ValidationError, match=text):
        ELECTION.validate_python(values)


def test_a_refused_setting_does_not_tell_its_value() -> None:
    """Errors and reprs name settings only (Invariant 20)."""
    with pytest.raises(ValidationError) as caught:
        ELECTION.validate_python({"kind": "postgres", "dsn": "password=hunter22 oops"})
    assert "hunter22" not in str(caught.value)
    with pytest.raises(ValidationError) as caught:
        ELECTION.validate_python({**KAFKA, "client": {"password": "hunter22"}})
    assert "hunter22" not in str(caught.value)
    election = ELECTION.validate_python({**KAFKA, "client": {"sasl.password": "hunter22"}})
    assert "hunter22" not in repr(election)
    assert election.redact_values("bad value hunter22") == "bad value ***"


def test_a_duration_needs_its_unit_in_a_file() -> None:
    """A duration needs a unit, as everywhere in a pipeline file."""

    class Settings(BaseModel):
        elector: Election = "none"

    found = Settings.model_validate({"elector": {"kind": "postgres", "term": "2s"}}, context={})
    assert isinstance(found.elector, PostgresElection)
    assert found.elector.term == 2
    with pytest.raises(ValidationError, match="is not a duration"):
        Settings.model_validate({"elector": {"kind": "postgres", "term": 2}}, context={})


def test_who_is_alone_leads_at_once_and_until_it_closes() -> None:
    """An elector without rivals acquires once, and leads until it closes."""
    elector = make_elector("none", "orders", DSN)
    assert isinstance(elector, SoleElector)
    assert elector.standing(0) is Standing.CANDIDATE
    first = elector.pulse(1)
    assert [each.change for each in first.transitions] == [StandingChange.ACQUIRED]
    assert elector.pulse(1e9).transitions == ()
    assert elector.standing(1e9) is Standing.LEADER
    elector.close()
    assert elector.standing(1e9) is Standing.CANDIDATE


@pytest.mark.parametrize("election", [{"kind": "postgres"}, KAFKA])
def test_an_elector_does_nothing_before_its_first_pulse(election: dict[str, object]) -> None:
    """An elector is made without I/O, and may be closed any number of times."""
    elector = make_elector(ELECTION.validate_python(election), "orders", DSN)
    assert elector.standing(0) is Standing.CANDIDATE
    elector.close()
    elector.close()
    assert elector.pulse(1).standing is Standing.CANDIDATE


def test_a_pipeline_without_an_elector_loads_no_driver() -> None:
    """Settings alone import neither psycopg nor Kafka's client."""
    program = (
        "import sys; from pydantic import SecretStr;"
        "from transporter.election.config import make_elector;"
        "make_elector('none', 'orders', SecretStr(''));"
        "print(sorted({'psycopg', 'confluent_kafka'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert found.stdout.strip() == b"[]"


def test_a_pulse_waits_for_a_tenth_of_a_term_at_most() -> None:
    """A pulse waits for a tenth of a term at most, and never longer than a fifth of a second."""
    assert [answer_timeout(term) for term in (1, 2, 60)] == [0.1, 0.2, 0.2]


def test_an_election_on_kafka_is_a_value() -> None:
    """Equal settings are equal, so that a reload finds the changed ones."""
    assert ELECTION.validate_python(KAFKA) == KafkaElection.model_validate(KAFKA)

"""The Kafka elector on a real broker: its reports of a wrong set-up."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from election_tools import BUSY, Watch, elector, until

from transporter.election.state_machine import StandingChange

if TYPE_CHECKING:
    from services.kafka import Broker


@pytest.mark.exhaustive
@pytest.mark.kafka
def test_what_no_elector_wrote_is_told_and_passed_by(
    kafka_election: dict[str, Any], kafka_broker: Broker
) -> None:
    """A foreign record in the topic is reported, and the leader keeps its lead."""
    from confluent_kafka import Producer  # noqa: PLC0415 - this test alone

    with Watch() as watch:
        leader = watch.add(elector(**kafka_election))
        watch.leader()
        producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
        producer.produce(kafka_election["topic"], b"1700000000%goneli", partition=0)
        producer.flush(10)
        until(lambda: leader.problems, "the problem is told")
        assert "no elector wrote" in leader.problems[0]
        assert leader.leads


@pytest.mark.kafka
@pytest.mark.exhaustive
def test_a_topic_that_is_not_there_is_told(
    kafka_election: dict[str, Any], kafka_broker: Broker
) -> None:
    """The elector creates no topic, waits for it, and then leads."""
    kafka_election["topic"] = f"missing-{uuid.uuid4().hex[:8]}"
    with Watch() as watch:
        engine = watch.add(elector(**kafka_election))
        until(lambda: engine.problems, "the problem is told")
        assert "create the topic with one partition" in engine.problems[0]
        kafka_broker.create_topic(kafka_election["topic"])
        watch.leader()


@pytest.mark.kafka
def test_a_session_that_the_broker_does_not_allow_is_explained(
    kafka_election: dict[str, Any],
) -> None:
    """The error names the brokers' settings that limit the session."""
    with Watch() as watch:
        engine = watch.add(elector(**{**kafka_election, "session_timeout": "2s"}))
        until(lambda: engine.error, "it refuses")
        assert "group.min.session.timeout.ms" in str(engine.error)


@pytest.mark.kafka
def test_a_topic_that_refuses_the_records_is_a_fault_until_it_is_mended(
    kafka_election: dict[str, Any], kafka_broker: Broker
) -> None:
    """A compacted topic takes no record without a key, so nobody could lead and none said why."""
    topic = kafka_election["topic"] = f"compacted-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(topic, cleanup_policy="compact")
    with Watch() as watch:
        engine = watch.add(elector(**kafka_election))
        until(lambda: engine.error, "it refuses", 20)
        assert "INVALID_RECORD" in str(engine.error)
        assert "set its cleanup.policy to delete" in str(engine.error)
        watch.engines.remove(engine)
        engine.stop()
        set_topic(kafka_broker, topic, "cleanup.policy", "delete")
        watch.add(elector(**kafka_election))
        watch.leader()


@pytest.mark.kafka
@pytest.mark.exhaustive
def test_a_leader_whose_records_are_refused_leads_no_longer_than_its_term(
    kafka_election: dict[str, Any], kafka_broker: Broker
) -> None:
    """A refusal that is over within the term ends nothing. Another one is told after the fence."""
    kafka_election["term"] = "6s"
    topic = kafka_election["topic"]
    with Watch() as watch:
        leader = watch.add(elector(**kafka_election))
        watch.leader()
        set_topic(kafka_broker, topic, "max.message.bytes", "10")
        until(lambda: leader.problems, "the problem is told", 6)
        set_topic(kafka_broker, topic, "max.message.bytes", "1000000")
        time.sleep(8)
        assert [each for _, each in leader.changes] == [StandingChange.ACQUIRED]
        set_topic(kafka_broker, topic, "max.message.bytes", "10")
        began = time.monotonic()
        until(lambda: leader.error, "it refuses", 20)
        assert "max.message.bytes" in str(leader.error)
        (_, acquired), (fenced_at, fenced) = leader.changes
        assert (acquired, fenced) == (StandingChange.ACQUIRED, StandingChange.FENCED)
        assert fenced_at - began < 6 + 2 * BUSY


def set_topic(broker: Broker, topic: str, name: str, value: str) -> None:
    """Set a setting of *topic*."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = broker.admin()  # its requests end with it
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(timeout=30)


@pytest.mark.exhaustive
@pytest.mark.kafka
def test_a_leader_whose_producer_fails_for_good_goes_on(kafka_election: dict[str, Any]) -> None:
    """The producer is replaced within the term, so that nobody else takes the lead."""
    with Watch() as watch:
        engine = watch.add(elector(**{**kafka_election, "term": "5s"}))
        watch.leader()
        clients = engine.elector._clients  # type: ignore[attr-defined]
        clients.producer = failing = Failing(clients.producer)
        until(lambda: clients.producer is not failing, "it is replaced")
        time.sleep(2 * engine.elector._config.term)  # type: ignore[attr-defined]
        assert engine.leads
        assert engine.error is None
        assert [change for _, change in engine.changes] == [StandingChange.ACQUIRED]
        assert "out of order" in "".join(engine.problems)


class Failing:
    """A producer that has failed for good."""

    def __init__(self, producer: Any) -> None:
        self.producer = producer

    def poll(self, _: float) -> None:
        """Raise the reason."""
        code = KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
        raise KafkaException(KafkaError(code, "out of order", fatal=True))

    def produce(self, *_: object, **__: object) -> None:
        """Take no more records."""
        raise KafkaException(KafkaError(KafkaError._FATAL, "out of order"))

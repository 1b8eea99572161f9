"""The Kafka elector on a real broker: its reports of a wrong set-up."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from election_tools import Watch, elector, until

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

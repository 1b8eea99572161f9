"""Electors on a broker with rights: who may not write leaves the lead to who may."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from election_tools import Watch, elector, until
from services.safe_kafka import CA, SafeBroker

from transporter.election.state_machine import StandingChange
from transporter.errors import EnvironmentFault

pytestmark = pytest.mark.kafka


def test_who_may_not_write_leaves_the_lead_to_who_may(safe_broker: SafeBroker) -> None:
    """The first member gets the partition, is refused, says so, and leads once it has the right."""
    topic = safe_broker.create_topic(f"election-{uuid.uuid4().hex[:8]}")
    other = safe_broker.create_topic(f"other-{uuid.uuid4().hex[:8]}")
    for user in ("ada", "eve"):
        safe_broker.allow(user, ResourceType.TOPIC, topic, AclOperation.READ)
        safe_broker.allow(user, ResourceType.GROUP, topic, AclOperation.READ)
    safe_broker.allow("ada", ResourceType.TOPIC, other, AclOperation.WRITE)
    safe_broker.allow("eve", ResourceType.TOPIC, topic, AclOperation.WRITE)
    with Watch() as watch:
        ada = watch.add(elector(**of(safe_broker, topic, "ada")))
        until(lambda: ada.elector._assigned or ada.error, "it gets the partition")  # type: ignore[attr-defined]
        eve = watch.add(elector(**of(safe_broker, topic, "eve")))
        until(lambda: ada.error, "it refuses", 20)
        assert "TOPIC_AUTHORIZATION_FAILED" in str(ada.error)
        assert "a candidate needs the rights to read and to write" in str(ada.error)
        watch.engines.remove(ada)
        ada.stop()  # A reader that stops with an error closes its elector.
        assert watch.leader() is eve
        safe_broker.allow("ada", ResourceType.TOPIC, topic, AclOperation.WRITE)
        ada = watch.add(elector(**of(safe_broker, topic, "ada")))
        watch.engines.remove(eve)
        eve.stop()
        assert watch.leader() is ada


def test_a_right_that_a_leader_missed_for_a_moment_ends_no_later_candidacy(
    safe_broker: SafeBroker,
) -> None:
    """The leader overcame it, so it stands for election again once its lead is over."""
    topic = safe_broker.create_topic(f"election-{uuid.uuid4().hex[:8]}")
    reading = ("ada", ResourceType.TOPIC, topic, AclOperation.READ)
    safe_broker.allow(*reading)
    safe_broker.allow("ada", ResourceType.GROUP, topic, AclOperation.READ)
    safe_broker.allow("ada", ResourceType.TOPIC, topic, AclOperation.WRITE)
    with Watch() as watch:
        ada = watch.add(elector(**of(safe_broker, topic, "ada", term="15s")))
        watch.leader()
        safe_broker.disallow(*reading)
        until(lambda: "TOPIC_AUTHORIZATION_FAILED" in "".join(ada.problems), "it is refused")
        safe_broker.allow(*reading)
        time.sleep(20)
        assert [each for _, each in ada.changes] == [StandingChange.ACQUIRED]
        ada.pulsing.clear()
        time.sleep(16)
        ada.pulsing.set()
        until(lambda: len(ada.changes) >= 3 or ada.error, "it leads again")
        assert ada.error is None
        assert [each for _, each in ada.changes][::2] == [StandingChange.ACQUIRED] * 2


def of(safe_broker: SafeBroker, topic: str, user: str, term: str = "2s") -> dict[str, Any]:
    """Return an election on *topic* in which *user* takes part."""
    client = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"word-of-{user}",
        "ssl.ca.location": str(CA),
    }
    given = {"kind": "kafka", "bootstrap_servers": safe_broker.safe, "topic": topic, "term": term}
    return {**given, "client": client}


def test_who_may_write_nothing_at_all_says_why(safe_broker: SafeBroker) -> None:
    """A candidate whose producer the broker refuses for good ends with the broker's reason."""
    topic = safe_broker.create_topic(f"election-{uuid.uuid4().hex[:8]}")
    safe_broker.allow("ron", ResourceType.TOPIC, topic, AclOperation.READ)
    safe_broker.allow("ron", ResourceType.GROUP, topic, AclOperation.READ)
    time.sleep(1)  # no event announces that rights are in force
    with Watch() as watch:
        ron = watch.add(elector(**of(safe_broker, topic, "ron")))
        until(lambda: ron.error, "it refuses", 20)
        assert isinstance(ron.error, EnvironmentFault)
        assert "CLUSTER_AUTHORIZATION_FAILED" in str(ron.error)
        assert "check rights and settings" in str(ron.error)

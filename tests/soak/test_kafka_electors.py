"""Electors on a real Kafka: one leads, and another takes over soon after its end."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from election_tools import BUSY, SESSION, Watch, child, elector, tell, until

from transporter.election.state_machine import StandingChange

if TYPE_CHECKING:
    from services.kafka import Broker


@pytest.mark.kafka
def test_one_of_three_leads_on_kafka_over_takeovers(kafka_election: dict[str, Any]) -> None:
    """After each close another leads within a term, never two, and no leader is deposed."""
    took = []
    with Watch() as watch:
        for _ in range(3):
            watch.add(elector(**kafka_election))
        for _ in range(3):
            leader = watch.leader()
            watch.engines.remove(leader)
            began = time.monotonic()
            assert leader.stop() < 5
            watch.leader()
            took.append(time.monotonic() - began)
            assert [each for _, each in leader.changes] == [StandingChange.ACQUIRED]
            watch.add(elector(**kafka_election))
            time.sleep(3)  # A new member may cause a rebalance of this length, and a term.
    tell(f"Kafka, clean closes: {sorted(round(each, 3) for each in took)}")
    assert max(took) < 2.0


@pytest.mark.kafka
def test_a_stopped_leader_on_kafka_is_replaced_and_fenced(kafka_election: dict[str, Any]) -> None:
    """Another leads after the session's time-out, and the stopped leader is fenced first."""
    with child(kafka_election) as leader, Watch() as watch:
        watch.add(elector(**kafka_election))
        time.sleep(3)
        stopped = leader.stop()
        watch.leader()
        took = time.monotonic() - stopped
        _, standing, changes = leader.resume()
        assert changes[0] == "fenced"
        assert standing != "leader"
        time.sleep(3)
        assert len(watch.leaders) == 1
        assert not leader.leads
    tell(f"Kafka, term 2 s, session 6 s: takeover after {took:.3f} s")
    assert took < 1.1 * SESSION + 2 * BUSY


@pytest.mark.kafka
def test_a_term_above_the_brokers_limit_bounds_a_takeover(kafka_election: dict[str, Any]) -> None:
    """With a term of 7 s another leads within two terms of a leader's death."""
    kafka_election["term"] = "7s"
    with child(kafka_election) as leader, Watch() as watch:
        watch.add(elector(**kafka_election))
        time.sleep(8)
        began = time.monotonic()
        leader.process.kill()
        watch.leader()
        took = time.monotonic() - began
    tell(f"Kafka, term 7 s: takeover after {took:.3f} s")
    assert took < 14


@pytest.mark.kafka
def test_a_leader_whose_broker_hangs_is_fenced_and_acquires_again(
    kafka_election: dict[str, Any], kafka_broker: Broker
) -> None:
    """Without a heartbeat for a term it is fenced, pulses do not wait, and it recovers unaided."""
    with Watch() as watch:
        leader = watch.add(elector(**kafka_election))
        watch.add(elector(**kafka_election))
        leader = watch.leader()
        leader.longest = 0.0
        kafka_broker.pause()
        try:
            began = time.monotonic()
            until(lambda: not watch.leaders, "nobody leads", 2 + BUSY)
            took = time.monotonic() - began
            until(lambda: leader.changes[-1][1] is StandingChange.FENCED, "it is told", BUSY)
            time.sleep(2)
            longest = leader.longest
        finally:
            kafka_broker.resume()
        watch.leader()
    tell(f"Kafka hangs: fenced after {took:.3f} s; longest pulse {longest:.3f} s")
    assert longest < 0.2 + BUSY


@pytest.mark.kafka
def test_a_restart_of_the_broker_is_survived(
    kafka_election: dict[str, Any], kafka_broker: Broker
) -> None:
    """The problem is reported, and one leads again."""
    with Watch() as watch:
        engines = [watch.add(elector(**kafka_election)) for _ in range(2)]
        watch.leader()
        kafka_broker.kill()
        until(lambda: not watch.leaders, "nobody leads without a broker", 2 + BUSY)
        until(lambda: all(each.problems for each in engines), "the problem is told")
        kafka_broker.start()
        began = time.monotonic()
        watch.leader()
    tell(f"Kafka: leads {time.monotonic() - began:.3f} s after the broker's return")


@pytest.mark.kafka
def test_two_groups_on_one_topic_still_have_one_leader(kafka_election: dict[str, Any]) -> None:
    """Heartbeats are read by author, so the later claim wins and the rival is revoked."""
    with Watch() as watch:
        first = watch.add(elector(**kafka_election))
        watch.leader()
        second = watch.add(elector(**{**kafka_election, "group": f"group-{uuid.uuid4().hex}"}))
        watch.successor(first)
        assert first.changes[-1][1] is StandingChange.REVOKED
        time.sleep(5)
        assert watch.leaders == [second]


@pytest.mark.kafka
def test_a_topic_that_two_elections_share_is_refused(kafka_election: dict[str, Any]) -> None:
    """The elector of a second election refuses, because the leaders would depose each other."""
    with Watch() as watch:
        first = watch.add(elector(name="orders", **kafka_election))
        watch.leader()
        other = watch.add(elector(name="payments", **kafka_election))
        until(lambda: other.error, "the other one refuses")
        assert "the election of orders also uses it" in str(other.error)
        assert first.leads


@pytest.mark.kafka
def test_a_clean_close_does_not_hang_without_a_broker(
    kafka_election: dict[str, Any], kafka_broker: Broker
) -> None:
    """Leaving the group has a time limit, even if the client waits."""
    with Watch() as watch:
        engine = watch.add(elector(**kafka_election))
        watch.leader()
        kafka_broker.pause()
        try:
            watch.engines.remove(engine)
            took = engine.stop()
        finally:
            kafka_broker.resume()
    tell(f"Kafka hangs: close took {took:.3f} s")
    assert took < 5 + BUSY

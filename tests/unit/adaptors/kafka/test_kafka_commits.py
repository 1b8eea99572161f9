"""Commits to a group without brokers: how long failures are borne."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition
from transporter_adaptors.kafka import commits as module
from transporter_adaptors.kafka.commits import COMMIT_PATIENCE, Commits
from transporter_adaptors.kafka.config import KafkaReaderConfig
from transporter_adaptors.kafka.partition import AssignedPartition
from transporter_adaptors.kafka.position import KafkaOffset, Position

from transporter.errors import SourceUnavailable


class Group:
    """A stand-in for the client, which keeps what it is to commit."""

    def __init__(self) -> None:
        self.asked: list[list[TopicPartition]] = []

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> None:
        """Keep *offsets*. The result comes later."""
        assert asynchronous
        self.asked.append(offsets)


class Bench:
    """Commits of one partition with a place that the group does not have, and a clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.group = Group()
        held = AssignedPartition("t", "id", 0, KafkaOffset(5))
        config = KafkaReaderConfig(bootstrap_servers="nowhere:1", group="g", topics=["t"])
        position = Position("log-1/x")
        self.commits = Commits(config, self.group, lambda: position, "Kafka", {("t", 0): held})

    def fail_one(self, after: float) -> None:
        """Try a commit *after* a time, which the group refuses because it rebalances."""
        self.now += after
        self.commits.commit_due()
        error = KafkaError(KafkaError.REBALANCE_IN_PROGRESS)
        assert self.commits.record_result(error, self.group.asked[-1]) == [error]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return a bench whose clock the commits use."""
    made: Any = Bench()
    monkeypatch.setattr(module, "monotonic", lambda: made.now)
    return made


@pytest.mark.parametrize("interval", [COMMIT_PATIENCE / 60, COMMIT_PATIENCE * 1.5])
def test_commits_that_fail_for_longer_than_the_patience_end_the_reader(
    bench: Bench, interval: float
) -> None:
    """However far apart commits are, the time counts between the first and the last that failed."""
    began = bench.now
    bench.fail_one(0.0)
    while bench.now - began <= COMMIT_PATIENCE:
        bench.fail_one(interval)
    tries = len(bench.group.asked)
    bench.now += interval
    with pytest.raises(SourceUnavailable, match="no commit for 60 s"):
        bench.commits.commit_due()
    assert len(bench.group.asked) == tries


def test_a_commit_that_succeeds_ends_the_failure(bench: Bench) -> None:
    """One commit that meets a rebalance is tried again after a long interval, and succeeds."""
    bench.fail_one(0.0)
    bench.now += 3600.0
    bench.commits.commit_due()
    assert bench.commits.record_result(None, bench.group.asked[-1]) == []
    bench.now += 3600.0
    bench.commits.commit_due()  # Nothing is due.
    assert len(bench.group.asked) == 2

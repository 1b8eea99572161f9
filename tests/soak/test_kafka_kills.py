"""A transactional Kafka writer that is killed, halted, or followed by other shards."""

from __future__ import annotations

import random
import signal
import time
from typing import TYPE_CHECKING

import psutil
import pytest
from kafka_lives import FENCED, MOMENTS, Death, Nursery, World, check, kill_often, written
from transporter_adaptors.kafka.config import KafkaWriterConfig
from transporter_adaptors.kafka.writer import KafkaWriter

from transporter.adaptor import WriterContext

if TYPE_CHECKING:
    from services.kafka import Broker

pytestmark = pytest.mark.kafka


def test_committed_messages_are_each_there_once_after_kills(
    kafka_broker: Broker, kafka_topic: str
) -> None:
    """After kills between and inside transactions all is delivered once, keys in order."""
    world = World(kafka_broker.bootstrap_servers, kafka_topic, rows=4_000)

    kill_often(kafka_broker, world, kills=8, chance=random.Random(random.randrange(1 << 32)))


@pytest.mark.parametrize(("when", "call"), MOMENTS)
def test_a_death_beside_each_call_repeats_nothing(
    kafka_broker: Broker, kafka_topic: str, when: str, call: str
) -> None:
    """Killed right before or after a call, the next run begins at exactly the right offset."""
    world = World(kafka_broker.bootstrap_servers, kafka_topic, rows=200)
    nursery = Nursery(random.Random(1))
    killed = nursery.begin(world, 1, death=Death(when, call, 1 if "init" in call else 3))
    killed.join(60)

    last = nursery.begin(world, 2)
    last.join(60)

    assert (killed.exitcode, last.exitcode) == (-signal.SIGKILL, 0)
    check(kafka_broker, world)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (3, 1), (1, 2)])
def test_a_halted_engine_that_goes_on_commits_nothing(
    kafka_broker: Broker, kafka_topic: str, before: int, after: int
) -> None:
    """A writer halted in a transaction is fenced, also by another number of shards."""
    old = World(kafka_broker.bootstrap_servers, kafka_topic, rows=200, shards=before)
    new = World(old.servers, old.topic, old.rows, old.log_id, after)
    nursery = Nursery(random.Random(2))
    # It stops inside its first transaction, so that all of the log is still to be delivered.
    death = Death("before", "commit_transaction", 1 + before, signal.SIGSTOP)
    halted = nursery.begin(old, 1, shard=before - 1, death=death)
    await_stopped(halted.pid)

    lives = [nursery.begin(new, 2, shard=shard) for shard in range(after)]
    for life in lives:
        life.join(60)
    assert halted.pid is not None
    psutil.Process(halted.pid).resume()
    halted.join(60)

    assert [life.exitcode for life in lives] == [0] * after
    assert halted.exitcode == FENCED
    check(kafka_broker, new)


def test_a_broker_killed_behind_each_commit_keeps_no_writer_waiting(
    kafka_broker: Broker, kafka_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka loses the end of some transactions, but writers continue, and nothing is repeated."""
    size, rounds = 20, 12
    world = World(kafka_broker.bootstrap_servers, kafka_topic, rows=size * rounds + 1)
    config = KafkaWriterConfig(
        bootstrap_servers=world.servers, topic=world.topic, transactional=True
    )
    writer, context = KafkaWriter(config), WriterContext(world.log_id, "route", 1, deadline=20.0)
    writer.open(context)
    for number in range(rounds):
        written(writer, world.slice(number * size, size, 0), 0)
        kafka_broker.kill()
        kafka_broker.start()
        if number % 2:
            writer.close()
            writer = KafkaWriter(config)
            stored = writer.open(context)
            assert stored is not None
            assert stored.offset == (number + 1) * size - 1
    # This commit makes the blocked messages visible.
    written(writer, world.slice(size * rounds, 1, 0), 0)
    writer.close()

    check(kafka_broker, world)
    print(f"\nends that were lost: {caplog.text.count('lost the end')} of {rounds}")  # noqa: T201


def await_stopped(pid: int | None) -> None:
    """Wait until the process has stopped itself."""
    assert pid is not None
    deadline = time.monotonic() + 60
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline, "it did not come to the moment at which it halts"
        time.sleep(0.02)

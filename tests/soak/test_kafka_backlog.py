"""A backlog on its way into Kafka while all processes of the engine are killed repeatedly."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter, defaultdict
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psutil
import pytest
from acceptance_tools import Running, running
from confluent_kafka import Consumer, TopicPartition
from kafka_tools import consume

from transporter.log.commit_log import CommitLog
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import read_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from services.kafka import Broker

logger = logging.getLogger(__name__)
ROWS, APPENDED = 300_000, 1_000
PARTITIONS = 4
KILLS = 6
MOST_REPEATED = 3_000
PIPELINE = """
log: {{dir: log}}
readers:
  - {{name: demo, adaptor: demo, rate: 1, count: 1}}
routes:
  - name: kafka
    writer: {{adaptor: kafka, bootstrap_servers: "{servers}", topic: "{topic}"}}
"""


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_kill_in_a_backlog_repeats_little(
    tmp_path: Path, kafka_broker: Broker, kafka_topic: str
) -> None:
    """All of 300 000 entries arrive, keys in order, and no kill repeats more than 3 000.

    A slice holds up to 50 000 of them, and the brokers have most of it when the kill comes.
    """
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    topic = kafka_broker.create_topic(f"{kafka_topic}-backlog", PARTITIONS)
    pipeline = tmp_path / "pipeline.yaml"
    servers = kafka_broker.bootstrap_servers
    pipeline.write_text(PIPELINE.format(servers=servers, topic=topic))
    log_backlog(tmp_path / "log")

    repeated: list[int] = []
    with counting(servers, topic) as counted:
        for kill in range(KILLS):
            goal = chance.randrange(ROWS * kill // KILLS, ROWS * (kill + 1) // KILLS)
            with running(pipeline) as engine:
                await_count(counted, goal + sum(repeated))
                kill_all(engine, chance)
            settled = read_state(tmp_path / "log", "kafka").watermark + 1
            repeated.append(counted() - settled - sum(repeated))
        with running(pipeline) as engine:
            engine.await_event("engine-started")
            await_count(counted, ROWS + 1 + sum(repeated))
            assert engine.stop() == 0

    logger.warning("seed %d: repeated by each kill: %s", seed, repeated)
    check(consume(kafka_broker, topic), sum(repeated))
    assert max(repeated) <= MOST_REPEATED


def log_backlog(directory: Path) -> None:
    """Create a log that holds the whole backlog."""
    with CommitLog.open(directory) as log:
        for first in range(0, ROWS, APPENDED):
            rows = range(first, first + APPENDED)
            batch = [
                Message("orders", b"%09d" % row + b"." * 191, b"k%d" % (row % 997)) for row in rows
            ]
            log.append(messages_to_batch(batch), "backlog")


@contextmanager
def counting(servers: str, topic: str) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the current number of messages in *topic*."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "count"})
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    try:
        yield lambda: sum(consumer.get_watermark_offsets(each, 10)[1] for each in places)
    finally:
        consumer.close()


def await_count(counted: Callable[[], int], goal: int) -> None:
    """Wait until the topic holds *goal* messages."""
    deadline = time.monotonic() + 120
    while counted() < goal:
        assert time.monotonic() < deadline, f"only {counted()} of {goal} came"


def kill_all(engine: Running, chance: random.Random) -> None:
    """Kill the engine and all below it at once, in any order, like a power cut of its host."""
    doomed = [psutil.Process(engine.process.pid), *engine.descendants()]
    chance.shuffle(doomed)
    for each in doomed:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(doomed, 20)


def check(messages: list[Message], repeated: int) -> None:
    """Check that all entries arrived, in order by key at first, and *repeated* of them again."""
    found = Counter[bytes]()
    first: dict[bytes, list[bytes]] = defaultdict(list)
    for message in messages:
        if message.key() is not None and message.key().startswith(b"k"):
            found[message.value()] += 1
            if found[message.value()] == 1:
                first[message.key()].append(message.value())
    assert len(found) == ROWS
    assert sum(found.values()) - ROWS == repeated
    assert all(values == sorted(values) for values in first.values())

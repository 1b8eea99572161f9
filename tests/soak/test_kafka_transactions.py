"""Hundreds of kills beside and inside Kafka's transactions: consumers see each entry once."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest
from acceptance_tools import gone, running
from kafka_lives import World, kill_often
from kafka_tools import consume

if TYPE_CHECKING:
    from pathlib import Path

    from acceptance_tools import Running
    from services.kafka import Broker

pytestmark = pytest.mark.kafka
ENGINES, WORKERS = 10, 20
ROWS = 60_000
"""At 50 a second: twenty minutes of engines, so that kills find something to stop."""
PIPELINE = """
log: {{dir: log}}
readers:
  - {{name: demo, adaptor: demo, rate: 50, count: {rows}}}
routes:
  - name: kafka
    slice_rows: 50
    retry: {{backoff: 10ms..500ms}}
    writer:
      {{adaptor: kafka, bootstrap_servers: "{servers}", topic: "{topic}", transactional: true}}
"""


@pytest.mark.timeout(1800)
def test_two_hundred_killed_writers_repeat_nothing(kafka_broker: Broker, kafka_topic: str) -> None:
    """Writers killed at known and unknown moments commit all entries once, keys in order."""
    world = World(kafka_broker.bootstrap_servers, kafka_topic, rows=100_000)

    kill_often(kafka_broker, world, kills=200, chance=random.Random(random.randrange(1 << 32)))


@pytest.mark.spark
@pytest.mark.timeout(2700)
def test_two_hundred_killed_workers_and_ten_killed_engines_repeat_nothing(
    tmp_path: Path, kafka_broker: Broker, kafka_topic: str
) -> None:
    """A route whose workers and engines are killed commits each entry once, keys in order."""
    pipeline = tmp_path / "pipeline.yaml"
    servers = kafka_broker.bootstrap_servers
    pipeline.write_text(PIPELINE.format(rows=ROWS, servers=servers, topic=kafka_topic))
    chance, kills = random.Random(random.randrange(1 << 32)), 0
    for _ in range(ENGINES):
        with running(pipeline) as engine:
            engine.await_event("worker-connected", timeout=120, route="kafka")
            kills += kill_workers(engine, chance)
            left = engine.kill()
        assert gone(left) == []
    with running(pipeline) as engine:
        assert engine.wait(900) == 0

    assert kills == ENGINES * WORKERS
    first: dict[bytes, list[int]] = defaultdict(list)
    records = consume(kafka_broker, kafka_topic)
    for record in records:
        first[record.key()].append(record.timestamp()[1])
    assert len({record.value() for record in records}) == len(records) == ROWS
    assert all(times == sorted(times) for times in first.values())


def kill_workers(engine: Running, chance: random.Random) -> int:
    """Kill workers one by one, during opening and delivery, and return the number of kills."""
    kills, deadline = 0, time.monotonic() + 300
    pause = threading.Event()
    while kills < WORKERS and time.monotonic() < deadline:
        pause.wait(0.1)
        for victim in engine.descendants("worker")[:1]:
            pause.wait(chance.uniform(0.1, 4.0))
            with suppress(psutil.NoSuchProcess):
                victim.kill()
                kills += 1
    return kills

"""A thousand slices while workers, the Spark host and its JVM are killed at random."""

from __future__ import annotations

import json
import logging
import random
import statistics
import threading
import time
from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import lmdb
import pytest
from acceptance_tools import Running, await_true, gone, running, transporter
from kafka_tools import consume

if TYPE_CHECKING:
    from pathlib import Path

    from services.kafka import Broker

logger = logging.getLogger(__name__)
SLICES = 1_000
SLICE_ROWS = 50
ROWS = SLICES * SLICE_ROWS
PIPELINE = """
log: {{dir: log}}
readers:
  - {{name: demo, adaptor: demo, rate: 1000, count: {rows}}}
routes:
  - name: kafka
    slice_rows: {slice_rows}
    writer: {{adaptor: kafka, bootstrap_servers: "{servers}", topic: "{topic}"}}
  - name: store
    slice_rows: {slice_rows}
    writer: {{adaptor: lmdb, path: store.lmdb, layout: offset}}
"""


class Killer(threading.Thread):
    """A thread that kills a process of an engine every few seconds, and records each kill."""

    def __init__(self, engine: Running, chance: random.Random) -> None:
        super().__init__(name="killer")
        self._engine, self._chance = engine, chance
        self._enough = threading.Event()
        self.kills: list[tuple[float, str]] = []

    def run(self) -> None:
        while not self._enough.wait(self._chance.uniform(1.0, 5.0)):
            self._kill(self._chance.choices(["worker", "host", "jvm"], [8, 1, 1])[0])

    def stop(self) -> None:
        self._enough.set()
        self.join()

    def _kill(self, what: str) -> None:
        if victims := self._engine.descendants(what):
            self.kills.append((time.time(), what))
            self._chance.choice(victims).kill()


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_thousand_slices_survive_random_kills(
    tmp_path: Path, kafka_broker: Broker, kafka_topic: str
) -> None:
    """Nothing is missing, keys are in order, at most a slice repeats per kill, and LMDB none."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    topic = kafka_broker.create_topic(f"{kafka_topic}-kills", partitions=4)
    pipeline = tmp_path / "pipeline.yaml"
    servers = kafka_broker.bootstrap_servers
    pipeline.write_text(
        PIPELINE.format(rows=ROWS, slice_rows=SLICE_ROWS, servers=servers, topic=topic)
    )
    with running(pipeline) as engine:
        engine.await_event("worker-connected", route="kafka")
        killer = Killer(engine, chance)
        killer.start()
        try:
            await_true(lambda: last(tmp_path / "log") >= ROWS * 0.95, 600, "nearly all rows")
        finally:
            killer.stop()
        left = engine.descendants()
        assert engine.wait(120) == 0
        assert gone(left) == []
    figures = recoveries(killer.kills, engine.events)
    logger.warning("seed %d: %d kills, recovery %s", seed, len(killer.kills), figures)
    check_kafka(consume(kafka_broker, topic), len(killer.kills))
    with lmdb.open(str(tmp_path / "store.lmdb"), max_dbs=8, readonly=True) as environment:
        progress = environment.open_db(b"progress", create=False)
        with environment.begin() as transaction:
            told = json.loads(transaction.get(b"store/0", db=progress))
    assert told["entries"] == ROWS


def last(log: Path) -> int:
    """Return the least watermark of the routes."""
    return min(route["watermark"] for route in transporter("offsets", "list", str(log)))


def check_kafka(messages: list[Any], kills: int) -> None:
    """Check that every message arrived, first deliveries of a key in order, few of them twice."""
    first: dict[bytes, list[int]] = defaultdict(list)
    seen: set[bytes] = set()
    for message in messages:
        if message.value() not in seen:
            seen.add(message.value())
            first[message.key()].append(message.timestamp()[1])
    logger.warning("%d duplicates", len(messages) - len(seen))
    assert len(seen) == ROWS
    assert all(times == sorted(times) for times in first.values())
    assert len(messages) - len(seen) <= kills * SLICE_ROWS


def recoveries(kills: list[tuple[float, str]], events: list[dict[str, Any]]) -> dict[str, str]:
    """Return the seconds from each kill to the next worker's connection, by kind of process."""
    arrivals = [
        datetime.fromisoformat(event["timestamp"]).timestamp()
        for event in events
        if event["event"] == "worker-connected"
    ]
    took: dict[str, list[float]] = defaultdict(list)
    for (at, what), (following, _) in zip(kills, [*kills[1:], (float("inf"), "")], strict=True):
        after = min((time for time in arrivals if time > at), default=None)
        # It is that kill's recovery only without another kill in between.
        if after is not None and after < following:
            took[what].append(after - at)
    return {
        what: f"median {statistics.median(times):.2f} s, max {max(times):.2f} s of {len(times)}"
        for what, times in took.items()
    }

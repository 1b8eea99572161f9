"""An engine that is killed with messages in flight: they come again, and none is lost."""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from queue_tools import dead_letters, fresh, until

from transporter.queue import QueueProducer, Tracker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.kafka import Broker

    from transporter.queue import QueueSettings

pytestmark = pytest.mark.kafka
logger = logging.getLogger(__name__)

MESSAGES = 3000
LIFE = """
import sys, threading
from pathlib import Path
from engine_tools import Events, SparklessHost
from transporter.engine.engine import Engine
from transporter.pipeline.config import load

engine = Engine(load(Path(sys.argv[1]), {}), SparklessHost(), Events())
engine.start()
print("started", flush=True)
sys.stdin.read()
engine.stop()
"""
"""An engine with forked workers, which ends cleanly at the end of its input."""


@contextmanager
def life(pipeline: Path) -> Iterator[subprocess.Popen[str]]:
    """Run an engine during a block, and kill it unless it has ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", LIFE, str(pipeline)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(Path(__file__).parents[1] / "support")},
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def piped(folder: Path, settings: QueueSettings, **more: str) -> Path:
    """Write a pipeline from the queue ``jobs`` into two routes, and return its file."""
    reader = {
        "name": "jobs",
        "adaptor": "kafka-queue",
        "bootstrap_servers": settings.bootstrap_servers,
        "queue": "jobs",
        "queue_topic": settings.queue_topic,
        "markers_topic": settings.markers_topic,
        "redeliver_after": "2s",
        "session_timeout": "6s",
        "batch_rows": 200,
        **more,
    }
    routes = [
        {
            "name": name,
            "slice_rows": 50,
            "retry": {"attempts": 2, "backoff": "1ms..50ms"},
            "writer": {"adaptor": "engine_tools:LinesWriter", "path": f"{name}.jsonl"},
        }
        for name in ("fast", "slow")
    ]
    path = folder / "pipeline.yaml"
    path.write_text(json.dumps({"readers": [reader], "routes": routes, "log": {"dir": "log"}}))
    return path


def send(settings: QueueSettings, part: int = 0) -> None:
    """Send the next numbered messages to the queue ``jobs``."""
    with QueueProducer(settings) as producer:
        numbers = range(part * MESSAGES, (part + 1) * MESSAGES)
        producer.send_many("jobs", [b"%d" % number for number in numbers])


def counted(path: Path) -> Counter[int]:
    """Return how often each number was delivered to *path*."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []  # the last is being written
    return Counter(int(json.loads(line)["data"]) for line in lines)


@pytest.fixture
def settings(kafka_broker: Broker) -> QueueSettings:
    """Create topics of this test, with redelivery after 2 s, at most 20 times."""
    return fresh(kafka_broker, redeliver_after=2.0, session_timeout=6.0, max_redeliveries=20)


def test_what_was_in_flight_at_a_kill_is_delivered_in_the_end(
    tmp_path: Path, settings: QueueSettings, kafka_broker: Broker
) -> None:
    """A route with all messages and one without any both get all of them from the next run.

    The old entries are not delivered any more, so the second has each message once.
    """
    send(settings)
    pipeline = piped(tmp_path, settings)
    fast, slow = tmp_path / "fast.jsonl", tmp_path / "slow.jsonl"
    (tmp_path / "slow.down").write_text("write")
    with Tracker(settings) as tracker:
        with life(pipeline):
            until(lambda: len(counted(fast)) == MESSAGES, "all in the fast route")
            assert (tracker.metrics().acked, tracker.metrics().redelivered) == (0, 0)
        until(lambda: tracker.metrics().redelivered == MESSAGES, "all redelivered")
        (tmp_path / "slow.down").unlink()
        with life(pipeline) as process:
            until(lambda: len(counted(slow)) == MESSAGES, "all in the slow route")
            until(lambda: tracker.metrics().in_progress == 0, "all settled")
            process.communicate(timeout=30)
            assert process.returncode == 0
        assert tracker.metrics().redelivered == MESSAGES
    numbers = range(MESSAGES)
    assert counted(fast) == dict.fromkeys(numbers, 2)
    assert counted(slow) == dict.fromkeys(numbers, 1)
    assert dead_letters(kafka_broker, settings) == []


def test_nothing_is_lost_whenever_it_is_killed(
    tmp_path: Path, settings: QueueSettings, kafka_broker: Broker
) -> None:
    """With four random kills and a sink that is down now and then, both routes get all messages."""
    seed = random.randrange(1 << 32)
    logger.info("seed %d", seed)
    chance = random.Random(seed)
    pipeline = piped(tmp_path, settings, instance="engine")
    down = tmp_path / "slow.down"
    with Tracker(settings) as tracker:
        for part in range(4):
            before = tracker.metrics().received
            send(settings, part)
            if chance.random() < 0.5:
                down.write_text("write")
            with life(pipeline):
                until(lambda before=before: tracker.metrics().received > before, "messages")
                time.sleep(chance.uniform(0.0, 0.6))
                down.unlink(missing_ok=True)
                time.sleep(chance.uniform(0.0, 0.6))
        with life(pipeline) as process:
            for name in ("fast.jsonl", "slow.jsonl"):
                until(lambda name=name: len(counted(tmp_path / name)) == 4 * MESSAGES, name, 90)
            until(lambda: tracker.metrics().in_progress == 0, "all settled", 90)
            process.communicate(timeout=30)
    for name in ("fast.jsonl", "slow.jsonl"):
        found = counted(tmp_path / name)
        logger.info("%s: %d repeated", name, found.total() - 4 * MESSAGES)
        assert set(found) == set(range(4 * MESSAGES))
    assert dead_letters(kafka_broker, settings) == []

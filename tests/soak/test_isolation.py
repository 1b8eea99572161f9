"""Eight routes, one blocked and one with its broker away: the other six are not affected."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING

import pytest
from acceptance_tools import await_true, running
from kafka_tools import consume

from transporter.log.filesystem import RealFileSystem
from transporter.log.meta import published_offset
from transporter.offsets.offset_log import read_state

if TYPE_CHECKING:
    from pathlib import Path

    from services.kafka import Broker

logger = logging.getLogger(__name__)
HEALTHY = [f"healthy-{number}" for number in range(6)]
BEFORE, OUTAGE = 20.0, 60.0
SINKS = '''
import time
from pathlib import Path

from transporter.adaptor import AdaptorConfig, LocalPath


class Blockable:
    """Takes everything, but waits while the file `blocked` exists, if it is told to."""

    class Config(AdaptorConfig):
        blocked: LocalPath | None = None

    def __init__(self, config):
        self.config = config

    def open(self, context):
        pass

    def write(self, batch, ack):
        while self.config.blocked and self.config.blocked.exists():
            time.sleep(0.05)
        ack.all()

    def close(self):
        pass
'''


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_blocked_and_a_down_route_cost_the_others_nothing(
    tmp_path: Path, kafka_broker: Broker, kafka_topic: str
) -> None:
    """Six routes keep at least 95 % of their rate, and the others are named and catch up alone."""
    (tmp_path / "sinks.py").write_text(SINKS)
    kafka = {"adaptor": "kafka", "topic": kafka_topic}
    kafka["bootstrap_servers"] = kafka_broker.bootstrap_servers
    healthy = {"adaptor": "sinks:Blockable"}
    routes = [{"name": name, "writer": healthy} for name in HEALTHY]
    routes += [
        {"name": "blocked", "writer": healthy | {"blocked": "blocked"}, "slice_timeout": "200s"},
        {"name": "down", "writer": kafka, "slice_timeout": "10s"},
    ]
    document = {
        "log": {"dir": "log"},
        "readers": [{"name": "demo", "adaptor": "demo", "rate": 1000}],
        "routes": routes,
    }
    (tmp_path / "pipeline.yaml").write_text(json.dumps(document))
    log = tmp_path / "log"
    with running(tmp_path / "pipeline.yaml") as engine:
        for route in document["routes"]:
            engine.await_event("worker-connected", route=route["name"])
        # Entries that were read while Spark started do not count for the rate.
        await_true(lambda: max_lag(log) < 1000, 60, "routes that have caught up")
        before = rates(log, BEFORE)
        (tmp_path / "blocked").touch()
        kafka_broker.stop()
        during = rates(log, OUTAGE)
        engine.await_event("route-retrying", route="down")
        held = [read_state(log, name).watermark for name in ("blocked", "down")]
        kafka_broker.start()
        (tmp_path / "blocked").unlink()
        end = read_state(log, HEALTHY[0]).watermark
        assert max(held) < end - OUTAGE * 500
        for name in ("blocked", "down"):
            await_true(lambda name=name: read_state(log, name).watermark >= end, 60, name)
        assert engine.stop() == 0
    kept = {name: during[name] / before[name] for name in HEALTHY}
    shares = {name: f"{kept[name]:.3f} of {before[name]:.0f}/s" for name in HEALTHY}
    logger.warning("share of the rate kept: %s", shares)
    assert min(kept.values()) >= 0.95
    offsets = read_state(log, "down").watermark + 1
    assert len({message.value() for message in consume(kafka_broker, kafka_topic)}) == offsets


def max_lag(log: Path) -> int:
    """Return the distance of the last healthy route from the end of the log."""
    watermarks = [read_state(log, name).watermark for name in HEALTHY]
    end = published_offset(RealFileSystem(), log) or 0
    return end - min(watermarks)


def rates(log: Path, seconds: float) -> dict[str, float]:
    """Return the entries a second that each healthy route delivers, over *seconds*."""
    first = {name: read_state(log, name).watermark for name in HEALTHY}
    started = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - started
    return {name: (read_state(log, name).watermark - first[name]) / elapsed for name in HEALTHY}

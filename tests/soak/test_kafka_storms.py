"""From topic to topic through a storm: broker, engine, workers and network fail in turns."""

from __future__ import annotations

import json
import random
import time
from typing import TYPE_CHECKING

import pytest
from fleet_tools import committed
from leader_tools import faults_of, going_back
from storm_crowd import logged
from storm_tools import (
    PARTITIONS,
    PATIENCE,
    Arrivals,
    Chain,
    Numbers,
    again,
    missing,
    pipeline_of,
    proxied,
    table,
    tell,
)

if TYPE_CHECKING:
    from pathlib import Path

    from services.kafka import Broker

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
ROUNDS = 15
SOON = 10.0
"""The recovery time if only connections were lost."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
def test_one_engine_in_a_storm(own_broker: Broker, tmp_path: Path, transactional: bool) -> None:
    """With faults of engine, broker and network nothing is missing, no key's order changes.

    Each time the flow resumes unaided, and soon when only connections were lost. The log
    holds each record once, and so does the target in transactions.
    """
    seed = random.SystemRandom().randrange(1 << 32)
    chance, took = random.Random(seed), list[tuple[str, float]]()
    tell(f"\ntransactional {transactional}, seed {seed}")
    for topic in ("source", "target"):
        own_broker.create_topic(topic, PARTITIONS)
    pipeline = tmp_path / "pipeline.yaml"
    with proxied(own_broker, 1) as (proxy,), Numbers(own_broker, "source", 500) as numbers:
        servers = f"127.0.0.1:{proxy.port}"
        pipeline.write_text(json.dumps(pipeline_of(servers, {}, {"transactional": transactional})))
        chain = Chain(pipeline, own_broker, proxy, chance)
        with Arrivals(own_broker, "target") as arrivals, chain:
            assert arrivals.await_made_since(time.monotonic(), PATIENCE), "it did not begin"
            for number in range(ROUNDS):
                if number % len(chain.faults) == 0:
                    deck = chance.sample(sorted(chain.faults), len(chain.faults))
                befall(chain, deck.pop(), arrivals, took)
                time.sleep(chance.uniform(0, 3))
            numbers.stop()
            assert arrivals.await_all(numbers.sent, PATIENCE), "not everything has arrived"
            assert chain.stop() == 0
        assert chain.told("route-stopped", "reader-stopped", "entry-parked", "log-full") == []
    found, places = committed(own_broker, "target"), logged(tmp_path / "log")
    tell(f"{table(took)}\n{len(found)} messages, {again(found)} of them again")
    assert max(each for what, each in took if what == "network cut") <= SOON
    assert missing(found, numbers.sent) == []
    assert faults_of(iter(found), numbers.sent) == []
    assert all(offsets == list(range(len(offsets))) for offsets in places.values())
    if transactional:
        assert again(found) == 0
        assert going_back(iter(found)) == []


def befall(chain: Chain, what: str, arrivals: Arrivals, took: list[tuple[str, float]]) -> None:
    """Cause the fault *what*, undo it, and wait until the flow resumes."""
    chain.faults[what]()
    seconds = arrivals.await_made_since(time.monotonic(), PATIENCE)
    tell(f"{time.strftime('%X')} {what}: {seconds and round(seconds, 2)} s")
    assert seconds is not None, f"no recovery from {what} within {PATIENCE:g} s"
    took.append((what, seconds))

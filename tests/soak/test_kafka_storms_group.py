"""Engines of one group that join and leave each second: partitions move, and nothing is lost."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest
from fleet_tools import committed
from leader_tools import faults_of
from storm_crowd import Crowd, logged, unexplained
from storm_tools import (
    PARTITIONS,
    PATIENCE,
    Arrivals,
    Numbers,
    again,
    missing,
    pipeline_of,
    proxied,
    tell,
)

if TYPE_CHECKING:
    from pathlib import Path

    from services.kafka import Broker

pytestmark = pytest.mark.kafka
ENGINES, CHANGES = 4, 60


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("release", ["logged", "delivered"])
def test_a_storm_of_rebalances(own_broker: Broker, tmp_path: Path, release: str) -> None:
    """Nothing is missing, and each log continues in place, or where an assignment begins.

    If only deliveries are committed to the group, first deliveries of a key never go back:
    the new owner of a partition repeats records, and skips none.
    """
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    tell(f"\nrelease {release}, seed {seed}")
    for topic in ("source", "target"):
        own_broker.create_topic(topic, PARTITIONS)
    with proxied(own_broker, ENGINES) as proxies, Numbers(own_broker, "source", 500) as numbers:
        reader = {"adaptor": "storm_crowd:WatchedReader", "release": release}
        crowd = Crowd(tmp_path, proxies, chance, lambda servers: pipeline_of(servers, reader, {}))
        with Arrivals(own_broker, "target") as arrivals, crowd:
            assert arrivals.await_made_since(time.monotonic(), PATIENCE), "it did not begin"
            while crowd.changes.total() < CHANGES:
                crowd.change()
                time.sleep(chance.uniform(0.5, 1.5))
            crowd.settle()
            settled = arrivals.await_made_since(time.monotonic(), PATIENCE)
            assert settled is not None, "no recovery"
            numbers.stop()
            assert arrivals.await_all(numbers.sent, PATIENCE), "not everything has arrived"
            crowd.stop()
    found = committed(own_broker, "target")
    places = [
        (partition, offset)
        for node in crowd.nodes
        for partition, offsets in logged(node.folder / "log").items()
        for offset in offsets
    ]
    late = faults_of(iter(found), {})
    tell(
        f"{crowd.changes}; flowing again after {settled:.1f} s; {len(found)} messages,"
        f" {again(found)} of them again, {again(places)} logged again, {len(late)} passed others"
    )
    assert missing(found, numbers.sent) == []
    assert [each for node in crowd.nodes for each in unexplained(node)] == []
    if release == "delivered":
        assert late == []

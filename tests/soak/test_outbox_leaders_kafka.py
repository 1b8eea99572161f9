"""Minutes of changing leaders before Kafka: no consumer sees a key go back."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest
from fleet_tools import TERM, Fleet, all_committed, kafka_route, prepare, tell, wrongly_committed
from leader_tools import Rows, await_true

if TYPE_CHECKING:
    from pathlib import Path

    from services.kafka import Broker
    from services.postgres import Database

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
HOW = ("stop", "kill", "pause", "pause", "hang", "refuse")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_no_key_goes_back_in_kafka_for_minutes(
    parallelism: int,
    tmp_path: Path,
    postgres: Database,
    kafka_broker: Broker,
    kafka_topic: str,
    exhaustive: bool,
) -> None:
    """Fenced and resumed leaders, of one shard or two, leave each key's rows in their order.

    The last record of each key, which compaction keeps, is the key's last row.
    """
    prepare(postgres)
    route = kafka_route(kafka_broker, kafka_topic) | {"parallelism": parallelism}
    chance = random.Random(random.randrange(1 << 32))
    with Fleet(tmp_path, postgres, 4, route) as fleet:
        # Few enough that a busy host has them delivered when the faults end: a new leader begins
        # with the whole backlog again.
        with Rows(postgres, keys=20, pause=0.5) as rows:
            for _ in range(40 if exhaustive else 3):
                fleet.befall(chance.choice(HOW))
                time.sleep(chance.uniform(0, TERM))
        await_true(lambda: all_committed(kafka_broker, kafka_topic, rows.inserted), 180)
        fleet.settle()
        fleet.stop()
    assert wrongly_committed(kafka_broker, kafka_topic, rows.inserted) == []
    assert tell(fleet.took) <= 2 * TERM

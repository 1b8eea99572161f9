"""Leaders that write to Kafka in transactions: no consumer sees a key go back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from fleet_tools import Fleet, all_committed, kafka_route, prepare, wrongly_committed
from leader_tools import Rows, await_true

if TYPE_CHECKING:
    from pathlib import Path

    from services.kafka import Broker
    from services.postgres import Database

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.timeout(300)]


def test_no_key_goes_back_in_kafka_over_leaders(
    tmp_path: Path, postgres: Database, kafka_broker: Broker, kafka_topic: str
) -> None:
    """Six takeovers, two of them by leaders that were paused and go on: R1, then R2, for all.

    The last record of each key, which compaction keeps, is the key's last row.
    """
    prepare(postgres)
    fleet = Fleet(tmp_path, postgres, 3, kafka_route(kafka_broker, kafka_topic))
    with fleet, Rows(postgres, keys=20, pause=0.2) as rows:
        for how in ("pause", "kill", "stop") * 2:
            time.sleep(1)
            fleet.befall(how)
        rows.stop()
        await_true(lambda: all_committed(kafka_broker, kafka_topic, rows.inserted), 120)
        fleet.settle()
        fleet.stop()
    assert len(fleet.took) == 6
    assert wrongly_committed(kafka_broker, kafka_topic, rows.inserted) == []

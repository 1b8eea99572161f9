"""The main job, end to end on real parts: outbox rows, the log, Spark, Kafka and LMDB."""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import lmdb
import outbox_client
import pytest
from acceptance_tools import await_true, gone, running, transporter
from kafka_tools import consume

if TYPE_CHECKING:
    from pathlib import Path

    from services.kafka import Broker
    from services.postgres import Database

logger = logging.getLogger(__name__)
ROWS = 100_000
SLICE_ROWS = 2_000
KILLS = 3
PIPELINE = """
name: acceptance
log: {{dir: log, segment_bytes: 16MiB}}
readers:
  - name: outbox
    adaptor: postgres-outbox
    dsn: ${{ORDERS_DSN}}
    batch_rows: 1000
routes:
  - name: kafka
    writer:
      adaptor: kafka
      bootstrap_servers: "{bootstrap_servers}"
    slice_rows: {slice_rows}
  - name: store
    writer: {{adaptor: lmdb, path: store.lmdb, layout: offset}}
    slice_rows: {slice_rows}
"""


@pytest.mark.exhaustive
@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_every_row_arrives_across_three_kills(
    tmp_path: Path, postgres: Database, kafka_broker: Broker, kafka_topic: str
) -> None:
    """100 000 rows survive three kill -9: none missing, keys in order, LMDB without a duplicate."""
    seed = random.randrange(1 << 32)
    logger.info("seed %d", seed)
    chance = random.Random(seed)
    topic = kafka_broker.create_topic(f"{kafka_topic}-rows", partitions=6)
    postgres.execute(outbox_client.SCHEMA)
    pipeline = tmp_path / "pipeline.yaml"
    pipeline.write_text(
        PIPELINE.format(bootstrap_servers=kafka_broker.bootstrap_servers, slice_rows=SLICE_ROWS)
    )
    client = subprocess.Popen(
        [sys.executable, outbox_client.__file__, postgres.dsn, str(ROWS), topic, str(seed)]
    )
    log = tmp_path / "log"
    for _ in range(KILLS):
        with running(pipeline, ORDERS_DSN=postgres.dsn) as engine:
            engine.await_event("worker-connected", timeout=150, route="kafka")
            time.sleep(chance.uniform(0.0, 2.5))
            assert gone(engine.kill(), timeout=5) == []
    with running(pipeline, ORDERS_DSN=postgres.dsn) as engine:
        assert client.wait(120) == 0
        await_true(lambda: rows_left(postgres) == 0, 120, "an empty outbox")
        engine.await_event("worker-connected", timeout=150, route="store")
        await_true(lambda: caught_up(log), 60, "routes that have caught up")
        left = engine.descendants()
        assert engine.stop() == 0
        assert gone(left, timeout=5) == []
    check_kafka(kafka_broker, topic)
    check_lmdb(tmp_path / "store.lmdb", transporter("log", "info", str(log))["last"] + 1)


def rows_left(postgres: Database) -> int:
    """Return the number of rows in the outbox."""
    return postgres.execute("SELECT count(*) FROM outbox")[0][0]


def caught_up(log: Path) -> bool:
    """Return whether every route has settled every entry."""
    return all(route["lag"] == 0 for route in transporter("offsets", "list", str(log)))


def check_kafka(broker: Broker, topic: str) -> None:
    """Read the whole topic back: nothing missing, first deliveries in order, few duplicates."""
    first: dict[str, list[int]] = defaultdict(list)
    seen: set[tuple[str, int]] = set()
    traces: set[str] = set()
    tombstones = large = duplicates = 0
    for message in consume(broker, topic):
        key, headers = message.key().decode(), dict(message.headers())
        row = (key, int(headers["seq"]))
        if row in seen:
            duplicates += 1
            continue
        seen.add(row)
        traces.add(headers["trace"].decode())
        first[key].append(row[1])
        tombstones += message.value() is None
        large += len(message.value() or b"") > 900_000
        if message.value() and len(message.value()) < 900_000:
            assert (
                message.value()
                .decode()
                .endswith(', "price": 12345678901234567890.10, "note": "Grüße, 世界 🚚"}')
            )
    logger.info("duplicates %d, tombstones %d, large %d", duplicates, tombstones, large)
    assert traces == {f"t-{number}" for number in range(ROWS)}
    assert all(sequence == list(range(1, len(sequence) + 1)) for sequence in first.values())
    assert duplicates <= KILLS * SLICE_ROWS
    assert tombstones > ROWS // 100
    assert large == ROWS // 5000


def check_lmdb(path: Path, entries: int) -> None:
    """Check that every entry was written once, and no outbox row became two entries."""
    environment = lmdb.open(str(path), max_dbs=8, readonly=True)
    stored = environment.open_db(b"entries/store", create=False)
    progress = environment.open_db(b"progress", create=False)
    with environment.begin() as transaction:
        rows = [json.loads(value) for _, value in transaction.cursor(stored)]
        told = json.loads(transaction.get(b"store/0", db=progress))
    environment.close()
    assert [row["offset"] for row in rows] == list(range(entries))
    assert len({row["source_id"] for row in rows}) == len(rows) == ROWS
    # The running total counts every write, and so reveals an entry written twice.
    assert told["entries"] == ROWS

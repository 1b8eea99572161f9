"""Engines that start before everything they need, and come up by themselves once it is there."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from acceptance_tools import Running, await_true, running
from kafka_tools import consume
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from transporter.outbox import outbox_sql
from transporter.queue import QueueProducer, settings_of
from transporter.queue.topics import make_topics

if TYPE_CHECKING:
    from services.kafka import Broker
    from services.postgres import Database

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.spark]

PIPELINES = Path(__file__).parents[2] / "pipelines"
LONG = 240.0
ROUTED = """
CREATE TABLE outboxevent (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL,
    aggregateid text NOT NULL, type text NOT NULL, payload jsonb,
    transporter_id bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    create_time timestamptz NOT NULL DEFAULT now(), leader_id uuid
);
INSERT INTO outboxevent (aggregatetype, aggregateid, type, payload)
    VALUES ('order', '1', 'OrderCreated', '{"id": 1}')
"""
SHIPPED = """
INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)
VALUES ('orders.shipped', '1', '{"order_id": 4711}')
"""


@pytest.mark.timeout(4 * LONG)
def test_all_pipelines_come_up_when_their_services_do(
    tmp_path: Path, own_broker: Broker, postgres: Database
) -> None:
    """Server, database, tables, brokers and topics may all come later, in any order.

    Each engine names the missing part, and two engines read one queue. The server is away for
    them until its socket has the name that they look for.
    """
    own_broker.stop()
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    server = conninfo_to_dict(postgres.dsn)
    variables = {
        "ORDERS_DSN": make_conninfo(postgres.dsn, host=str(sockets), port=5432),
        "KAFKA_SERVERS": own_broker.bootstrap_servers,
        "ROUTER_DIR": str(tmp_path / "router"),
    }
    folders = [tmp_path / "queue1", tmp_path / "queue2"]
    with ExitStack() as stack:

        def start(name: str, **own: Path) -> Running:
            given = {key: str(value) for key, value in own.items()}
            return stack.enter_context(running(PIPELINES / name, **variables, **given))

        router = start("event-router.yaml")
        shop = start("quickstart.yaml", QUICKSTART_DIR=tmp_path / "shop")
        queues = [start("queue.yaml", QUEUE_DIR=folder) for folder in folders]
        demo = start("demo.yaml", QUICKSTART_DIR=tmp_path / "demo")
        for engine in (router, shop, *queues):
            engine.await_event("reader-unavailable", LONG)
        router.await_event("route-retrying", LONG, route="kafka")

        real = Path(str(server["host"])) / f".s.PGSQL.{server['port']}"
        (sockets / ".s.PGSQL.5432").symlink_to(real)
        await_true(lambda: misses(router, "no outbox table"), LONG, "the table's name")
        postgres.execute(ROUTED)
        await_true(lambda: misses(shop, "transporter outbox init"), LONG, "a hint")
        postgres.execute(outbox_sql("outbox"))
        postgres.execute(SHIPPED)

        own_broker.start()
        await_true(lambda: misses(queues[0], "has no topic queue"), LONG, "the topic's name")
        settings = settings_of(bootstrap_servers=own_broker.bootstrap_servers)
        make_topics(settings)
        own_broker.create_topic("outbox.event.order")
        with QueueProducer(settings) as producer:
            producer.send_many("mails", [b"%d" % number for number in range(100)])

        def mails() -> set[int]:
            found = (folder / "mails.jsonl" for folder in folders)
            texts = [path.read_text() for path in found if path.exists()]
            # The last line may be incomplete.
            return {json.loads(line)["data"] for text in texts for line in text.split("\n")[:-1]}

        await_true(lambda: mails() == set(range(100)), LONG, "the mails")
        shop.await_output("4711", LONG)
        await_true(lambda: consume(own_broker, "outbox.event.order"), LONG, "the event")
        demo.await_output("{", LONG)
        for engine in (router, shop, *queues, demo):
            assert engine.stop() == 0


def misses(engine: Running, text: str) -> bool:
    """Return whether *engine* reported an unavailable source with *text* in the reason."""
    told = [each for each in list(engine.events) if each["event"] == "reader-unavailable"]
    return any(text in each["problem"] for each in told)

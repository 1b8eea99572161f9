"""The outbox table of Debezium's event router, read unchanged, on a real PostgreSQL."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import running
from kafka_tools import consume
from outbox_tools import Log, kill_readers, messages, readers
from queue_tools import until

from transporter.cli import app
from transporter.errors import EnvironmentFault
from transporter.message import ERROR_HEADER
from transporter.outbox import outbox_sql
from transporter.pipeline.config import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from services.kafka import Broker
    from services.postgres import Database

    from transporter.message import Message

pytestmark = pytest.mark.postgres

ROOT = Path(__file__).parents[2]
EXAMPLE, PAGE = ROOT / "pipelines" / "event-router.yaml", ROOT / "docs" / "event-router.md"
# The columns that Debezium documents.
TABLE = """
CREATE TABLE outboxevent (
    id uuid NOT NULL PRIMARY KEY,
    aggregatetype character varying(255) NOT NULL,
    aggregateid character varying(255) NOT NULL,
    type character varying(255) NOT NULL,
    payload {payload}{more}
)
"""
EVENT = "4d47e190-0402-4048-bc2c-89dd54343cdc"
ORDER = {
    "id": 1,
    "lineItems": [
        {"id": 1, "item": "Debezium in Action", "status": "ENTERED", "totalPrice": 39.98},
        {"id": 2, "item": "Debezium for Dummies", "status": "ENTERED", "totalPrice": 29.99},
    ],
    "orderDate": "2019-01-31T12:13:01",
    "customerId": 123,
}


@pytest.fixture(params=["mark", "take"])
def opened(postgres: Database, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Open readers on the database, and close all at the end."""
    with readers(postgres, request.param) as opener:
        yield opener


def made(
    database: Database, opened: Callable[..., Any], payload: str = "jsonb", more: str = ""
) -> None:
    """Create Debezium's table, with the column that the reader asks for."""
    database.execute(TABLE.format(payload=payload, more=more))
    with pytest.raises(EnvironmentFault) as caught:
        opened(table="outboxevent", router={"binary": payload == "bytea"})
    (command,) = re.findall(r"ALTER TABLE .*;$", str(caught.value), re.DOTALL)
    database.execute(command)


def put(
    database: Database,
    payload: object,
    event: str = EVENT,
    kind: str | None = "Order",
    **more: object,
) -> None:
    """Insert an event by its column names, as applications do."""
    row = {"id": event, "aggregatetype": kind, "aggregateid": "1", "type": "OrderCreated", **more}
    names = ", ".join([*row, "payload"])
    places = ", ".join(["%s"] * (len(row) + 1))
    value = json.dumps(payload) if isinstance(payload, dict) else payload
    database.execute(f"INSERT INTO outboxevent ({names}) VALUES ({places})", [*row.values(), value])


def read(opened: Callable[..., Any], log: Log | None = None, **router: object) -> list[Message]:
    """Open a reader, and return the messages that it finds and commits."""
    reader = opened(log, table="outboxevent", router=router)
    batch = reader.poll(5)
    if batch.position is not None:
        reader.commit(batch.position)
    reader.close()
    return messages(batch)


def test_the_documented_event_becomes_what_the_router_makes_of_it(
    postgres: Database, opened: Callable[..., Any]
) -> None:
    """Topic, key, header id and payload match the router's, and the row is purged."""
    made(postgres, opened)
    put(postgres, ORDER)
    put(postgres, None, "00000000-0000-0000-0000-000000000001", kind="customers")
    order, customer = read(opened)
    assert (order.namespace, order.key, order.op) == ("outbox.event.Order", b"1", "insert")
    assert order.headers == (("id", EVENT.encode()),)
    assert json.loads(order.data or b"") == ORDER
    assert (customer.namespace, customer.data, customer.op) == (
        "outbox.event.customers",
        None,
        "delete",
    )
    assert postgres.execute("SELECT count(*) FROM outboxevent") == [(0,)]


@pytest.mark.parametrize("payload", ["json", "text", "varchar(8000)"])
@pytest.mark.exhaustive
def test_a_payload_of_another_type_arrives_as_it_was_written(
    postgres: Database, opened: Callable[..., Any], payload: str
) -> None:
    """Text is not parsed, and JSON keeps its spelling."""
    made(postgres, opened, payload)
    put(postgres, '{"b":1,  "a":[2]}')
    (found,) = read(opened)
    assert found.data == b'{"b":1,  "a":[2]}'


def test_a_binary_payload_arrives_byte_for_byte(
    postgres: Database, opened: Callable[..., Any]
) -> None:
    """Bytes that are not UTF-8 are valid data, and only other faults of a row are errors."""
    made(postgres, opened, "bytea")
    avro = bytes(range(256))
    put(postgres, avro)
    put(postgres, None, "00000000-0000-0000-0000-000000000001")
    first, none = read(opened, binary=True)
    assert (first.data, first.content_type, first.headers) == (
        avro,
        None,
        (("id", EVENT.encode()),),
    )
    assert (none.data, none.op) == (None, "delete")
    put(postgres, avro)
    postgres.execute("ALTER TABLE outboxevent ALTER aggregatetype DROP NOT NULL")
    put(postgres, avro, "00000000-0000-0000-0000-000000000002", kind=None)
    sound, bad = read(opened, binary=True)
    assert sound.data == avro
    assert b"the topic" in (dict(bad.headers)[ERROR_HEADER] or b"")


def test_further_columns_become_headers_and_fields(
    postgres: Database, opened: Callable[..., Any]
) -> None:
    """The columns get their names or aliases, times are in UTC, and NULL is null."""
    made(postgres, opened, more=', "Tenant %s" int, at timestamp, note text')
    postgres.execute('ALTER TABLE outboxevent ALTER "Tenant %s" SET DEFAULT 7')
    put(postgres, {"n": 1}, at="2019-05-03 14:31:30.344")
    additional = [
        {"column": "type", "placement": "header", "alias": "event %(low)s type"},
        {"column": "note", "placement": "header"},
        {"column": '"Tenant %s"', "placement": "envelope"},
        {"column": "type", "placement": "envelope", "alias": "it's"},
    ]
    (found,) = read(opened, topic="{routed_by}.e'vents %s", timestamp="at", additional=additional)
    assert (found.namespace, found.timestamp) == ("Order.e'vents %s", 1_556_893_890_344_000)
    assert found.headers == (
        ("id", EVENT.encode()),
        ("event %(low)s type", b"OrderCreated"),
        ("note", None),
    )
    assert json.loads(found.data or b"") == {
        "payload": {"n": 1},
        "Tenant %s": 7,
        "it's": "OrderCreated",
    }


def test_a_table_with_an_order_of_its_own_is_read_without_a_change(postgres: Database) -> None:
    """With a numbering column and a time column, claim take needs no further column."""
    more = ", at timestamptz DEFAULT now(), number bigserial UNIQUE"
    postgres.execute(TABLE.format(payload="jsonb", more=more))
    put(postgres, {"n": 1}, "00000000-0000-0000-0000-000000000002")
    put(postgres, {"n": 2}, "00000000-0000-0000-0000-000000000001")
    with readers(postgres, "take") as opened:
        reader = opened(table="outboxevent", router={"timestamp": "at"}, columns={"id": "number"})
        batch = reader.poll(5)
        reader.commit(batch.position)
    assert [json.loads(found.data or b"") for found in messages(batch)] == [{"n": 1}, {"n": 2}]
    assert postgres.execute("SELECT count(*) FROM outboxevent") == [(0,)]


def test_what_was_logged_before_a_crash_is_recognised(
    postgres: Database, opened: Callable[..., Any]
) -> None:
    """A row that is in the log and was not purged is not read again."""
    made(postgres, opened)
    put(postgres, ORDER)
    log = Log()
    reader = opened(log, table="outboxevent", router={})
    log.append(reader.poll(5))
    kill_readers(postgres)
    put(postgres, {"n": 2}, "00000000-0000-0000-0000-000000000002")
    assert [json.loads(found.data or b"") for found in read(opened, log)] == [{"n": 2}]


def test_a_row_that_is_too_large_stays(postgres: Database, opened: Callable[..., Any]) -> None:
    """A row that is too large is reported with its own columns, and the others arrive."""
    made(postgres, opened, "text")
    put(postgres, "x" * 9_000_000)
    put(postgres, "y", "00000000-0000-0000-0000-000000000002")
    large, small = read(opened)
    assert dict(large.headers)[ERROR_HEADER]
    told = json.loads(large.data or b"")
    assert (told["bytes"]["payload"], told["row"]["transporter_id"]) == (9_000_000, 1)
    assert small.data == b"y"
    assert postgres.execute("SELECT aggregateid FROM outboxevent") == [("1",)]


def test_what_does_not_fit_is_named(postgres: Database, opened: Callable[..., Any]) -> None:
    """Missing columns and unsupported types are named."""
    postgres.execute(TABLE.format(payload="bytea", more=""))
    with pytest.raises(
        EnvironmentFault, match="payload is bytea, not json or jsonb or text"
    ) as one:
        opened(table="outboxevent", router={"route_by": "kind"})
    assert "kind is missing" in str(one.value)


def test_the_trigger_is_reported_and_installed(
    postgres: Database, opened: Callable[..., Any], tmp_path: Path
) -> None:
    """The command that the event names leaves all columns of the table unchanged."""
    made(postgres, opened)
    log = Log()
    opened(log, table="outboxevent", router={})
    ((_, details),) = [each for each in log.told if each[0] == "outbox-polled"]
    assert "'transporter outbox init PIPELINE --run'" in str(details["problem"])
    reader = {"name": "in", "adaptor": "postgres-outbox", "dsn": postgres.dsn}
    pipeline = {"readers": [{**reader, "table": "outboxevent", "router": {}}], "routes": []}
    (tmp_path / "p.yaml").write_text(json.dumps(pipeline))
    columns = "SELECT attname FROM pg_attribute WHERE attrelid = 'outboxevent'::regclass"
    before = postgres.execute(columns)
    assert app.execute(["outbox", "init", str(tmp_path / "p.yaml"), "--run"]) == 0
    assert postgres.execute(columns) == before
    log = Log()
    opened(log, table="outboxevent", router={})
    assert "outbox-polled" not in dict(log.told)


# --- end to end


def page(fence: str) -> list[str]:
    """Return the page's code blocks of this kind."""
    return re.findall(rf"```{fence}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def test_an_event_that_its_application_removes_at_once_is_copied(postgres: Database) -> None:
    """Debezium's example deletes its event, and the page's trigger copies it before the commit."""
    postgres.execute(outbox_sql())
    postgres.execute(TABLE.format(payload="jsonb", more=""))
    (trigger,) = page("sql")
    postgres.execute(trigger)
    with postgres.connect(autocommit=False) as application:
        application.execute(
            "INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, payload)"
            " VALUES (%s, 'Order', '1', 'OrderCreated', '{\"n\": 1}')",
            [EVENT],
        )
        deleted = application.execute("DELETE FROM outboxevent WHERE id = %s", [EVENT])
        assert deleted.rowcount == 1
    with readers(postgres, "mark") as opened:
        (found,) = messages(opened().poll(5))
    assert (found.namespace, found.key, found.data) == ("outbox.event.Order", b"1", b'{"n": 1}')
    assert found.headers == (("id", EVENT.encode()), ("eventType", b"OrderCreated"))


@pytest.mark.kafka
@pytest.mark.spark
def test_the_example_pipeline_gives_topics_keys_and_headers_of_the_router(
    tmp_path: Path, postgres: Database, kafka_broker: Broker
) -> None:
    """Debezium's documented table and event pass through the engine into a real broker."""
    kafka_broker.start()
    topic = kafka_broker.create_topic("outbox.event.order")
    with readers(postgres, "mark") as opened:
        made(postgres, opened)
    put(postgres, ORDER, kind="order")
    example = load(
        EXAMPLE,
        {
            "ORDERS_DSN": postgres.dsn,
            "KAFKA_SERVERS": kafka_broker.bootstrap_servers,
            "ROUTER_DIR": str(tmp_path),
        },
    )
    with running(example):
        until(lambda: consume(kafka_broker, topic), "arrived", 60)
    (record,) = consume(kafka_broker, topic)
    assert record.key() == b"1"
    assert record.headers() == [("id", EVENT.encode()), ("eventType", b"OrderCreated")]
    assert json.loads(record.value()) == ORDER
    assert postgres.execute("SELECT count(*) FROM outboxevent") == [(0,)]


def test_what_waits_is_measured_and_a_probe_finds_nothing_wrong(
    postgres: Database, opened: Callable[..., Any]
) -> None:
    """The backlog and the probe use the names of Debezium's columns."""
    made(postgres, opened)
    put(postgres, ORDER)
    log = Log()
    reader = opened(log, table="outboxevent", router={})
    reader.keep_alive()
    assert log.measured["backlog_messages"] == 1
    assert 0 <= (log.measured["lag_seconds"] or 0) < 60
    assert not [each.text for each in reader.probe() if each.level == "problem"]

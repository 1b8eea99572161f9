"""W3C trace context, from every source with headers to every sink with a place for them."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import lmdb
import pyarrow.dataset as ds
import pytest
from acceptance_tools import await_true, running
from confluent_kafka import Producer
from http_tools import Receiver
from kafka_tools import consume
from outbox_tools import insert
from queue_tools import fresh, receive_until

from transporter.queue import QueueConsumer, QueueProducer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from acceptance_tools import Running
    from services.kafka import Broker
    from services.postgres import Database

    from transporter.queue import QueueSettings

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.spark]

STATE = "vendor=a,other=b"
SOURCES = ("outbox", "topic", "queue")
Traces = dict[str, tuple[str, str]]
"""The traceparent and tracestate of the entry of each source."""


def parent(source: str) -> str:
    """Return the traceparent of a source."""
    return f"00-{SOURCES.index(source) + 1:032x}-00f067aa0ba902b7-01"


EXPECTED: Traces = {source: (parent(source), STATE) for source in SOURCES}


def of(headers: Any) -> tuple[str, str]:
    """Return the two trace headers' values, from pairs of name and text or bytes."""
    found = {name: value if isinstance(value, str) else value.decode() for name, value in headers}
    return found["traceparent"], found["tracestate"]


def document(broker: Broker, queue: QueueSettings, topics: dict[str, str], url: str) -> Any:
    """Return a pipeline of every reader and every writer that has headers."""
    kafka = {"bootstrap_servers": broker.bootstrap_servers}
    queues = {**kafka, "adaptor": "kafka-queue", "queue_topic": queue.queue_topic}
    lossless = "SELECT * EXCEPT (namespace), concat(namespace, '.sql') AS namespace FROM entries"
    writers: dict[str, dict[str, Any]] = {
        "kafka": {**kafka, "adaptor": "kafka", "topic": topics["out"]},
        "queue": {**queues, "queue": "out"},
        "lines": {"adaptor": "file", "path": "out.jsonl"},
        "store": {"adaptor": "lmdb", "path": "store.lmdb", "layout": "offset"},
        "documents": {"adaptor": "http", "url": url, "format": "data"},
        "bodies": {"adaptor": "http", "url": url, "format": "entries"},
        "table": {"adaptor": "spark", "path": "table"},
        "query": {"adaptor": "file", "path": "query.jsonl"},
    }
    steps: dict[str, list[Any]] = {
        "query": [{"sql": lossless}],
        "lines": [{"rename": {"fields": {"n": "m"}}}],
        "store": [{"starlark": {"code": "def transform(message):\n    return message"}}],
    }
    return {
        "log": {"dir": "log"},
        "observe": {"listen": "off"},
        "readers": [
            {"name": "outbox", "adaptor": "postgres-outbox", "dsn": "${DSN}"},
            {
                "name": "topic",
                **kafka,
                "adaptor": "kafka",
                "group": f"group-{topics['in']}",
                "topics": [topics["in"]],
            },
            {"name": "queue", **queues, "markers_topic": queue.markers_topic, "queue": "queue"},
        ],
        "routes": [
            {"name": name, "steps": steps.get(name, []), "writer": writer}
            for name, writer in writers.items()
        ],
    }


@contextmanager
def delivered(folder: Path, document: Any, dsn: str) -> Iterator[Running]:
    """Run *document* until every route has delivered the entries of all sources, and stop it."""
    path = folder / "pipeline.json"
    path.write_text(json.dumps(document))
    with running(path, DSN=dsn) as engine:
        yield engine
        assert engine.stop() == 0
    ended = {each["route"]: each for each in engine.events if each["event"] == "route-ended"}
    assert {name: each["delivered"] for name, each in ended.items()} == dict.fromkeys(
        (route["name"] for route in document["routes"]), len(SOURCES)
    )


def received(queue: QueueSettings, name: str, count: int) -> list[Any]:
    """Receive *count* messages from the queue *name*."""
    found: list[Any] = []
    with QueueConsumer(queue, name) as consumer:
        receive_until(consumer, lambda: len(found) >= count, found.append)
    return found


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_a_trace_survives_from_every_source_to_every_sink(
    tmp_path: Path, kafka_broker: Broker, kafka_topic: str, outbox: Database
) -> None:
    """Every sink gets the trace headers of the outbox row, the record and the queue's message."""
    queue = fresh(kafka_broker, redeliver_after=60.0)
    topics = {"in": kafka_topic, "out": kafka_broker.create_topic(f"{kafka_topic}-out")}
    data = '{"n": 1}'
    names = ["traceparent", "tracestate"]
    insert(outbox, "k", data, "outbox", names, [parent("outbox"), STATE])
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
    headers = {source: list(zip(names, (parent(source), STATE), strict=True)) for source in SOURCES}
    producer.produce(topics["in"], data, "k", headers=headers["topic"])
    assert producer.flush(30) == 0
    with QueueProducer(queue) as sender:
        pairs = [(name, value.encode()) for name, value in headers["queue"]]
        sender.send("queue", data.encode(), headers=pairs)
    with Receiver() as receiver:
        made = document(kafka_broker, queue, topics, receiver.url)
        with delivered(tmp_path, made, outbox.dsn) as engine:
            engine.await_event("spark-ready", timeout=120)
            log = tmp_path / "log"
            await_true(lambda: caught_up(log, len(made["routes"])), 150, "all routes caught up")
    place = {"outbox": "outbox", topics["in"]: "topic", "queue": "queue"}

    by_key = {of(message.headers()) for message in consume(kafka_broker, topics["out"])}
    assert by_key == set(EXPECTED.values())
    assert {of(each.headers) for each in received(queue, "out", 3)} == set(EXPECTED.values())
    lines = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert {place[each["namespace"]]: of(each["headers"]) for each in lines} == EXPECTED
    with lmdb.open(str(tmp_path / "store.lmdb"), max_dbs=9, readonly=True) as store:
        entries = store.open_db(b"entries/store", create=False)
        with store.begin(entries) as transaction:
            rows = [json.loads(value) for _, value in transaction.cursor()]
    assert {place[each["namespace"]]: of(each["headers"]) for each in rows} == EXPECTED
    documents = [each for each in receiver.requests if "entry-id" in each.headers]
    assert {
        place[each.headers["entry-namespace"]]: of(each.headers.items()) for each in documents
    } == EXPECTED
    bodies = [each for each in receiver.requests if "entry-id" not in each.headers]
    held = [row for each in bodies for row in json.loads(each.body)]
    assert {place[each["namespace"]]: of(each["headers"]) for each in held} == EXPECTED
    table = ds.dataset(tmp_path / "table", format="parquet").to_table().to_pylist()
    found = {
        place[row["namespace"]]: of((each["name"], each["value"]) for each in row["headers"])
        for row in table
    }
    assert found == EXPECTED
    queried = map(json.loads, (tmp_path / "query.jsonl").read_text().splitlines())
    assert {
        place[each["namespace"].removesuffix(".sql")]: of(each["headers"]) for each in queried
    } == EXPECTED


def caught_up(log: Path, routes: int) -> bool:
    """Return whether all routes have settled the one entry of each source."""
    from transporter.offsets.offset_log import read_state  # noqa: PLC0415

    folders = list((log / "offsets").glob("*")) if (log / "offsets").exists() else []
    states = [read_state(log, each.name) for each in folders]
    return len(states) == routes and all(each.watermark == len(SOURCES) - 1 for each in states)

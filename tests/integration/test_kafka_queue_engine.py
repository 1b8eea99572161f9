"""Queues as sources and sinks of a running engine, and the moments of its acks."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import Events, running
from kafka_tools import consume
from queue_tools import Seen, fresh, until

from transporter.offsets.parked import ParkedStore
from transporter.pipeline.config import load
from transporter.queue import QueueConsumer, QueueProducer, Tracker, settings_of
from transporter.queue.topics import make_topics

if TYPE_CHECKING:
    from services.kafka import Broker

    from transporter.engine.engine import Engine
    from transporter.pipeline.config import Pipeline
    from transporter.queue import QueueSettings

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).parents[2]
EXAMPLE, PAGE = ROOT / "pipelines" / "queue.yaml", ROOT / "docs" / "queue.md"


@pytest.fixture
def settings(kafka_broker: Broker) -> QueueSettings:
    """Create topics of this test, with redelivery after a second, without a limit."""
    return fresh(kafka_broker, redeliver_after=1.0, max_redeliveries=None)


def adaptor(settings: QueueSettings, **more: Any) -> dict[str, Any]:
    """Return the keys of a kafka-queue reader or writer."""
    return {
        "adaptor": "kafka-queue",
        "bootstrap_servers": settings.bootstrap_servers,
        "queue_topic": settings.queue_topic,
        **more,
    }


def reading(settings: QueueSettings, **more: Any) -> dict[str, Any]:
    """Return a reader of the queue ``jobs``."""
    own = {"name": "jobs", "queue": "jobs", "redeliver_after": "1s", **more}
    return adaptor(settings, markers_topic=settings.markers_topic, **own)


def into(name: str, **keys: Any) -> dict[str, Any]:
    """Return a route into ``<name>.jsonl``, which fails as long as the test wants it to."""
    writer = {"adaptor": "engine_tools:LinesWriter", "path": f"{name}.jsonl"}
    retry = {"attempts": 2, "backoff": "1ms..5ms"}
    return {"name": name, "retry": retry, **keys, "writer": keys.get("writer", writer)}


def pipeline(folder: Path, reader: dict[str, Any], *routes: dict[str, Any]) -> Pipeline:
    """Return a pipeline from *reader* into *routes*."""
    document = {
        "readers": [reader],
        "routes": routes,
        "log": {"dir": "log"},
        "commit_interval": "50ms",
    }
    path = folder / "pipeline.yaml"
    path.write_text(json.dumps(document))
    return load(path, {})


def send(settings: QueueSettings, count: int, first: int = 0, **more: object) -> None:
    """Send numbered messages to the queue ``jobs``."""
    with QueueProducer(settings) as producer:
        rows = ({"n": number, **more} for number in range(first, first + count))
        producer.send_many("jobs", [json.dumps(row).encode() for row in rows])


def numbers(path: Path) -> Counter[int]:
    """Return how often each number was delivered to *path*."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []  # the last is being written
    found = (json.loads(line) for line in lines)
    data = (row.get("data", row) for row in found)
    return Counter((json.loads(row) if isinstance(row, str) else row)["n"] for row in data)


def each_once(count: int) -> dict[int, int]:
    """Return the result of :func:`numbers` when each was delivered once."""
    return dict.fromkeys(range(count), 1)


def nothing_left(tracker: Tracker, acked: int) -> bool:
    """Return whether all messages are settled, *acked* of them by an ack."""
    counted = tracker.metrics()
    return (counted.in_progress, counted.acked) == (0, acked)


def test_a_queue_goes_through_the_log_into_a_file(tmp_path: Path, settings: QueueSettings) -> None:
    """Each message is delivered once and acked, including those sent later."""
    send(settings, 500)
    writer = {"adaptor": "file", "path": "out.txt", "format": "data"}
    made = pipeline(tmp_path, reading(settings), into("out", writer=writer))
    with Tracker(settings) as tracker:
        with running(made):
            until(lambda: nothing_left(tracker, 500), "500 acked")
            send(settings, 100, 500)
            until(lambda: nothing_left(tracker, 600), "600 acked")
        assert tracker.metrics().redelivered == 0
    assert numbers(tmp_path / "out.txt") == each_once(600)


def test_a_file_goes_through_the_log_into_a_queue(tmp_path: Path, settings: QueueSettings) -> None:
    """A consumer of the queue gets each line once."""
    lines = [json.dumps({"n": number}) for number in range(500)]
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
    reader = {"name": "in", "adaptor": "file", "path": "in.txt", "namespace": "jobs"}
    made = pipeline(tmp_path, reader, into("out", writer=adaptor(settings)))
    with running(made) as engine:
        until(lambda: engine.wait(0.02), "the end of the file")
    seen: Seen = Seen()
    with Tracker(settings), QueueConsumer(settings, "jobs") as consumer:
        while len(seen) < 500:
            for message in consumer.receive_many(100, 1.0):
                seen.note(message)
                consumer.ack(message)
    assert seen == {line.encode(): 1 for line in lines}


@pytest.mark.exhaustive
def test_a_message_is_acked_when_every_route_has_delivered_its_entry(
    tmp_path: Path, settings: QueueSettings
) -> None:
    """While one route is paused nothing is acked or redelivered, even for many timeouts."""
    send(settings, 200)
    made = pipeline(tmp_path, reading(settings), into("fast"), into("slow"))
    with Tracker(settings) as tracker, running(made) as engine:
        offsets_of(engine, "slow").pause()
        until(lambda: numbers(tmp_path / "fast.jsonl").total() >= 1, "the fast route's first")
        send(settings, 200, 200)
        until(lambda: numbers(tmp_path / "fast.jsonl").total() == 400, "the fast route's all")
        done = numbers(tmp_path / "slow.jsonl").total()
        time.sleep(5)
        counted = tracker.metrics()
        assert (counted.in_progress, counted.redelivered) == (400 - done, 0)
        assert done < 400
        resume(engine, "slow")
        until(lambda: nothing_left(tracker, 400), "acked")
        assert tracker.metrics().redelivered == 0
    assert numbers(tmp_path / "fast.jsonl") == numbers(tmp_path / "slow.jsonl") == each_once(400)


def test_a_paused_reader_gives_its_messages_to_other_consumers(
    tmp_path: Path, settings: QueueSettings
) -> None:
    """The messages go at once, are not delivered here again, and a resume takes new ones."""
    send(settings, 20)
    made = pipeline(tmp_path, reading(settings), into("out"))
    with Tracker(settings) as tracker, running(made) as engine:
        offsets_of(engine, "out").pause()
        until(lambda: tracker.metrics().in_progress == 20, "all in progress")
        before = numbers(tmp_path / "out.jsonl")
        feed = engine.feed("jobs")
        assert feed is not None
        feed.pause()
        until(lambda: feed.settled, "the pause")
        others = Counter[int]()
        with QueueConsumer(settings, "jobs") as consumer:
            while others.total() < 20 - before.total():
                for message in consumer.receive_many(20, 1.0):
                    others[json.loads(message.value or b"")["n"]] += 1
                    consumer.ack(message)
        resume(engine, "out")
        until(lambda: engine.status().routes[0].lag == 0, "nothing left of before")
        assert numbers(tmp_path / "out.jsonl") == before
        feed.resume()
        send(settings, 10, 20)
        until(lambda: nothing_left(tracker, 30), "the new ones")
        assert tracker.metrics().redelivered <= 20
    assert others + numbers(tmp_path / "out.jsonl") == each_once(30)


def offsets_of(engine: Engine, route: str) -> Any:
    """Return the offset log of *route*."""
    found = engine.route(route)
    assert found is not None
    return found[1]


def resume(engine: Engine, route: str) -> None:
    """Resume *route*, as the command does."""
    found = engine.route(route)
    assert found is not None
    found[1].resume()
    found[0].submit(found[0].revive)


def parking(settings: QueueSettings, folder: Path) -> Pipeline:
    """Return a pipeline that parks bad entries until ``out.mended`` exists."""
    writer = {"adaptor": "failing_sink:FailingWriter", "path": "out.jsonl"}
    return pipeline(folder, reading(settings), into("out", on_error="park", writer=writer))


@pytest.mark.exhaustive
def test_a_parked_entry_is_acked_when_it_was_retried(
    tmp_path: Path, settings: QueueSettings
) -> None:
    """A parked entry is kept alive until its retry, and the others are acked at once."""
    send(settings, 20)
    send(settings, 1, 20, bad=True)
    send(settings, 20, 21)
    with Tracker(settings) as tracker, running(parking(settings, tmp_path)) as engine:
        until(lambda: tracker.metrics().acked == 40, "the good ones")
        time.sleep(5)
        counted = tracker.metrics()
        assert (counted.in_progress, counted.redelivered) == (1, 0)
        (tmp_path / "out.mended").touch()
        found = engine.route("out")
        assert found is not None
        found[1].request_retries(ParkedStore(found[1].folder).offsets())
        found[0].submit(found[0].revive)
        until(lambda: nothing_left(tracker, 41), "the mended one")
        assert tracker.metrics().redelivered == 0
    assert numbers(tmp_path / "out.jsonl") == each_once(41)


def test_a_parked_entry_comes_again_after_a_stop(tmp_path: Path, settings: QueueSettings) -> None:
    """The engine returns the message, and the next run drops the old entry and delivers it."""
    send(settings, 1, bad=True)
    with Tracker(settings) as tracker:
        with running(parking(settings, tmp_path)) as engine:
            until(lambda: engine.status().routes[0].parked == 1, "parked")
            assert tracker.metrics().acked == 0
        (tmp_path / "out.mended").touch()
        with running(parking(settings, tmp_path)) as engine:
            until(lambda: nothing_left(tracker, 1), "acked")
            assert engine.status().routes[0].parked == 0
    assert numbers(tmp_path / "out.jsonl") == each_once(1)


def test_what_is_in_flight_at_a_stop_is_delivered_by_another_engine(
    tmp_path: Path, settings: QueueSettings
) -> None:
    """Two engines share the queue, and messages that one returns reach the other at once."""
    settings = settings.model_copy(update={"redeliver_after": 120.0})
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    reader = reading(settings, redeliver_after="2m")

    def delivered() -> Counter[int]:
        return numbers(one / "out.jsonl") + numbers(two / "out.jsonl")

    with Tracker(settings) as tracker:
        with running(pipeline(one, reader, into("out"))) as engine:
            offsets_of(engine, "out").pause()
            send(settings, 300)
            until(lambda: engine.log.durable >= 100, "entries in the first log")
            engine.stop(0)
        with running(pipeline(two, reader, into("out"))):
            until(lambda: set(delivered()) == set(range(300)), "all delivered", 60)
            until(lambda: tracker.metrics().in_progress == 0, "all settled")
    assert delivered() == each_once(300)


@pytest.mark.exhaustive
def test_no_more_is_in_flight_than_the_reader_may_have(
    tmp_path: Path, settings: QueueSettings
) -> None:
    """Invariant 17: ``max_in_flight`` bounds logged messages, and a batch those begun ahead."""
    send(settings, 300)
    reader = reading(settings, max_in_flight=20, batch_rows=10)
    made = pipeline(tmp_path, reader, into("out"))
    (tmp_path / "out.down").write_text("write")
    with Tracker(settings) as tracker, running(made) as engine:
        until(lambda: engine.log.durable >= 19, "a full log")
        time.sleep(3)
        assert engine.log.durable < 30
        assert tracker.metrics().in_progress <= 40
        assert tracker.metrics().redelivered == 0
        (tmp_path / "out.down").unlink()
        until(lambda: nothing_left(tracker, 300), "acked")
    assert numbers(tmp_path / "out.jsonl") == each_once(300)


@pytest.mark.exhaustive
def test_brokers_that_come_back_find_the_engine_at_work(
    tmp_path: Path, settings: QueueSettings, kafka_broker: Broker
) -> None:
    """Acks that fail in an outage are sent later, or their messages come again, without loss."""
    send(settings, 200)
    events = Events()
    (tmp_path / "out.down").write_text("write")
    made = pipeline(tmp_path, reading(settings), into("out"))
    with Tracker(settings) as tracker, running(made, events=events) as engine:
        until(lambda: engine.log.durable >= 50, "entries")
        kafka_broker.pause()
        try:
            (tmp_path / "out.down").unlink()
            events.await_count("reader-unavailable")
        finally:
            kafka_broker.resume()
        until(lambda: set(numbers(tmp_path / "out.jsonl")) == set(range(200)), "delivered", 90)
        until(lambda: tracker.metrics().in_progress == 0, "all settled", 90)
    assert consume(kafka_broker, settings.dead_letter_topic) == []


def test_the_example_pipeline_runs(tmp_path: Path, kafka_broker: Broker) -> None:
    """pipelines/queue.yaml delivers the mails of a queue, on the topics of ``queue init``."""
    kafka_broker.start()
    settings = settings_of(bootstrap_servers=kafka_broker.bootstrap_servers)
    make_topics(settings)
    with QueueProducer(settings) as producer:
        producer.send_many("mails", [b'"anna"', b'"ben"'])
    example = load(
        EXAMPLE,
        {"KAFKA_SERVERS": kafka_broker.bootstrap_servers, "QUEUE_DIR": str(tmp_path)},
    )
    assert example.readers[0].waits_for_delivery
    found = tmp_path / "mails.jsonl"
    with Tracker(settings) as tracker, running(example):
        until(lambda: tracker.metrics().acked == 2, "acked")
    rows = [json.loads(line) for line in found.read_text().splitlines()]
    assert {row["data"] for row in rows} == {"anna", "ben"}
    assert {row["namespace"] for row in rows} == {"mails"}


def test_the_pipeline_of_the_page_forwards(tmp_path: Path, kafka_broker: Broker) -> None:
    """The pipeline of docs/queue.md forwards messages, with redeliveries counted from zero."""
    kafka_broker.start()
    settings = settings_of(bootstrap_servers=kafka_broker.bootstrap_servers)
    make_topics(settings)
    (text,) = re.findall(r"```yaml\n(readers:\n.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        text.replace("127.0.0.1:9092", settings.bootstrap_servers) + "log: {dir: log}\n"
    )
    with QueueProducer(settings) as producer:
        producer.send("mails", b"x", key=b"k", headers=[("a", b"1")])
    with Tracker(settings), QueueConsumer(settings, "mails") as first:
        message = first.receive(30)
        assert message is not None
        first.nack(message)
    with Tracker(settings), running(load(path, {})), QueueConsumer(settings, "bills") as last:
        message = last.receive(30)
        assert message is not None
        assert (message.value, message.key, message.headers) == (b"x", b"k", (("a", b"1"),))
        assert message.redeliveries == 0
        last.ack(message)

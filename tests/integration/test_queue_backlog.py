"""The backlog of a queue on a real broker, as shown by reader, engine and command."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from engine_tools import Events, running
from queue_tools import fresh, until
from transporter_adaptors.kafka_queue.reader import KafkaQueueReader

from transporter.pipeline.config import load
from transporter.queue import QueueConsumer, QueueProducer, Tracker
from transporter.queue.backlog import Backlog, BacklogEstimator
from transporter.queue.failures import QueueFault, QueueUnavailable
from transporter.testing import FixedResume
from transporter.testing.contracts import first_batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from services.kafka import Broker

    from transporter.pipeline.config import Pipeline
    from transporter.queue import QueueSettings

pytestmark = pytest.mark.kafka

HOUR = 3600.0
EMPTY = {"backlog_messages": 0, "lag_seconds": 0.0}
UNKNOWN = {"backlog_messages": None, "lag_seconds": None}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the interval of measurements to a fraction of a second."""
    monkeypatch.setattr("transporter_adaptors.kafka.survey.EVERY", 0.2)
    monkeypatch.setattr("transporter_adaptors.kafka_queue.reader._SHOW_SECONDS", 0.1)


@pytest.fixture
def settings(kafka_broker: Broker) -> QueueSettings:
    """Return settings of topics of this test, with three partitions."""
    return fresh(kafka_broker, partitions=3, redeliver_after=1.0, max_redeliveries=None)


class Queue:
    """A reader of the queue ``jobs`` without an engine."""

    def __init__(self, settings: QueueSettings) -> None:
        self.resume = FixedResume()
        self.reader = KafkaQueueReader(
            KafkaQueueReader.Config(
                bootstrap_servers=settings.bootstrap_servers,
                queue="jobs",
                queue_topic=settings.queue_topic,
                markers_topic=settings.markers_topic,
                redeliver_after=10,
                batch_rows=10,
            )
        )
        self.reader.open(self.resume)

    def shows(self, **wanted: float | None) -> None:
        """Wait, without a poll, until *wanted* is measured."""

        def holds() -> bool:
            self.reader.keep_alive()
            return wanted.items() <= self.resume.measured.items()

        until(holds, f"{wanted} measured")

    @property
    def lag(self) -> float:
        """The last measured age of the oldest message."""
        found = self.resume.measured["lag_seconds"]
        assert found is not None
        return found


@pytest.fixture
def queue(settings: QueueSettings) -> Iterator[Queue]:
    """Return an open reader, and close it at the end."""
    made = Queue(settings)
    yield made
    made.reader.close()


def send(settings: QueueSettings, count: int, queue: str = "jobs", first: int = 0) -> None:
    """Send numbered messages to *queue*."""
    with QueueProducer(settings) as producer:
        rows = ({"n": number} for number in range(first, first + count))
        producer.send_many(queue, [json.dumps(row).encode() for row in rows])


def send_old(settings: QueueSettings, queue: str = "jobs", count: int = 1) -> None:
    """Send messages that are an hour old, to all partitions in turn."""
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    then = int((time.time() - HOUR) * 1000)
    for number in range(count):
        place = {"partition": number % 3, "timestamp": then}
        producer.produce(settings.queue_topic, b"old", queue.encode(), **place)
    assert producer.flush(30) == 0


def test_depth_follows_what_is_sent_and_what_is_confirmed(
    queue: Queue, settings: QueueSettings
) -> None:
    """The depth spans all partitions, and read messages count until they are confirmed."""
    queue.shows(**EMPTY)
    send_old(settings)
    send(settings, 39)
    queue.shows(backlog_messages=40)
    assert HOUR <= queue.lag < HOUR + 60
    batches = []
    while sum(len(each.messages) for each in batches) < 40:
        batches.append(first_batch(queue.reader))
    queue.shows(backlog_messages=40)
    assert HOUR <= queue.lag < HOUR + 60
    left = 40
    for batch in batches:
        rows = range(len(batch.messages))
        queue.reader.delivered(batch.position or "", rows)
        left -= len(rows)
        queue.shows(backlog_messages=left)
    queue.shows(**EMPTY)


@pytest.mark.exhaustive
def test_the_oldest_grows_older_while_nothing_is_confirmed(
    queue: Queue, settings: QueueSettings
) -> None:
    """The age is known while the message waits in the topic, is begun, or is in the engine."""
    send(settings, 1)
    queue.shows(backlog_messages=1)
    ends = time.monotonic() + 1.5  # It is begun by then.
    while time.monotonic() < ends:
        queue.reader.keep_alive()
        assert queue.lag > 0
    batch = first_batch(queue.reader)
    seen = [queue.lag]
    for _ in range(3):
        until(lambda: queue.reader.keep_alive() or queue.lag > seen[-1] + 0.3, "an older one")
        seen.append(queue.lag)
    queue.reader.delivered(batch.position or "", [0])
    queue.shows(**EMPTY)


def test_ends_of_transactions_and_other_queues_leave_an_empty_queue_at_zero(
    settings: QueueSettings,
) -> None:
    """The end of a redelivery's transaction, which no consumer reads, does not count."""
    with Tracker(settings), QueueConsumer(settings, "jobs") as consumer:
        send(settings, 6)
        done = 0
        while done < 6:
            for message in consumer.receive_many(10, 1.0):
                if message.redeliveries:
                    consumer.ack(message)
                    done += 1
                else:
                    consumer.nack(message)
        consumer.flush()
    estimator = BacklogEstimator(settings, "jobs")
    try:
        begins, ends = estimator._read_offsets(time.monotonic() + 10)
        assert sum(ends.values()) > sum(begins.values())
        assert estimator.estimate(10) == Backlog(0, None)
        send(settings, 5, "others")
        assert estimator.estimate(10) == Backlog(0, None)
        send(settings, 1)
        found = estimator.estimate(10)
        assert found.depth == 1  # It is behind the others.
        assert found.oldest == pytest.approx(time.time(), abs=60)
    finally:
        estimator.close()


def test_a_search_among_other_queues_messages_is_bounded(
    settings: QueueSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records not looked at count as the queue's, from the time at which the search ended."""
    monkeypatch.setattr("transporter.queue.backlog._MOST_SKIPPED", 5)
    send_old(settings, "others", 30)
    send(settings, 1)
    estimator = BacklogEstimator(settings, "jobs")
    try:
        found = estimator.estimate(10)
        assert found.depth == 31 - 3 * 5
        assert found.oldest == pytest.approx(time.time() - HOUR, abs=60)
    finally:
        estimator.close()


def test_a_queue_that_was_never_read_counts_from_its_beginning(settings: QueueSettings) -> None:
    """Without a commit the queue counts from its first record that retention has left."""
    send(settings, 12)
    estimator = BacklogEstimator(settings, "jobs")
    try:
        assert estimator.estimate(10).depth == 12
    finally:
        estimator.close()


def test_a_missing_topic_and_absent_brokers_are_told_apart(settings: QueueSettings) -> None:
    """Neither a missing topic nor absent brokers look like an empty queue."""
    wrong = {
        QueueFault: {"queue_topic": "missing"},
        QueueUnavailable: {"bootstrap_servers": "127.0.0.1:9", "client": {"log_level": 0}},
    }
    for error, values in wrong.items():
        estimator = BacklogEstimator(settings.model_copy(update=values), "jobs")
        begun = time.monotonic()
        with pytest.raises(error):
            estimator.estimate(1)
        estimator.close()
        assert time.monotonic() - begun < 5


@pytest.mark.exhaustive
def test_nothing_is_shown_while_brokers_are_away(
    queue: Queue, settings: QueueSettings, kafka_broker: Broker
) -> None:
    """Neither the last value nor a zero is shown, and no poll waits for an answer."""
    send(settings, 3)
    queue.shows(backlog_messages=3)
    kafka_broker.pause()
    try:
        begun = time.monotonic()
        queue.reader.keep_alive()
        assert time.monotonic() - begun < 2.0  # An answer is waited for longer.
        queue.shows(**UNKNOWN)
    finally:
        kafka_broker.resume()
    queue.shows(backlog_messages=3)


def pipeline(folder: Path, settings: QueueSettings) -> Pipeline:
    """Return a pipeline from the queue ``jobs`` that has 20 entries in flight at most."""
    reader = {
        "name": "jobs",
        "adaptor": "kafka-queue",
        "queue": "jobs",
        "bootstrap_servers": settings.bootstrap_servers,
        "queue_topic": settings.queue_topic,
        "markers_topic": settings.markers_topic,
        "redeliver_after": "1s",
        "max_in_flight": 20,
        "batch_rows": 10,
    }
    route = {
        "name": "out",
        "retry": {"attempts": 2, "backoff": "1ms..5ms"},
        "writer": {"adaptor": "engine_tools:LinesWriter", "path": "out.jsonl"},
    }
    path = folder / "pipeline.yaml"
    path.write_text(json.dumps({"readers": [reader], "routes": [route], "log": {"dir": "log"}}))
    return load(path, {})


@pytest.mark.exhaustive
def test_what_waits_is_shown_while_a_route_keeps_the_reader_from_polling(
    tmp_path: Path, settings: QueueSettings
) -> None:
    """Depth and age keep growing at ``max_in_flight``, and a restart shows them again."""
    made = pipeline(tmp_path, settings)
    (tmp_path / "out.down").write_text("write")
    with Tracker(settings):
        with running(made, events=Events()) as engine:

            def measured() -> dict[Any, float]:
                return engine.status().readers[0].measured

            send(settings, 50)
            until(lambda: engine.status().readers[0].problem, "max_in_flight is reached")
            until(lambda: measured().get("backlog_messages", 0) >= 50, "50 wait")
            age = measured()["lag_seconds"]
            send(settings, 50, first=50)
            until(lambda: measured()["backlog_messages"] >= 100, "100 wait")
            until(lambda: measured()["lag_seconds"] > age + 1, "an older one")
            engine.stop(0)
        with running(made, events=Events()) as engine:
            until(lambda: measured().get("backlog_messages", 0) >= 100, "100 wait again")
            (tmp_path / "out.down").unlink()
            until(lambda: measured() == EMPTY, "all confirmed")
            assert engine.status().readers[0].logged >= 100

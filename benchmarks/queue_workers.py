"""The processes of the benchmark ``queue``: our consumer and tracker, and those of the rivals.

``python -m benchmarks.queue_workers ROLE SETTINGS``: connects, waits for a line of standard input,
works until no message has come for a while, and prints its measurements as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from transporter.queue import QueueConsumer, QueueSettings, Tracker
from transporter.queue.markers import End, Start, encode_marker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QUEUE: Final = "bench"
BATCH: Final = 1000
WARM: Final = 5000
"""Messages that may wait in a client when the clock starts. They do not count."""
_QUIET: Final = 1.5


def receive_and_ack(settings: QueueSettings) -> dict[str, float]:
    """Receive in batches, ack each message by itself."""
    with QueueConsumer(settings, QUEUE) as consumer:
        _await_start()

        def batches() -> Iterator[int]:
            while taken := consumer.receive_many(BATCH, _QUIET):
                for message in taken:
                    consumer.ack(message)
                yield len(taken)

        return _measure(batches())


def read_and_commit(settings: QueueSettings) -> dict[str, float]:
    """Read in batches and commit each: nothing is acked by itself, or redelivered."""
    consumer = _make_consumer(settings)

    def batches() -> Iterator[int]:
        while records := _read(consumer, BATCH):
            for record in records:
                record.value()
            consumer.commit(asynchronous=False)
            yield len(records)

    found = _measure(batches())
    consumer.close()
    return found


def mark_each(settings: QueueSettings) -> dict[str, float]:
    """Write and await a Start, commit, and write an End for each message, as kafka-mq-go does."""
    producer = Producer(
        {"bootstrap.servers": settings.bootstrap_servers, "acks": "all", "linger.ms": 0}
    )
    consumer = _make_consumer(settings)
    topic = settings.markers_topic

    def batches() -> Iterator[int]:
        while records := _read(consumer, 100):
            for record in records:
                partition, offset = record.partition(), record.offset()
                start = Start(QUEUE, partition, (offset,), 30_000, (record.value(),), (b"",))
                producer.produce(topic, encode_marker(start), partition=partition)
                producer.flush()
                place = TopicPartition(settings.queue_topic, partition, offset + 1)
                consumer.commit(offsets=[place], asynchronous=False)
                producer.produce(
                    topic, encode_marker(End(partition, (offset,))), partition=partition
                )
            yield len(records)

    found = _measure(batches())
    producer.flush()
    producer.close()
    consumer.close()
    return found


def measure_delay(settings: QueueSettings) -> dict[str, list[float]]:
    """Leave each message alone once. Return the ms by which it was redelivered too late."""
    first: dict[bytes | None, float] = {}
    found: list[float] = []
    with QueueConsumer(settings, QUEUE) as consumer:
        _await_start()
        while message := consumer.receive(settings.redeliver_after + 2 * _QUIET):
            now = time.monotonic()
            if message.redeliveries:
                found.append(1000 * (now - first[message.value] - settings.redeliver_after))
                consumer.ack(message)
            else:
                first[message.value] = now
    return {"late": found}


def measure_hop(settings: QueueSettings) -> dict[str, list[float]]:
    """Return the ms that messages, which hold their time, are on their way."""
    consumer = _make_consumer(settings)
    found = []
    while records := consumer.consume(1, 2 * _QUIET):
        found += [1000 * (time.time() - float(record.value())) for record in records]
    consumer.close()
    return {"late": found}


def run_tracker(settings: QueueSettings) -> dict[str, int]:
    """Track until the next line comes."""
    with Tracker(settings) as running:
        _await_start()
        time.sleep(2 * settings.commit_interval)
    counted = running.metrics()
    return {"received": counted.received, "acked": counted.acked}


def _make_consumer(settings: QueueSettings) -> Consumer:
    """Return a member of the queue's group that reads nothing before the line comes."""
    consumer = Consumer(
        {
            "bootstrap.servers": settings.bootstrap_servers,
            "group.id": settings.consumer_group(QUEUE),
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 10,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 400,
        }
    )

    def paused(_: Consumer, places: list[TopicPartition]) -> None:
        consumer.assign(places)
        consumer.pause(places)

    consumer.subscribe([settings.queue_topic], on_assign=paused)
    told = threading.Thread(target=_await_start, name="ready")
    told.start()
    while told.is_alive():
        consumer.poll(0.05)
    consumer.resume(consumer.assignment())
    return consumer


def _read(consumer: Consumer, most: int) -> list[Any]:
    records: list[Any] = consumer.consume(1, _QUIET)
    return records + consumer.consume(most - 1, 0) if records and most > 1 else records


def _measure(batches: Iterator[int]) -> dict[str, float]:
    """Return the number of messages behind the first ones, and the times of the first and last."""
    count, began, ended = 0, 0.0, 0.0
    for number in batches:
        count, ended = count + number, time.time()
        if began:
            continue
        if count >= WARM:
            count, began = 0, ended
    return {"count": count, "began": began, "ended": ended}


def _await_start() -> None:
    """Print that this process is ready, and wait for the line."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()


ROLES: Final[dict[str, Callable[[QueueSettings], Any]]] = {
    "ours": receive_and_ack,
    "bare": read_and_commit,
    "each": mark_each,
    "late": measure_delay,
    "hop": measure_hop,
    "tracker": run_tracker,
}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(ROLES[sys.argv[1]](QueueSettings.model_validate_json(sys.argv[2]))))

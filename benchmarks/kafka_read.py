"""The Kafka reader against a bare loop of ``consume``."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, Message, Producer
from transporter_adaptors.kafka.reader import KafkaReader

from benchmarks.figures import Comparison, Section
from benchmarks.messages import documents
from transporter.adaptor import EndOfSource
from transporter.testing import FixedResume

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.setting import Setting

_PARTITIONS: Final = 4
_PATIENCE: Final = 120.0
_PARTS: Final[tuple[Callable[[Message], Any], ...]] = (
    Message.error,
    Message.topic,
    Message.partition,
    Message.offset,
    Message.timestamp,
    Message.key,
    Message.value,
    Message.headers,
)

METHOD: Final = """\
A real topic of four partitions (documents of about 200 bytes, 1000 keys, two headers; another one
without headers) is read from its beginning to its end, by a new group each time. The clock
runs from the first record to the last. The reader polls, and commits each batch, as a feed does,
but nothing is logged: its results are Arrow batches ready to be appended.

"Every part" is a loop of `consume(1000, 0.5)` that reads each record's topic, partition, offset,
time, key, value and headers, and keeps none of it. "Values" is the same loop with `error()` and
`value()` only. Both loops have the same `fetch.queue.backoff.ms` as the reader."""
NOTE: Final = """\
The client makes a Python object of each record and of each header, and a record batch is made of
those: one thread, one interpreter lock."""


def measure(setting: Setting) -> Section:
    """Read the same topics in turns, with the reader and with the loops."""
    count = setting.scale(400_000, 20_000)
    servers = setting.services.broker.bootstrap_servers
    comparisons: list[Comparison] = []
    for headers in (True, False):
        topic = _fill_topic(setting, count, headers=headers)
        sides = {
            "reader": partial(_read, servers, topic, count),
            "all": partial(_consume, servers, topic, count, _PARTS),
            "values": partial(_consume, servers, topic, count, (Message.error, Message.value)),
        }
        found = setting.interleave(sides)
        subject = "the reader" if headers else "the reader, no headers"
        for side, rival in (("all", "consume, every part"), ("values", "consume, values")):
            ours, theirs = found["reader"], found[side]
            comparisons.append(Comparison(subject, rival, "messages/s", ours, theirs))
    return Section("kafka-read", METHOD, tuple(comparisons), (NOTE,))


def _fill_topic(setting: Setting, count: int, *, headers: bool) -> str:
    setting.report(f"producing {count} records")
    broker = setting.services.broker
    topic: str = broker.create_topic(f"read-{'h' if headers else 'n'}", _PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 50})
    for number, (key, data) in enumerate(documents(count)):
        pairs = [("trace", f"t-{number}"), ("sequence", str(number))] if headers else None
        while True:
            with suppress(BufferError):
                producer.produce(topic, data, key, headers=pairs)
                break
            producer.poll(0.1)
    producer.flush()
    return topic


def _read(servers: str, topic: str, count: int) -> float:
    """Return the messages a second that the reader gives."""
    config = KafkaReader.Config.model_validate(
        {
            "bootstrap_servers": servers,
            "group": uuid.uuid4().hex,
            "topics": [topic],
            "follow": False,
        }
    )
    reader, found, began = KafkaReader(config), 0, 0.0
    reader.open(FixedResume())
    try:
        with suppress(EndOfSource):
            while found < count:
                batch = reader.poll(0.5)
                if not found:
                    began = time.perf_counter()
                found += len(batch.messages)
                if batch.position is not None:
                    reader.commit(batch.position)
        return _rate(found, count, time.perf_counter() - began)
    finally:
        reader.close()


def _consume(
    servers: str, topic: str, count: int, parts: tuple[Callable[[Message], Any], ...]
) -> float:
    """Return the messages a second that a loop gives which looks at *parts* of each."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.subscribe([topic])
    found, began = 0, 0.0
    deadline = time.monotonic() + _PATIENCE
    try:
        while found < count and time.monotonic() < deadline:
            records = consumer.consume(1000, 0.5)
            if not found:
                began = time.perf_counter()
            for record in records:
                for part in parts:
                    part(record)
            found += len(records)
        return _rate(found, count, time.perf_counter() - began)
    finally:
        consumer.close()


def _rate(found: int, count: int, seconds: float) -> float:
    if found != count:
        raise RuntimeError(f"{found} records of {count} were read")
    return count / seconds

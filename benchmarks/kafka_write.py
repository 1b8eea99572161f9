"""Writing to a topic: the writer, plain and in transactions, against bare ``produce``."""

from __future__ import annotations

import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Final

from confluent_kafka import Producer
from transporter_adaptors.kafka.config import KafkaWriterConfig
from transporter_adaptors.kafka.writer import KafkaWriter

from benchmarks.figures import Aim, Comparison, Section
from benchmarks.messages import batches
from transporter.adaptor import WriterContext
from transporter.message import Entries, with_offsets
from transporter.testing import RecordingAck

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from benchmarks.setting import Setting

_PARTITIONS: Final = 4
_AIM: Final = 0.4
_SETTINGS: Final = {
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "partitioner": "murmur2_random",
    "enable.idempotence": True,
    "acks": "all",
    "delivery.report.only.error": True,
}

METHOD: Final = """\
Record batches of entries (documents of about 200 bytes, 1000 keys, no headers) go to a real topic
of four partitions, slice by slice, each confirmed before the next. "The writer" takes them as a
worker hands them over. "Bare produce" is a loop of `produce` over the same values and keys, already
Python objects, with the same client settings, one callback for failures, and a `flush` a slice.
"Transactional" is the writer with one transaction a slice and its progress in it. Its rival sends
the same slices in bare transactions, without any offset."""
LIMITS: Final = """\
The writer makes Python objects of Arrow columns and adds a time and headers to every message,
which bare `produce` omits."""


def measure(setting: Setting) -> Section:
    """Write the same slices in turns, by the writer and by a loop."""
    broker = setting.services.broker
    servers: str = broker.bootstrap_servers
    topic: str = broker.create_topic(f"write-{uuid.uuid4().hex[:8]}", _PARTITIONS)
    comparisons: list[Comparison] = []
    for rows in (1_000, 10_000):
        total = setting.scale(300_000, 20_000)
        slices = batches(total // rows, rows)
        for transactional in (False, True):
            sides = {
                "writer": partial(_write, servers, topic, slices, transactional=transactional),
                "bare": partial(_produce, servers, topic, slices, transactional=transactional),
            }
            found = setting.interleave(sides)
            kind = "transactional, " if transactional else ""
            comparisons.append(
                Comparison(
                    f"the writer, {kind}slices of {rows}",
                    "bare transactions" if transactional else "bare produce",
                    "messages/s",
                    found["writer"],
                    found["bare"],
                    Aim(_AIM, at_least=True),
                )
            )
    return Section("kafka-write", METHOD, tuple(comparisons), limits=LIMITS)


def _write(
    servers: str, topic: str, slices: Sequence[pa.RecordBatch], *, transactional: bool
) -> float:
    """Return the messages a second that the writer confirms."""
    config = KafkaWriterConfig(bootstrap_servers=servers, topic=topic, transactional=transactional)
    writer = KafkaWriter(config)
    writer.open(WriterContext(uuid.uuid4().hex, "bench", 1, deadline=60.0))
    try:
        count, began = 0, time.perf_counter()
        for messages in slices:
            batch = Entries(with_offsets(messages, count, 0))
            ack = RecordingAck(batch)
            writer.write(batch, ack)
            if not ack.complete:
                raise RuntimeError(f"not delivered: {ack.failures}")
            count += messages.num_rows
        return count / (time.perf_counter() - began)
    finally:
        writer.close()


def _produce(
    servers: str, topic: str, slices: Sequence[pa.RecordBatch], *, transactional: bool
) -> float:
    """Return the messages a second that a loop of ``produce`` has confirmed."""
    settings = {**_SETTINGS, "bootstrap.servers": servers}
    if transactional:
        settings["transactional.id"] = uuid.uuid4().hex
    producer = Producer(settings)
    if transactional:
        producer.init_transactions(30)
    pairs = [
        list(zip(each.column("data").to_pylist(), each.column("key").to_pylist(), strict=True))
        for each in slices
    ]
    failed: dict[object, object] = {}
    count, began = 0, time.perf_counter()
    for slice_ in pairs:
        if transactional:
            producer.begin_transaction()
        for data, key in slice_:
            producer.produce(topic, data, key, on_delivery=failed.setdefault)
        producer.flush()
        if transactional:
            producer.commit_transaction(30)
        count += len(slice_)
    took = time.perf_counter() - began
    if failed:
        raise RuntimeError(f"not delivered: {failed}")
    return count / took

"""Readers of a Kafka group under test, and operator actions beside them."""

from __future__ import annotations

import ctypes
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import confluent_kafka
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import NewPartitions
from transporter_adaptors.kafka.reader import KafkaReader

from transporter.adaptor import EndOfSource
from transporter.testing.contracts import first_batch, messages_of
from transporter.testing.doubles import FixedResume

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.kafka import Broker

    from transporter.adaptor import Batch
    from transporter.message import Message

PATIENCE = 90.0


class Bench:
    """Topics, producers and readers of one group. Closes every reader at its end."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.servers = broker, broker.bootstrap_servers
        self.group = f"group-{uuid.uuid4().hex[:12]}"
        self._readers: list[KafkaReader] = []
        self._admin = broker.admin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self._readers:
            reader.close()

    # Topics

    def topic(self, name: str | None = None, partitions: int = 1, **config: str) -> str:
        """Create a topic and return its name."""
        return self.broker.create_topic(
            name or f"read-{uuid.uuid4().hex[:12]}", partitions, **config
        )

    def topic_id(self, topic: str) -> str:
        """Return the id of *topic*, as Kafka's own tools write it."""
        (future,) = self._admin.describe_topics(TopicCollection([topic])).values()
        return str(future.result().topic_id).replace("/", "_").replace("+", "-")

    def delete(self, topic: str) -> None:
        """Delete *topic* and wait until it is gone."""
        for future in self._admin.delete_topics([topic], operation_timeout=30).values():
            future.result()

    def recreate(self, topic: str) -> None:
        """Delete *topic* and create another one of this name."""
        self.delete(topic)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.topic(topic)
            except KafkaException:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            else:
                return

    def add_partitions(self, topic: str, total: int) -> None:
        """Add partitions to *topic*, *total* in all."""
        for future in self._admin.create_partitions([NewPartitions(topic, total)]).values():
            future.result()

    def delete_records(self, topic: str, before: int) -> None:
        """Remove the records of the first partition before an offset, as retention does."""
        place = TopicPartition(topic, 0, before)
        for future in self._admin.delete_records([place]).values():
            future.result()

    # Producing

    def produce(
        self,
        topic: str,
        value: bytes | None,
        client: dict[str, Any] | None = None,
        **record: Any,
    ) -> None:
        """Produce one record, by default to the first partition, with settings of *client*."""
        largest = {"message.max.bytes": 64 * 1024**2}
        producer = Producer({"bootstrap.servers": self.servers, **largest, **(client or {})})
        producer.produce(topic, value, **{"partition": 0, **record})
        assert producer.flush(30) == 0

    def produce_numbers(self, topic: str, count: int, first: int = 0, size: int = 0) -> None:
        """Produce numbers in turn to each partition, padded with blanks to *size* bytes."""
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 5})
        partitions = len(producer.list_topics(topic, timeout=30).topics[topic].partitions)
        for number in range(first, first + count):
            value = (b"%d" % number).ljust(size)
            producer.produce(topic, value, b"k%d" % number, partition=number % (partitions or 1))
        assert producer.flush(30) == 0

    def produce_badly_named(self, topic: str, name: bytes) -> None:
        """Produce a record ``bad`` with a header of any *name*, which the Python client refuses."""
        text, number, handle = ctypes.c_char_p, ctypes.c_ssize_t, ctypes.c_void_p
        (path,) = Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka*")
        library = ctypes.CDLL(str(path))
        for maker in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
            getattr(library, maker).restype = handle
        problem = ctypes.create_string_buffer(512)
        settings = handle(library.rd_kafka_conf_new())
        servers = self.servers.encode()
        library.rd_kafka_conf_set(settings, b"bootstrap.servers", servers, problem, number(512))
        producer = handle(library.rd_kafka_new(0, settings, problem, number(512)))
        headers = handle(library.rd_kafka_headers_new(number(1)))
        library.rd_kafka_header_add(headers, name, number(len(name)), b"x", number(1))
        # Tags of its variable arguments: topic 1, value 4, flags 7 (2 copies), headers 10.
        failed = library.rd_kafka_producev(
            producer, 1, text(topic.encode()), 4, text(b"bad"), number(3), 7, 2, 10, headers, 0
        )
        assert failed == 0
        assert library.rd_kafka_flush(producer, 30_000) == 0
        library.rd_kafka_destroy(producer)

    def transaction(self, topic: str, values: Sequence[bytes], *, commit: bool) -> None:
        """Produce *values* in one transaction."""
        settings = {"bootstrap.servers": self.servers, "transactional.id": uuid.uuid4().hex}
        producer = Producer(settings)
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.flush(30)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)

    # The group

    def committed(self, topic: str, partition: int = 0) -> TopicPartition:
        """Return the group's position in a partition."""
        # The client for administration may end the process here (librdkafka issue 5040).
        asking = Consumer({"bootstrap.servers": self.servers, "group.id": self.group})
        (found,) = asking.committed([TopicPartition(topic, partition)], 30)
        asking.close()
        return found

    def commit(self, topic: str, offset: int, *, epoch: int, metadata: str) -> None:
        """Commit an offset of the first partition for the group, which has no members."""
        committing = Consumer({"bootstrap.servers": self.servers, "group.id": self.group})
        place = TopicPartition(topic, 0, offset, metadata, epoch)
        committing.commit(offsets=[place], asynchronous=False)
        committing.close()

    def reset(self, topic: str, offset: int) -> None:
        """Set the group's offset of the first partition, as an operator does."""
        place = ConsumerGroupTopicPartitions(self.group, [TopicPartition(topic, 0, offset)])
        (future,) = self._admin.alter_consumer_group_offsets([place]).values()
        future.result()

    # Reading

    def reads(self, topic: str, **settings: Any) -> dict[str, Any]:
        """Return the pipeline settings of a reader ``in`` of *topic*, in this bench's group."""
        own = {"name": "in", "adaptor": "kafka", "bootstrap_servers": self.servers}
        return own | {"group": self.group, "topics": [topic]} | settings

    def reader(
        self, *topics: str, position: str | None = None, log_id: str = "log-1", **settings: Any
    ) -> KafkaReader:
        """Open a reader of *topics*. ``group`` names another group than this bench's."""
        given = {"group": self.group, "topics": topics, **settings}
        reader = KafkaReader(KafkaReader.Config(bootstrap_servers=self.servers, **given))
        self._readers.append(reader)
        reader.open(FixedResume(position, log_id))
        return reader

    def batch(self, reader: KafkaReader) -> Batch:
        """Poll until something arrives."""
        return first_batch(reader, PATIENCE)

    def messages(self, reader: KafkaReader, count: int) -> list[Message]:
        """Poll, and commit each batch, until *count* messages have arrived. Return them."""
        found: list[Message] = []
        while len(found) < count:
            batch = self.batch(reader)
            found += messages_of(batch.messages)
            reader.commit(batch.position or "")
        return found

    def positions(self, reader: KafkaReader, count: int) -> str:
        """Poll, and commit each batch, until *count* messages have arrived. Return the position."""
        position, found = "", 0
        while found < count:
            batch = self.batch(reader)
            found += len(batch.messages)
            position = batch.position or ""
            reader.commit(position)
        return position

    def read_all(self, reader: KafkaReader, count: int) -> str:
        """Read at least *count* messages, close the reader and return its position."""
        position = self.positions(reader, count)
        reader.close()
        return position

    def gathered(self, reader: KafkaReader, done: Callable[[list[bytes]], bool]) -> list[bytes]:
        """Poll and commit until *done* accepts the data so far. Return the data."""
        found: list[bytes] = []

        def step() -> bool:
            batch = reader.poll(0.2)
            found.extend(data_of(messages_of(batch.messages)))
            if batch.position is not None:
                reader.commit(batch.position)
            return done(found)

        self.until(step)
        return found

    def to_end(self, reader: KafkaReader) -> list[list[Message]]:
        """Read until the source ends. Return its batches."""
        found: list[list[Message]] = []
        with suppress(EndOfSource):
            while True:
                batch = reader.poll(0.5)
                if len(batch.messages):
                    found.append(messages_of(batch.messages))
        return found

    def until(self, condition: Callable[[], object]) -> None:
        """Check repeatedly until *condition* holds."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "it did not happen"


def data_of(messages: Sequence[Message]) -> list[bytes]:
    """Return the data of *messages*."""
    return [message.data or b"" for message in messages]


def contents(batches: Sequence[Sequence[Message]]) -> list[bytes]:
    """Return the data of all *batches*."""
    return [data for batch in batches for data in data_of(batch)]

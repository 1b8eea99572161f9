"""The kafka-queue writer and reader keep their contracts, against a real broker.

A queue has no order, no end and no position, so the reader keeps the promise of a source of
single messages: exactly the messages that were not delivered are redelivered.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from kafka_tools import consume
from queue_tools import fresh, until
from transporter_adaptors.kafka_queue.reader import KafkaQueueReader
from transporter_adaptors.kafka_queue.writer import KafkaQueueWriter

from transporter.adaptor import DeliveredReader
from transporter.message import Message
from transporter.queue import QueueProducer, Tracker
from transporter.queue.message import message_from_record
from transporter.testing import FixedResume
from transporter.testing.contracts import (
    RefusingWriterContract,
    UnreachableWriterContract,
    first_batch,
    messages_of,
)
from transporter.testing.hostile import hostile_messages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from services.kafka import Broker

    from transporter.adaptor import Batch

pytestmark = pytest.mark.kafka


class TestKafkaQueueWriter(RefusingWriterContract, UnreachableWriterContract):
    """One queue in a topic with one partition, which is read in the order of sending."""

    exact = ("key", "data", "headers")

    @pytest.fixture(autouse=True)
    def _sink(self, kafka_broker: Broker) -> None:
        self.broker, self.settings = kafka_broker, fresh(kafka_broker, partitions=1)

    def make_writer(self) -> KafkaQueueWriter:
        return self.make(self.broker.bootstrap_servers)

    def make_unreachable(self) -> KafkaQueueWriter:
        return self.make("127.0.0.1:9")

    def make(self, servers: str) -> KafkaQueueWriter:
        """Return a writer to the queue ``jobs`` at *servers*."""
        topic = self.settings.queue_topic
        return KafkaQueueWriter(
            KafkaQueueWriter.Config(bootstrap_servers=servers, queue_topic=topic, queue="jobs")
        )

    def refused_message(self) -> Message:
        return Message("orders", b"x" * 1_200_000, b"key-0")

    def delivered(self) -> list[Message]:
        records = consume(self.broker, self.settings.queue_topic)
        assert {record.key() for record in records} <= {b"jobs"}
        messages = (
            message_from_record((0, record.offset()), "jobs", record.value(), record.headers(), 0)
            for record in records
        )
        return [Message("", each.value, each.key, headers=each.headers) for each in messages]


class TestKafkaQueueReader:
    """One queue whose messages are redelivered after a second, with a running tracker."""

    exact = ("namespace", "key", "data", "op", "headers")

    @pytest.fixture(autouse=True)
    def _source(self, kafka_broker: Broker) -> Iterator[None]:
        settings = fresh(kafka_broker, redeliver_after=1.0, max_redeliveries=None)
        self.settings = settings
        with QueueProducer(settings) as producer:
            for each in hostile_messages():
                producer.send("jobs", each.data, key=each.key, headers=each.headers)
        self.readers: list[KafkaQueueReader] = []
        with Tracker(settings) as self.tracker:
            yield
            for reader in self.readers:
                reader.close()

    def make_reader(self) -> KafkaQueueReader:
        """Return a new reader of the queue."""
        known = self.settings
        config = KafkaQueueReader.Config(
            bootstrap_servers=known.bootstrap_servers,
            queue="jobs",
            queue_topic=known.queue_topic,
            markers_topic=known.markers_topic,
            redeliver_after=known.redeliver_after,
            batch_rows=4,
        )
        self.readers.append(KafkaQueueReader(config))
        return self.readers[-1]

    def read(self, reader: KafkaQueueReader, count: int) -> list[Batch]:
        """Read batches until *count* messages have come."""
        batches: list[Batch] = []
        while sum(len(batch.messages) for batch in batches) < count:
            batches.append(first_batch(reader))
        return batches

    def shown(self, messages: Sequence[Message]) -> list[str]:
        """Return the parts of *messages* that :attr:`exact` names, sorted."""
        return sorted(repr([getattr(each, part) for part in self.exact]) for each in messages)

    def of(self, batches: Sequence[Batch]) -> list[Message]:
        """Return the messages of *batches*, without the header that counts redeliveries."""
        found = [each for batch in batches for each in messages_of(batch.messages)]
        name = "transporter-redeliveries"
        return [
            replace(each, headers=tuple(pair for pair in each.headers if pair[0] != name))
            for each in found
        ]

    @property
    def expected(self) -> list[Message]:
        """All messages that were sent, as the reader should return them."""
        return [
            replace(each, namespace="jobs", op="insert" if each.data is not None else "delete")
            for each in hostile_messages()
        ]

    def test_it_hears_of_single_messages(self) -> None:
        """The reader is called as one that waits for delivery."""
        reader = self.make_reader()
        assert isinstance(reader, DeliveredReader)
        assert KafkaQueueReader.Config.model_validate(
            {"bootstrap_servers": "x", "queue": "jobs"}
        ).needs_delivery

    def test_hostile_messages_come_exactly(self) -> None:
        """Every part that the queue keeps arrives byte for byte, in several batches."""
        reader = self.make_reader()
        reader.open(FixedResume())
        batches = self.read(reader, len(self.expected))
        assert len(batches) > 1
        assert self.shown(self.of(batches)) == self.shown(self.expected)

    def test_what_was_not_delivered_comes_again_and_nothing_else(self) -> None:
        """A new reader, from any batch's position, gets exactly the rows that were not settled.

        Rows are settled out of order, one batch after the other and the last one first.
        """
        reader = self.make_reader()
        reader.open(FixedResume())
        batches = self.read(reader, len(self.expected))
        left: list[Message] = []
        for batch in reversed(batches):
            rows = range(1, len(batch.messages))
            reader.delivered(batch.position or "", list(reversed(rows)))
            left += self.of([batch])[:1]
        reader.close()
        second = self.make_reader()
        second.open(FixedResume(batches[0].position))
        assert self.shown(self.of(self.read(second, len(left)))) == self.shown(left)
        assert first_or_nothing(second) == 0

    def test_a_commit_is_the_delivery_of_all_before(self) -> None:
        """After a commit only the messages behind its position are redelivered."""
        reader = self.make_reader()
        reader.open(FixedResume())
        batches = self.read(reader, len(self.expected))
        reader.commit(batches[-2].position or "")
        reader.close()
        second = self.make_reader()
        second.open(FixedResume(batches[-1].position))
        count = len(batches[-1].messages)
        again = self.of(self.read(second, count))
        assert self.shown(again) == self.shown(self.of(batches[-1:]))
        assert first_or_nothing(second) == 0

    def test_all_that_was_delivered_is_gone(self) -> None:
        """The tracker has no messages in progress, and has redelivered none."""
        reader = self.make_reader()
        reader.open(FixedResume())
        for batch in self.read(reader, len(self.expected)):
            reader.delivered(batch.position or "", range(len(batch.messages)))
        until(lambda: self.tracker.metrics().acked == len(self.expected), "acked")
        assert self.tracker.metrics().in_progress == self.tracker.metrics().redelivered == 0

    def test_what_is_not_delivered_is_superseded_at_open(self) -> None:
        """Messages in progress are superseded at the open, because they are redelivered."""
        resume = FixedResume()
        self.make_reader().open(resume)
        assert resume.superseded == 1

    def test_close_needs_no_open(self) -> None:
        """A close is allowed before an open, and twice."""
        reader = self.make_reader()
        reader.close()
        reader.close()


def first_or_nothing(reader: KafkaQueueReader) -> int:
    """Return the number of messages that come within two seconds."""
    return len(reader.poll(2.0).messages)

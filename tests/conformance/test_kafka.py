"""The Kafka writer and reader keep their contracts, against a real broker."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from transporter_adaptors.kafka.reader import KafkaReader
from transporter_adaptors.kafka.writer import KafkaWriter

from transporter.message import Message
from transporter.testing.contracts import (
    ReaderContract,
    RefusingWriterContract,
    UnreachableWriterContract,
)
from transporter.testing.hostile import hostile_messages

if TYPE_CHECKING:
    from services.kafka import Broker

pytestmark = pytest.mark.kafka


class TestKafkaWriter(RefusingWriterContract, UnreachableWriterContract):
    """One topic with one partition, which keeps key, data and headers, in order."""

    exact = ("key", "data", "headers")

    @pytest.fixture(autouse=True)
    def _sink(self, kafka_broker: Broker, kafka_topic: str) -> None:
        self.servers, self.topic = kafka_broker.bootstrap_servers, kafka_topic

    def make_writer(self) -> KafkaWriter:
        config = KafkaWriter.Config(bootstrap_servers=self.servers, topic=self.topic)
        return KafkaWriter(config)

    def make_unreachable(self) -> KafkaWriter:
        return KafkaWriter(KafkaWriter.Config(bootstrap_servers="127.0.0.1:9"))

    def refused_message(self) -> Message:
        return Message("orders", b"x" * 1_200_000, b"key-0")

    def delivered(self) -> list[Message]:
        settings = {"bootstrap.servers": self.servers, "group.id": uuid.uuid4().hex}
        consumer = Consumer(settings)
        place = TopicPartition(self.topic, 0, 0)
        try:
            _, end = consumer.get_watermark_offsets(place, timeout=10)
            consumer.assign([place])
            records = consumer.consume(end, timeout=10) if end else []
        finally:
            consumer.close()
        return [
            Message("", record.value(), record.key(), headers=tuple(record.headers() or ()))
            for record in records
        ]


class TestKafkaReader(ReaderContract):
    """One topic with one partition, read up to its end in several batches."""

    exact = ("namespace", "key", "data", "op", "headers", "timestamp")

    @pytest.fixture(autouse=True)
    def _source(self, kafka_broker: Broker, kafka_topic: str) -> None:
        self.servers, self.topic = kafka_broker.bootstrap_servers, kafka_topic
        self.group = uuid.uuid4().hex
        producer = Producer({"bootstrap.servers": self.servers})
        for message in self.expected():
            producer.produce(
                self.topic,
                message.data,
                message.key,
                partition=0,
                timestamp=message.timestamp // 1000,
                headers=list(message.headers),
            )
        assert producer.flush(30) == 0

    def make_reader(self) -> KafkaReader:
        return KafkaReader(
            KafkaReader.Config(
                bootstrap_servers=self.servers,
                topics=(self.topic,),
                group=self.group,
                follow=False,
                batch_rows=4,
            )
        )

    def expected(self) -> list[Message]:
        return [
            replace(
                message,
                namespace=self.topic,
                op="insert" if message.data is not None else "delete",
                timestamp=message.timestamp // 1000 * 1000,
            )
            for message in hostile_messages()
        ]

"""The Kafka writer keeps the contract, against a real broker."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from adaptors.kafka.writer import KafkaWriter
from transporter.message import Message
from transporter.testing.contracts import RefusingWriterContract, UnreachableWriterContract

if TYPE_CHECKING:
    from services.kafka import Broker

pytestmark = pytest.mark.kafka


class TestKafkaWriter(RefusingWriterContract, UnreachableWriterContract):
    """One topic with one partition keeps key, data and headers, in order."""

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

"""The transactional Kafka writer keeps its contracts, against a real broker."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from kafka_tools import consume
from transporter_adaptors.kafka.config import KafkaWriterConfig
from transporter_adaptors.kafka.writer import KafkaWriter

from transporter.message import Message
from transporter.testing import contracts

if TYPE_CHECKING:
    from services.kafka import Broker

pytestmark = pytest.mark.kafka


class TestTransactionalKafkaWriter(
    contracts.RefusingWriterContract,
    contracts.UnreachableWriterContract,
    contracts.StoredOffsetContract,
):
    """One topic with one partition, which keeps key, data and headers, in order, each once."""

    exact = ("key", "data", "headers")

    @pytest.fixture(autouse=True)
    def _sink(self, kafka_broker: Broker, kafka_topic: str) -> None:
        self.broker, self.topic = kafka_broker, kafka_topic
        self.progress = kafka_broker.create_topic(f"progress-{uuid.uuid4().hex[:8]}")

    def make_writer(self) -> KafkaWriter:
        return self.made(bootstrap_servers=self.broker.bootstrap_servers, topic=self.topic)

    def make_unreachable(self) -> KafkaWriter:
        return self.made(bootstrap_servers="127.0.0.1:9", topic="orders")

    def made(self, **settings: Any) -> KafkaWriter:
        """Return a writer that keeps its progress in a topic of this test."""
        settings = {"transactional": True, "progress_topic": self.progress, **settings}
        return KafkaWriter(KafkaWriterConfig.model_validate(settings))

    def refused_message(self) -> Message:
        return Message("orders", b"x" * 1_200_000, b"key-0")

    def delivered(self) -> list[Message]:
        return [
            Message("", record.value(), record.key(), headers=tuple(record.headers() or ()))
            for record in consume(self.broker, self.topic)
        ]

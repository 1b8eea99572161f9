"""The kafka-queue reader and writer on a broker with TLS, passwords and rights."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AclOperation, ResourceType
from queue_tools import until
from services.safe_kafka import SafeBroker, secured
from transporter_adaptors.kafka_queue.reader import KafkaQueueReader
from transporter_adaptors.kafka_queue.writer import KafkaQueueWriter

from transporter.errors import EnvironmentFault, RouteFault, SinkUnavailable, SourceUnavailable
from transporter.kafka.errors import kafka_error
from transporter.message import Message
from transporter.queue import clients, settings_of
from transporter.queue.topics import make_topics, retention_problems
from transporter.testing import FixedResume, RecordingAck, entries
from transporter.testing.contracts import CONTEXT, first_batch, messages_of

if TYPE_CHECKING:
    from transporter.errors import SinkError

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def broker(safe_broker: SafeBroker) -> SafeBroker:
    """Create the topics of a queue, and return their broker."""
    make_topics(settings_of(bootstrap_servers=safe_broker.bootstrap_servers))
    return safe_broker


def write(broker: SafeBroker, user: str, **changed: Any) -> RecordingAck:
    """Send one message as *user*, and return the ack."""
    given = secured(broker, user, queue="jobs", **changed)
    writer = KafkaQueueWriter(KafkaQueueWriter.Config.model_validate(given))
    batch = entries([Message("n", b"x", b"k")])
    ack = RecordingAck(batch)
    try:
        writer.open(CONTEXT)
        writer.write(batch, ack)
    finally:
        writer.close()
    return ack


def read(broker: SafeBroker, user: str, **changed: Any) -> list[Message]:
    """Open a reader as *user* and return its first batch, which is acked."""
    given = secured(broker, user, queue="jobs", timeout=5, **changed)
    reader = KafkaQueueReader(KafkaQueueReader.Config.model_validate(given))
    try:
        reader.open(FixedResume())
        batch = first_batch(reader, 30)
        reader.delivered(batch.position or "", range(len(batch.messages)))
        return messages_of(batch.messages)
    finally:
        reader.close()


def test_a_wrong_password_is_a_fault_that_says_so(broker: SafeBroker) -> None:
    """Reader and route stop with the broker's reason and without the password."""
    with pytest.raises(EnvironmentFault, match="Authentication failed") as reading:
        read(broker, "ada", password="wrong-word")
    with pytest.raises(RouteFault, match="Authentication failed") as writing:
        write(broker, "ada", password="wrong-word")
    assert "wrong-word" not in f"{reading.value} {writing.value}"


REFUSED = (SourceUnavailable, SinkUnavailable, EnvironmentFault, RouteFault)


def test_missing_rights_are_a_fault(broker: SafeBroker) -> None:
    """A missing right to topics or group stops reader and writer with the broker's reason.

    A broker hides topics without a right to them, and a reader waits for missing ones. A writer
    whose client has lost the reason tries another client.
    """
    for act in (read, write):
        with pytest.raises(REFUSED, match="your rights"):
            act(broker, "eve")
    describe = AclOperation.DESCRIBE
    broker.allow("eve", ResourceType.TOPIC, "queue", AclOperation.READ, describe)
    broker.allow("eve", ResourceType.TOPIC, "queue-markers", describe)
    until(lambda: _group_is_missing(broker), "rights")
    until(lambda: isinstance(_failed_write(broker), RouteFault), "the reason")


def _failed_write(broker: SafeBroker) -> SinkError:
    ((error, offset),) = write(broker, "eve").failures
    assert isinstance(error, RouteFault | SinkUnavailable)
    assert offset is None
    return error


def _group_is_missing(broker: SafeBroker) -> bool:
    with pytest.raises((SourceUnavailable, EnvironmentFault)) as caught:
        read(broker, "eve")
    return "Group authorization failed" in str(caught.value)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_client_that_loses_its_fatal_error_is_recognized(broker: SafeBroker) -> None:
    """A collection of garbage in a callback drops the error that the client raises."""
    settings = KafkaQueueWriter.Config.model_validate(secured(broker, "ron", queue="jobs"))
    broker.allow("ron", ResourceType.TOPIC, "queue", AclOperation.DESCRIBE)

    def fails_without_a_reason() -> bool:
        producer = clients.producer(settings.settings(10.0))
        producer.produce("queue", b"x", on_delivery=lambda *_: gc.collect())
        with pytest.raises((SystemError, KafkaException)) as caught:
            producer.flush(20)
        assert (found := kafka_error(caught.value)) is not None
        assert found.fatal()
        return caught.type is SystemError

    until(fails_without_a_reason, "a callback runs behind the error")


def test_with_password_and_rights_messages_come_and_go(broker: SafeBroker) -> None:
    """Rights to one group and two topics are enough."""
    describe, reading, writing = AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE
    broker.allow("ada", ResourceType.TOPIC, "queue", reading, writing, describe)
    broker.allow("ada", ResourceType.TOPIC, "queue-markers", writing, describe)
    broker.allow("ada", ResourceType.GROUP, "queue/jobs", reading)
    time.sleep(1)  # no event announces that rights are in force
    assert write(broker, "ada").complete
    (message,) = read(broker, "ada")
    assert (message.data, message.key) == (b"x", b"k")


def test_the_brokers_settings_need_not_be_readable(
    broker: SafeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program without the right to the brokers' settings runs, but without their check."""
    monkeypatch.setattr("transporter.queue.topics._LONGEST_ABSENCE_MS", 90 * 86_400_000)
    config = KafkaQueueReader.Config.model_validate(secured(broker, "ada", queue="jobs"))
    topics = [config.settings.queue_topic]
    broker.allow("ada", ResourceType.TOPIC, *topics, AclOperation.DESCRIBE_CONFIGS)
    until(lambda: retention_problems(config.settings, topics) == [], "rights")
    anyone = settings_of(bootstrap_servers=broker.bootstrap_servers)
    assert "offsets.retention.minutes" in "".join(retention_problems(anyone, topics))

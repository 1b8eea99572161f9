"""The Kafka reader and writer on a broker with TLS, passwords and rights."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from services.safe_kafka import SafeBroker, secured
from transporter_adaptors.kafka.reader import KafkaReader
from transporter_adaptors.kafka.writer import KafkaWriter

from transporter.adaptor import WriterContext
from transporter.errors import EnvironmentFault, RouteFault, SourceUnavailable
from transporter.message import Message
from transporter.testing import RecordingAck, entries
from transporter.testing.contracts import first_batch, messages_of
from transporter.testing.doubles import FixedResume

pytestmark = pytest.mark.kafka


@pytest.fixture
def topic(safe_broker: SafeBroker) -> str:
    """Return a topic without any rights."""
    return safe_broker.create_topic(f"safe-{uuid.uuid4().hex[:8]}")


def read(safe_broker: SafeBroker, user: str, topic: str, **changed: Any) -> list[Message]:
    """Open a reader as *user* and return its first batch."""
    given = {"topics": [topic], "group": f"of-{user}", **secured(safe_broker, user, **changed)}
    reader = KafkaReader(KafkaReader.Config.model_validate(given))
    try:
        reader.open(FixedResume())
        return messages_of(first_batch(reader, 30).messages)
    finally:
        reader.close()


def write(safe_broker: SafeBroker, user: str, topic: str, **changed: Any) -> RecordingAck:
    """Write one message as *user*."""
    given = {"topic": topic, **secured(safe_broker, user, **changed)}
    writer = KafkaWriter(KafkaWriter.Config.model_validate(given))
    batch = entries([Message("n", b"1", b"k")])
    ack = RecordingAck(batch)
    try:
        writer.open(WriterContext(log_id="log-1", route="route", epoch=1, deadline=10.0))
        writer.write(batch, ack)
    finally:
        writer.close()
    return ack


def test_reader_and_writer_come_through_tls_with_a_password(
    safe_broker: SafeBroker, topic: str
) -> None:
    """With the same settings both connect, and can use their rights."""
    safe_broker.allow("ada", ResourceType.TOPIC, topic, AclOperation.READ, AclOperation.WRITE)
    safe_broker.allow("ada", ResourceType.GROUP, "of-ada", AclOperation.READ)

    assert write(safe_broker, "ada", topic).complete
    assert [message.data for message in read(safe_broker, "ada", topic)] == [b"1"]


def test_a_wrong_password_is_a_fault_and_is_not_shown(safe_broker: SafeBroker, topic: str) -> None:
    """Neither side retries for ever, and neither reports the password."""
    with pytest.raises(EnvironmentFault) as refused:
        read(safe_broker, "ada", topic, password="hunter2")
    with pytest.raises(RouteFault) as failed:
        write(safe_broker, "ada", topic, password="hunter2")

    assert "uthentication" in str(refused.value)
    assert "hunter2" not in f"{refused.value!r} {failed.value!r}"


def test_a_missing_right_to_a_topic_is_a_fault(safe_broker: SafeBroker, topic: str) -> None:
    """A user without the right to read the topic gets that as the error."""
    safe_broker.allow("eve", ResourceType.GROUP, "of-eve", AclOperation.READ)

    with pytest.raises(EnvironmentFault, match="check the rights"):
        read(safe_broker, "eve", topic)


def test_a_missing_right_to_the_group_is_a_fault(safe_broker: SafeBroker, topic: str) -> None:
    """A user who may read the topic, but not as this group, gets that as the error."""
    safe_broker.allow("eve", ResourceType.TOPIC, topic, AclOperation.READ)

    with pytest.raises(EnvironmentFault, match="check the rights"):
        read(safe_broker, "eve", topic, group="nobodys")


def test_a_right_to_look_is_no_right_to_read(safe_broker: SafeBroker, topic: str) -> None:
    """A topic with the right to describe, but not to read, is a fault, not silence."""
    safe_broker.allow("eve", ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
    safe_broker.allow("eve", ResourceType.GROUP, "of-eve", AclOperation.READ)

    with pytest.raises(EnvironmentFault, match="check the rights"):
        read(safe_broker, "eve", topic)


def test_a_certificate_of_an_unknown_authority_is_not_trusted(
    safe_broker: SafeBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the authority nothing is sent, and the error names the certificate."""
    monkeypatch.setattr("transporter_adaptors.kafka.cluster.REQUEST_SECONDS", 3.0)

    with pytest.raises(SourceUnavailable, match="certificate"):
        read(safe_broker, "ada", topic, ssl_ca=None)


def test_a_look_names_the_right_that_is_missing(safe_broker: SafeBroker, topic: str) -> None:
    """Reader and writer each name the right they lack on a topic they may describe."""
    safe_broker.allow("eve", ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
    safe_broker.allow("eve", ResourceType.GROUP, "of-eve", AclOperation.DESCRIBE)
    given = secured(safe_broker, "eve")
    reader = KafkaReader(
        KafkaReader.Config.model_validate({"topics": [topic], "group": "of-eve", **given})
    )
    writer = KafkaWriter(KafkaWriter.Config.model_validate({"topic": topic, **given}))
    for adaptor, right in ((reader, "READ"), (writer, "WRITE")):
        problems = [each.text for each in adaptor.probe() if each.level == "problem"]
        assert problems == [f"topic {topic}: this user lacks the right {right} on it"]
    safe_broker.allow("eve", ResourceType.TOPIC, topic, AclOperation.READ, AclOperation.WRITE)
    for adaptor in (reader, writer):
        assert [each.text for each in adaptor.probe() if each.level != "fine"] == []

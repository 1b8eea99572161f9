"""The Kafka reader and writer on a broker with TLS, passwords and rights."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from services.kafka import Broker, _free_port, run

from adaptors.kafka.reader import KafkaReader
from adaptors.kafka.writer import KafkaWriter
from transporter.adaptor import WriterContext
from transporter.errors import EnvironmentFault, RouteFault, SourceUnavailable
from transporter.message import Message
from transporter.testing import RecordingAck, entries
from transporter.testing.contracts import first_batch, messages_of
from transporter.testing.doubles import FixedResume

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.kafka

CERTIFICATES = Path(__file__).parents[1] / "unit" / "adaptors" / "http"
CA = CERTIFICATES / "localhost.cert.pem"
_SAFE = """
listeners={listeners},SAFE://127.0.0.1:{safe}
advertised.listeners=PLAINTEXT://{plain},SAFE://localhost:{safe}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SAFE:SASL_SSL
sasl.enabled.mechanisms=PLAIN
listener.name.safe.plain.sasl.jaas.config=\\
  org.apache.kafka.common.security.plain.PlainLoginModule required \\
  user_ada="word-of-ada" user_eve="word-of-eve";
listener.name.safe.ssl.keystore.type=PEM
listener.name.safe.ssl.keystore.location={keys}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""


class SafeBroker(Broker):
    """A broker with a second listener, for TLS and passwords; the first one may do anything."""

    def __init__(self, java: Path, jars: list[Path], folder: Path) -> None:
        super().__init__(java, jars, folder)
        self.safe = f"localhost:{(port := _free_port())}"
        keys = folder / "keys.pem"
        key, certificate = CERTIFICATES / "localhost.key.pem", CA
        keys.write_text(key.read_text() + certificate.read_text())
        path = folder / "server.properties"
        text = path.read_text()
        (listeners,) = re.findall(r"^listeners=(.*)$", text, re.MULTILINE)
        plain = self.bootstrap_servers
        path.write_text(text + _SAFE.format(listeners=listeners, safe=port, plain=plain, keys=keys))

    def allow(self, user: str, kind: ResourceType, name: str, *operations: AclOperation) -> None:
        """Give *user* the right to do *operations* with a topic or group."""
        rights = [
            AclBinding(
                kind,
                name,
                ResourcePatternType.LITERAL,
                f"User:{user}",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for operation in operations
        ]
        admin = self.admin()
        for future in admin.create_acls(rights).values():
            future.result()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SafeBroker]:
    """Yield a running broker with rights, shared by this module."""
    with run(SafeBroker, tmp_path_factory.mktemp("safe")) as broker:
        yield broker


@pytest.fixture
def topic(broker: SafeBroker) -> str:
    """Return a topic that nobody has a right to yet."""
    return broker.create_topic(f"safe-{uuid.uuid4().hex[:8]}")


def settings(broker: SafeBroker, user: str, **changed: Any) -> dict[str, Any]:
    """Return what *user* needs to connect."""
    return {
        "bootstrap_servers": broker.safe,
        "security_protocol": "sasl_ssl",
        "sasl_mechanism": "PLAIN",
        "username": user,
        "password": f"word-of-{user}",
        "ssl_ca": CA,
        **changed,
    }


def read(broker: SafeBroker, user: str, topic: str, **changed: Any) -> list[Message]:
    """Open a reader as *user* and return its first batch."""
    given = {"topics": [topic], "group": f"of-{user}", **settings(broker, user, **changed)}
    reader = KafkaReader(KafkaReader.Config.model_validate(given))
    try:
        reader.open(FixedResume())
        return messages_of(first_batch(reader, 30).messages)
    finally:
        reader.close()


def write(broker: SafeBroker, user: str, topic: str, **changed: Any) -> RecordingAck:
    """Write one message as *user*."""
    given = {"topic": topic, **settings(broker, user, **changed)}
    writer = KafkaWriter(KafkaWriter.Config.model_validate(given))
    batch = entries([Message("n", b"1", b"k")])
    ack = RecordingAck(batch)
    try:
        writer.open(WriterContext(log_id="log-1", route="route", epoch=1, deadline=10.0))
        writer.write(batch, ack)
    finally:
        writer.close()
    return ack


def test_reader_and_writer_come_through_tls_with_a_password(broker: SafeBroker, topic: str) -> None:
    """With the same settings both connect, and do what they have a right to."""
    broker.allow("ada", ResourceType.TOPIC, topic, AclOperation.READ, AclOperation.WRITE)
    broker.allow("ada", ResourceType.GROUP, "of-ada", AclOperation.READ)

    assert write(broker, "ada", topic).complete
    assert [message.data for message in read(broker, "ada", topic)] == [b"1"]


def test_a_wrong_password_is_a_fault_and_is_not_shown(broker: SafeBroker, topic: str) -> None:
    """Neither side tries again for ever, and neither tells the password."""
    with pytest.raises(EnvironmentFault) as refused:
        read(broker, "ada", topic, password="hunter2")
    with pytest.raises(RouteFault) as failed:
        write(broker, "ada", topic, password="hunter2")

    assert "uthentication" in str(refused.value)
    assert "hunter2" not in f"{refused.value!r} {failed.value!r}"


def test_a_missing_right_to_a_topic_is_a_fault(broker: SafeBroker, topic: str) -> None:
    """Who may not read the topic is told so."""
    broker.allow("eve", ResourceType.GROUP, "of-eve", AclOperation.READ)

    with pytest.raises(EnvironmentFault, match="check the rights"):
        read(broker, "eve", topic)


def test_a_missing_right_to_the_group_is_a_fault(broker: SafeBroker, topic: str) -> None:
    """Who may read the topic, but not as this group, is told so."""
    broker.allow("eve", ResourceType.TOPIC, topic, AclOperation.READ)

    with pytest.raises(EnvironmentFault, match="check the rights"):
        read(broker, "eve", topic, group="nobodys")


def test_a_right_to_look_is_no_right_to_read(broker: SafeBroker, topic: str) -> None:
    """A topic that may be described and not read is a fault, not silence."""
    broker.allow("eve", ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
    broker.allow("eve", ResourceType.GROUP, "of-eve", AclOperation.READ)

    with pytest.raises(EnvironmentFault, match="check the rights"):
        read(broker, "eve", topic)


def test_a_certificate_of_an_unknown_authority_is_not_trusted(
    broker: SafeBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the authority nothing is sent, and the error says that it was the certificate."""
    monkeypatch.setattr("adaptors.kafka.cluster.REQUEST_SECONDS", 3.0)

    with pytest.raises(SourceUnavailable, match="certificate"):
        read(broker, "ada", topic, ssl_ca=None)

"""Missing topics on a broker that creates each requested topic, which is Kafka's default."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import ConfigResource
from kafka_tools import consume
from transporter_adaptors.kafka.writer import KafkaWriter

from transporter.adaptor import WriterContext
from transporter.errors import Rejected, RouteFault, SinkUnavailable
from transporter.message import Message
from transporter.testing import RecordingAck, entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from services.kafka import Broker

pytestmark = pytest.mark.kafka

CONTEXT = WriterContext(log_id="log-1", route="route", epoch=1, deadline=10.0)


@pytest.fixture
def name() -> str:
    """Return the name of a topic that does not exist."""
    return f"missing-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def make_writer(default_broker: Broker) -> Iterator[Callable[..., KafkaWriter]]:
    """Return a function that opens a writer to the broker, and close all at the end."""
    opened: list[KafkaWriter] = []

    def make(**settings: Any) -> KafkaWriter:
        config = KafkaWriter.Config(bootstrap_servers=default_broker.bootstrap_servers, **settings)
        opened.append(KafkaWriter(config))
        opened[-1].open(replace(CONTEXT, route=uuid.uuid4().hex[:8]))
        return opened[-1]

    yield make
    for writer in opened:
        writer.close()


def topics(broker: Broker) -> set[str]:
    """Return the topics that the broker has."""
    return set(broker.admin().list_topics(timeout=10).topics)


def write(writer: KafkaWriter, *messages: Message) -> RecordingAck:
    """Write *messages* and return the ack with the writer's report."""
    batch = entries(messages)
    ack = RecordingAck(batch)
    writer.write(batch, ack)
    return ack


@pytest.mark.parametrize("transactional", [False, True])
def test_a_missing_topic_is_named_and_tried_again_and_not_created(
    make_writer: Callable[..., KafkaWriter],
    default_broker: Broker,
    name: str,
    *,
    transactional: bool,
) -> None:
    """A mistyped name creates no topic, and the route continues once the topic exists."""
    for _ in range(2):
        with pytest.raises(SinkUnavailable, match=f"{name}.*create it, or set create_topics"):
            make_writer(topic=name, transactional=transactional)
    assert name not in topics(default_broker)

    default_broker.create_topic(name)

    writer = make_writer(topic=name, transactional=transactional)
    assert write(writer, Message("n", b"1")).complete


@pytest.mark.exhaustive
def test_a_topic_that_is_deleted_is_not_created_anew(
    make_writer: Callable[..., KafkaWriter], default_broker: Broker, name: str
) -> None:
    """Even a writer that has the topic open does not create it again."""
    default_broker.create_topic(name)
    writer = make_writer(topic=name)
    assert write(writer, Message("n", b"1")).complete
    admin = default_broker.admin()  # its requests end with it
    for future in admin.delete_topics([name], operation_timeout=30).values():
        future.result()

    ((error, offset),) = write(writer, Message("n", b"2")).failures

    assert (type(error), offset) == (SinkUnavailable, None)
    assert name in str(error)
    assert name not in topics(default_broker)


def test_a_namespace_whose_topic_is_missing_is_rejected_and_not_created(
    make_writer: Callable[..., KafkaWriter], default_broker: Broker, name: str
) -> None:
    """Earlier entries are delivered, and the entry itself is retried or parked (Invariant 15)."""
    default_broker.create_topic(f"{name}-there")
    writer = make_writer(topic=f"{name}-{{namespace}}")
    messages = Message("there", b"1"), Message("away", b"2"), Message("there", b"3")

    ack = write(writer, *messages)

    assert ack.prefix == [1]
    ((error, offset),) = ack.failures
    assert (type(error), offset) == (Rejected, 2)
    assert f"{name}-away" in str(error)
    assert topics(default_broker).isdisjoint({f"{name}-away"})
    default_broker.create_topic(f"{name}-away")
    assert write(writer, *messages).complete


@pytest.mark.parametrize("template", ["{}", "{}-{{namespace}}"], ids=["fixed", "by namespace"])
def test_a_topic_is_created_where_that_is_asked_for(
    make_writer: Callable[..., KafkaWriter], default_broker: Broker, name: str, template: str
) -> None:
    """With create_topics the topic gets the broker's defaults, and the entries arrive in it."""
    writer = make_writer(topic=template.format(name), create_topics=True)

    assert write(writer, Message("n", b"1"), Message("n", b"2")).complete

    made = name if template == "{}" else f"{name}-n"
    assert [record.value() for record in consume(default_broker, made)] == [b"1", b"2"]


def test_a_created_topic_is_as_the_settings_say(
    make_writer: Callable[..., KafkaWriter], default_broker: Broker, name: str
) -> None:
    """A created topic has the partitions and settings of create_topics."""
    settings = {"cleanup.policy": "compact", "segment.ms": 60_000, "preallocate": False}
    create = {"partitions": 3, "replication": 1, "config": settings}
    writer = make_writer(topic=name, create_topics=create)

    assert write(writer, Message("n", b"1", b"k")).complete

    admin = default_broker.admin()
    assert len(admin.list_topics(name, timeout=10).topics[name].partitions) == 3
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    (future,) = admin.describe_configs([resource]).values()
    found = {each: entry.value for each, entry in future.result(10).items() if each in settings}
    assert found == {"cleanup.policy": "compact", "segment.ms": "60000", "preallocate": "false"}


@pytest.mark.parametrize(
    ("create", "fixed", "by_namespace", "words"),
    [
        ({"config": {"no.such": 1}}, RouteFault, Rejected, "INVALID_CONFIG"),
        ({"replication": 2}, SinkUnavailable, SinkUnavailable, "INVALID_REPLICATION_FACTOR"),
    ],
)
def test_a_topic_that_cannot_be_created_is_told_with_the_reason(
    make_writer: Callable[..., KafkaWriter],
    default_broker: Broker,
    name: str,
    create: dict[str, Any],
    fixed: type[Exception],
    by_namespace: type[Exception],
    words: str,
) -> None:
    """A creation that brokers never allow is a fault, of the entry if it names the topic."""
    with pytest.raises(fixed, match=f"{name}.*cannot be created.*{words}.*check create_topics"):
        make_writer(topic=name, create_topics=create)

    default_broker.create_topic(f"{name}-there")
    writer = make_writer(topic=f"{name}-{{namespace}}", create_topics=create)
    ack = write(writer, Message("there", b"1"), Message("away", b"2"))

    ((error, offset),) = ack.failures
    assert (type(error), offset, ack.prefix) == (by_namespace, 2, [1])
    assert words in str(error)
    default_broker.create_topic(f"{name}-away")  # as an operator would
    assert write(writer, Message("away", b"2")).complete
    default_broker.create_topic(name)
    assert write(make_writer(topic=name, create_topics=create), Message("n", b"1")).complete

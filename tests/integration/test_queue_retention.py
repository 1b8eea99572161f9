"""Topics of a queue that delete needed records: warned of before, counted afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType
from queue_tools import PATIENCE, fresh, until
from services.kafka import free_port
from transporter_adaptors.kafka_queue.reader import KafkaQueueReader

from transporter.queue import QueueConsumer, QueueProducer, Tracker
from transporter.queue.topics import retention_problems
from transporter.testing import FixedResume

if TYPE_CHECKING:
    from services.kafka import Broker

    from transporter.queue import QueueSettings

pytestmark = pytest.mark.kafka


def send(settings: QueueSettings, count: int) -> None:
    """Send numbered messages to the queue ``q``."""
    with QueueProducer(settings) as producer:
        producer.send_many("q", [b"%d" % number for number in range(count)])


def retention(broker: Broker, topic: str) -> tuple[str | None, str | None]:
    """Return the time and the bytes for which *topic* keeps its records."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = broker.admin()
    found = admin.describe_configs([resource])[resource].result(timeout=30)
    return found["retention.ms"].value, found["retention.bytes"].value


def delete_before(broker: Broker, settings: QueueSettings, offset: int) -> None:
    """Delete the queue topic's records before *offset*, as retention does."""
    admin = broker.admin()
    place = TopicPartition(settings.queue_topic, 0, offset)
    for future in admin.delete_records([place]).values():
        future.result(timeout=30)


def test_topics_of_a_queue_keep_what_waits_and_what_is_dead(kafka_broker: Broker) -> None:
    """The topics do not have the brokers' default of a week, and an operator may set the time."""
    settings = fresh(kafka_broker)
    assert retention(kafka_broker, settings.queue_topic) == ("-1", "-1")
    assert retention(kafka_broker, settings.dead_letter_topic) == ("-1", "-1")
    assert retention_problems(settings, settings.topics) == []
    month = fresh(kafka_broker, retention=30 * 86400)
    assert retention(kafka_broker, month.queue_topic) == ("2592000000", "-1")
    assert retention(kafka_broker, month.dead_letter_topic) == ("2592000000", "-1")
    assert retention_problems(month, month.topics) == []


def test_what_cannot_be_checked_now_is_no_outage(kafka_broker: Broker) -> None:
    """A tracker has found the topics by then, and is not to end for want of advice."""
    away = {"bootstrap_servers": f"127.0.0.1:{free_port()}", "timeout": 1.0}
    settings = fresh(kafka_broker).model_copy(update=away)
    problems = retention_problems(settings, settings.topics)
    assert len(problems) == 3
    assert all(each.startswith("cannot check whether topic ") for each in problems)
    assert all(each.endswith("the next start checks it") for each in problems)


def test_topics_that_delete_what_waits_are_named_with_what_helps(kafka_broker: Broker) -> None:
    """Each topic is named with its insufficient settings and the command."""
    settings = fresh(kafka_broker)
    queue, markers, dead = (f"{name}-own" for name in settings.topics)
    own = settings.model_copy(
        update={"queue_topic": queue, "markers_topic": markers, "dead_letter_topic": dead}
    )
    wanted = [
        NewTopic(queue, 1, 1),
        NewTopic(markers, 1, 1, config={"retention.ms": "3600000"}),
        NewTopic(dead, 1, 1, config={"cleanup.policy": "compact", "retention.bytes": "1000"}),
    ]
    admin = kafka_broker.admin()
    for future in admin.create_topics(wanted).values():
        future.result(timeout=30)
    until(lambda: {*own.topics} <= {*admin.list_topics().topics}, "the broker knows them")
    waiting, progress, letters = retention_problems(own, own.topics)
    assert f"topic {queue} deletes waiting messages (retention.ms=604800000)" in waiting
    assert f"--entity-name {queue} --add-config retention.ms=-1" in waiting
    assert f"topic {markers} deletes markers of messages in progress" in progress
    assert "--add-config retention.ms=86400000" in progress
    assert "cleanup.policy=compact, retention.ms=604800000, retention.bytes=1000" in letters
    week = own.model_copy(update={"retention": 7 * 86400.0})
    assert retention_problems(week, [queue]) == []


def test_brokers_that_forget_where_a_queue_was_are_named(
    kafka_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that the topic keeps for longer than the brokers keep offsets would come again."""
    quarter = 90 * 86_400_000
    monkeypatch.setattr("transporter.queue.topics._LONGEST_ABSENCE_MS", quarter, raising=False)
    kept = fresh(kafka_broker, retention=30 * 86400.0)
    assert retention_problems(kept, kept.topics) == []
    for_ever = fresh(kafka_broker)
    (problem,) = retention_problems(for_ever, for_ever.topics)
    assert "30 days (offsets.retention.minutes=43200)" in problem
    assert f"all messages in topic {for_ever.queue_topic} come again" in problem
    assert "set offsets.retention.minutes=129600" in problem
    assert retention_problems(for_ever, for_ever.topics[1:]) == []


def test_a_tracker_and_a_consumer_warn_at_the_start(
    kafka_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """Each warns about the topics that it reads or writes."""
    settings = fresh(kafka_broker, retention=3600.0).model_copy(update={"retention": None})
    with QueueConsumer(settings, "q") as consumer:
        (problem,) = consumer.problems
    assert settings.queue_topic in problem
    assert problem in caplog.messages
    caplog.clear()
    with Tracker(settings) as tracker:
        until(lambda: tracker.metrics().partitions, "the tracker has its partitions")
    (letters,) = [text for text in caplog.messages if settings.dead_letter_topic in text]
    assert "deletes dead letters (retention.ms=3600000)" in letters


@pytest.mark.parametrize("transactional", [False, True])
def test_what_was_deleted_while_nobody_read_is_counted(
    kafka_broker: Broker, transactional: bool
) -> None:
    """The next consumer begins behind the deleted messages, and counts them."""
    settings = fresh(kafka_broker, partitions=1, transactional=transactional, ahead=1, in_flight=1)
    send(settings, 10)
    with QueueConsumer(settings, "q") as consumer:
        first = consumer.receive(PATIENCE)
        assert first is not None
        consumer.ack(first)
    delete_before(kafka_broker, settings, 7)
    with QueueConsumer(settings, "q") as consumer:
        found = consumer.receive(PATIENCE)
        assert found is not None
        assert found.id == (0, 7)
        # A consumer that closes may have begun one more than the program received.
        assert consumer.metrics().lost in {5, 6}


def test_what_is_deleted_before_it_is_read_is_counted(kafka_broker: Broker) -> None:
    """Messages lost to a slow consumer are counted even while it runs."""
    settings = fresh(kafka_broker, partitions=1, in_flight=1, hold=3600)
    send(settings, 3)
    with QueueConsumer(settings, "q") as consumer:
        first = consumer.receive(PATIENCE)
        assert first is not None
        values = [b"x" * 900_000] * 150  # more than the client fetches ahead
        with QueueProducer(settings) as producer:
            producer.send_many("q", values)
        delete_before(kafka_broker, settings, 150)
        consumer.ack(first)
        seen = 1
        while (found := consumer.receive(PATIENCE)) is not None:
            seen += 1
            consumer.ack(found)
            if found.id == (0, 152):
                break
        assert found is not None
        assert consumer.metrics().lost == 153 - seen > 0


def test_a_new_queue_in_an_old_topic_has_lost_nothing(kafka_broker: Broker) -> None:
    """Records from before the queue existed are not its messages."""
    settings = fresh(kafka_broker, partitions=1)
    send(settings, 5)
    delete_before(kafka_broker, settings, 3)
    with QueueConsumer(settings, "q") as consumer:
        assert [each.id for each in consumer.receive_many(1, PATIENCE)] == [(0, 3)]
        assert consumer.metrics().lost == 0


def test_the_reader_tells_the_engine_of_both(kafka_broker: Broker) -> None:
    """A topic that deletes waiting messages, and messages already lost, are one event each."""
    settings = fresh(kafka_broker, partitions=1, retention=3600.0)
    send(settings, 10)
    config = KafkaQueueReader.Config(
        bootstrap_servers=settings.bootstrap_servers,
        queue_topic=settings.queue_topic,
        markers_topic=settings.markers_topic,
        queue="q",
        batch_rows=1,
    )
    reader, resume = KafkaQueueReader(config), FixedResume()
    reader.open(resume)
    try:
        ((event, details),) = resume.told
        assert event == "queue-deletes"
        assert "retention.ms=3600000" in str(details["problem"])
        until(lambda: len(reader.poll(1.0).messages), "a message")
    finally:
        reader.close()
    delete_before(kafka_broker, settings, 8)
    reader, resume = KafkaQueueReader(config), FixedResume()
    reader.open(resume)
    try:
        until(lambda: len(reader.poll(1.0).messages), "a message")
        events = dict(resume.told)
        assert events["messages-deleted"]["queue"] == "q"
        assert events["messages-deleted"]["offsets"] > 0
        assert len(resume.told) == 2
    finally:
        reader.close()

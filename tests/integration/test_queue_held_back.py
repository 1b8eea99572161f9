"""Foreign transactions that block queues, on a real broker.

The loss of a transaction's end by a broker is tested in ``soak/test_queue_lost_ends.py``.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from kafka_tools import consume
from queue_tools import PATIENCE, fresh, until

from transporter.kafka.groups import non_member_metadata
from transporter.queue import QueueConsumer, QueueProducer, Tracker
from transporter.queue.inspection import stats
from transporter.queue.markers import End, Start, encode_marker
from transporter.queue.progress import blocked_offsets
from transporter.queue.transactions import WRITER, end_transaction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.kafka import Broker

    from transporter.queue import QueueSettings

pytestmark = pytest.mark.kafka
BEGUN = encode_marker(Start("q", 0, (7,), 60_000, (b"late",), (b"",)))


@contextmanager
def stuck(settings: QueueSettings, topic: str, name: str, says: str = "") -> Iterator[Producer]:
    """Yield a producer called *name* in the middle of a transaction with a marker in *topic*.

    The marker's header contains *says* as the writer.
    """
    producer = Producer(
        {
            "bootstrap.servers": settings.bootstrap_servers,
            "transactional.id": name,
            "transaction.timeout.ms": 600_000,
        }
    )
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    headers = [(WRITER, says.encode())] if says else None
    producer.produce(topic, encode_marker(End(0, ())), partition=0, headers=headers)
    producer.flush()
    try:
        yield producer
    finally:
        with suppress(KafkaException):  # It may be fenced.
            producer.close()


@pytest.mark.exhaustive
def test_a_tracker_ends_what_outlasts_every_transaction(kafka_broker: Broker) -> None:
    """The markers behind the transaction become visible, and a living owner is fenced."""
    settings = fresh(kafka_broker, partitions=1, transaction_timeout=1.0)
    plain = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
    name = f"{settings.consumer_group('q')}/dead"
    with stuck(settings, settings.markers_topic, name, says=name) as dead:
        plain.produce(settings.markers_topic, BEGUN, partition=0)
        plain.flush()
        with Tracker(settings) as tracker:
            until(lambda: tracker.metrics().in_progress == 1, "the blocked records are seen")
        with pytest.raises(KafkaException, match="fenced"):
            dead.commit_transaction(PATIENCE)
    plain.close()


@pytest.mark.exhaustive
def test_a_tracker_frees_a_group_that_a_dead_consumer_blocks(kafka_broker: Broker) -> None:
    """A consumer's last transaction may block the progress of its group alone, and no marker."""
    settings = fresh(kafka_broker, partitions=1, transactional=True, transaction_timeout=1.0)
    group = settings.consumer_group("q")
    with QueueProducer(settings) as producer:
        producer.send("q", b"mine")
    start = encode_marker(Start("q", 0, (0,), 400, (b"mine",), (b"",)))
    dead = Producer(
        {
            "bootstrap.servers": settings.bootstrap_servers,
            "transactional.id": f"{group}/dead",
            "transaction.timeout.ms": 600_000,
        }
    )
    dead.init_transactions(PATIENCE)
    for offset, is_committed in [(1, True), (1, False)]:
        dead.begin_transaction()
        if is_committed:
            headers = [(WRITER, f"{group}/dead".encode())]
            dead.produce(settings.markers_topic, start, partition=0, headers=headers)
        places = [TopicPartition(settings.queue_topic, 0, offset)]
        dead.send_offsets_to_transaction(places, non_member_metadata(group), PATIENCE)
        if is_committed:
            dead.commit_transaction(PATIENCE)
    assert blocked_offsets(settings, group, settings.queue_topic) == {0: 1}
    with Tracker(settings), QueueConsumer(settings, "q") as other:
        message = other.receive(PATIENCE)
        assert message is not None
        assert (message.value, message.redeliveries) == (b"mine", 1)
    with pytest.raises(KafkaException, match="fenced"):
        dead.commit_transaction(PATIENCE)


@pytest.mark.exhaustive
def test_one_that_does_not_say_who_it_is_is_told(
    kafka_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """Only an operator can end a foreign transaction, and the log reports its first offset."""
    settings = fresh(kafka_broker, partitions=1, transaction_timeout=1.0)
    with stuck(settings, settings.markers_topic, "a stranger"), Tracker(settings):
        until(lambda: "offset 0 does not end" in caplog.text, "it is told")


@pytest.mark.exhaustive
def test_a_consumer_that_was_taken_for_dead_begins_anew(kafka_broker: Broker) -> None:
    """A consumer survives a wrong takeover of its name, as if it were dead."""
    settings = fresh(kafka_broker, partitions=1, transactional=True, redeliver_after=30.0)
    with QueueProducer(settings) as producer, QueueConsumer(settings, "q") as consumer:
        for value in (b"before", b"after"):
            producer.send("q", value)
            message = consumer.receive(PATIENCE)
            assert message is not None
            assert (message.value, message.redeliveries) == (value, 0)
            consumer.ack(message)
            start = consume(kafka_broker, settings.markers_topic)[0]
            end_transaction(settings, dict(start.headers())[WRITER].decode())


def test_what_is_written_to_make_good_is_no_message(
    kafka_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """A producer with an earlier name writes to blocked partitions, and no consumer gets that."""
    settings = fresh(kafka_broker, partitions=1, instance="one")
    with QueueProducer(settings) as producer:
        producer.send("q", b"real")
    with stuck(settings, settings.queue_topic, "another") as other:
        with Tracker(settings) as tracker:
            until(lambda: tracker.metrics().partitions == 1, "it tracks")
        other.abort_transaction(PATIENCE)
    assert "ended a transaction that blocked 1 partitions" in caplog.text
    assert [each.queue for each in stats(settings)] == ["q"]
    with QueueConsumer(settings, "q") as consumer:
        message = consumer.receive(PATIENCE)
        assert message is not None
        assert message.value == b"real"
        assert consumer.receive(1.0) is None

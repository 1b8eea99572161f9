"""Transactions that fail, or whose outcome is unknown, on a real broker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from kafka_tools import consume
from queue_tools import PATIENCE, Seen, fresh, receive_until, until

from transporter.queue import QueueConsumer, QueueMessage, QueueProducer, Tracker
from transporter.queue.failures import QueueError, QueueFault
from transporter.queue.markers import End, Start, encode_marker
from transporter.queue.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.kafka import Broker

pytestmark = pytest.mark.kafka

LOST = KafkaError._TIMED_OUT
ABORTED = KafkaError._INCONSISTENT


@pytest.fixture(params=["aborted", "aborted, and said so", "done, and not heard"])
def breaking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Make the first transaction fail in one of the possible ways, and count the failures."""
    commit, count = Transactions._commit, 0

    def break_first(self: Transactions, client: Any) -> None:
        nonlocal count
        count += 1
        if count > 1:
            commit(self, client)
        elif request.param == "aborted, and said so":
            raise KafkaException(KafkaError(ABORTED, "broken", False, False, True))  # noqa: FBT003
        elif request.param == "aborted":
            raise KafkaException(KafkaError(LOST, "broken", False, True))  # noqa: FBT003
        else:
            commit(self, client)
            raise KafkaException(KafkaError(LOST, "broken", False, True))  # noqa: FBT003

    monkeypatch.setattr(Transactions, "_commit", break_first)
    return lambda: count


def test_a_redelivery_whose_transaction_fails_is_done_once(
    kafka_broker: Broker, breaking: Callable[[], int]
) -> None:
    """A redelivery is retried until it is done, and not repeated if it was done already."""
    settings = fresh(kafka_broker, redeliver_after=1.0, max_redeliveries=None)
    values = [b"%d" % number for number in range(5)]
    with QueueProducer(settings) as producer:
        producer.send_many("q", values)
    with Tracker(settings) as tracker, QueueConsumer(settings, "q") as consumer:
        first, again = Seen(), Seen()
        receive_until(consumer, lambda: len(first) == 5, first.note)

        def act(message: QueueMessage) -> None:
            assert message.redeliveries == 1
            again.note(message)
            consumer.ack(message)

        receive_until(consumer, lambda: len(again) == 5, act)
        receive_until(consumer, lambda: tracker.metrics().in_progress == 0, act)
        assert consumer.receive(1.5) is None
    assert breaking() > 0
    assert again == dict.fromkeys(values, 1)


def test_a_start_whose_transaction_fails_loses_nothing(
    kafka_broker: Broker, breaking: Callable[[], int]
) -> None:
    """The batch is read again, or redelivered if it was begun after all, and none is skipped."""
    settings = fresh(kafka_broker, redeliver_after=1.0, transactional=True)
    values = [b"%d" % number for number in range(50)]
    with QueueProducer(settings) as producer:
        producer.send_many("q", values)
    with QueueConsumer(settings, "q") as consumer:
        until(lambda: breaking() > 0, "the first one is broken")
        with Tracker(settings) as tracker:
            seen = Seen()

            def act(message: QueueMessage) -> None:
                seen.note(message)
                consumer.ack(message)

            receive_until(consumer, lambda: len(seen) == 50, act)
            receive_until(consumer, lambda: tracker.metrics().in_progress == 0, act)
    assert seen == dict.fromkeys(values, 1)


def test_an_ack_behind_an_open_transaction_counts(kafka_broker: Broker) -> None:
    """The ack is unreadable until the transaction ends, and nothing is redelivered before."""
    settings = fresh(kafka_broker, partitions=1, redeliver_after=1.0)
    servers = {"bootstrap.servers": kafka_broker.bootstrap_servers}
    plain = Producer(servers)
    stuck = Producer({**servers, "transactional.id": settings.markers_topic})
    stuck.init_transactions(30)
    begun = Start("q", 0, (1, 2), 1000, (b"acked", b"dropped"), (b"", b""))
    with Tracker(settings) as tracker:
        until(lambda: tracker.metrics().partitions == 1, "assigned")
        plain.produce(settings.markers_topic, encode_marker(begun), partition=0)
        plain.flush()
        until(lambda: tracker.metrics().in_progress == 2, "seen")
        stuck.begin_transaction()
        stuck.produce(settings.markers_topic, encode_marker(End(0, (9,))), partition=0)
        stuck.flush()
        plain.produce(settings.markers_topic, encode_marker(End(0, (1,))), partition=0)
        plain.flush()
        time.sleep(2.0)
        assert tracker.metrics().redelivered == 0
        stuck.abort_transaction()
        until(lambda: tracker.metrics().redelivered == 1, "the other one")
        assert tracker.metrics().acked == 1
    for producer in (plain, stuck):
        producer.close()
    (again,) = consume(kafka_broker, settings.queue_topic)
    assert again.value() == b"dropped"


def test_two_of_one_name_are_told(kafka_broker: Broker) -> None:
    """Of two processes with one name the older ends, with the reason."""
    settings = fresh(kafka_broker, transactional=True, instance="same", redeliver_after=30.0)
    with QueueProducer(settings) as producer, QueueConsumer(settings, "q") as old:
        producer.send("q", b"1")
        assert old.receive(PATIENCE) is not None
        with QueueConsumer(settings, "q") as new:
            producer.send("q", b"2")
            assert new.receive(PATIENCE) is not None
            with pytest.raises((QueueFault, QueueError), match=r"same|fenced|FENCED"):
                old.receive(PATIENCE)

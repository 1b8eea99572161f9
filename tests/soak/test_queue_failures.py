"""Message queues on a real broker, with parts that die, hang, are missing or are full."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka_tools import consume
from queue_tools import PATIENCE, Seen, dead_letters, fresh, process, receive_until, until

from transporter.queue import QueueConsumer, QueueMessage, QueueProducer, Tracker, settings_of
from transporter.queue.failures import (
    MessageRefused,
    QueueClosed,
    QueueUnavailable,
    TopicsMissing,
    UnknownMarker,
)
from transporter.queue.markers import End, Start, encode_marker

if TYPE_CHECKING:
    from services.kafka import Broker

    from transporter.queue import QueueSettings

pytestmark = pytest.mark.kafka

KILLED_BEFORE_COMMIT = """
import os, signal, sys
from confluent_kafka import Consumer, Producer
from transporter.queue import QueueConsumer, QueueSettings, clients, fetcher, transactions

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

fetcher.Fetcher._commit = die  # the Starts are written
send = transactions.Transactions._send

def send_and_die(self, client, *record):
    send(self, client, *record)
    client.flush()
    die()

transactions.Transactions._send = send_and_die
QueueConsumer(QueueSettings.model_validate_json(sys.argv[1]), "q").receive(60)
"""

RECEIVES_FOR_EVER = """
import sys
from transporter.queue import QueueConsumer, QueueSettings

with QueueConsumer(QueueSettings.model_validate_json(sys.argv[1]), "q") as consumer:
    while True:
        for message in consumer.receive_many(1, 60):
            print(message.value.decode(), flush=True)
"""


def message_from_record(settings: QueueSettings, wanted: set[bytes], tracker: Tracker) -> Seen:
    """Ack all messages until *wanted* have come and nothing is in progress, and count them."""
    seen = Seen()
    with QueueConsumer(settings, "q") as consumer:

        def act(message: QueueMessage) -> None:
            seen.note(message)
            consumer.ack(message)

        receive_until(consumer, lambda: set(seen) == wanted, act)
        receive_until(consumer, lambda: tracker.metrics().in_progress == 0, act)
        quiet = time.monotonic() + 2 * settings.redeliver_after
        receive_until(consumer, lambda: time.monotonic() > quiet, act)
    return seen


@pytest.mark.parametrize(("transactional", "most"), [(False, 2), (True, 1)])
def test_a_kill_between_start_and_commit_loses_nothing(
    kafka_broker: Broker, transactional: bool, most: int
) -> None:
    """Each message comes twice at most, and once only if both are one transaction."""
    settings = fresh(kafka_broker, redeliver_after=1.0, transactional=transactional, instance="one")
    with QueueProducer(settings) as producer:
        producer.send_many("q", [b"%d" % number for number in range(10)])
    wanted = {b"%d" % number for number in range(10)}
    with Tracker(settings.model_copy(update={"instance": ""})) as tracker:
        with process(KILLED_BEFORE_COMMIT, settings) as child:
            assert child.wait(PATIENCE) == -signal.SIGKILL
        seen = message_from_record(settings, wanted, tracker)
        begun = tracker.metrics().received
    assert set(seen) == wanted
    assert max(seen.values()) <= most
    assert (begun > 10) is not transactional  # some messages had to be repeated


def test_the_messages_of_a_consumer_that_is_stopped_go_to_another(kafka_broker: Broker) -> None:
    """A process that hangs, and is not dead, keeps neither its messages nor its partitions."""
    settings = fresh(kafka_broker, hold=60.0, session_timeout=6.0, max_redeliveries=None)
    with QueueProducer(settings) as producer:
        producer.send_many("q", [b"%d" % number for number in range(20)])
        with Tracker(settings) as tracker, process(RECEIVES_FOR_EVER, settings) as child:
            assert child.stdout is not None
            hung = child.stdout.readline().strip().encode()
            child.send_signal(signal.SIGSTOP)
            producer.send_many("q", [b"%d" % number for number in range(20, 40)])
            wanted = {b"%d" % number for number in range(40)}
            seen = message_from_record(settings, wanted, tracker)
    assert hung in seen
    assert set(seen) == wanted


def test_a_broker_that_goes_away_and_comes_back_costs_nothing(kafka_broker: Broker) -> None:
    """Consumer and tracker wait for it, and every message is processed in the end."""
    settings = fresh(kafka_broker, redeliver_after=2.0, max_redeliveries=None)
    wanted, acked = {b"%d" % number for number in range(60)}, Seen()
    with QueueProducer(settings) as producer:
        producer.send_many("q", sorted(wanted))
    with Tracker(settings) as tracker, QueueConsumer(settings, "q") as consumer:
        held = consumer.receive_many(30, PATIENCE)
        kafka_broker.kill()
        for message in held:
            consumer.ack(message)
            acked.note(message)
        assert consumer.receive_many(100, 1.0) is not None
        kafka_broker.start()

        def act(message: QueueMessage) -> None:
            acked.note(message)
            consumer.ack(message)

        receive_until(consumer, lambda: set(acked) == wanted, act)
        consumer.flush()
        receive_until(consumer, lambda: tracker.metrics().in_progress == 0, act)


def test_old_starts_are_written_anew_before_retention_takes_them(kafka_broker: Broker) -> None:
    """A message that is held for long survives the deletion of its first Start."""
    settings = fresh(kafka_broker, partitions=1, redeliver_after=3.0, restate_after=0.5)
    with QueueProducer(settings) as producer:
        producer.send("q", b"v", key=b"k", headers=[("a", b"1")])
    with QueueConsumer(settings, "q") as consumer:
        with Tracker(settings) as first:
            message = consumer.receive(PATIENCE)
            assert message is not None
            until(lambda: first.metrics().restated > 0, "restated")
            until(lambda: committed(settings) > 0, "the first Start is let go of")
        cut(kafka_broker, settings.markers_topic, committed(settings))
        with Tracker(settings) as second:
            again = consumer.receive(PATIENCE)
            assert again is not None
            assert (again.value, again.key, again.headers) == (b"v", b"k", (("a", b"1"),))
            assert second.metrics().lost == 0
            consumer.ack(again)


def test_an_ack_before_a_restated_start_outlives_takeovers(kafka_broker: Broker) -> None:
    """The ack counts for a tracker that begins behind it, at the other message's Start."""
    settings = fresh(kafka_broker, partitions=1)
    write(settings, encode_marker(start(1)), encode_marker(start(2)))
    with Tracker(settings) as first:
        until(lambda: first.metrics().in_progress == 2, "begun")
        again = [replace(start(each), after_ms=100, restated=True) for each in (1, 2)]
        write(settings, *map(encode_marker, [End(0, (2,)), *again]))
        until(lambda: committed(settings) == 3, "the first Starts are let go of")
    with Tracker(settings) as second:
        until(lambda: second.metrics().redelivered, "the other one is redelivered")
    assert [each.offset() for each in consume(kafka_broker, settings.queue_topic)] == [0]


def committed(settings: QueueSettings) -> int:
    """Return the trackers' committed offset of partition 0."""
    client = Consumer(
        {"bootstrap.servers": settings.bootstrap_servers, "group.id": settings.tracker_group}
    )
    (place,) = client.committed([TopicPartition(settings.markers_topic, 0)], timeout=30)
    client.close()
    return int(place.offset)


def cut(broker: Broker, topic: str, offset: int) -> None:
    """Delete all records before *offset* of partition 0, as retention does."""
    admin = broker.admin()
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(timeout=30)


def test_markers_that_retention_took_unread_are_told(
    kafka_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """A tracker that was away for too long reports and counts the lost markers."""
    settings = fresh(kafka_broker, partitions=1, redeliver_after=60.0)
    with Tracker(settings) as first:
        write(settings, encode_marker(start(1)))
        until(lambda: first.metrics().in_progress == 1, "begun")
    write(settings, *[encode_marker(End(0, (9,)))] * 5)
    cut(kafka_broker, settings.markers_topic, 4)
    with Tracker(settings) as second:
        until(lambda: second.metrics().lost == 4, "told")
    assert "offsets 0 to 3 were deleted" in caplog.text


def start(offset: int) -> Start:
    """Return a Start of one message."""
    return Start("q", 0, (offset,), 60_000, (b"v",), (b"",))


def write(settings: QueueSettings, *values: bytes) -> None:
    """Write *values* to partition 0 of the markers topic."""
    raw = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for value in values:
        raw.produce(settings.markers_topic, value, partition=0)
    raw.flush()
    raw.close()


def test_what_is_no_marker_is_told_and_passed(
    kafka_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """A bad record is reported and skipped, and stops no tracker."""
    settings = fresh(kafka_broker, partitions=1)
    damaged = bytearray(encode_marker(start(1)))
    damaged[-1] ^= 1
    write(settings, b"hello", b"", bytes(damaged), encode_marker(start(2)))
    with Tracker(settings) as tracker:
        until(lambda: tracker.metrics().in_progress == 1, "the good one is seen")
        assert tracker.metrics().refused == 3
    assert "partition 0, offset 0: 5 bytes that are not a marker; skipped" in caplog.text


def test_a_marker_of_a_newer_version_stops_a_tracker(kafka_broker: Broker) -> None:
    """The error has the marker's place and the remedy, because a skip could lose a message."""
    settings = fresh(kafka_broker, partitions=1)
    newer = bytearray(encode_marker(start(1)))
    newer[3] = 2
    write(settings, bytes(newer))
    tracker = Tracker(settings)
    with pytest.raises(UnknownMarker, match=r"partition 0, offset 0: a marker of version 2.*upgr"):
        tracker.run()


def test_a_tracker_that_dies_tells_its_owner(kafka_broker: Broker) -> None:
    """The error of a context manager's thread is raised at its exit."""
    settings = fresh(kafka_broker, partitions=1)
    write(settings, b"TQM\2" + bytes(40))
    tracker = Tracker(settings)
    tracker.__enter__()
    assert tracker._thread is not None
    tracker._thread.join(PATIENCE)
    with pytest.raises(UnknownMarker):
        tracker.__exit__(None, None, None)


def test_a_message_too_large_for_its_topic_holds_up_no_other(kafka_broker: Broker) -> None:
    """A refused redelivery is kept and retried, and those beside it continue."""
    settings = fresh(kafka_broker, partitions=1, redeliver_after=60.0, max_redeliveries=None)
    large = Start("q", 0, (1000, 1001), 100, (b"x" * 1_080_000, b"small"), (b"", b""))
    raw = Producer(
        {"bootstrap.servers": settings.bootstrap_servers, "message.max.bytes": 2_000_000}
    )
    raw.produce(settings.markers_topic, encode_marker(large), partition=0)
    raw.flush()
    raw.close()
    with Tracker(settings) as tracker, QueueConsumer(settings, "q") as consumer:
        message = consumer.receive(PATIENCE)
        assert message is not None
        assert message.value == b"small"
        consumer.ack(message)
        until(lambda: tracker.metrics().in_progress == 1, "the large one is kept")


def test_a_message_as_large_as_allowed_goes_all_the_way(kafka_broker: Broker) -> None:
    """Marker, redelivery and dead letter of the largest message fit their topics."""
    settings = fresh(kafka_broker, max_redeliveries=1, redeliver_after=60.0)
    value = b"x" * settings.max_message_bytes
    with QueueProducer(settings) as producer:
        with pytest.raises(MessageRefused, match="1000001 bytes for queue q: the limit is 1000000"):
            producer.send("q", value + b"x")
        producer.send("q", value)
    with Tracker(settings) as tracker, QueueConsumer(settings, "q") as consumer:
        for _ in range(2):
            message = consumer.receive(PATIENCE)
            assert message is not None
            consumer.nack(message)
        until(lambda: tracker.metrics().dead_lettered == 1, "dead")
    (letter,) = dead_letters(kafka_broker, settings)
    assert letter.value() == value


def test_headers_of_ours_are_not_taken(kafka_broker: Broker) -> None:
    """A sender cannot forge the queue's own headers of a message."""
    with QueueProducer(fresh(kafka_broker)) as producer:
        with pytest.raises(MessageRefused, match="begin with transporter- are reserved"):
            producer.send("q", b"v", headers=[("transporter-redeliveries", b"9")])
        producer.send("q", b"v", headers=[("mine", b"9")])


def test_a_topic_that_is_missing_is_named(kafka_broker: Broker) -> None:
    """The error names the topic, the brokers and the command that creates it."""
    kafka_broker.start()
    settings = settings_of(
        bootstrap_servers=kafka_broker.bootstrap_servers,
        queue_topic="nix",
        markers_topic="nil",
        dead_letter_topic="nought",
    )
    with pytest.raises(TopicsMissing, match=r"has no topic nix.*transporter queue init"):
        QueueProducer(settings)
    with pytest.raises(TopicsMissing, match="has no topic nix, nil for us"):
        QueueConsumer(settings, "q")
    with pytest.raises(TopicsMissing, match="has no topic nix, nil, nought for us"):
        Tracker(settings).run()


@pytest.mark.parametrize(
    "make",
    [QueueProducer, lambda settings: QueueConsumer(settings, "q"), lambda s: Tracker(s).run()],
    ids=["producer", "consumer", "tracker"],
)
def test_brokers_that_do_not_answer_are_told_in_time(make: Any) -> None:
    """The error comes within the time-out, even for brokers that never existed."""
    settings = settings_of(bootstrap_servers="127.0.0.1:1", timeout=1.0)
    with pytest.raises(QueueUnavailable, match=r"127\.0\.0\.1:1.*check whether the brokers are up"):
        make(settings)


def test_what_is_closed_says_so(kafka_broker: Broker) -> None:
    """Closing twice is allowed, and later use is an error."""
    settings = fresh(kafka_broker)
    producer, consumer = QueueProducer(settings), QueueConsumer(settings, "q")
    for each in (producer, consumer, producer, consumer):
        each.close()
    with pytest.raises(QueueClosed):
        producer.send("q", b"v")
    with pytest.raises(QueueClosed):
        consumer.receive(60)

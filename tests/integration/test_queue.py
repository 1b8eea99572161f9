"""Message queues on a real broker: acked messages are done, and all others come again."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from kafka_tools import DAMAGES
from queue_tools import PATIENCE, Seen, dead_letters, fresh, receive_until, until

from transporter.queue import QueueConsumer, QueueMessage, QueueProducer, Tracker
from transporter.queue.failures import QueueFault
from transporter.queue.inspection import peek
from transporter.queue.markers import Start, encode_marker
from transporter.queue.message import ORIGIN_OFFSET, ORIGIN_TOPIC, REASON, REDELIVERIES, TIME

if TYPE_CHECKING:
    from services.kafka import Broker

    from transporter.queue import QueueSettings

pytestmark = pytest.mark.kafka


def send(settings: QueueSettings, queue: str, count: int) -> set[bytes]:
    """Send *count* numbered messages and return their values."""
    values = [b"%s-%d" % (queue.encode(), number) for number in range(count)]
    with QueueProducer(settings) as producer:
        assert producer.send_many(queue, values) == count
    return set(values)


@pytest.mark.parametrize("transactional", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_what_is_never_acked_comes_four_times_and_is_dead_then(
    kafka_broker: Broker, transactional: bool
) -> None:
    """Every third of 7 messages is never acked and redelivered 3 times, the others come once."""
    settings = fresh(kafka_broker, max_redeliveries=3, transactional=transactional)
    send(settings, "q", 7)
    dropped, seen = {b"q-2", b"q-5"}, Seen()
    with Tracker(settings) as tracker, QueueConsumer(settings, "q") as consumer:

        def act(message: QueueMessage) -> None:
            seen.note(message)
            assert message.redeliveries == seen[message.value or b""] - 1
            if message.value not in dropped:
                consumer.ack(message)

        receive_until(consumer, lambda: tracker.metrics().dead_lettered == 2, act)
        receive_until(consumer, lambda: tracker.metrics().in_progress == 0, act)
        counted = tracker.metrics()
    assert seen == {b"q-%d" % number: 4 if number in {2, 5} else 1 for number in range(7)}
    assert (counted.received, counted.acked, counted.redelivered) == (13, 5, 6)
    letters = dead_letters(kafka_broker, settings)
    assert {letter.value() for letter in letters} == dropped
    assert {letter.key() for letter in letters} == {b"q"}


def test_a_dead_letter_tells_where_it_comes_from_and_why(kafka_broker: Broker) -> None:
    """A dead letter keeps key and headers, with origin, count, reason and time added."""
    settings = fresh(kafka_broker, max_redeliveries=1, redeliver_after=30.0)
    with QueueProducer(settings) as producer:
        where = producer.send("q", b"v", key=b"k", headers=[("a", b"1"), ("a", None)])
    with Tracker(settings) as tracker, QueueConsumer(settings, "q") as consumer:
        for delivery in range(2):
            message = consumer.receive(PATIENCE)
            assert message is not None
            assert (message.key, message.headers) == (b"k", (("a", b"1"), ("a", None)))
            assert message.origin == (where if delivery else None)
            consumer.nack(message, reason=f"broken {delivery}")
        until(lambda: tracker.metrics().dead_lettered == 1, "dead")
    (letter,) = dead_letters(kafka_broker, settings)
    headers = dict(letter.headers())
    assert headers[ORIGIN_TOPIC] == settings.queue_topic.encode()
    assert headers[ORIGIN_OFFSET] == b"%d" % where[1]
    assert (headers[REDELIVERIES], headers[REASON]) == (b"1", b"broken 1")
    assert headers[TIME].endswith(b"+00:00")
    assert [header for header in letter.headers() if header[0] == "a"] == [("a", b"1"), ("a", None)]


def test_what_is_dropped_at_random_is_processed_in_the_end(kafka_broker: Broker) -> None:
    """Of 300 messages a third is dropped at each delivery, and after some rounds all are acked."""
    settings = fresh(kafka_broker, max_redeliveries=None)
    wanted, acked, chance = send(settings, "q", 300), Seen(), random.Random(7)
    with Tracker(settings) as tracker, QueueConsumer(settings, "q") as consumer:

        def act(message: QueueMessage) -> None:
            if chance.random() < 0.67:
                consumer.ack(message)
                acked.note(message)

        receive_until(consumer, lambda: set(acked) == wanted, act)
        consumer.flush()
        until(lambda: tracker.metrics().in_progress == 0, "all settled")
        assert tracker.metrics().redelivered > 50
    assert set(acked.values()) == {1}


@DAMAGES
def test_messages_before_a_damaged_batch_come_before_the_fault(
    kafka_broker: Broker, damage: bytes
) -> None:
    """The consumer names the place, and its group goes on behind it when it is moved."""
    client = {"compression.type": "gzip"}
    settings = fresh(kafka_broker, partitions=1, client=client)
    small = send(settings, "q", 3)
    with QueueProducer(settings) as producer:
        producer.send("q", b"lost" * 100)
    send(settings, "q", 2)
    kafka_broker.damage(settings.queue_topic, damage)

    for _ in range(2):  # Also when it starts again.
        with QueueConsumer(settings, "q") as consumer:

            def act(message: QueueMessage, consumer: QueueConsumer = consumer) -> None:
                consumer.ack(message)
                small.discard(message.value or b"")

            place = f"topic {settings.queue_topic}, partition 0, offset 3: "
            with pytest.raises(QueueFault, match=place) as failure:
                receive_until(consumer, lambda: False, act, 20)
            group = settings.consumer_group("q")
            assert f"move the group {group} past it" in str(failure.value)
    assert small == set()
    with pytest.raises(QueueFault, match="offset 3"):
        list(peek(settings, "q", 10))
    behind = [TopicPartition(settings.queue_topic, 0, 4)]
    moved = ConsumerGroupTopicPartitions(settings.consumer_group("q"), behind)
    admin = kafka_broker.admin()  # its requests end with it
    (future,) = admin.alter_consumer_group_offsets([moved]).values()
    future.result()
    with QueueConsumer(settings, "q") as consumer:
        for wanted in (b"q-0", b"q-1"):
            message = consumer.receive(PATIENCE)
            assert message is not None
            assert message.value == wanted
            consumer.ack(message)


@DAMAGES
def test_a_tracker_ends_at_a_damaged_batch_of_markers(kafka_broker: Broker, damage: bytes) -> None:
    """Nothing of that partition would be redelivered any more, so it does not go on in silence."""
    client = {"compression.type": "gzip"}
    settings = fresh(kafka_broker, partitions=1, client=client)
    with QueueProducer(settings) as producer, QueueConsumer(settings, "q") as consumer:
        producer.send("q", b"lost" * 100)
        assert consumer.receive(PATIENCE) is not None
    kafka_broker.damage(settings.markers_topic, damage)

    tracker = Tracker(settings)
    place = f"topic {settings.markers_topic}, partition 0, offset 0: "
    stop = threading.Timer(20, tracker.stop)
    stop.start()
    with pytest.raises(QueueFault, match=place):
        tracker.run()
    stop.cancel()


def test_queues_never_cross(kafka_broker: Broker) -> None:
    """Each consumer gets the messages of its queue only, redeliveries included."""
    settings = fresh(kafka_broker, max_redeliveries=None)
    names = ["a", "b", "c"]
    wanted = {name: send(settings, name, 50) for name in names}
    acked: dict[str, set[bytes]] = {name: set() for name in names}
    consumers = {name: QueueConsumer(settings, name) for name in names}
    with Tracker(settings):
        for name, consumer in consumers.items():

            def act(
                message: QueueMessage, name: str = name, consumer: QueueConsumer = consumer
            ) -> None:
                assert message.queue == name
                assert message.value in wanted[name]
                if message.redeliveries:
                    consumer.ack(message)
                    acked[name].add(message.value or b"")

            receive_until(consumer, lambda name=name: acked[name] == wanted[name], act)
        for consumer in consumers.values():
            consumer.close()


@pytest.mark.exhaustive
def test_a_message_is_kept_alive_for_many_timeouts(kafka_broker: Broker) -> None:
    """While its consumer holds it no other consumer gets it, however long that takes."""
    settings = fresh(kafka_broker, redeliver_after=0.5, hold=60.0)
    send(settings, "q", 1)
    with Tracker(settings) as tracker, QueueConsumer(settings, "q") as consumer:
        message = consumer.receive(PATIENCE)
        assert message is not None
        assert consumer.receive(4.0) is None
        assert (tracker.metrics().in_progress, tracker.metrics().redelivered) == (1, 0)
        consumer.ack(message)
        until(lambda: tracker.metrics().acked == 1, "acked")


@pytest.mark.exhaustive
def test_a_message_can_be_extended_by_hand(kafka_broker: Broker) -> None:
    """Without keep-alives each extend restarts a message's time."""
    settings = fresh(kafka_broker, redeliver_after=1.0)
    send(settings, "q", 1)
    with Tracker(settings) as tracker, QueueConsumer(settings, "q") as consumer:
        message = consumer.receive(PATIENCE)
        assert message is not None
        for _ in range(10):
            assert consumer.receive(0.25) is None
            consumer.extend(message)
        assert tracker.metrics().redelivered == 0
        again = consumer.receive(PATIENCE)
        assert again is not None
        assert (again.value, again.redeliveries) == (message.value, 1)
        consumer.ack(again)


def test_the_largest_message_dies_with_a_long_reason(kafka_broker: Broker) -> None:
    """A reason of any length leaves room for the message in its dead letter."""
    settings = fresh(kafka_broker, max_redeliveries=0, redeliver_after=30.0)
    value = b"x" * settings.max_message_bytes
    with QueueProducer(settings) as producer:
        producer.send("q", value)
    with Tracker(settings) as tracker, QueueConsumer(settings, "q") as consumer:
        message = consumer.receive(PATIENCE)
        assert message is not None
        consumer.nack(message, reason="x" + "é" * 30_000)
        until(lambda: tracker.metrics().dead_lettered == 1, "dead", 20.0)
    (letter,) = dead_letters(kafka_broker, settings)
    assert letter.value() == value
    assert dict(letter.headers())[REASON] == ("x" + "é" * 2047).encode()


def test_a_nack_redelivers_at_once_or_after_its_delay(kafka_broker: Broker) -> None:
    """A nack neither discards the message nor waits for its time to be over."""
    settings = fresh(kafka_broker, redeliver_after=60.0)
    send(settings, "q", 1)
    with Tracker(settings), QueueConsumer(settings, "q") as consumer:
        for delay in (0.0, 1.0):
            message = consumer.receive(PATIENCE)
            assert message is not None
            began = time.monotonic()
            consumer.nack(message, delay)
            until(lambda: consumer.metrics().in_progress == 1, "back", 20)
            assert time.monotonic() - began >= delay
        message = consumer.receive(PATIENCE)
        assert message is not None
        assert message.redeliveries == 2
        consumer.ack(message)


def test_a_consumer_begins_no_more_than_it_may(kafka_broker: Broker) -> None:
    """Back-pressure: of 20 messages 3 are in progress until one is acked."""
    settings = fresh(kafka_broker, in_flight=3, redeliver_after=30.0)
    wanted = send(settings, "q", 20)
    seen, most = Seen(), 0
    with Tracker(settings) as tracker, QueueConsumer(settings, "q") as consumer:
        while set(seen) != wanted:
            taken = consumer.receive_many(100, PATIENCE)
            most = max(most, len(taken), consumer.metrics().in_progress)
            for message in taken:
                seen.note(message)
            consumer.ack(taken)
        consumer.flush()
        until(lambda: tracker.metrics().acked == 20, "acked")
    assert most == 3


def test_a_closed_consumer_gives_back_what_it_had(kafka_broker: Broker) -> None:
    """Unsettled messages are redelivered at once, and those never delivered are not counted."""
    settings = fresh(kafka_broker, redeliver_after=60.0)
    wanted, seen = send(settings, "q", 10), {}
    with Tracker(settings):
        with QueueConsumer(settings, "q") as first:
            until(lambda: first.metrics().in_progress == 10, "all begun")
            (mine,) = first.receive_many(1, PATIENCE)
        with QueueConsumer(settings, "q") as second:

            def act(message: QueueMessage) -> None:
                seen[message.value] = message.redeliveries
                second.ack(message)

            receive_until(second, lambda: set(seen) == wanted, act, 20)
    assert seen == {value: int(value == mine.value) for value in wanted}


@pytest.mark.exhaustive
def test_a_new_tracker_comes_to_the_same_state(kafka_broker: Broker) -> None:
    """A new tracker has the old one's state, without ended messages, and redelivers just that."""
    settings = fresh(kafka_broker, redeliver_after=3.0)
    wanted = send(settings, "q", 60)
    kept = {value for value in wanted if value.endswith((b"3", b"7"))}
    consumer = QueueConsumer(settings, "q")
    with Tracker(settings) as first:
        seen = Seen()

        def act(message: QueueMessage) -> None:
            seen.note(message)
            if message.value not in kept:
                consumer.ack(message)

        receive_until(consumer, lambda: set(seen) == wanted, act)
        consumer.flush()
        until(lambda: first.metrics().acked == len(wanted - kept), "acks seen")
        before = contents(first)
    assert {value for _, value, _ in before} == kept
    with Tracker(settings) as second:
        until(lambda: second.metrics().in_progress == len(kept), "the state is there")
        assert contents(second) == before
        again = Seen()

        def settle(message: QueueMessage) -> None:
            again.note(message)
            consumer.ack(message)

        receive_until(consumer, lambda: set(again) == kept, settle)
        consumer.flush()
        until(lambda: second.metrics().in_progress == 0, "all settled")
        assert again == dict.fromkeys(kept, 1)
    consumer.close()


def contents(tracker: Tracker) -> list[tuple[Any, bytes | None, int]]:
    """Return the messages that *tracker* has in progress: id, value and place of the Start."""
    return sorted(
        (each.id, each.message.value, each.message.start)
        for assigned in tracker._assigned.values()
        for each in assigned.progress
    )


def test_trackers_that_share_redeliver_each_message_once(kafka_broker: Broker) -> None:
    """A second tracker takes over partitions, and no message is lost or redelivered twice."""
    settings = fresh(kafka_broker, partitions=4, redeliver_after=4.0, session_timeout=6.0)
    wanted = send(settings, "q", 100)
    consumer = QueueConsumer(settings, "q")
    dropped, again = Seen(), Seen()
    with Tracker(settings) as first:
        receive_until(consumer, lambda: set(dropped) == wanted, dropped.note)
        with Tracker(settings) as second:
            until(
                lambda: (first.metrics().partitions, second.metrics().partitions) == (2, 2),
                "shared",
            )

            def settle(message: QueueMessage) -> None:
                again.note(message)
                consumer.ack(message)

            receive_until(consumer, lambda: set(again) == wanted, settle)
            receive_until(consumer, lambda: consumer.metrics().in_progress == 0, settle)
            counts = [each.metrics().redelivered for each in (first, second)]
    consumer.close()
    assert again == dict.fromkeys(wanted, 1)
    assert min(counts) > 0


@pytest.mark.parametrize("hours", [-1, 1])
def test_clocks_an_hour_apart_change_nothing(kafka_broker: Broker, hours: int) -> None:
    """Timestamps that are an hour off do not change the time of a redelivery."""
    settings = fresh(kafka_broker, redeliver_after=1.0)
    now = int(time.time() * 1000) + hours * 3_600_000
    raw = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
    begun = Start("q", 0, (1000,), 1000, (b"begun elsewhere",), (b"",))
    with Tracker(settings) as tracker, QueueConsumer(settings, "q") as consumer:
        until(lambda: tracker.metrics().partitions == 2, "assigned")
        raw.produce(settings.queue_topic, b"sent", "q", timestamp=now)
        raw.produce(settings.markers_topic, encode_marker(begun), partition=0, timestamp=now)
        raw.flush()
        began, late = time.monotonic(), {}

        def act(message: QueueMessage) -> None:
            if message.redeliveries:
                late[message.value] = time.monotonic() - began
                consumer.ack(message)

        receive_until(consumer, lambda: len(late) == 2, act, 20)
    raw.close()
    assert min(late.values()) >= 0.9


@pytest.mark.exhaustive
def test_a_consumer_that_was_full_goes_on_after_others_came_and_went(kafka_broker: Broker) -> None:
    """Partitions that were paused and revoked are read again when they come back."""
    settings = fresh(kafka_broker, in_flight=1, redeliver_after=30.0)
    wanted, seen = send(settings, "q", 12), Seen()
    with Tracker(settings), QueueConsumer(settings, "q") as first:
        held = first.receive(PATIENCE)
        assert held is not None
        seen.note(held)
        with QueueConsumer(settings, "q") as second:
            (other,) = second.receive_many(1, PATIENCE)
            seen.note(other)
            second.ack(other)
        first.ack(held)

        def act(message: QueueMessage) -> None:
            seen.note(message)
            first.ack(message)

        receive_until(first, lambda: set(seen) == wanted, act, 30)


@pytest.mark.exhaustive
def test_what_a_program_does_not_ask_for_goes_to_others(kafka_broker: Broker) -> None:
    """A consumer whose program hangs keeps one message for its hold and blocks no other."""
    settings = fresh(kafka_broker, in_flight=5, leave_after=1.0, hold=2.0, max_redeliveries=1)
    wanted, seen = send(settings, "q", 20), Seen()
    with Tracker(settings) as tracker, QueueConsumer(settings, "q") as hung:
        (mine,) = hung.receive_many(1, PATIENCE)
        with QueueConsumer(settings, "q") as other:

            def act(message: QueueMessage) -> None:
                seen.note(message)
                other.ack(message)

            receive_until(other, lambda: set(seen) == wanted, act, 30)
        assert seen[mine.value or b""] == 1
        assert tracker.metrics().dead_lettered == 0
        # It works again once its program resumes.
        send(settings, "q", 1)
        assert hung.receive(PATIENCE) is not None


def test_several_threads_share_a_consumer(kafka_broker: Broker) -> None:
    """Each message goes to one of them."""
    settings = fresh(kafka_broker, redeliver_after=30.0)
    wanted, seen, lock = send(settings, "q", 400), Seen(), threading.Lock()
    with Tracker(settings), QueueConsumer(settings, "q") as consumer:

        def work() -> None:
            while sum(seen.values()) < 400:
                message = consumer.receive(0.2)
                if message is not None:
                    with lock:
                        seen.note(message)
                    consumer.ack(message)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert seen == dict.fromkeys(wanted, 1)


@pytest.mark.exhaustive
def test_a_message_that_retention_took_is_redelivered_itself(kafka_broker: Broker) -> None:
    """The Start contains it, so no other message comes in its place."""
    settings = fresh(kafka_broker, partitions=1, redeliver_after=1.5)
    send(settings, "q", 3)
    with Tracker(settings), QueueConsumer(settings, "q") as consumer:
        messages: list[QueueMessage] = []
        receive_until(consumer, lambda: len(messages) == 3, messages.append)
        first, *others = sorted(messages, key=lambda message: message.id)
        consumer.ack(others)
        place = TopicPartition(settings.queue_topic, 0, first.id[1] + 1)
        admin = kafka_broker.admin()
        for future in admin.delete_records([place]).values():
            future.result(timeout=30)
        again = consumer.receive(PATIENCE)
        assert again is not None
        assert (again.value, again.origin) == (first.value, first.id)
        consumer.ack(again)

"""The Kafka writer against a real broker."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from transporter_adaptors.kafka.writer import KafkaWriter

from transporter.adaptor import WriterContext
from transporter.errors import Rejected, RouteFault, SinkTimeout, SinkUnavailable
from transporter.message import Entries, Message
from transporter.testing import RecordingAck, entries, hostile_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from confluent_kafka import Message as Record
    from services.kafka import Broker

pytestmark = pytest.mark.kafka

CONTEXT = WriterContext(log_id="log-1", route="route", epoch=1, deadline=10.0)


@pytest.fixture
def make_writer(kafka_broker: Broker, kafka_topic: str) -> Iterator[Callable[..., KafkaWriter]]:
    """Return a function that opens a writer to the test's topic, and close all at the end."""
    opened: list[KafkaWriter] = []

    def make(deadline: float = 10.0, **settings: Any) -> KafkaWriter:
        settings = {"topic": kafka_topic, **settings}
        config = KafkaWriter.Config(bootstrap_servers=kafka_broker.bootstrap_servers, **settings)
        writer = KafkaWriter(config)
        opened.append(writer)
        writer.open(replace(CONTEXT, deadline=deadline))
        return writer

    yield make
    for writer in opened:
        writer.close()


def write(writer: KafkaWriter, batch: Entries) -> RecordingAck:
    """Write *batch* and return the ack with the writer's report."""
    ack = RecordingAck(batch)
    writer.write(batch, ack)
    return ack


def read(broker: Broker, *topics: str) -> list[Record]:
    """Return every message of *topics*, partition by partition, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": uuid.uuid4().hex,
            "enable.partition.eof": False,
            "fetch.queue.backoff.ms": 10,
            "log_level": 0,
        }
    )
    found: list[Record] = []
    try:
        for topic in topics:
            for partition in consumer.list_topics(topic, timeout=10).topics[topic].partitions:
                place = TopicPartition(topic, partition, 0)
                _, end = consumer.get_watermark_offsets(place, timeout=10)
                consumer.assign([place])
                while end and consumer.position([place])[0].offset < end:
                    found += consumer.consume(10_000, timeout=0.2)
    finally:
        consumer.close()
    assert all(record.error() is None for record in found)
    return found


def numbered(count: int, first: int = 0, keys: int = 7) -> list[Message]:
    """Return messages with their number as data."""
    numbers = range(first, first + count)
    return [Message("orders", b"%d" % number, b"key-%d" % (number % keys)) for number in numbers]


@pytest.mark.parametrize("transactional", [False, True])
def test_ids_arrive_as_headers_where_they_are_wanted(
    make_writer: Callable[..., KafkaWriter],
    kafka_broker: Broker,
    kafka_topic: str,
    *,
    transactional: bool,
) -> None:
    """The last header of each name identifies a redelivery and its origin."""
    messages = [
        Message("n", b"1", b"k", source_id="shop/7", headers=(("transporter-entry-id", b"of"),)),
        Message("n", None, b"k", "delete"),
    ]
    writer = make_writer(id_headers=True, transactional=transactional)
    batch = replace(entries(messages, 5), log_id="log-9")
    assert write(writer, batch).complete
    assert write(writer, batch).complete

    found = [record.headers() for record in read(kafka_broker, kafka_topic)]

    assert found[:2] == [
        [
            ("transporter-entry-id", b"of"),
            ("transporter-entry-id", b"log-9/5"),
            ("transporter-source-id", b"shop/7"),
        ],
        [("transporter-entry-id", b"log-9/6")],
    ]
    assert found[2:] == found[:2]


def test_every_part_arrives_exactly(
    make_writer: Callable[..., KafkaWriter], kafka_broker: Broker, kafka_topic: str
) -> None:
    """Keys, values, tombstones, headers and times in ms arrive as they are in the entry."""
    messages = hostile_messages()

    assert write(make_writer(), entries(messages)).complete

    for record, message in zip(read(kafka_broker, kafka_topic), messages, strict=True):
        assert record.key() == message.key
        assert record.value() == message.data
        assert tuple(record.headers() or ()) == message.headers
        assert record.timestamp()[1] == message.timestamp // 1000


@pytest.mark.parametrize("timestamp", [0, -5_000_000])
def test_no_time_becomes_the_time_of_sending(
    make_writer: Callable[..., KafkaWriter],
    kafka_broker: Broker,
    kafka_topic: str,
    timestamp: int,
) -> None:
    """An entry without a time, or with one before 1970, gets the present time."""
    before = time.time() - 60

    write(make_writer(), entries([Message("n", b"{}", timestamp=timestamp)]))

    assert read(kafka_broker, kafka_topic)[0].timestamp()[1] / 1000 > before


def test_each_key_keeps_its_order_over_many_slices(
    make_writer: Callable[..., KafkaWriter], kafka_broker: Broker
) -> None:
    """Over slices of any size, each key's messages lie in one partition, in order, once."""
    topic = kafka_broker.create_topic(f"keys-{uuid.uuid4().hex[:8]}", partitions=3)
    writer = make_writer(topic=topic)
    messages = numbered(3000, keys=50)

    first = 0
    for size in [1, 2, 5, 992, 1000, 1000]:
        assert write(writer, entries(messages[first : first + size], first + 1)).complete
        first += size

    records = read(kafka_broker, topic)
    assert len({record.partition() for record in records}) == 3
    for key in {message.key for message in messages}:
        mine = [record for record in records if record.key() == key]
        assert len({record.partition() for record in mine}) == 1
        assert [record.value() for record in mine] == [
            message.data for message in messages if message.key == key
        ]


@pytest.mark.exhaustive
def test_keys_go_where_java_clients_put_them(
    make_writer: Callable[..., KafkaWriter], kafka_broker: Broker
) -> None:
    """The partition of a key is murmur2 modulo partitions, as in Kafka's Java clients."""
    topic = kafka_broker.create_topic(f"java-{uuid.uuid4().hex[:8]}", partitions=10)
    # From the test of the hash in Kafka's own client library, positive and modulo 10.
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    known[b""] = 0x106E08D9

    write(make_writer(topic=topic), entries([Message("n", b"1", key) for key in known]))

    for record in read(kafka_broker, topic):
        assert record.partition() == (known[record.key()] & 0x7FFFFFFF) % 10


def test_the_namespace_chooses_the_topic(
    make_writer: Callable[..., KafkaWriter], kafka_broker: Broker
) -> None:
    """A topic template puts each namespace into its own topic."""
    mark = uuid.uuid4().hex[:8]
    for name in ("a", "b"):
        kafka_broker.create_topic(f"x.{mark}.{name}")
    messages = [Message(f"{mark}.{name}", name.encode()) for name in "abba"]

    assert write(make_writer(topic="x.{namespace}"), entries(messages)).complete

    values = [record.value() for record in read(kafka_broker, f"x.{mark}.a", f"x.{mark}.b")]
    assert values == [b"a", b"a", b"b", b"b"]


def test_a_value_above_one_megabyte_arrives_where_the_topic_allows_it(
    make_writer: Callable[..., KafkaWriter], kafka_broker: Broker, kafka_topic: str
) -> None:
    """A value just below the broker's limit arrives, and a larger one if the topic allows it."""
    large = kafka_broker.create_topic(f"large-{uuid.uuid4().hex[:8]}", max_message_bytes="3000000")

    just = write(make_writer(), entries([Message("n", b"x" * 1_040_000)]))
    more = write(make_writer(topic=large), entries([Message("n", b"x" * 2_500_000)]))

    assert just.complete
    assert more.complete
    assert len(read(kafka_broker, large)[0].value()) == 2_500_000


@pytest.mark.parametrize("place", [0, 3, 9])
def test_an_entry_that_the_topic_refuses_is_named(
    make_writer: Callable[..., KafkaWriter], kafka_broker: Broker, kafka_topic: str, place: int
) -> None:
    """Entries before one over the topic's limit are acked, and none behind it is sent."""
    messages = numbered(10)
    messages[place] = Message("orders", b"x" * 1_200_000, b"key-0")
    writer = make_writer()

    ack = write(writer, entries(messages, first=100))

    assert ack.prefix == list(range(100, 100 + place))
    ((error, offset),) = ack.failures
    assert isinstance(error, Rejected)
    assert error.offset == offset == 100 + place
    assert kafka_topic in str(error)
    assert kafka_broker.bootstrap_servers in str(error)
    assert [record.value() for record in read(kafka_broker, kafka_topic)] == [
        message.data for message in messages[:place]
    ]
    assert write(writer, entries(messages[place + 1 :], first=101 + place)).complete


def test_max_message_bytes_refuses_before_sending(
    make_writer: Callable[..., KafkaWriter], kafka_broker: Broker, kafka_topic: str
) -> None:
    """An entry over the client's own limit is named, and nothing behind it is sent."""
    messages = numbered(5)
    messages[3] = Message("orders", b"x" * 5000)

    ack = write(make_writer(max_message_bytes=4000), entries(messages))

    assert ack.prefix == [1, 2, 3]
    assert ack.failures[0][1] == 4
    assert isinstance(ack.failures[0][0], Rejected)
    assert len(read(kafka_broker, kafka_topic)) == 3


def test_a_batch_over_a_small_limit_names_nobody(
    make_writer: Callable[..., KafkaWriter], kafka_broker: Broker
) -> None:
    """No entry of a batch that is refused for its size is blamed, and none is acked."""
    small = kafka_broker.create_topic(f"small-{uuid.uuid4().hex[:8]}", max_message_bytes="2000")
    writer = make_writer(topic=small)
    batch = entries([Message("n", b"x" * 500, b"k") for _ in range(20)])

    ack = write(writer, batch)

    assert ack.prefix == []
    assert [offset for _, offset in ack.failures] == [None]
    assert isinstance(ack.failures[0][0], Rejected)
    alone = [write(writer, Entries(batch.batch.slice(row, 1))) for row in range(20)]
    assert all(one.complete for one in alone)


def test_a_client_setting_reaches_the_client(
    make_writer: Callable[..., KafkaWriter], kafka_broker: Broker
) -> None:
    """With a smaller batch.size the same slice fits a topic with a small limit."""
    small = kafka_broker.create_topic(f"small-{uuid.uuid4().hex[:8]}", max_message_bytes="2000")
    writer = make_writer(topic=small, client={"batch.size": 1000})

    assert write(writer, entries([Message("n", b"x" * 500, b"k") for _ in range(20)])).complete


def test_nothing_overtakes_what_was_refused(
    make_writer: Callable[..., KafkaWriter], kafka_broker: Broker, kafka_topic: str
) -> None:
    """With refused messages in a long slice, first arrivals of each key never go back."""
    messages = numbered(9_000, keys=3)
    for place in (2_000, 5_000):
        messages[place] = Message("orders", b"x" * 1_200_000, b"key-0")
    writer, done = make_writer(), 0

    for refused in (2_000, 5_000, None):
        ack = write(writer, entries(messages[done:], done + 1))
        assert ack.complete is (refused is None)
        done += len(ack.prefix)
        assert done == (len(messages) if refused is None else refused)
        values = [record.value() for record in read(kafka_broker, kafka_topic)]
        assert len(set(values)) == done - (done > 2_000) - (done > 5_000)  # Nothing behind it.
        done += refused is not None

    for key in range(3):
        mine = [int(value) for value in dict.fromkeys(values) if int(value) % 3 == key]
        assert mine == sorted(mine)


def test_alike_entries_are_never_acked_beyond_a_failed_one(
    make_writer: Callable[..., KafkaWriter], kafka_broker: Broker, kafka_topic: str
) -> None:
    """Of identical entries, one failure leaves even the first of them unacked."""
    twin = Message("orders", b"x" * 1_200_000, b"k")

    ack = write(make_writer(), entries([*numbered(2), twin, *numbered(2), twin]))

    assert ack.prefix == [1, 2]
    assert ack.failures[0][1] == 3


def test_a_batch_that_the_topic_forbids_names_nobody(
    make_writer: Callable[..., KafkaWriter], kafka_broker: Broker
) -> None:
    """A compacted topic refuses the whole batch of a keyless message, which alone is named."""
    compacted = kafka_broker.create_topic(
        f"compacted-{uuid.uuid4().hex[:8]}", cleanup_policy="compact"
    )
    messages = numbered(6, keys=1)
    messages[4] = Message("orders", b"keyless", None)
    writer = make_writer(topic=compacted)

    together = write(writer, entries(messages))
    alone = [write(writer, entries([message])) for message in messages]

    assert together.prefix == []
    assert [offset for _, offset in together.failures] == [None]
    assert isinstance(together.failures[0][0], Rejected)
    assert [ack.complete for ack in alone] == [True, True, True, True, False, True]
    assert alone[4].failures[0][1] == 1


def test_an_unknown_fixed_topic_is_waited_for(make_writer: Callable[..., KafkaWriter]) -> None:
    """A missing topic that every entry goes to is an unavailable sink."""
    with pytest.raises(SinkUnavailable, match=r"nowhere.*create it, or set create_topics"):
        make_writer(topic="nowhere")


def test_an_unknown_topic_of_one_namespace_is_the_entrys(
    make_writer: Callable[..., KafkaWriter], kafka_topic: str
) -> None:
    """The first entry whose namespace has no topic is named."""
    writer = make_writer(deadline=2.0, topic="{namespace}")
    known, unknown = Message(kafka_topic, b"1"), Message("nowhere", b"2")

    ack = write(writer, entries([known, unknown, known, unknown]))

    assert ack.prefix == [1]
    assert [offset for _, offset in ack.failures] == [2]
    assert isinstance(ack.failures[0][0], Rejected)
    assert "nowhere" in str(ack.failures[0][0])


@pytest.mark.parametrize("namespace", ["with blank", "", "é", "x" * 250, ".", "a/b"])
def test_a_namespace_that_makes_no_topic_name_is_rejected(
    make_writer: Callable[..., KafkaWriter], kafka_topic: str, namespace: str
) -> None:
    """An entry whose namespace is not a valid topic name is named, and others are delivered."""
    writer = make_writer(topic="{namespace}")

    ack = write(writer, entries([Message(kafka_topic, b"1"), Message(namespace, b"2")]))

    assert ack.prefix == [1]
    assert [offset for _, offset in ack.failures] == [2]
    assert repr(namespace) in str(ack.failures[0][0])


def test_a_broker_that_is_down_is_unavailable_and_nothing_is_lost(
    make_writer: Callable[..., KafkaWriter], kafka_broker: Broker, kafka_topic: str
) -> None:
    """With the broker down slices fail as unavailable, and later the writer continues in order."""
    writer = make_writer(deadline=1.5)
    assert write(writer, entries(numbered(100))).complete
    kafka_broker.kill()
    try:
        for _ in range(2):
            down = write(writer, entries(numbered(100, 100), first=101))
            assert down.prefix == []
            assert isinstance(down.failures[0][0], SinkUnavailable)
        with pytest.raises(SinkUnavailable):
            make_writer(deadline=1.0)
    finally:
        kafka_broker.start()

    deliver_until_done(writer, entries(numbered(100, 100), first=101))

    values = [record.value() for record in read(kafka_broker, kafka_topic)]
    assert in_runs(values) == [b"%d" % number for number in range(200)]


@pytest.mark.exhaustive
def test_a_broker_killed_while_it_writes_loses_nothing(
    make_writer: Callable[..., KafkaWriter], kafka_broker: Broker, kafka_topic: str
) -> None:
    """With the broker killed in the middle of slices, every key's messages arrive in order."""
    writer = make_writer(deadline=1.5)
    messages = numbered(20_000, keys=3)
    write(writer, entries(messages[:1000]))
    kafka_broker.kill()
    ack = write(writer, entries(messages[1000:2000], 1001))
    kafka_broker.start()

    assert ack.prefix == []
    for first in range(1000, 20_000, 1000):
        deliver_until_done(writer, entries(messages[first : first + 1000], first + 1))

    values = [record.value() for record in read(kafka_broker, kafka_topic)]
    assert in_runs(values) == [message.data for message in messages]


def test_a_broker_that_does_not_answer_times_out(
    make_writer: Callable[..., KafkaWriter], kafka_broker: Broker, kafka_topic: str
) -> None:
    """A frozen broker is a timeout, and slices that it takes late only repeat a run."""
    writer = make_writer(deadline=2.0)
    assert write(writer, entries(numbered(10))).complete
    kafka_broker.pause()
    try:
        start = time.monotonic()
        ack = write(writer, entries(numbered(10, 10), first=11))
        took = time.monotonic() - start
    finally:
        kafka_broker.resume()

    assert ack.prefix == []
    assert isinstance(ack.failures[0][0], SinkTimeout | SinkUnavailable)
    assert 1.5 < took < 8
    deliver_until_done(writer, entries(numbered(30, 10), first=11))
    values = [record.value() for record in read(kafka_broker, kafka_topic)]
    assert in_runs(values) == [b"%d" % number for number in range(40)]


def test_a_fatal_error_is_followed_by_a_new_client(
    make_writer: Callable[..., KafkaWriter], kafka_broker: Broker, kafka_topic: str
) -> None:
    """A client after a fatal error is replaced, and the next slice is delivered."""
    writer = make_writer(client={"enable.gapless.guarantee": True})

    ack = write(writer, entries([Message("n", b"x" * 1_200_000), *numbered(3)]))

    assert ack.prefix == []
    # The refusal and the client's end race in the client: either may come first.
    assert isinstance(ack.failures[0][0], Rejected | SinkUnavailable)
    assert write(writer, entries(numbered(3), first=2)).complete
    assert [record.value() for record in read(kafka_broker, kafka_topic)] == [b"0", b"1", b"2"]


def test_a_slice_larger_than_the_clients_queue_is_delivered(
    make_writer: Callable[..., KafkaWriter], kafka_broker: Broker, kafka_topic: str
) -> None:
    """A full client queue makes the writer wait for room instead of failing."""
    writer = make_writer(client={"queue.buffering.max.messages": 100})

    assert write(writer, entries(numbered(5000))).complete
    assert len(read(kafka_broker, kafka_topic)) == 5000


def test_an_unknown_setting_is_the_routes_fault_and_keeps_secrets(
    make_writer: Callable[..., KafkaWriter],
) -> None:
    """A setting unknown to the client is named, and no value of any setting is shown."""
    with pytest.raises(RouteFault) as failure:
        make_writer(client={"sasl.pasword": "hunter2", "compression.type": "hunter3"})

    assert "hunter" not in str(failure.value)
    assert failure.value.__context__ is None or "hunter" not in repr(failure.value.__context__)


def deliver_until_done(writer: KafkaWriter, batch: Entries) -> None:
    """Deliver *batch* as a route does, again and again from the first entry not acked."""
    done = 0
    for _ in range(20):
        ack = write(writer, Entries(batch.batch.slice(done)))
        done += len(ack.prefix)
        if done == len(batch):
            return
    raise AssertionError(f"not delivered: {ack.failures}")


def in_runs(values: list[bytes]) -> list[bytes]:
    """Return *values* without repetitions, after checking that each is a run in order."""
    seen: list[bytes] = []
    previous = -1
    for value in values:
        number = int(value)
        assert number == previous + 1 or number <= previous
        if number == len(seen):
            seen.append(value)
        previous = number
    return seen


class WatchingAck(RecordingAck):
    """An ack that counts the messages in the topic at each call."""

    def __init__(self, batch: Entries, broker: Broker, topic: str) -> None:
        super().__init__(batch)
        settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "count"}
        self._consumer, self._place = Consumer(settings), TopicPartition(topic, 0)
        self.seen: list[tuple[int, int]] = []
        """At each call: the number of acked entries, and of messages in the topic."""

    def __call__(self, offsets: Iterable[int]) -> None:
        super().__call__(offsets)
        _, there = self._consumer.get_watermark_offsets(self._place, timeout=10)
        self.seen.append((len(self.acked), there))

    def close(self) -> None:
        self._consumer.close()


def test_a_large_slice_is_acked_part_by_part(
    make_writer: Callable[..., KafkaWriter], kafka_broker: Broker, kafka_topic: str
) -> None:
    """Acked entries are in the topic, and a kill repeats a part, not the slice."""
    batch = entries(numbered(9_000))
    ack = WatchingAck(batch, kafka_broker, kafka_topic)
    make_writer().write(batch, ack)
    ack.close()
    assert ack.complete
    assert ack.seen == [(rows, rows) for rows in range(1_500, 9_000, 1_500)]


@pytest.mark.parametrize("at", [100, 4_500, 5_999, 8_999])
def test_parts_end_before_what_is_refused(
    make_writer: Callable[..., KafkaWriter], kafka_broker: Broker, kafka_topic: str, at: int
) -> None:
    """Invariant 9: the refused entry of any part is named, and all before it is acked once."""
    messages = numbered(9_000)
    messages[at] = replace(messages[at], data=b"x" * 1_200_000)
    ack = write(make_writer(), entries(messages))
    assert ack.acked == ack.prefix == list(range(1, at + 1))
    ((error, offset),) = ack.failures
    assert (type(error), offset) == (Rejected, at + 1)
    assert len(read(kafka_broker, kafka_topic)) == at


def test_a_namespace_without_a_topic_in_a_later_part_is_rejected(
    make_writer: Callable[..., KafkaWriter], kafka_broker: Broker
) -> None:
    """All entries before it arrive, even of the same part, and none behind it."""
    topic = kafka_broker.create_topic(f"named-{uuid.uuid4().hex[:8]}")
    messages = [replace(each, namespace=topic) for each in numbered(6_000)]
    messages[4_500] = replace(messages[4_500], namespace="no topic name")
    ack = write(make_writer(topic="{namespace}"), entries(messages))
    assert ack.acked == ack.prefix == list(range(1, 4_501))
    assert [offset for _, offset in ack.failures] == [4_501]
    assert len(read(kafka_broker, topic)) == 4_500

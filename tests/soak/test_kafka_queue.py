"""The kafka-queue reader and writer against a real broker, with the queue library's own tracker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from kafka_tools import consume
from queue_tools import PATIENCE, Seen, fresh, receive_until, until
from transporter_adaptors.kafka_queue.reader import KafkaQueueReader
from transporter_adaptors.kafka_queue.writer import KafkaQueueWriter

from transporter.errors import (
    Rejected,
    SinkTimeout,
    SinkUnavailable,
    SourceError,
    SourceUnavailable,
)
from transporter.message import Message
from transporter.queue import QueueConsumer, QueueProducer, Tracker, consumer
from transporter.testing import FixedResume, RecordingAck, entries
from transporter.testing.contracts import CONTEXT, first_batch, messages_of, numbered
from transporter.testing.hostile import hostile_messages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.kafka import Broker

    from transporter.adaptor import Batch
    from transporter.queue import QueueSettings

pytestmark = pytest.mark.kafka


class Bench:
    """Readers of the queue ``jobs``, which are all closed at the end."""

    def __init__(self, broker: Broker, settings: QueueSettings) -> None:
        self.broker, self.settings = broker, settings
        self._readers: list[KafkaQueueReader] = []

    def send(self, *values: bytes | None) -> None:
        """Send messages."""
        with QueueProducer(self.settings) as producer:
            producer.send_many("jobs", values)

    def records(self) -> list[Any]:
        """Return all records of the queue topic."""
        return consume(self.broker, self.settings.queue_topic)

    def reader(self, **more: Any) -> KafkaQueueReader:
        """Return a new open reader."""
        reader = KafkaQueueReader(KafkaQueueReader.Config(**self.where, **more))
        self._readers.append(reader)
        self.resume = FixedResume()
        reader.open(self.resume)
        return reader

    @property
    def where(self) -> dict[str, Any]:
        """The settings of a reader."""
        known = self.settings
        return {
            "bootstrap_servers": known.bootstrap_servers,
            "queue": "jobs",
            "queue_topic": known.queue_topic,
            "markers_topic": known.markers_topic,
            "redeliver_after": known.redeliver_after,
        }

    def close(self) -> None:
        """Close every reader."""
        for reader in self._readers:
            reader.close()


@pytest.fixture
def bench(kafka_broker: Broker) -> Iterator[Bench]:
    """Create a queue of this test, with redelivery after a second."""
    made = Bench(kafka_broker, fresh(kafka_broker, redeliver_after=1.0, max_redeliveries=None))
    yield made
    made.close()


def read(reader: KafkaQueueReader, count: int) -> list[tuple[Batch, list[Message]]]:
    """Poll until *count* messages have come, and return each batch with its messages."""
    found: list[tuple[Batch, list[Message]]] = []
    while sum(len(messages) for _, messages in found) < count:
        batch = first_batch(reader)
        found.append((batch, messages_of(batch.messages)))
    return found


def data(batches: list[tuple[Batch, list[Message]]]) -> list[bytes | None]:
    """Return the data of all messages in *batches*."""
    return [message.data for _, messages in batches for message in messages]


def test_every_part_of_a_message_arrives_exactly(bench: Bench) -> None:
    """Data, key, headers, time and id of the message are in the log's message."""
    with QueueProducer(bench.settings) as producer:
        where = producer.send("jobs", b'{"n": 1.10}', key=b"k", headers=[("a", b"1"), ("a", None)])
        gone = producer.send("jobs", None)
    before = int(time.time() * 1e6) - 60_000_000
    reader = bench.reader(namespace="shop.{queue}", content_type=None)

    found = {each.source_id: each for _, batch in read(reader, 2) for each in batch}

    first = found[f"{bench.settings.queue_topic}/{where[0]}/{where[1]}"]
    assert (first.data, first.key, first.op) == (b'{"n": 1.10}', b"k", "insert")
    assert first.headers == (("a", b"1"), ("a", None))
    assert (first.namespace, first.content_type) == ("shop.jobs", None)
    assert first.timestamp > before
    last = found[f"{bench.settings.queue_topic}/{gone[0]}/{gone[1]}"]
    assert (last.data, last.key, last.op, last.headers) == (None, None, "delete", ())


@pytest.mark.parametrize("transactional", [False, True])
def test_exactly_what_was_delivered_is_acked(bench: Bench, transactional: bool) -> None:
    """Undelivered rows are kept alive, and come again when the reader is gone."""
    bench.send(*[b"%d" % number for number in range(10)])
    with Tracker(bench.settings) as tracker:
        reader = bench.reader(transactional=transactional)
        batches = read(reader, 10)
        kept = set()
        for batch, messages in batches:
            even = range(0, len(messages), 2)
            assert batch.position is not None
            reader.delivered(batch.position, even)
            kept |= {messages[row].data for row in range(len(messages)) if row not in even}
        acked = 10 - len(kept)
        until(lambda: tracker.metrics().acked == acked, "acked")
        assert reader.poll(3.0).position is None
        assert (tracker.metrics().in_progress, tracker.metrics().redelivered) == (len(kept), 0)
        reader.close()

        again = read(bench.reader(transactional=transactional), len(kept))
    assert set(data(again)) == kept


def test_a_close_gives_everything_back_at_once_and_uncounted(bench: Bench) -> None:
    """Another engine has the messages long before their time, as if for the first time."""
    settings = bench.settings.model_copy(update={"redeliver_after": 60.0})
    bench = Bench(bench.broker, settings)
    bench.send(*[b"%d" % number for number in range(20)])
    with Tracker(settings):
        first = bench.reader(batch_rows=4)
        taken = read(first, 8)
        first.close()
        began = time.monotonic()
        second = bench.reader()
        again = read(second, 20)
        bench.close()
    assert time.monotonic() - began < 30
    assert len(data(taken)) >= 8
    assert sorted(data(again)) == sorted(b"%d" % number for number in range(20))
    assert [each.headers for _, messages in again for each in messages] == [()] * 20


def test_a_redelivery_tells_its_count_and_keeps_its_source_id(bench: Bench) -> None:
    """The source id is that of the first delivery, and a header counts the redeliveries."""
    with QueueProducer(bench.settings) as producer:
        partition, offset = producer.send("jobs", b"x")
    with Tracker(bench.settings), QueueConsumer(bench.settings, "jobs") as rival:
        assert rival.receive(PATIENCE) is not None
        until(lambda: rival.metrics().in_progress == 0, "lapsed")
        rival.close()
        ((_, (message,)),) = read(bench.reader(), 1)
    assert message.source_id == f"{bench.settings.queue_topic}/{partition}/{offset}"
    ((name, count),) = message.headers
    assert name == "transporter-redeliveries"
    assert int(count or b"") >= 1


def test_what_an_earlier_reader_had_not_acked_is_superseded(bench: Bench) -> None:
    """Each open requests it, and batch numbers continue from the log's position."""
    bench.send(b"x")
    reader = KafkaQueueReader(KafkaQueueReader.Config(**bench.where))
    resume = FixedResume('{"batch": 41}')
    reader.open(resume)
    try:
        assert resume.superseded == 1
        assert first_batch(reader).position == '{"batch": 42}'
    finally:
        reader.close()


def test_what_is_given_back_is_superseded(bench: Bench) -> None:
    """A close with messages left supersedes them here, and one without any does not."""
    bench.send(b"x")
    with Tracker(bench.settings):
        for delivered, superseded in ((False, 2), (True, 1)):
            reader = bench.reader()
            resume = bench.resume
            batch = first_batch(reader)
            if delivered:
                reader.delivered(batch.position or "", [0])
            reader.close()
            assert resume.superseded == superseded


def test_a_strangers_position_is_refused_before_anything_is_superseded(bench: Bench) -> None:
    """Entries of another adaptor under this name would never come again."""
    reader = KafkaQueueReader(KafkaQueueReader.Config(**bench.where))
    resume = FixedResume("17")
    with pytest.raises(SourceError, match="another name"):
        reader.open(resume)
    assert resume.superseded == 0


def test_a_batch_has_so_many_rows_and_bytes_at_most(bench: Bench) -> None:
    """``batch_rows`` bounds the messages, ``batch_bytes`` the values but for the last one."""
    bench.send(*[b"x" * 1000] * 12)
    by_rows = bench.reader(batch_rows=5)
    rows = [len(messages) for _, messages in read(by_rows, 12)]
    assert max(rows) <= 5
    by_rows.close()
    with Tracker(bench.settings):
        by_bytes = [len(messages) for _, messages in read(bench.reader(batch_bytes=2500), 12)]
    assert max(by_bytes) <= 3


def test_a_reader_begins_no_more_than_a_batch_ahead(bench: Bench) -> None:
    """Messages not polled for stay available to other engines."""
    bench.send(*[b"x"] * 40)
    with Tracker(bench.settings) as tracker:
        reader = bench.reader(batch_rows=5)
        first_batch(reader)
        until(lambda: tracker.metrics().received >= 6, "the next ones")
        time.sleep(1.5)
        assert tracker.metrics().received <= 15


def test_thousands_are_kept_alive_for_many_timeouts(bench: Bench) -> None:
    """20 000 messages are held for 10 s, ten times their time, and none is redelivered."""
    bench.send(*[b"%d" % number for number in range(20_000)])
    with Tracker(bench.settings) as tracker:
        reader = bench.reader()
        batches = read(reader, 20_000)
        ends = time.monotonic() + 10
        while time.monotonic() < ends:
            reader.keep_alive()
            assert reader.poll(0.1).position is None
        assert (tracker.metrics().in_progress, tracker.metrics().redelivered) == (20_000, 0)
        for batch, messages in batches:
            reader.delivered(batch.position or "", range(len(messages)))
        until(lambda: tracker.metrics().in_progress == 0, "all acked")
        assert tracker.metrics().redelivered == 0


def test_a_reader_that_cannot_take_more_leaves_the_queue_to_others(bench: Bench) -> None:
    """After ``leave_after`` without a poll another reader gets all but the logged messages."""
    bench.send(*[b"%d" % number for number in range(30)])
    with Tracker(bench.settings):
        full = bench.reader(batch_rows=5, leave_after=1.0)
        mine = data([(batch := first_batch(full), messages_of(batch.messages))])
        others = bench.reader()
        found = data(read(others, 30 - len(mine)))
        assert set(found).isdisjoint(mine)
        assert len(set(found)) == 30 - len(mine)
        full.keep_alive()


def test_brokers_that_fall_silent_make_the_source_unavailable(
    bench: Bench, kafka_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After ``redeliver_after`` without an answer, messages in progress may be with others."""
    monkeypatch.setattr(consumer, "_LEAST_SILENCE", 4.0)
    bench.send(b"x")
    reader = bench.reader(timeout=1.0)
    first_batch(reader)
    kafka_broker.pause()
    try:
        with pytest.raises(SourceUnavailable, match="no broker has answered"):
            until(lambda: reader.poll(0.1).position, "the error")
        with pytest.raises(SourceUnavailable, match="no broker has answered"):
            reader.keep_alive()
        reader.close()
        with pytest.raises(SourceUnavailable):
            bench.reader(timeout=1.0)
    finally:
        kafka_broker.resume()
    monkeypatch.undo()  # On a busy host a broker takes longer to come back.
    # A tracker that finds no broker at its start ends.
    until(kafka_broker.is_up, "the broker")
    with Tracker(bench.settings):
        assert data(read(bench.reader(), 1)) == [b"x"]


def test_an_idle_reader_hears_of_its_brokers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue without messages is not an outage."""
    monkeypatch.setattr(consumer, "_LEAST_SILENCE", 4.0)
    reader = bench.reader()
    ends = time.monotonic() + 6
    while time.monotonic() < ends:
        assert reader.poll(0.2).position is None


def test_a_topic_that_is_not_there_is_waited_for(bench: Bench) -> None:
    """Reader and route report the remedy, and retry."""
    for name in ("queue_topic", "markers_topic"):
        reader = KafkaQueueReader(KafkaQueueReader.Config(**{**bench.where, name: "nowhere"}))
        with pytest.raises(SourceUnavailable, match="has no topic nowhere"):
            reader.open(FixedResume())
        reader.close()
    with pytest.raises(SinkUnavailable, match="has no topic nowhere"):
        writer(bench.settings, queue_topic="nowhere").open(CONTEXT)


# The writer


def writer(settings: QueueSettings, **more: Any) -> KafkaQueueWriter:
    """Return a writer to the queue ``jobs``."""
    known = {
        "bootstrap_servers": settings.bootstrap_servers,
        "queue_topic": settings.queue_topic,
        "queue": "jobs",
    }
    return KafkaQueueWriter(KafkaQueueWriter.Config.model_validate({**known, **more}))


def written(sink: KafkaQueueWriter, messages: list[Message], deadline: float = 20) -> RecordingAck:
    """Open *sink*, write *messages* once, close it, and return the ack."""
    batch = entries(messages)
    ack = RecordingAck(batch)
    context = CONTEXT.__class__(log_id="l", route="r", epoch=1, deadline=deadline)
    try:
        sink.open(context)
        sink.write(batch, ack)
    finally:
        sink.close()
    return ack


def test_what_is_written_is_received(bench: Bench) -> None:
    """A consumer of the queue gets data, key and headers unchanged."""
    messages = hostile_messages()
    assert written(writer(bench.settings), messages).complete
    seen: list[Any] = []
    with Tracker(bench.settings), QueueConsumer(bench.settings, "jobs") as receiver:

        def act(message: Any) -> None:
            seen.append((message.value, message.key, message.headers))
            receiver.ack(message)

        receive_until(receiver, lambda: len(seen) == len(messages), act)
    expected = [(each.data, each.key, each.headers) for each in messages]
    assert sorted(seen, key=repr) == sorted(expected, key=repr)


def test_a_namespace_can_be_the_queue(bench: Bench) -> None:
    """``{namespace}`` stands for the entry's, and an invalid queue name is refused."""
    found = [Message("mails", b"1"), Message("bills", b"2"), Message("no/queue", b"3")]
    ack = written(writer(bench.settings, queue="q.{namespace}"), [*found, Message("mails", b"4")])
    assert ack.prefix == [1, 2]
    ((error, offset),) = ack.failures
    assert isinstance(error, Rejected)
    assert (error.offset, offset) == (3, 3)
    records = bench.records()
    assert {(record.key(), record.value()) for record in records} == {
        (b"q.mails", b"1"),
        (b"q.bills", b"2"),
    }


def test_headers_that_queues_have_made_are_not_sent_on(bench: Bench) -> None:
    """A message read from a queue, or from its dead letters, starts fresh in the next."""
    headers = (("transporter-redeliveries", b"3"), ("a", b"1"), ("transporter-reason", b"x"))
    assert written(writer(bench.settings), [Message("n", b"x", headers=headers)]).complete
    (record,) = bench.records()
    assert record.headers() == [("a", b"1")]


def test_a_header_name_that_no_marker_can_hold_is_refused(bench: Bench) -> None:
    """The entry is at fault, because a consumer could not write its marker."""
    long = Message("n", b"2", headers=(("é" * 40_000, b""),))
    ack = written(writer(bench.settings), [Message("n", b"1"), long])
    assert ack.prefix == [1]
    assert isinstance(ack.failures[0][0], Rejected)
    assert ack.failures[0][1] == 2
    assert [record.value() for record in bench.records()] == [b"1"]


def test_a_message_that_the_topic_does_not_take_is_found(
    bench: Bench, kafka_broker: Broker
) -> None:
    """A message that only the broker refuses is named when alone, and no other is blamed."""
    topic = kafka_broker.create_topic(
        f"{bench.settings.queue_topic}-small", 1, max_message_bytes="2000"
    )
    large = Message("n", b"x" * 5000)
    ack = written(writer(bench.settings, queue_topic=topic), [large])
    ((error, offset),) = ack.failures
    assert isinstance(error, Rejected)
    assert (error.offset, offset) == (1, 1)
    ack = written(writer(bench.settings, queue_topic=topic), [*numbered(2), large, *numbered(2)])
    ((error, offset),) = ack.failures
    assert isinstance(error, Rejected)
    assert offset in {None, 3}
    assert set(ack.prefix) <= {1, 2}


def test_brokers_that_do_not_answer_are_a_timeout(bench: Bench, kafka_broker: Broker) -> None:
    """Without confirmation by the deadline nothing is acked, and the next attempt works."""
    sink, batch = writer(bench.settings), entries(numbered(3))
    context = CONTEXT.__class__(log_id="l", route="r", epoch=1, deadline=2.0)
    sink.open(context)
    try:
        kafka_broker.pause()
        try:
            began, ack = time.monotonic(), RecordingAck(batch)
            sink.write(batch, ack)
            assert time.monotonic() - began < 9
        finally:
            kafka_broker.resume()
        assert ack.prefix == []
        assert isinstance(ack.failures[0][0], SinkTimeout)
        until(lambda: _written_at_last(sink), "written", 30)
    finally:
        sink.close()
    seen = Seen(record.value() for record in bench.records())
    assert set(seen) == {message.data for message in numbered(3)}


def _written_at_last(sink: KafkaQueueWriter) -> bool:
    batch = entries(numbered(3))
    ack = RecordingAck(batch)
    sink.write(batch, ack)
    return ack.complete


def test_many_slices_arrive_whole(bench: Bench) -> None:
    """10 000 entries in slices of 1000 are each there once."""
    sink = writer(bench.settings)
    sink.open(CONTEXT)
    try:
        for first in range(0, 10_000, 1000):
            batch = entries([Message("n", b"%d" % (first + row)) for row in range(1000)], first)
            ack = RecordingAck(batch)
            sink.write(batch, ack)
            assert ack.complete
    finally:
        sink.close()
    seen = Seen(record.value() for record in bench.records())
    assert seen == {b"%d" % number: 1 for number in range(10_000)}

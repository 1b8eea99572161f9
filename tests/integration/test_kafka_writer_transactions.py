"""Commits and failures of a transactional Kafka writer, on a real broker."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from kafka_tools import consume
from transporter_adaptors.kafka.config import KafkaWriterConfig
from transporter_adaptors.kafka.progress import GroupProgress, Groups
from transporter_adaptors.kafka.transactions import WriterTransactions
from transporter_adaptors.kafka.writer import KafkaWriter

from transporter.adaptor import StoredOffset, WriterContext
from transporter.errors import Rejected, RouteFault, SinkError, SinkTimeout, SinkUnavailable
from transporter.message import Entries, Message
from transporter.testing import RecordingAck, entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from services.kafka import Broker

pytestmark = pytest.mark.kafka

CONTEXT = WriterContext(log_id="", route="route", epoch=1, deadline=10.0)


class Sink:
    """A topic and a log, with writers from the log to the topic."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.broker, self.topic = broker, topic
        self.context = replace(CONTEXT, log_id=uuid.uuid4().hex)
        self.writers: list[KafkaWriter] = []
        self.stored: StoredOffset | None = None

    def writer(self, context: WriterContext | None = None, **settings: Any) -> KafkaWriter:
        """Open a writer and keep its stored progress as ``stored``."""
        settings = {"topic": self.topic, "transactional": True, **settings}
        servers = self.broker.bootstrap_servers
        writer = KafkaWriter(KafkaWriterConfig(bootstrap_servers=servers, **settings))
        self.writers.append(writer)
        self.stored = writer.open(context or self.context)
        return writer

    def values(self) -> list[bytes]:
        """Return the committed values."""
        return [record.value() for record in consume(self.broker, self.topic)]


@pytest.fixture
def sink(kafka_broker: Broker, kafka_topic: str) -> Iterator[Sink]:
    """Create a sink and close its writers at the end."""
    made = Sink(kafka_broker, kafka_topic)
    yield made
    for writer in made.writers:
        writer.close()


def numbered(count: int, first: int = 0) -> list[Message]:
    """Return messages with their number as data."""
    return [Message("orders", b"%d" % n, b"key-%d" % (n % 7)) for n in range(first, first + count)]


def numbers(count: int) -> list[bytes]:
    """Return the data of :func:`numbered`."""
    return [b"%d" % number for number in range(count)]


def write(writer: KafkaWriter, batch: Entries) -> RecordingAck:
    """Write *batch* and return the ack, with any error that the writer raised."""
    ack = RecordingAck(batch)
    try:
        writer.write(batch, ack)
    except SinkError as error:
        ack.fail(error)
    return ack


def test_what_precedes_a_refused_entry_is_committed_and_nothing_behind_it(sink: Sink) -> None:
    """The transaction with the refused entry is aborted, and the next has the entries before it."""
    writer, messages = sink.writer(), numbered(2_000)
    messages[1_000] = Message("orders", b"x" * 1_200_000, b"key-0")

    ack = write(writer, entries(messages))

    assert ack.prefix == list(range(1, 1001))
    ((error, offset),) = ack.failures
    assert isinstance(error, Rejected)
    assert error.offset == offset == 1001
    assert sink.values() == numbers(1_000)
    sink.writer()
    assert sink.stored is not None
    assert sink.stored.offset == 1000


def test_the_client_goes_on_after_a_refused_entry(sink: Sink) -> None:
    """The same writer delivers the following entries, in order and once."""
    writer, messages = sink.writer(max_message_bytes=4000), numbered(30)
    messages[10] = Message("orders", b"x" * 5000, b"key-0")

    assert write(writer, entries(messages)).prefix == list(range(1, 11))
    assert write(writer, entries(messages[11:], first=12)).complete

    assert sink.values() == [message.data for message in messages if message is not messages[10]]


def test_a_slice_larger_than_the_clients_queue_is_one_transaction(sink: Sink) -> None:
    """A full client queue makes the writer wait for room, and all is committed."""
    writer = sink.writer(client={"queue.buffering.max.messages": 100})

    assert write(writer, entries(numbered(5_000))).complete

    assert sink.values() == numbers(5_000)


def test_a_newer_engine_is_named_by_the_older_one(sink: Sink) -> None:
    """A fenced writer names the newer epoch, when it writes and when it opens."""
    old = sink.writer()
    sink.writer(replace(sink.context, epoch=5))

    ack = write(old, entries(numbered(3)))
    with pytest.raises(RouteFault, match="fenced by epoch 5") as opened:
        sink.writer()

    assert ack.prefix == []
    assert isinstance(ack.failures[0][0], RouteFault)
    assert "epoch 5" in str(ack.failures[0][0])
    assert sink.context.log_id in str(opened.value)
    assert sink.values() == []


def test_an_older_engine_does_not_shut_out_a_newer_one(sink: Sink) -> None:
    """An older epoch is refused before it takes the id, without effect on the newer writer."""
    newer = sink.writer(replace(sink.context, epoch=5))
    with pytest.raises(RouteFault):
        sink.writer()

    assert write(newer, entries(numbered(3))).complete


def test_a_worker_that_takes_over_leaves_its_predecessor_without_effect(sink: Sink) -> None:
    """Of two workers of one engine the later one delivers, and the earlier one fails."""
    first, second = sink.writer(), sink.writer()
    assert write(second, entries(numbered(3))).complete

    shut_out = write(first, entries(numbered(5)))
    again = write(first, entries(numbered(5)))

    assert isinstance(shut_out.failures[0][0], SinkUnavailable)
    assert isinstance(again.failures[0][0], RouteFault)
    assert "a copy of this log" in str(again.failures[0][0])
    assert sink.values() == numbers(3)


def test_a_writer_that_was_shut_out_in_vain_goes_on(sink: Sink) -> None:
    """The next attempt takes the id again if no other writer has written since."""
    writer = sink.writer()
    assert write(writer, entries(numbered(3))).complete
    sink.writer().close()

    shut_out = write(writer, entries(numbered(3, first=3), first=4))
    again = write(writer, entries(numbered(3, first=3), first=4))

    assert isinstance(shut_out.failures[0][0], SinkUnavailable)
    assert again.complete
    assert sink.values() == numbers(6)


@pytest.mark.parametrize("before", [True, False])
def test_a_commit_without_an_answer_is_neither_lost_nor_repeated(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """The next attempt finds out whether the brokers had committed."""
    writer = sink.writer()
    with monkeypatch.context() as patch:
        patch.setattr(WriterTransactions, "_call_with_retry", without_answer(before=before))
        lost = write(writer, entries(numbered(10)))

    again = write(writer, entries(numbered(10)))

    assert lost.prefix == []
    assert isinstance(lost.failures[0][0], SinkTimeout)
    assert again.complete
    assert sink.values() == numbers(10)


def test_a_commit_without_an_answer_is_not_repeated_in_smaller_slices(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by ``transporter route step``: what a smaller slice leaves is committed, too."""
    writer = sink.writer()
    for first in (1, 11):
        with monkeypatch.context() as patch:
            patch.setattr(WriterTransactions, "_call_with_retry", without_answer(before=False))
            write(writer, entries(numbered(10, first - 1), first=first))

        assert write(writer, entries(numbered(1, first - 1), first=first)).complete

    for first, count in [(2, 4), (6, 5), (12, 4), (16, 7)]:
        assert write(writer, entries(numbered(count, first - 1), first=first)).complete

    assert sink.values() == numbers(22)


def without_answer(*, before: bool) -> Callable[..., None]:
    """Return a substitute for a transaction's calls that loses the answer to a commit."""
    real = WriterTransactions._call_with_retry

    def call(self: Any, ends: float, act: Callable[..., Any], *values: object) -> None:
        lost = act.__name__ == "commit_transaction"
        if not (lost and before):
            real(self, ends, act, *values)
        if lost:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    return call


def test_a_topic_for_each_namespace_and_one_for_the_progress(
    sink: Sink, kafka_broker: Broker
) -> None:
    """With a template the progress belongs to its own topic, which stays empty."""
    mark = uuid.uuid4().hex[:8]
    for name in ("a", "b"):
        kafka_broker.create_topic(f"{mark}.{name}")
    writer = sink.writer(topic=f"{mark}.{{namespace}}", progress_topic=sink.topic)

    ack = write(writer, entries([Message("a", b"1"), Message("b", b"2"), Message("b c", b"3")]))

    assert ack.prefix == [1, 2]
    assert ack.failures[0][1] == 3
    assert [record.value() for record in consume(kafka_broker, f"{mark}.b")] == [b"2"]
    assert sink.values() == []


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"client": {"transaction.timeout.ms": 2_000_000}}, "INVALID_TRANSACTION_TIMEOUT"),
        ({"client": {"sasl.pasword": "hunter2"}}, "sasl.pasword"),
    ],
)
def test_settings_that_the_brokers_or_the_client_refuse_are_the_routes_fault(
    sink: Sink, settings: dict[str, Any], named: str
) -> None:
    """Refused settings are reported at the opening, without any value that may be secret."""
    with pytest.raises(RouteFault, match=named) as refused:
        sink.writer(replace(sink.context, deadline=3.0), **settings)

    assert "hunter2" not in str(refused.value)


@pytest.mark.exhaustive
def test_a_progress_topic_that_is_missing_is_waited_for(sink: Sink) -> None:
    """The writer names the missing topic, and opens once it exists."""
    name = f"progress-{uuid.uuid4().hex[:8]}"
    settings = {"progress_topic": name}
    with pytest.raises(SinkUnavailable, match=f"create the topic {name}"):
        sink.writer(replace(sink.context, deadline=3.0), **settings)

    sink.broker.create_topic(name)
    assert write(sink.writer(**settings), entries(numbered(3))).complete


@pytest.mark.exhaustive
def test_a_broker_that_is_down_is_unavailable_and_nothing_is_lost_or_repeated(sink: Sink) -> None:
    """With the broker down slices fail, and later the same writer delivers each entry once."""
    sink.writer().close()  # A new broker may need longer than the deadline for its first id.
    writer = sink.writer(replace(sink.context, deadline=2.0))
    assert write(writer, entries(numbered(10))).complete
    # The broker may lose the end of an invisible commit: another test covers that.
    assert sink.values() == numbers(10)
    sink.broker.kill()
    try:
        down = write(writer, entries(numbered(10, first=10), first=11))
    finally:
        sink.broker.start()

    assert down.prefix == []
    assert isinstance(down.failures[0][0], SinkUnavailable | SinkTimeout)
    for _ in range(20):
        if write(writer, entries(numbered(10, first=10), first=11)).complete:
            break
    assert sink.values() == numbers(20)


def test_a_transaction_whose_end_the_brokers_lost_is_ended(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress still blocked after the id was taken is freed by another commit."""
    assert write(sink.writer(), entries(numbered(10))).complete
    read, held_back = Groups.read, [True]

    def held(self: Groups, group: str, ends: float, *, stable: bool) -> GroupProgress | None:
        # On a real broker this takes a kill at the right moment: see the soak tests.
        if stable and held_back.pop():
            held_back.append(False)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return read(self, group, ends, stable=stable)

    monkeypatch.setattr(Groups, "read", held)
    writer = sink.writer()

    assert sink.stored is not None
    assert sink.stored.offset == 10
    group = f"{sink.context.log_id}.route.0"
    consumer = Consumer(
        {"bootstrap.servers": sink.broker.bootstrap_servers, "group.id": group, "log_level": 0}
    )
    (freed,) = consumer.committed([TopicPartition("__consumer_offsets", 0)], 10)
    consumer.close()
    assert freed.offset == 0
    monkeypatch.undo()
    assert write(writer, entries(numbered(10, first=10), first=11)).complete
    assert sink.values() == numbers(20)


@pytest.mark.exhaustive
def test_shards_keep_their_progress_apart(sink: Sink) -> None:
    """Each shard reads back its own progress."""
    contexts = [replace(sink.context, shard=shard, shards=3) for shard in range(3)]
    for shard, context in enumerate(contexts):
        assert write(sink.writer(context), entries(numbered(2), first=10 * (shard + 1))).complete

    found = []
    for context in contexts:
        sink.writer(context)
        assert sink.stored is not None
        found.append((sink.stored.shard, sink.stored.shards, sink.stored.offset))

    assert found == [(0, 3, 11), (1, 3, 21), (2, 3, 31)]


def test_a_replay_has_a_generation_of_its_own(sink: Sink) -> None:
    """Entries of a new generation are delivered again, and the generation is stored."""
    writer = sink.writer()
    assert write(writer, entries(numbered(5))).complete

    assert write(writer, replace(entries(numbered(2)), generation=1)).complete

    sink.writer()
    assert sink.stored is not None
    assert (sink.stored.generation, sink.stored.offset) == (1, 2)
    assert sink.values() == [*numbers(5), *numbers(2)]

"""A member of a group without brokers: records, and the events that come between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition
from transporter_adaptors.kafka import group as module
from transporter_adaptors.kafka.config import KafkaReaderConfig
from transporter_adaptors.kafka.group import ReaderGroup
from transporter_adaptors.kafka.partition import AssignedPartition
from transporter_adaptors.kafka.position import KafkaOffset, Position

from transporter.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable


def record(offset: int | None, error: KafkaError | None = None) -> Message:
    """Return a record of partition 0, or an event in its place."""
    place = {} if offset is None else {"offset": offset}
    return Message(topic="t", partition=0, value=b"x", leader_epoch=3, error=error, **place)


class FakeConsumer:
    """A client whose queue holds what a test has put there."""

    def __init__(self) -> None:
        self.queue: list[Message] = []

    def poll(self, _timeout: float) -> Message | None:
        """Return the next of the queue."""
        return self.queue.pop(0) if self.queue else None

    def consume(self, most: int, _timeout: float) -> list[Message]:
        """Return up to *most* of the queue."""
        found, self.queue = self.queue[:most], self.queue[most:]
        return found

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        """Return the first offset and the end."""
        return 0, 20

    def pause(self, _partitions: object) -> None:
        """Pause nothing."""

    def resume(self, _partitions: object) -> None:
        """Resume nothing."""


class FakeCluster:
    """A cluster with one topic."""

    def ids(self, topics: list[str]) -> dict[str, str]:
        """Return the id of each topic."""
        return dict.fromkeys(topics, "id")


@pytest.fixture
def consumer() -> FakeConsumer:
    """Return the client of the group."""
    return FakeConsumer()


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch, consumer: FakeConsumer) -> Callable[..., ReaderGroup]:
    """Return a function that makes a group with one partition, which is read from 10 on."""
    monkeypatch.setattr(module, "make_consumer", lambda *_: consumer)

    def make(**settings: Any) -> ReaderGroup:
        given = {"bootstrap_servers": "nowhere:1", "group": "g", "topics": ["t"], **settings}
        position = Position("log-1/x")
        cluster: Any = FakeCluster()
        group = ReaderGroup(
            KafkaReaderConfig.model_validate(given),
            cluster,
            lambda: position,
            lambda: position,
            "Kafka",
        )
        held = AssignedPartition("t", "id", 0, logged=KafkaOffset(10, 3))
        group.partitions["t", 0] = held
        return group

    return make


def test_a_truncated_partition_is_named_with_the_place_that_was_to_be_read(
    join: Callable[..., ReaderGroup], consumer: FakeConsumer
) -> None:
    """The client reports it without an offset, and has the details in its text."""
    reason = "Partition log truncation detected at offset 10 (leader epoch 3): broker end offset 7"
    error = KafkaError(KafkaError._AUTO_OFFSET_RESET, reason)

    consumer.queue = [record(None, error)]
    with pytest.raises(SourceError) as failure:
        join().poll(0)

    text = str(failure.value)
    assert "is to be read from offset 10 on, but the broker has 0 to 19" in text
    assert reason in text


BAD = KafkaError(KafkaError._BAD_COMPRESSION, "Decompression of message at 12 failed")
GONE = KafkaError(KafkaError.OFFSET_OUT_OF_RANGE, "gone")
END = KafkaError(KafkaError._PARTITION_EOF, "end")


def offsets(group: ReaderGroup) -> list[int | None]:
    """Poll once and return the offsets of the records."""
    return [each.offset() for each in group.poll(0).records]


@pytest.mark.parametrize("error", [BAD, GONE], ids=["unreadable", "gone"])
def test_records_before_an_error_are_handed_out_before_it(
    join: Callable[..., ReaderGroup], consumer: FakeConsumer, error: KafkaError
) -> None:
    """Otherwise nothing would ever log them, and who moves the group past the error skips them."""
    consumer.queue = [record(10), record(11), record(12, error), record(13)]
    group = join()

    assert offsets(group) == [10, 11]
    assert group.partitions["t", 0].returned == KafkaOffset(12, 3)
    with pytest.raises(SourceError, match=r"offset 12[: ]"):
        group.poll(0)


def test_an_error_goes_with_its_partition(
    join: Callable[..., ReaderGroup], consumer: FakeConsumer
) -> None:
    """What is left of a partition that moves to another member concerns that one."""
    consumer.queue = [record(10), record(11, BAD)]
    group = join()
    assert offsets(group) == [10]

    group._drop_partitions([TopicPartition("t", 0)])

    assert offsets(group) == []


def test_events_keep_their_place_behind_records_that_wait_for_room_in_the_log(
    join: Callable[..., ReaderGroup], consumer: FakeConsumer
) -> None:
    """An end is due with the records before it, and an error does not lose them."""
    consumer.queue = [record(10), record(11, END), record(11, BAD)]
    group = join()
    held = group.partitions["t", 0]

    group.keep_membership()
    assert held.due == KafkaOffset(10, 3)

    assert offsets(group) == [10]
    assert held.passed is None
    with pytest.raises(SourceError, match="offset 11: "):
        group.poll(0)

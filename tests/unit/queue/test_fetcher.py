"""Reads of a fetcher, without a broker."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from transporter.queue import settings_of
from transporter.queue.failures import QueueFault
from transporter.queue.fetcher import Fetcher


class Client:
    """A consumer whose queue holds what a test has put there."""

    def __init__(self, *records: Message) -> None:
        self.queue = list(records)

    def poll(self, _timeout: float) -> Message | None:
        """Return the next of the queue."""
        return self.queue.pop(0) if self.queue else None

    def consume(self, most: int, _timeout: float) -> list[Message]:
        """Return up to *most* of the queue."""
        found, self.queue = self.queue[:most], self.queue[most:]
        return found

    def assignment(self) -> list[TopicPartition]:
        """Return the assigned partition."""
        return [TopicPartition("queue", 0)]

    def pause(self, _: object) -> None:
        """Pause nothing."""

    def resume(self, _: object) -> None:
        """Resume nothing."""


def record(offset: int, code: int | None = None) -> Message:
    """Return a record of partition 0, or an event in its place."""
    error = None if code is None else KafkaError(code)
    return Message(topic="queue", partition=0, offset=offset, value=b"x", error=error)


def fetcher(*records: Message) -> Any:
    """Return a fetcher whose client has *records*."""
    made: Any = Fetcher.__new__(Fetcher)
    made._queue, made._group = "q", "queue/q"
    made._settings = settings_of(bootstrap_servers="127.0.0.1:9")
    made._consumer, made._pending_records, made._paused = Client(*records), [], False
    made._foreign_ends, made._next_offsets = {}, {}
    return made


def offsets(made: Any, most: int = 10) -> list[int]:
    """Read once and return the offsets of the messages."""
    return [each.offset() for each in made._read_records(most)]


@pytest.mark.parametrize(
    "code", [KafkaError._BAD_MSG, KafkaError.INVALID_MSG, KafkaError.TOPIC_AUTHORIZATION_FAILED]
)
def test_a_fault_waits_for_the_messages_before_it(code: int) -> None:
    """And messages behind it do not come, because the client may read on behind a damaged batch."""
    passing = record(2, KafkaError._TRANSPORT)
    made = fetcher(record(1), passing, record(2), record(3, code), record(4))

    assert offsets(made) == [1, 2]
    with pytest.raises(QueueFault):
        made._read_records(10)


def test_messages_beyond_the_room_wait() -> None:
    """They come with the next read, before anything else."""
    made = fetcher()
    made._pending_records = [record(1), record(2), record(3)]

    assert offsets(made, 2) == [1, 2]
    assert offsets(made, 2) == [3]
    assert offsets(made, 2) == []


def test_a_fault_that_comes_while_there_is_no_room_waits_for_the_messages_before_it() -> None:
    """It goes with its partition, too."""
    for is_revoked in (False, True):
        made = fetcher(record(1), record(2, KafkaError._BAD_COMPRESSION))
        made._stay_in_group()
        made._stay_in_group()
        if is_revoked:
            made._on_revoke(made._consumer, [TopicPartition("queue", 0)])
            assert offsets(made) == []
        else:
            assert offsets(made) == [1]
            with pytest.raises(QueueFault, match="move the group queue/q past it"):
                made._read_records(10)

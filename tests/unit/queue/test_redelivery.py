"""Tests of the redelivery of a due message."""

from __future__ import annotations

import pytest

from transporter.queue.in_progress import Expired, MessageInProgress
from transporter.queue.markers import End, Nack, Start
from transporter.queue.message import (
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TOPIC,
    REASON,
    REDELIVERIES,
    TIME,
    pack_headers,
    redelivery_headers,
)
from transporter.queue.redelivery import (
    Due,
    end_markers,
    group_by_partition,
    redelivery_record,
    restated_markers,
    split_for_transactions,
)
from transporter.queue.settings import QueueSettings
from transporter.queue.tracker_partition import AssignedPartition

SETTINGS = QueueSettings(bootstrap_servers="127.0.0.1:1", max_redeliveries=3)


def due(count: int = 0, nack: Nack | None = None, value: bytes = b"v") -> Expired:
    """Return a message that was redelivered *count* times so far and is due again."""
    headers = redelivery_headers([("a", b"1")], "queue", (1, 5), count) if count else (("a", b"1"),)
    held = MessageInProgress("jobs", value, pack_headers(headers), 0, 0.0, 10.0)
    held.nack = nack
    return Expired((2, 7), held)


def test_a_message_goes_to_its_queue_again_and_counts_up() -> None:
    """A redelivered message keeps value and headers, and has its origin and count."""
    found = redelivery_record(due(), SETTINGS, "now")
    assert (found.topic, found.queue, found.value, found.dead) == ("queue", "jobs", b"v", False)
    assert dict(found.headers) == {
        "a": b"1",
        ORIGIN_TOPIC: b"queue",
        ORIGIN_PARTITION: b"2",
        ORIGIN_OFFSET: b"7",
        REDELIVERIES: b"1",
    }


@pytest.mark.parametrize(("count", "dead"), [(0, False), (2, False), (3, True), (4, True)])
def test_after_the_limit_it_goes_to_the_dead_letters(count: int, dead: bool) -> None:
    """With at most 3 redeliveries the fourth goes to the dead letters."""
    assert redelivery_record(due(count), SETTINGS, "now").dead is dead


def test_a_dead_letter_tells_where_it_comes_from_and_why() -> None:
    """Topic, partition, offset, count, reason and time are in its headers."""
    found = redelivery_record(due(3, Nack(2, (7,), 0, "broken order")), SETTINGS, "2030-01-01")
    assert found.topic == SETTINGS.dead_letter_topic
    assert dict(found.headers) == {
        "a": b"1",
        ORIGIN_TOPIC: b"queue",
        ORIGIN_PARTITION: b"1",
        ORIGIN_OFFSET: b"5",
        REDELIVERIES: b"3",
        REASON: b"broken order",
        TIME: b"2030-01-01",
    }


def test_without_a_limit_nothing_dies() -> None:
    """Without a limit a message is redelivered forever."""
    for_ever = SETTINGS.model_copy(update={"max_redeliveries": None})
    assert not redelivery_record(due(1000), for_ever, "now").dead


def test_a_release_is_not_counted() -> None:
    """A released message, which no program has worked on, is not counted."""
    found = redelivery_record(due(3, Nack(2, (7,), 0, "", released=True)), SETTINGS, "now")
    assert not found.dead
    assert dict(found.headers)[REDELIVERIES] == b"3"


def test_damaged_headers_do_not_keep_a_message_from_its_queue() -> None:
    """A message with damaged headers is redelivered without them."""
    held = MessageInProgress("jobs", b"v", b"\1", 0, 0.0, 10.0)
    assert redelivery_record(Expired((2, 7), held), SETTINGS, "now").value == b"v"


def test_ends_name_messages_by_partition() -> None:
    """Messages are ended by one End for each partition of the queue topic."""
    assert list(end_markers([(0, 1), (1, 2), (0, 3)])) == [End(0, (1, 3)), End(1, (2,))]


def test_a_transaction_is_bounded_in_bytes() -> None:
    """Many large messages are redelivered in several transactions (Invariant 17)."""
    where = AssignedPartition(0, 0)
    large = [Due(where, due(value=b"x" * 3 * 1024**2)) for _ in range(5)]
    assert [len(part) for part in split_for_transactions(large)] == [2, 2, 1]
    assert [
        len(part) for part in split_for_transactions([Due(where, due(value=b"x" * 20 * 1024**2))])
    ] == [1]


def test_one_transaction_takes_what_is_due_of_several_partitions() -> None:
    """One transaction ends the due messages of each partition, with its own offset."""
    one, two = AssignedPartition(1, 0), AssignedPartition(2, 0)
    first, second, third = due(), due(1), due(2)
    mixed = [Due(one, first), Due(two, second), Due(one, third)]
    assert group_by_partition(mixed) == [(one, [first, third]), (two, [second])]


def test_a_restatement_says_what_was_said() -> None:
    """A tracker that begins at a restatement redelivers the same message with the same reason."""
    expired = due(1, Nack(2, (7,), 9000, "later", released=True))
    expired.message.deadline = 9.0
    first, second = restated_markers([expired], now=4.0)
    held = expired.message
    assert first == Start("jobs", 2, (7,), 10_000, (b"v",), (held.headers,), restated=True)
    assert second == Nack(2, (7,), 5000, "later", released=True)

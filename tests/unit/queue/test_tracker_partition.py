"""Tests of the time at which a tracker may redeliver due messages."""

from __future__ import annotations

from transporter.queue.markers import End, Start
from transporter.queue.tracker_partition import AssignedPartition


def start(offset: int, seconds: int = 10) -> Start:
    """Return a Start of one message."""
    return Start("q", 0, (offset,), seconds * 1000, (b"",), (b"",))


def caught_up(first: int = 0) -> AssignedPartition:
    """Return a partition whose backlog was read."""
    found = AssignedPartition(0, first)
    found.set_end(first, 0.0)
    assert found.take_due(9) == []
    return found


def offsets(found: AssignedPartition) -> list[int]:
    """Take the due messages and return their offsets."""
    return [each.id[1] for each in found.take_due(9)]


def test_nothing_is_redelivered_before_the_past_was_read() -> None:
    """A message that ended before the assignment is not due while its End is still unread."""
    found = AssignedPartition(0, 0)
    assert found.needs_end(0.0)
    found.set_end(2, 0.0)
    found.apply(0, start(1, seconds=0), 0.0)
    assert offsets(found) == []
    found.apply(1, End(0, (1,)), 99.0)
    assert offsets(found) == []
    assert not found.needs_end(100.0)


def test_what_is_due_waits_for_the_end_that_was_asked_for() -> None:
    """An ack in the topic counts, even if the tracker reads it late."""
    found = caught_up()
    found.apply(0, start(1), 0.0)
    found.apply(1, start(2), 0.0)
    assert not found.needs_end(9.9)
    assert found.needs_end(10.0)
    found.set_end(3, 10.0)
    assert offsets(found) == []
    found.apply(2, End(0, (1,)), 10.1)
    assert offsets(found) == [2]


def test_the_end_is_asked_for_once_a_turn() -> None:
    """The end is requested once per turn, because under load it always moves on."""
    found = caught_up()
    found.apply(0, start(1), 0.0)
    found.set_end(2, 10.0)
    assert not found.needs_end(10.5)
    found.apply(1, start(3), 10.5)
    assert offsets(found) == [1]


def test_only_what_was_due_when_the_end_was_asked_for_goes() -> None:
    """A message that becomes due later waits, because its End may be behind the requested end."""
    found = caught_up()
    found.apply(0, start(1, seconds=10), 0.0)
    found.apply(1, start(2, seconds=11), 0.0)
    found.set_end(3, 10.0)
    found.apply(2, None, 12.0)
    assert offsets(found) == [1]
    assert found.needs_end(12.0)


def test_what_is_no_record_counts_as_read() -> None:
    """A commit of a transaction, which may be last in the topic, counts as read."""
    found = caught_up()
    found.apply(0, start(1), 0.0)
    found.set_end(2, 10.0)
    assert offsets(found) == []
    found.advance_to(2)
    assert offsets(found) == [1]


def test_the_end_of_our_own_transaction_is_not_waited_for() -> None:
    """The commit behind our own End is not waited for, if the partition ends there."""
    found = caught_up()
    found.apply(0, start(1), 0.0)
    found.apply(1, start(2), 0.0)
    found.note_written(2)
    assert not found.needs_end(10.0)
    found.apply(2, End(0, (2,)), 10.0)
    assert found.needs_end(10.0)
    found.set_end(4, 10.0)
    assert offsets(found) == [1]


def test_what_is_behind_our_own_transaction_is_waited_for() -> None:
    """Records behind our own transaction are read first, because they may be acks."""
    found = caught_up()
    found.apply(0, start(1), 0.0)
    found.apply(1, start(2), 0.0)
    found.note_written(2)
    found.apply(2, End(0, (2,)), 10.0)
    found.set_end(5, 10.0)
    assert offsets(found) == []
    found.apply(4, End(0, (1,)), 10.0)
    assert offsets(found) == []


def test_with_nothing_in_progress_all_that_was_read_is_committed() -> None:
    """Without messages in progress all read records are committed."""
    found = caught_up()
    found.apply(0, start(1), 0.0)
    found.apply(1, End(0, (1,)), 0.0)
    found.advance_to(5)
    assert found.low_offset == 5


def test_a_redelivery_commits_what_holds_without_it() -> None:
    """A redelivery commits the smallest Start of the other messages."""
    found = caught_up()
    found.apply(0, start(1), 0.0)
    found.apply(1, start(2, seconds=60), 0.0)
    found.set_end(2, 10.0)
    due = found.take_due(9)
    assert (found.low_offset, found.low_offset_without(due)) == (0, 1)
    found.progress.drop(each.id for each in due)
    assert found.low_offset_without(list(found.progress)) == 2

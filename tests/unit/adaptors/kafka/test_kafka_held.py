"""The offset to commit for a partition, and the end of the partition."""

from __future__ import annotations

from transporter_adaptors.kafka.held import AssignedPartition
from transporter_adaptors.kafka.position import KafkaOffset


def test_nothing_is_due_before_anything_is_durable() -> None:
    """A delivered place is due only when it is in the log."""
    held = AssignedPartition("t", "id", 0)
    held.record_returned(KafkaOffset(5))

    assert held.due is None

    held.logged = held.returned
    assert held.due == 5


def test_an_end_behind_the_last_record_is_due_when_that_record_is_durable() -> None:
    """An end behind the last record is due together with that record, and not before."""
    held = AssignedPartition("t", "id", 0, logged=KafkaOffset(2))
    held.record_returned(KafkaOffset(5))
    held.record_end(6)

    assert held.due == 2

    held.logged = held.returned
    assert held.due == 6
    assert held.commit_metadata("o").endswith('"logged":5}')


def test_an_end_that_has_grown_since_is_no_end() -> None:
    """An end that was seen before later records does not count."""
    held = AssignedPartition("t", "id", 0)
    held.record_returned(KafkaOffset(9))
    held.record_end(7)

    assert not held.is_at_end
    assert held.passed is None


def test_a_record_ends_the_end() -> None:
    """A partition with a further record is not at its end any more."""
    held = AssignedPartition("t", "id", 0)
    held.record_end(0)
    assert held.is_at_end

    held.record_returned(KafkaOffset(1))
    assert not held.is_at_end


def test_a_takeover_is_told_from_where_it_began() -> None:
    """A place that another reader reached is due, and its mark holds the own old place."""
    held = AssignedPartition("t", "id", 0, logged=KafkaOffset(50), passed=(KafkaOffset(50), 500))

    assert held.due == 500
    assert held.commit_metadata("o").endswith('"logged":50}')

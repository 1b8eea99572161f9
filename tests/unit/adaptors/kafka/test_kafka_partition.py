"""The place where a partition begins, and the offset to commit for it."""

from __future__ import annotations

import pytest
from transporter_adaptors.kafka.partition import (
    AssignedPartition,
    Committed,
    Edge,
    GroupMark,
    choose_start,
)
from transporter_adaptors.kafka.position import KafkaOffset, Position, PositionStep

OURS, THEIRS = "log-a/1", "log-b/2"


def position(place: int | None = None, topic_id: str = "id") -> Position:
    """Return a position of this log with *place* in partition 0."""
    empty = Position(OURS)
    return (
        empty
        if place is None
        else empty.advance([PositionStep("t", topic_id, 0, KafkaOffset(place))])
    )


def committed(
    offset: int, owner: str = OURS, logged: int | None = None, topic: str = "id"
) -> Committed:
    """Return a commit of this reader, or of another one, in the group."""
    return Committed(KafkaOffset(offset), GroupMark(owner, topic, logged))


def plain(offset: int) -> Committed:
    """Return a commit of an operator's tool in the group."""
    return Committed(KafkaOffset(offset), None)


@pytest.mark.parametrize(
    ("logged", "found", "expected"),
    [
        (None, None, Edge.UNKNOWN),
        (100, None, KafkaOffset(100)),
        (100, committed(90, logged=90), KafkaOffset(100)),
        (100, committed(100, logged=100), KafkaOffset(100)),
        (100, committed(50, THEIRS, 50), KafkaOffset(50)),
        (100, committed(500, THEIRS, 500), KafkaOffset(500)),
        (100, plain(3), KafkaOffset(3)),
        (100, plain(700), KafkaOffset(700)),
        (None, plain(3), KafkaOffset(3)),
        (None, committed(40, logged=None), KafkaOffset(40)),
        (None, committed(40, THEIRS, None), KafkaOffset(40)),
    ],
    ids=[
        "nobody knows",
        "only the log knows",
        "a crash before the commit",
        "all is well",
        "another engine, behind",
        "another engine, ahead",
        "reset back",
        "reset ahead",
        "a group older than the log",
        "pinned at a start",
        "pinned by another engine",
    ],
)
def test_who_is_believed(
    logged: int | None, found: Committed | None, expected: KafkaOffset | Edge
) -> None:
    """The log overrides its own marks, and the group's commits by others override the log."""
    assert choose_start(position(logged), "t", "id", 0, found) == expected


def test_ends_of_transactions_behind_the_log_are_passed() -> None:
    """An own commit beyond the log's place counts if it was made from that very place."""
    assert choose_start(position(100), "t", "id", 0, committed(103, logged=100)) == KafkaOffset(103)


def test_a_log_from_a_backup_is_believed() -> None:
    """A restored log goes on from its own place, not from the later commit of its original."""
    assert choose_start(position(60), "t", "id", 0, committed(103, logged=100)) == KafkaOffset(60)


def test_a_topic_that_took_the_name_of_another_is_read_from_its_beginning() -> None:
    """Neither the log's nor a mark's place in a deleted topic counts."""
    old = position(100, "old")

    assert choose_start(old, "t", "new", 0, None) is Edge.RECREATED
    assert choose_start(old, "t", "new", 0, committed(100, topic="old")) is Edge.RECREATED
    assert (
        choose_start(position(), "t", "new", 0, committed(9, THEIRS, topic="old")) is Edge.RECREATED
    )


def test_a_place_in_the_new_topic_counts() -> None:
    """A place that the group has committed for the new topic is used."""
    old = position(100, "old")

    assert choose_start(old, "t", "new", 0, committed(7, THEIRS, 7, topic="new")) == KafkaOffset(7)
    assert choose_start(old, "t", "new", 0, plain(5)) == KafkaOffset(5)


@pytest.mark.parametrize("text", [None, "", "x", "[]", "{}", '{"transporter":"a"}', "null"])
def test_metadata_of_others_is_no_mark(text: str | None) -> None:
    """Metadata that other programs write beside an offset is not read as a mark."""
    assert GroupMark.parse(text) is None


def test_a_mark_is_read_as_it_was_written() -> None:
    """Owner, topic and place read back unchanged."""
    mark = GroupMark(OURS, "id", 7)

    assert GroupMark.parse(str(mark)) == mark


def test_nothing_is_due_before_anything_is_durable() -> None:
    """A delivered place is due only when it is in the log."""
    held = AssignedPartition("t", "id", 0)
    held.record_returned(KafkaOffset(5))

    assert held.due is None

    held.logged = held.returned
    assert held.due == KafkaOffset(5)


def test_records_of_an_earlier_assignment_are_due_as_far_as_they_are_settled() -> None:
    """Nothing before, and no place that was settled before the partition was set back."""
    earlier = KafkaOffset(5)
    held = AssignedPartition("t", "id", 0, returned=earlier, earlier=earlier)
    for settled, due in [(None, None), (3, 3), (9, 3), (5, 5), (6, 5)]:
        held.settle_earlier(None if settled is None else KafkaOffset(settled))
        assert held.due == (None if due is None else KafkaOffset(due)), settled


def test_an_end_behind_the_last_record_is_due_when_that_record_is_durable() -> None:
    """An end behind the last record is due together with that record, and not before."""
    held = AssignedPartition("t", "id", 0, logged=KafkaOffset(2))
    held.record_returned(KafkaOffset(5))
    held.record_end(6)

    assert held.due == KafkaOffset(2)

    held.logged = held.returned
    assert held.due == KafkaOffset(6)
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

    assert held.due == KafkaOffset(500)
    assert held.commit_metadata("o").endswith('"logged":50}')


@pytest.mark.parametrize(
    ("passed", "due"),
    [(None, KafkaOffset(50, 3)), (50, KafkaOffset(50, 3)), (500, KafkaOffset(500))],
)
def test_an_epoch_is_due_only_with_the_offset_behind_its_own_record(
    passed: int | None, due: KafkaOffset
) -> None:
    """The partition may have had other leaders between that record and an offset behind it."""
    logged = KafkaOffset(50, 3)
    held = AssignedPartition("t", "id", 0, logged=logged)
    if passed is not None:
        held.passed = (logged, passed)

    assert held.due == due


@pytest.mark.parametrize("owner", [OURS, THEIRS])
def test_a_committed_epoch_of_another_record_is_not_believed(owner: str) -> None:
    """Commits of earlier versions have one. Those behind their own last record keep theirs."""
    own, later = KafkaOffset(100, 3), KafkaOffset(500, 3)

    for place, start in [(own, own), (later, KafkaOffset(500))]:
        found = Committed(place, GroupMark(owner, "id", 100))
        assert choose_start(position(100), "t", "id", 0, found) == start
    assert choose_start(position(100), "t", "id", 0, Committed(later, None)) == later


def test_a_partition_is_read_on_from_where_it_began_or_behind_what_was_handed_out() -> None:
    """Also from a place before the log's, to which an operator has reset the group."""
    logged = KafkaOffset(50)
    held = AssignedPartition("t", "id", 0)
    assert held.next_offset == 0
    held.logged = logged
    assert held.next_offset == 50
    held.passed = (logged, 3)
    assert held.next_offset == 3
    held.record_returned(KafkaOffset(9))
    assert held.next_offset == 9
    held.record_end(11)
    assert held.next_offset == 11

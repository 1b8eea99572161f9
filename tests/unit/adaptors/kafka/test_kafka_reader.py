"""The Kafka reader without brokers: the effect and the cost of a commit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from transporter_adaptors.kafka import reader as module
from transporter_adaptors.kafka.group import TakenRecords
from transporter_adaptors.kafka.partition import AssignedPartition
from transporter_adaptors.kafka.position import KafkaOffset, Position
from transporter_adaptors.kafka.reader import KafkaReader, Keeper

if TYPE_CHECKING:
    from collections.abc import Iterator


class Text(str):
    """A position's text that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        """Count, and compare as a text."""
        Text.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class Hand:
    """A stand-in for the group, which returns the prepared record at each look."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[str, int], AssignedPartition] = {}
        self.next: list[tuple[AssignedPartition, KafkaOffset]] = []
        self.needs_check = False

    def poll(self, _timeout: float) -> TakenRecords:
        """Return one record with a place and no content."""
        records: list[Any] = [object()]
        return TakenRecords(records, self.next)

    def commit_due(self) -> None:
        """Commit nothing."""

    def close(self) -> None:
        """Leave nothing."""


@pytest.fixture
def hand() -> Hand:
    """Return the stand-in for a group."""
    return Hand()


@pytest.fixture
def reader(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaReader]:
    """Yield a reader that is open on *hand*, and count comparisons of positions."""
    written = Position.__str__
    monkeypatch.setattr(Position, "__str__", lambda position: Text(written(position)))
    monkeypatch.setattr(module, "to_batch", lambda *_: ())
    config = KafkaReader.Config(bootstrap_servers="nowhere:1", group="g", topics=["t"])
    reader: Any = KafkaReader(config)
    reader._position = Position("log-1/x")
    reader._group, reader._cluster = hand, object()
    reader._checked_at = reader._committed_at = time.monotonic()
    reader._keeper = Keeper(3600, lambda: None)
    Text.compared = 0
    yield reader
    reader.close()


def batches(reader: KafkaReader, hand: Hand, held: AssignedPartition, count: int) -> list[str]:
    """Poll *count* batches of one record of *held* each, and return their positions."""
    found = []
    for number in range(count):
        hand.next = [(held, KafkaOffset(number + 1))]
        found.append(reader.poll(0).position or "")
    return found


@pytest.mark.parametrize("known", [True, False])
def test_commits_of_many_open_batches_cost_the_same_each(
    reader: KafkaReader, hand: Hand, known: bool
) -> None:
    """The cost of a commit does not grow with the number of open batches."""
    count = 1000
    positions = batches(reader, hand, AssignedPartition("t", "id", 0), count)
    # After a restart the first commits are of batches of the run before.
    committed = positions if known else [str(Position(f"o-{number}")) for number in range(count)]

    for position in committed:
        reader.commit(position)

    assert Text.compared <= 4 * count
    assert len(reader._open_batches) == (0 if known else count)


def test_a_commit_settles_all_batches_up_to_it(reader: KafkaReader, hand: Hand) -> None:
    """Batches behind the position stay open, until their own commit."""
    held = AssignedPartition("t", "id", 0)
    positions = batches(reader, hand, held, 5)

    reader.commit(positions[2])
    assert (held.logged, len(reader._open_batches)) == (KafkaOffset(3), 2)
    reader.commit(str(Position("o")))
    assert (held.logged, len(reader._open_batches)) == (KafkaOffset(3), 2)
    reader.commit(positions[4])
    assert (held.logged, len(reader._open_batches)) == (KafkaOffset(5), 0)


def test_a_position_that_is_reached_twice_settles_both(reader: KafkaReader, hand: Hand) -> None:
    """A partition that went away and came back is read again, up to a known place."""
    gone, back, other = (
        AssignedPartition("t", "id", 0),
        AssignedPartition("t", "id", 0),
        AssignedPartition("t", "id", 1),
    )
    hand.next = [(gone, KafkaOffset(1)), (other, KafkaOffset(7))]
    first = reader.poll(0).position or ""
    hand.next = [(back, KafkaOffset(1))]
    again = reader.poll(0).position or ""
    hand.next = [(back, KafkaOffset(2))]
    last = reader.poll(0).position or ""
    assert first == again

    reader.commit(first)

    assert (back.logged, other.logged, len(reader._open_batches)) == (
        KafkaOffset(1),
        KafkaOffset(7),
        1,
    )
    reader.commit(last)
    assert (back.logged, len(reader._open_batches)) == (KafkaOffset(2), 0)

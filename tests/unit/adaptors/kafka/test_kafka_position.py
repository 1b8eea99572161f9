"""The position of a Kafka reader: its partitions, and their topics' identities."""

from __future__ import annotations

import pytest
from transporter_adaptors.kafka.position import KafkaOffset, Position, PositionStep

from transporter.errors import SourceError


def test_a_position_is_read_as_it_was_written() -> None:
    """Every partition of every topic reads back, with owner, topic id and leader epoch."""
    position = Position("log/ab").advance(
        [
            PositionStep("a", "id-a", 0, KafkaOffset(7, 3)),
            PositionStep("a", "id-a", 12, KafkaOffset(1)),
            PositionStep("b", "", 0, KafkaOffset(2**62, 0)),
        ]
    )

    again = Position.parse(str(position))

    assert again == position
    assert again.place("a", "id-a", 0) == KafkaOffset(7, 3)
    assert again.place("a", "id-a", 12) == KafkaOffset(1, -1)


def test_a_step_moves_its_partition_only() -> None:
    """The places of other partitions stay, and the old position is unchanged."""
    before = Position("o").advance(
        [PositionStep("a", "i", 0, KafkaOffset(5)), PositionStep("a", "i", 1, KafkaOffset(6))]
    )

    after = before.advance([PositionStep("a", "i", 1, KafkaOffset(9))])

    assert (after.place("a", "i", 0), after.place("a", "i", 1)) == (KafkaOffset(5), KafkaOffset(9))
    assert before.place("a", "i", 1) == KafkaOffset(6)


def test_a_topic_with_another_id_begins_anew() -> None:
    """Places of a deleted topic are neither used for its successor nor kept beside its own."""
    before = Position("o").advance(
        [PositionStep("a", "old", 0, KafkaOffset(5)), PositionStep("a", "old", 1, KafkaOffset(6))]
    )

    after = before.advance([PositionStep("a", "new", 1, KafkaOffset(2))])

    assert before.place("a", "new", 0) is None
    assert before.is_recreated("a", "new")
    assert after.place("a", "new", 0) is None
    assert after.place("a", "new", 1) == KafkaOffset(2)
    assert not after.is_recreated("a", "new")


def test_without_an_id_a_topic_is_taken_as_the_one_it_was() -> None:
    """A topic is the same one if brokers gave no id before or after an upgrade."""
    before = Position("o").advance([PositionStep("a", "", 0, KafkaOffset(5))])
    after = before.advance([PositionStep("a", "id", 0, KafkaOffset(6))])

    assert before.place("a", "id", 0) == KafkaOffset(5)
    assert after.place("a", "", 0) == KafkaOffset(6)
    assert not before.is_recreated("a", "id")


@pytest.mark.parametrize(
    "text", ["", "7", "[]", '{"batch":1}', '{"owner":"o","topics":{"a":{"id":"","next":[1]}}}']
)
def test_a_foreign_position_is_refused(text: str) -> None:
    """A position that no Kafka reader has written is refused, with the remedy."""
    with pytest.raises(SourceError, match="give the reader another name"):
        Position.parse(text)


def test_unknown_keys_of_a_later_version_are_passed_over() -> None:
    """A position with unknown keys is read."""
    text = '{"owner":"o","more":1,"topics":{"a":{"id":"i","next":{"0":[3,1]},"more":2}}}'

    assert Position.parse(text).place("a", "i", 0) == KafkaOffset(3, 1)

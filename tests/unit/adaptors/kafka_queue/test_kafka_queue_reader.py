"""The messages that wait for their ack, the position that names a batch, and the measured age."""

from __future__ import annotations

import pytest
from transporter_adaptors.kafka_queue import reader
from transporter_adaptors.kafka_queue.reader import Position, Unsettled, _oldest_age, _QueueContents

from transporter.errors import SourceError


def holding(*batches: int) -> Unsettled:
    """Return batches of four messages each, with offsets from 10 times the batch number."""
    found = Unsettled()
    for batch in batches:
        found.add(batch, [(0, 10 * batch + row) for row in range(4)])
    return found


def test_rows_are_the_messages_of_their_batch() -> None:
    """Batches may be settled in any order, each in parts."""
    found = holding(1, 2)
    assert found.settle(2, [3, 0]) == [(0, 23), (0, 20)]
    assert found.settle(1, range(4)) == [(0, 10), (0, 11), (0, 12), (0, 13)]
    assert found.settle(2, (1, 2)) == [(0, 21), (0, 22)]


def test_a_settled_batch_is_forgotten() -> None:
    """A settled batch leaves nothing in memory (Invariant 17)."""
    found = holding(1, 2)
    found.settle(1, range(3))
    assert len(found) == 2
    found.settle(1, [3])
    assert len(found) == 1


def test_all_up_to_a_batch_can_be_settled() -> None:
    """Settling up to a batch leaves later batches open."""
    found = holding(1, 2, 3)
    assert found.settle_through(2) == [(0, each) for each in (10, 11, 12, 13, 20, 21, 22, 23)]
    assert len(found) == 1


def test_the_oldest_is_that_of_the_batches_that_are_left() -> None:
    """A batch counts as old as its oldest message was, until all of it is settled."""
    found = Unsettled()
    assert found.oldest is None
    for batch, oldest in enumerate([30.0, 10.0, None, 20.0]):
        found.add(batch, [(0, 2 * batch), (0, 2 * batch + 1)], oldest)
    assert found.oldest == 10.0
    found.settle(1, [0])
    assert found.oldest == 10.0
    found.settle(1, [1])
    assert found.oldest == 20.0
    found.settle_through(3)
    assert found.oldest is None


def test_a_position_is_read_as_it_was_written() -> None:
    """A position reads back as it was written, and unknown keys are skipped."""
    assert Position.parse(str(Position(17))) == Position(17)
    assert Position.parse('{"batch": 3, "more": 1}') == Position(3)


@pytest.mark.parametrize("text", ["", "17", "{}", "[1]", '{"batch": "x"}', "queue/1/2"])
def test_a_strangers_position_is_refused(text: str) -> None:
    """A foreign position is refused, and the error names the remedy."""
    with pytest.raises(SourceError, match="give the reader another name"):
        Position.parse(text)


@pytest.mark.parametrize(
    ("held", "taken", "age"),
    [
        (_QueueContents(0, None, unknown=False), None, 0.0),
        (_QueueContents(2, 70.0, unknown=False), None, 30.0),
        (_QueueContents(2, 70.0, unknown=False), 60.0, 40.0),
        (_QueueContents(2, None, unknown=False), 60.0, 40.0),
        (_QueueContents(2, 120.0, unknown=False), None, 0.0),
        (_QueueContents(2, None, unknown=False), None, 0.0),
        (_QueueContents(2, None, unknown=True), None, None),
        (_QueueContents(2, None, unknown=True), 60.0, 40.0),
    ],
)
def test_the_age_is_that_of_the_oldest_of_all(
    held: _QueueContents, taken: float | None, age: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The age is 0 when every counted message is acked, and unknown when its time is."""
    monkeypatch.setattr(reader.time, "time", lambda: 100.0)
    assert _oldest_age(held, taken) == age

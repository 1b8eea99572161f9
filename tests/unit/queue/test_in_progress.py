"""Tests of a tracker's state after markers, case by case."""

from __future__ import annotations

import pytest

from transporter.queue.in_progress import InProgress
from transporter.queue.markers import End, KeepAlive, Nack, Start

SECOND = 1000


def start(*offsets: int, after: int = 10 * SECOND, restated: bool = False) -> Start:
    """Return a Start of *offsets* of partition 0, each with its number as value."""
    values = tuple(b"%d" % offset for offset in offsets)
    return Start("q", 0, offsets, after, values, (b"",) * len(offsets), restated)


def seeing(*markers: object, now: float = 0.0) -> InProgress:
    """Return the state after *markers*, one per offset, all seen at *now*."""
    progress = InProgress()
    for offset, marker in enumerate(markers):
        progress.apply(offset, marker, now)  # type: ignore[arg-type]
    return progress


def due(progress: InProgress, now: float) -> list[int]:
    """Take the due messages and return their offsets."""
    return [each.id[1] for each in progress.take_expired(now, 100)]


def test_a_message_is_due_when_its_time_is_over_and_not_before() -> None:
    """The deadline is the time when the Start was seen plus its duration."""
    progress = seeing(start(7), now=100.0)
    assert due(progress, 109.999) == []
    assert due(progress, 110.0) == [7]


def test_what_has_ended_is_never_due() -> None:
    """Only the messages of a Start without an End are due."""
    progress = seeing(start(1, 2, 3), End(0, (2,)))
    assert due(progress, 60.0) == [1, 3]


def test_a_keep_alive_postpones_each_of_its_messages() -> None:
    """A KeepAlive restarts the time when it is seen, with its own duration."""
    progress = seeing(start(1, 2))
    progress.apply(1, KeepAlive(0, (1,), 10 * SECOND), 9.0)
    assert due(progress, 18.9) == [2]
    assert due(progress, 19.0) == [1]


def test_a_keep_alive_of_an_unknown_message_is_nothing() -> None:
    """A message that has ended, or never began, cannot be kept alive."""
    progress = seeing(KeepAlive(0, (4,), SECOND), start(1), End(0, (1,)), KeepAlive(0, (1,), 1))
    assert len(progress) == 0
    assert due(progress, 60.0) == []


def test_a_nack_makes_a_message_due_at_once_or_after_its_delay() -> None:
    """A nacked message is redelivered, not discarded, and keeps the reason."""
    progress = seeing(start(1, 2), Nack(0, (1,), 0, "bad"), Nack(0, (2,), 3 * SECOND))
    (first,) = progress.take_expired(0.0, 9)
    assert (first.id, first.message.nack and first.message.nack.reason) == ((0, 1), "bad")
    assert due(progress, 3.0) == [2]


def test_nothing_keeps_a_nacked_message_alive() -> None:
    """A KeepAlive that comes after its message's nack has no effect."""
    progress = seeing(start(1), Nack(0, (1,)), KeepAlive(0, (1,), 10 * SECOND))
    assert due(progress, 0.0) == [1]


def test_a_second_start_after_the_deadline_begins_anew() -> None:
    """A Start during a failed redelivery does not delay the retry, and a later one restarts."""
    progress = seeing(start(1))
    taken = progress.take_expired(10.0, 9)
    progress.apply(1, start(1), 11.0)
    progress.retry([each.id for each in taken], 12.0)
    assert due(progress, 12.0) == [1]
    progress.apply(2, start(1), 13.0)
    assert due(progress, 22.9) == []
    assert due(progress, 23.0) == [1]


def test_what_failed_to_be_redelivered_is_due_again() -> None:
    """A taken message stays in progress until it is dropped."""
    progress = seeing(start(1))
    assert due(progress, 10.0) == [1]
    assert due(progress, 10.0) == []
    progress.retry([(0, 1)], 11.0)
    assert (progress.low_offset, due(progress, 11.0)) == (0, [1])


def test_the_smallest_start_that_counts_is_committed() -> None:
    """The smallest Start that is still needed is committed."""
    progress = seeing(start(1), start(2), End(0, (2,)), start(3))
    assert progress.low_offset == 0
    assert progress.low_offset_without([(0, 1)]) == 3
    progress.apply(4, End(0, (1,)), 0.0)
    assert progress.low_offset == 3
    progress.apply(5, End(0, (3,)), 0.0)
    assert progress.low_offset == 6


def test_a_restated_start_lets_go_of_the_old_one() -> None:
    """A restated Start moves the committed offset, but neither deadline nor age."""
    progress = seeing(start(1), None, now=0.0)
    progress.finish_catching_up()
    progress.apply(2, start(1, restated=True), 5.0)
    assert progress.low_offset == 2
    assert progress.oldest == 0.0
    assert due(progress, 10.0) == [1]


def test_a_restated_start_does_not_wake_what_has_ended() -> None:
    """An ack before a restated Start stays valid."""
    progress = seeing(start(1), End(0, (1,)))
    progress.finish_catching_up()
    progress.apply(2, start(1, restated=True), 5.0)
    assert (len(progress), progress.low_offset) == (0, 3)


def test_a_tracker_that_catches_up_does_not_wake_what_has_ended() -> None:
    """An End that a new tracker reads before a restated Start counts, as for the old tracker."""
    whole = seeing(start(1), End(0, (1,)), start(1, restated=True))
    assert (len(whole), whole.low_offset) == (0, 3)
    passed_over = seeing(start(2, restated=True), End(0, (1,)), start(1, restated=True))
    assert due(passed_over, 60.0) == [2]


def test_what_was_started_again_after_its_end_is_restated_too() -> None:
    """A Start that a consumer wrote after an End counts, and so does its restatement."""
    progress = seeing(start(1), End(0, (1,)), start(1), start(1, restated=True))
    assert (progress.low_offset, due(progress, 60.0)) == (3, [1])


def test_a_restatement_wakes_what_it_names_besides_what_has_ended() -> None:
    """No message is lost because another one of the same marker has ended."""
    progress = seeing(End(0, (1,)), start(1, 2, restated=True))
    assert (0, 2) in {each.id for each in progress}


@pytest.mark.parametrize("caught_up", [False, True])
def test_an_end_before_a_restated_start_is_to_be_repeated(caught_up: bool) -> None:
    """A tracker that begins between the two would take the message for begun."""
    progress = seeing(start(1), start(2))
    if caught_up:
        progress.finish_catching_up()
    for offset, marker in enumerate([End(0, (1,)), start(1, restated=True)], start=2):
        progress.apply(offset, marker, 0.0)
    assert progress.ends_to_repeat == {(0, 1)}
    progress.apply(4, End(0, (1,)), 0.0)
    assert progress.ends_to_repeat == set()


def test_an_end_is_not_repeated_behind_a_new_start() -> None:
    """A message that a consumer has started again is in progress, and no old End may end it."""
    progress = seeing(End(0, (1,)), start(1, restated=True), start(1))
    assert progress.ends_to_repeat == set()


def test_memory_does_not_grow_with_ends_while_it_catches_up() -> None:
    """A tracker that catches up remembers the latest Ends only (Invariant 17)."""
    progress = InProgress(most_ends=100)
    for number in range(1000):
        progress.apply(number, End(0, (number,)), 0.0)
    assert len(progress._ended) + len(progress._ended_earlier) <= 200
    progress.apply(1000, start(999, restated=True), 0.0)
    assert len(progress) == 0
    progress.finish_catching_up()
    assert len(progress._ended) + len(progress._ended_earlier) == 0


def test_a_tracker_that_begins_anew_takes_a_restated_start_for_a_start() -> None:
    """A new tracker treats a restated Start as a Start, because the original may be gone."""
    progress = InProgress(2)
    progress.apply(2, start(1, restated=True), 0.0)
    assert due(progress, 10.0) == [1]


def test_old_starts_are_found_in_order() -> None:
    """Only Starts seen long ago are returned, in order."""
    progress = seeing(start(1), start(2))
    progress.apply(2, start(3), 50.0)
    assert [each.id[1] for each in progress.older_than(60.0, 60.0, 9)] == [1, 2]
    assert [each.id[1] for each in progress.older_than(60.0, 60.0, 1)] == [1]
    assert progress.older_than(59.0, 60.0, 9) == []


def test_memory_does_not_grow_with_what_has_passed() -> None:
    """One message that stays keeps no memory of the many that have ended (Invariant 17)."""
    progress = InProgress(slack=100)
    progress.apply(0, start(0), 0.0)
    for number in range(1, 3000):
        progress.apply(2 * number - 1, start(number), 0.0)
        progress.apply(2 * number, End(0, (number,)), 0.0)
    assert progress.low_offset == 0
    assert len(progress._by_offset) + len(progress._by_deadline) < 250


def test_tidying_up_keeps_starts_in_order() -> None:
    """A message begun twice does not hide one begun in between."""
    progress = InProgress(slack=-100)
    for offset, marker in enumerate([start(1), start(2), start(1), None]):
        progress.apply(offset, marker, 0.0)
    assert progress.low_offset == 1

"""Tests of the messages that a consumer has begun and not settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.queue import in_flight
from transporter.queue.in_flight import InFlight
from transporter.queue.message import QueueMessage

if TYPE_CHECKING:
    import pytest


def message(offset: int) -> QueueMessage:
    """Return a message at *offset* of partition 0."""
    return QueueMessage((0, offset), "q", b"%d" % offset)


def holding(*offsets: int, hold: float = 60.0, now: float = 0.0) -> InFlight:
    """Return messages in flight that were begun at *now*, redelivered after 10 s."""
    found = InFlight(10, hold, 10.0)
    found.add([message(offset) for offset in offsets], now)
    return found


def test_what_is_begun_takes_room_until_it_is_settled() -> None:
    """Waiting and received messages count alike."""
    found = holding(1, 2, 3)
    taken = found.take(2)
    assert (found.room, found.waiting, len(found)) == (7, 1, 3)
    found.settle([taken[0].id])
    assert (found.room, len(found)) == (8, 2)


def test_messages_are_received_in_order_and_once() -> None:
    """Each message is received once, in order."""
    found = holding(1, 2, 3)
    assert [each.id[1] for each in found.take(2)] == [1, 2]
    assert [each.id[1] for each in found.take(2)] == [3]
    assert found.take(2) == []


def test_all_that_is_held_is_kept_alive_but_the_young() -> None:
    """A message begun just now needs no KeepAlive yet, and one held too long gets none."""
    found = holding(1, hold=60.0)
    found.add([message(2)], 58.0)
    assert found.ids_to_keep_alive(59.0, min_age=5.0) == [(0, 1)]
    assert found.ids_to_keep_alive(63.0, min_age=5.0) == [(0, 2)]


def test_without_hold_nothing_is_kept_alive() -> None:
    """A hold of 0 leaves each message the time of its Start."""
    assert holding(1, hold=0.0).ids_to_keep_alive(5.0, min_age=0.0) == []


def test_extending_begins_the_hold_anew() -> None:
    """An extended message is kept alive as if it were begun now."""
    found = holding(1)
    found.extend((0, 1), 59.0)
    assert found.ids_to_keep_alive(118.0, min_age=5.0) == [(0, 1)]


def test_what_is_neither_settled_nor_kept_alive_is_given_up() -> None:
    """A lapsed message makes room when the tracker has redelivered it, and is not received."""
    found = holding(1, hold=60.0)
    assert found.take_lapsed(69.9) == []
    assert found.take_lapsed(70.0) == [(0, 1)]
    assert (found.room, found.take(1)) == (10, [])


def test_only_what_nobody_received_is_released() -> None:
    """Messages that a program has received are not released."""
    found = holding(1, 2, 3)
    found.take(1)
    assert found.release() == [(0, 2), (0, 3)]
    assert (list(found.unsettled_ids()), found.take(5)) == ([(0, 1)], [])


def test_the_age_is_that_of_the_oldest() -> None:
    """The age is that of the oldest unsettled message."""
    found = holding(1)
    found.add([message(2)], 5.0)
    assert found.age(8.0) == 8.0
    found.settle([(0, 1)])
    assert found.age(8.0) == 3.0
    found.settle([(0, 2)])
    assert found.age(8.0) == 0.0


def test_the_oldest_that_waits_is_known_by_when_it_was_sent() -> None:
    """A waiting message counts until it is received, if it has a time."""
    found = InFlight(10, 60.0, 10.0)
    assert found.oldest_sent is None
    found.add([message(each)._replace(sent=sent) for each, sent in enumerate([5, 3, -1, 9])], 0.0)
    assert found.oldest_sent == 3
    found.take(2)
    assert found.oldest_sent == 9
    found.take(2)
    assert found.oldest_sent is None


def test_only_so_many_are_begun_ahead() -> None:
    """Received messages take no room ahead, even if they are unsettled."""
    found = InFlight(10, 60.0, 10.0, ahead=3)
    assert (found.room, found.good_room) == (3, 1)
    found.add([message(1), message(2)], 0.0)
    assert found.room == 1
    found.take(2)
    assert (found.room, len(found)) == (3, 2)
    found.add([message(offset) for offset in range(3, 11)], 0.0)
    found.take(8)
    assert found.room == 0


def test_only_so_many_bytes_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 17: large values leave no room for more until they are received."""
    monkeypatch.setattr(in_flight, "_MOST_BYTES", 5)
    found = InFlight(10, 60.0, 10.0)
    found.add([QueueMessage((0, 1), "q", b"xxx"), QueueMessage((0, 2), "q", None)], 0.0)
    assert found.room == 8
    found.add([QueueMessage((0, 3), "q", b"xx")], 0.0)
    assert found.room == 0
    found.take(1)
    assert found.room == 7
    found.release()
    found.add([QueueMessage((0, 4), "q", b"xxxxx")], 0.0)
    assert found.room == 0
    assert found.take_lapsed(70.0)
    assert found.room == 10


def test_so_many_bytes_are_received_at_once() -> None:
    """The last message may exceed the limit in bytes, so at least one is received."""
    found = InFlight(10, 60.0, 10.0)
    found.add([QueueMessage((0, offset), "q", b"xxxx") for offset in range(5)], 0.0)
    assert [len(found.take(10, most)) for most in (1, 5, 100)] == [1, 2, 2]

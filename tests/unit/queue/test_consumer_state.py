"""Tests of the exchange between a program and a consumer's threads."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from transporter.queue.consumer_state import ConsumerState, Work
from transporter.queue.failures import QueueClosed, QueueFault
from transporter.queue.in_flight import InFlight
from transporter.queue.markers import Nack
from transporter.queue.message import QueueMessage

FAR = 1e9


def exchange(*offsets: int, limit: int = 4, hold: float = 60.0) -> ConsumerState:
    """Return an exchange with messages that wait to be received."""
    made = ConsumerState(InFlight(limit, hold, 10.0))
    made.add([QueueMessage((0, offset), "q", b"") for offset in offsets], time.monotonic())
    return made


def test_acks_are_collected_into_one_piece_of_work() -> None:
    """Several acks are written together."""
    found = exchange(1, 2, 3)
    for message in found.take(3, 0):
        found.ack([message.id])
    assert found.next_work(FAR, 0) == Work([(0, 1), (0, 2), (0, 3)], [], [])


def test_a_flush_waits_for_what_is_being_written() -> None:
    """Acks count as written when the writing thread confirms them, not when it takes them."""
    found = exchange(1)
    found.ack([(0, 1)])
    assert not found.flush(0)
    found.next_work(FAR, 0)
    assert not found.flush(0)
    found.finish_work()
    assert found.flush(0)


def test_a_full_exchange_has_no_room_until_something_is_settled() -> None:
    """No more messages are begun than the limit allows."""
    found = exchange(1, 2, 3, 4)
    assert found.await_room(0) == 0
    found.ack([(0, 1)])
    assert found.await_room(0) == 1


def test_an_ack_wakes_who_waits_for_room() -> None:
    """The fetching thread continues as soon as there is room."""
    found = exchange(1, 2, 3, 4)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(found.await_room, 60)
        found.ack([(0, 1), (0, 2)])
        found.next_work(time.monotonic(), 0)
        assert waiting.result(30) >= 1


def test_who_waits_for_a_message_is_woken_by_it() -> None:
    """The arrival of a message wakes a waiting receiver."""
    found = exchange()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(found.take, 1, 60)
        found.add([QueueMessage((0, 9), "q", b"")], time.monotonic())
        assert waiting.result(30)[0].id == (0, 9)


def test_the_death_of_the_fetching_thread_is_told_after_the_last_message() -> None:
    """Begun messages are received and can be acked before the reason is raised."""
    found = exchange(1)
    found.fail_fetching(QueueFault("no such topic"))
    assert len(found.take(1, 0)) == 1
    found.ack([(0, 1)])
    with pytest.raises(QueueFault, match="no such topic"):
        found.take(1, 60)


def test_the_death_of_the_writing_thread_is_told_by_everything() -> None:
    """Every call raises the writing thread's failure, so no unwritable ack is accepted."""
    found = exchange(1)
    found.fail_writing(QueueFault("no rights"))
    for act in (
        lambda: found.ack([(0, 1)]),
        lambda: found.nack([(0, 1)], Nack(0, ())),
        lambda: found.extend([(0, 1)]),
        lambda: found.flush(60),
    ):
        with pytest.raises(QueueFault, match="no rights"):
            act()


def test_closing_gives_back_what_is_unsettled() -> None:
    """A message returned at the close counts as a delivery only if it was received."""
    found = exchange(1, 2)
    found.take(1, 0)
    found.close()
    found.give_back("closed")
    work = found.next_work(FAR, 0)
    assert work is not None
    assert [(each, nack.released) for each, nack in work.nacked] == [
        ((0, 2), True),
        ((0, 1), False),
    ]
    found.finish_work()
    assert found.next_work(FAR, 0) is None


def test_a_closed_exchange_says_so() -> None:
    """Receiving and settling after the close are errors that name the reason."""
    found = exchange(1)
    found.close()
    found.give_back("closed")
    with pytest.raises(QueueClosed):
        found.take(1, 60)
    with pytest.raises(QueueClosed):
        found.ack([(0, 1)])


def test_keeping_alive_is_due_at_its_time_only() -> None:
    """Earlier work does not include KeepAlives."""
    found = exchange(1)
    found.ack([(0, 9)])
    early = found.next_work(FAR, 0)
    assert early is not None
    assert early.alive == []
    due = found.next_work(time.monotonic(), 0)
    assert due is not None
    assert due.alive == [(0, 1)]


def test_an_extended_message_is_kept_alive_at_once() -> None:
    """The tracker gets the KeepAlive now, and not at the next turn."""
    found = exchange(1)
    found.extend([(0, 1)])
    work = found.next_work(FAR, 0)
    assert work is not None
    assert work.alive == [(0, 1)]


def test_what_lapsed_is_counted_and_makes_room() -> None:
    """A lapsed message is counted and makes room."""
    found = ConsumerState(InFlight(1, 0.0, 0.0))
    found.add([QueueMessage((0, 1), "q", b"")], time.monotonic())
    assert found.await_room(0) == 0
    found.next_work(time.monotonic(), 0)
    assert (found.await_room(0), found.metrics().lapsed) == (1, 1)


def test_everything_is_counted() -> None:
    """The metrics count the outcome of each message."""
    found = ConsumerState(InFlight(10, 60.0, 10.0))
    messages = [QueueMessage((0, offset), "q", b"", redeliveries=offset) for offset in range(4)]
    found.add(messages, time.monotonic())
    taken = found.take(3, 0)
    found.ack([taken[0].id])
    found.nack([taken[1].id], Nack(0, ()))
    found.release("busy")
    counted = found.metrics()
    assert (counted.received, counted.redelivered) == (3, 2)
    assert (counted.acked, counted.nacked, counted.released) == (1, 1, 1)
    assert counted.in_progress == 1


def test_a_program_that_asks_is_not_idle() -> None:
    """Only a program without a recent call for messages is idle."""
    found = exchange()
    assert found.has_demand(60)
    assert not found.has_demand(0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(found.take, 1, 60)
        assert found.await_demand(30)
        assert found.has_demand(0)
        found.close()
        with pytest.raises(QueueClosed):
            waiting.result(30)


def test_what_was_received_can_be_given_back_uncounted() -> None:
    """Received messages that the program has not worked on can be returned without a count."""
    found = exchange(1, 2)
    found.take(1, 0)
    found.close()
    found.give_back("closed", counted=False)
    work = found.next_work(FAR, 0)
    assert work is not None
    assert [(each, nack.released) for each, nack in work.nacked] == [((0, 2), True), ((0, 1), True)]


def test_a_check_raises_what_a_thread_has_died_of() -> None:
    """A check raises a thread's failure even while messages wait."""
    fetching, writing = exchange(1), exchange(1)
    assert fetching.check(60)
    fetching.fail_fetching(QueueFault("no such topic"))
    writing.fail_writing(QueueFault("no rights"))
    for found, text in ((fetching, "no such topic"), (writing, "no rights")):
        with pytest.raises(QueueFault, match=text):
            found.check(60)


def test_brokers_are_heard_of_by_what_they_confirm() -> None:
    """Written work and answers count as contact with the brokers, but empty work does not."""
    found = exchange()
    found.ack([(0, 1)])
    found.next_work(FAR, 0)
    found._answered_at -= 60
    assert found.is_silent(60)
    assert not found.check(60)
    found.finish_work()
    assert not found.is_silent(60)
    found._answered_at -= 60
    assert found.next_work(FAR, 0, 0.0) == Work([], [], [])
    found.finish_work()
    assert found.is_silent(60)
    found.note_answer()
    assert not found.is_silent(60)


def test_room_ahead_is_made_by_who_receives() -> None:
    """The fetching thread is woken when waiting messages are taken."""
    found = ConsumerState(InFlight(100, 60.0, 10.0, ahead=2))
    found.add([QueueMessage((0, offset), "q", b"") for offset in range(2)], time.monotonic())
    assert found.await_room(0) == 0
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(found.await_room, 60)
        found.take(2, 0)
        assert waiting.result(30) == 2

"""Calls that a route runs between two slices: done once, by their owner, or not at all."""

from __future__ import annotations

from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as TooLong

import pytest

from transporter.engine.routing.condition import Mailbox
from transporter.errors import EngineUnreachable


def test_what_is_asked_for_is_done_in_order_by_the_owner() -> None:
    """The owner runs its errands in order, each once, and none runs before."""
    woken: list[int] = []
    done: list[int] = []
    errands = Mailbox(lambda: woken.append(1))
    answers = [errands.submit(lambda n=number: done.append(n) or n) for number in range(3)]
    assert (done, len(woken), bool(errands)) == ([], 3, True)
    with pytest.raises(TooLong):
        answers[0].result(0)
    errands.run()
    errands.run()
    assert done == [0, 1, 2]
    assert [answer.result(0) for answer in answers] == [0, 1, 2]
    assert not errands


def test_what_an_errand_raises_is_the_askers() -> None:
    """A failing errand raises for its caller only, and the next errand is done."""
    errands = Mailbox(lambda: None)
    failing, good = errands.submit(lambda: 1 // 0), errands.submit(lambda: 5)
    errands.run()
    with pytest.raises(ZeroDivisionError):
        failing.result(0)
    assert good.result(0) == 5


def test_what_was_withdrawn_is_not_done() -> None:
    """A withdrawn errand is never done."""
    done: list[int] = []
    errands = Mailbox(lambda: None)
    assert errands.submit(lambda: done.append(1)).cancel()
    errands.run()
    assert done == []


def test_an_owner_that_has_ended_does_nothing_more() -> None:
    """An owner that has ended cancels waiting errands and refuses later ones."""
    errands = Mailbox(lambda: None)
    waiting = errands.submit(lambda: 1)
    errands.close()
    with pytest.raises(CancelledError):
        waiting.result(0)
    with pytest.raises(EngineUnreachable):
        errands.submit(lambda: 2)

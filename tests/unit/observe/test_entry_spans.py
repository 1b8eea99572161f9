"""Traced entries, and the data kept about them until their acks."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from transporter.message import Headers, Message, messages_to_batch
from transporter.observe.entry_spans import PENDING, Journal, Traced, sample_messages
from transporter.protocol.messages import Outcome, Slice

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0"
RECORDED: Headers = (("a", b"b"), ("traceparent", f"{PARENT}1".encode()))
NOT_RECORDED: Headers = (("traceparent", f"{PARENT}0".encode()),)
INVALID: Headers = (("traceparent", b"nonsense"),)


def rows(share: float, *headers: Headers, most: int = 100) -> tuple[list[int], int]:
    """Return the traced rows of messages with these headers, and the number beyond *most*."""
    batch = messages_to_batch([Message("n", b"", headers=each) for each in headers])
    samples, beyond = sample_messages(batch, share, random.Random(1), most)
    return sorted(each.row for each in samples), beyond


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_source_that_has_decided_is_followed(share: float) -> None:
    """A source's flag counts instead of the share, and a row without a valid context is drawn."""
    found, _ = rows(share, (), RECORDED, NOT_RECORDED, INVALID, RECORDED)
    assert found == ([1, 4] if share == 0.0 else [0, 1, 3, 4])


def test_the_context_comes_with_the_row() -> None:
    """A traced row has the ids of its own header."""
    batch = messages_to_batch([Message("n", b""), Message("n", b"", headers=RECORDED)])
    ((sample,), _) = sample_messages(batch, 0, random.Random(1), 10)
    assert sample.context is not None
    assert (sample.row, sample.context.parent) == (1, f"{PARENT}1")


def test_a_share_is_drawn() -> None:
    """About the given share of many messages is traced, each at most once."""
    found, beyond = rows(0.1, *[()] * 20_000, most=20_000)
    assert len(set(found)) == len(found)
    assert 1_800 < len(found) < 2_200
    assert beyond == 0


def test_what_there_is_no_room_for_is_counted() -> None:
    """No more entries are traced than there is room for, and the others are counted."""
    assert rows(1.0, RECORDED, (), RECORDED, (), most=1) == ([0], 3)
    assert rows(1.0, RECORDED, (), most=0) == ([], 2)


def entry(offset: int, namespace: str = "a") -> Traced:
    """Return an entry that was just logged."""
    return Traced(offset, namespace, 1, 2, None, 0)


def journal(*entries: Traced, routes: tuple[str, ...] = ("r",)) -> Journal:
    """Return a journal with *entries*."""
    found = Journal(routes)
    for each in entries:
        assert list(found.add(each)) == []
    return found


def settle(found: Journal, first: int, through: int, route: str = "r", **more: Any) -> list[int]:
    """Settle these offsets, and return the entries that were delivered."""
    config: Any = SimpleNamespace(name=route, namespace=more.get("namespace", ".*"))
    asked = Slice(first, max(first, through), 0, without=more.get("without", ()))
    outcome = Outcome(through, more.get("delivered", 1), 0, 0, {})
    return [each.offset for each in found.settle(config, asked, outcome, 7)]


def test_an_entry_is_delivered_once_by_each_route() -> None:
    """Parts count an entry once for each route, and it is dropped after its last one."""
    found = journal(entry(3), entry(5), routes=("r", "other"))
    assert settle(found, 0, 4) == [3]
    assert settle(found, 0, 9) == [5]
    assert len(found) == 2
    assert settle(found, 0, 9, "other") == [3, 5]
    assert len(found) == 0


def test_what_is_left_out_or_parked_is_not_delivered() -> None:
    """Filtered and parked entries do not count as delivered, and are dropped."""
    found = journal(entry(1), entry(2, "b"), entry(3))
    assert settle(found, 0, 9, namespace="^a$", without=(3,)) == [1]
    assert len(found) == 1
    assert settle(journal(entry(1)), 0, 9, delivered=0) == []


def test_an_ack_that_comes_before_its_entry_is_known_counts() -> None:
    """An ack that arrives before its entry is recorded counts, because a route may be faster."""
    found = Journal(["r"])
    assert settle(found, 0, 4) == []
    assert list(found.add(entry(2))) == [("r", 7)]
    assert len(found) == 0


def test_the_oldest_are_forgotten_when_routes_do_not_come() -> None:
    """A route that stands still keeps only a bounded number of entries."""
    found = journal(*map(entry, range(PENDING + 10)))
    assert len(found) == PENDING
    assert settle(found, 0, 10) == [10]


def test_a_route_that_a_reload_has_added_is_followed() -> None:
    """A route added by a reload is followed from its first ack on."""
    found = journal(entry(0))
    assert settle(found, 0, 0, "late") == []
    list(found.add(entry(1)))
    assert settle(found, 1, 1) == [1]
    assert len(found) == 2
    assert settle(found, 1, 1, "late") == [1]
    assert settle(found, 0, 0) == [0]
    assert not len(found)

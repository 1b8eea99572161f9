"""Entries that a reader has logged and not acknowledged to the source, as a value."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from transporter.engine.reading.acknowledgement import UnacknowledgedBatches
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Iterator


def rows(
    batches: UnacknowledgedBatches, through: int, parked: set[int] | None = None
) -> list[object]:
    """Return position and rows of the entries that are delivered now."""
    return [(each.position, list(each.rows)) for each in batches.deliver(through, parked or set())]


def test_rows_are_told_as_far_as_all_routes_have_come() -> None:
    """A batch of several appends is acknowledged row by row, each row once."""
    batches = UnacknowledgedBatches()
    batches.add("a", [(10, 12), (20, 21)])
    assert (len(batches), batches.first_undelivered) == (5, 10)
    assert rows(batches, 9) == []
    assert rows(batches, 11) == [("a", [0, 1])]
    assert (len(batches), batches.first_undelivered, batches.take_whole_position()) == (3, 12, None)
    assert rows(batches, 20) == [("a", [2]), ("a", [3])]
    assert rows(batches, 40) == [("a", [4])]
    assert (len(batches), batches.first_undelivered, batches.take_whole_position()) == (
        0,
        None,
        "a",
    )


def test_what_was_released_is_given_up_and_still_counts() -> None:
    """A released entry is never acknowledged, and counts until its source redelivers it."""
    batches = UnacknowledgedBatches()
    batches.add("a", [(0, 4), (7, 9)])
    released = [Range(1, 2, "released"), Range(4, 8, "released")]

    def told(through: int) -> list[list[int]]:
        return [list(each.rows) for each in batches.deliver(through, set(), released)]

    assert (told(1), told(3), told(9)) == ([[0]], [[3]], [[7]])
    assert (len(batches), batches.given_up, batches.first_undelivered) == (5, 5, None)
    assert told(9) == []
    batches.clear()
    assert (len(batches), batches.given_up) == (0, 0)


def test_what_was_released_from_one_route_and_parked_by_another_is_given_up() -> None:
    """The end of parking on one route does not make a released entry delivered."""
    batches = UnacknowledgedBatches()
    batches.add("a", [(0, 3)])
    released = [Range(1, 2, "released")]

    def told(parked: set[int]) -> list[list[int]]:
        return [list(each.rows) for each in batches.deliver(3, parked, released)]

    assert told({1, 3}) == [[0]]
    assert (batches.given_up, batches.waiting_count) == (1, 1)
    assert told(set()) == [[3]]
    assert (len(batches), batches.given_up, batches.waiting_count) == (2, 2, 2)


def test_a_parked_entry_is_withheld_until_it_is_parked_no_more() -> None:
    """A parked entry is withheld, and the entries around it are acknowledged."""
    batches = UnacknowledgedBatches()
    batches.add("a", [(0, 3)])
    batches.add("b", [(4, 5)])
    assert rows(batches, 5, {1}) == [("a", [0, 2, 3]), ("b", [0, 1])]
    assert (len(batches), batches.first_undelivered, batches.take_whole_position()) == (
        1,
        None,
        None,
    )
    assert rows(batches, 5, {1}) == []
    assert rows(batches, 5) == [("a", [1])]
    assert batches.take_whole_position() == "b"


def test_what_is_forgotten_is_never_told() -> None:
    """A supersession leaves nothing of the open batches."""
    batches = UnacknowledgedBatches()
    batches.add("a", [(0, 3)])
    rows(batches, 1, {1})
    batches.clear()
    assert (
        rows(batches, 9),
        batches.take_whole_position(),
        len(batches),
        batches.first_undelivered,
    ) == ([], None, 0, None)


@given(
    sizes=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=6),
    steps=st.lists(st.tuples(st.integers(0, 60), st.sets(st.integers(0, 60), max_size=8))),
)
def test_every_row_is_told_once_and_never_while_parked(
    sizes: list[list[int]], steps: list[tuple[int, set[int]]]
) -> None:
    """Each delivered row is acknowledged once and never while parked, in any order of events."""
    batches, place, offset = UnacknowledgedBatches(), {}, 0
    for name, parts in enumerate(sizes):
        ranges = []
        row = 0
        for size in parts:
            ranges.append((offset, offset + size - 1))
            place |= {(str(name), row + each): offset + each for each in range(size)}
            offset, row = offset + size + 1, row + size
        batches.add(str(name), ranges)
    told: list[int] = []
    reached = -1
    for through, parked in [*steps, (1000, set[int]())]:
        reached = max(reached, through)
        found = batches.deliver(reached, parked)
        new = [place[each.position, row] for each in found for row in each.rows]
        assert all(each <= reached and each not in parked for each in new)
        told += new
        assert len(batches) == len(place) - len(told)
    assert sorted(told) == sorted(place.values())


def test_a_look_for_what_is_whole_costs_the_same_however_much_is_open() -> None:
    """The search for whole batches, made before each poll, costs the same however many are open."""

    class Parts(deque[Any]):
        walked = 0

        def __iter__(self) -> Iterator[Any]:
            for part in super().__iter__():
                Parts.walked += 1
                yield part

    batches, count = UnacknowledgedBatches(), 1000
    batches._parts = Parts()
    for offset in range(count):
        batches.add(str(offset), [(offset, offset)])
    batches.take_whole_position()
    Parts.walked = 0

    for offset in range(count):
        batches.deliver(offset, frozenset())
        assert batches.take_whole_position() == str(offset)

    assert Parts.walked <= 2 * count

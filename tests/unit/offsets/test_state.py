"""The progress of a route as a value: settling and replaying, and no step back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transporter.offsets import state as module
from transporter.offsets.state import (
    MAX_NAMESPACES,
    SUPERSEDED,
    Range,
    Replay,
    RouteState,
    advance_replay,
    begin_replay,
    begin_superseding,
    cancel_replay,
    finish_retry,
    request_retries,
    settle,
    supersede,
)


def settled(*parts: tuple[int, int] | Range) -> RouteState:
    """Return a new route's state with *parts* settled, one after the other."""
    state = RouteState()
    for part in parts:
        state = settle(state, Range(*part))
    return state


def test_a_new_route_has_settled_nothing() -> None:
    """The first offset to deliver is 0, and nothing is proved durable."""
    assert (RouteState().next_unsettled(), RouteState().highest_offset()) == (0, -1)


def test_the_watermark_follows_what_is_settled_from_the_start() -> None:
    """Ranges that join the watermark move it, the last of them included."""
    state = settled((0, 4), (5, 5), (6, 9))
    assert (state.watermark, state.above, state.next_unsettled()) == (9, (), 10)


def test_the_watermark_passes_no_unsettled_offset() -> None:
    """Offsets settled behind a gap wait above the watermark (Invariant 5)."""
    state = settled((0, 4), (6, 9))
    assert (state.watermark, state.above) == (4, (Range(6, 9),))
    assert (state.next_unsettled(), state.highest_offset()) == (5, 9)


def test_a_filled_hole_frees_all_that_waited_behind_it() -> None:
    """The missing offset moves the watermark over every range that now joins."""
    state = settled((0, 4), (6, 7), (8, 8), (12, 13), (5, 5))
    assert (state.watermark, state.above) == (8, (Range(12, 13),))


@pytest.mark.parametrize("part", [(0, 9), (3, 3), (0, 0), (9, 9)])
def test_settling_again_changes_nothing(part: tuple[int, int]) -> None:
    """The watermark never goes back, however often an offset is acked (Invariant 5)."""
    state = settled((0, 9), (20, 29))
    assert settle(state, Range(*part)) == state
    assert settle(state, Range(22, 25, "operator")) == state


def test_ranges_are_kept_apart_by_kind() -> None:
    """Offsets acked by an operator stay distinct from delivered ones beside them."""
    state = settled((5, 6), Range(7, 8, "operator"), (9, 9), (11, 12), (10, 10))
    assert state.above == (Range(5, 6), Range(7, 8, "operator"), Range(9, 12))


def test_the_kind_that_came_first_stays() -> None:
    """A range that covers settled ones settles only the offsets between and around them."""
    state = settle(settled((4, 5), (8, 8)), Range(2, 10, "operator"))
    assert state.above == (
        Range(2, 3, "operator"),
        Range(4, 5),
        Range(6, 7, "operator"),
        Range(8, 8),
        Range(9, 10, "operator"),
    )


def test_a_range_that_begins_below_the_watermark_counts_above_it() -> None:
    """Only the part that is new moves the watermark."""
    assert settle(settled((0, 4)), Range(2, 8)).watermark == 8


def test_a_state_is_never_changed() -> None:
    """Every event makes a new value, and an older one stays as it is."""
    before = settle(RouteState(), Range(0, 0), {"a": 0})
    settle(before, Range(1, 1), {"a": 1, "b": 1})
    begin_replay(before, 0, 0)
    assert before == RouteState(watermark=0, namespaces={"a": 0})


@given(
    known=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), max_size=8),
    parts=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), max_size=12),
)
def test_many_ranges_at_once_are_settled_as_one_after_the_other(
    known: list[tuple[int, int]], parts: list[tuple[int, int]]
) -> None:
    """Passing ascending ranges gives the state that settling each of them gives."""
    before = settled(*((first, first + size) for first, size in known))
    ascending, place = list[tuple[int, int]](), -1
    for distance, size in parts:
        ascending.append((place + distance, place + distance + size))
        place += distance + size
    expected = before
    for first, last in ascending:
        expected = settle(expected, Range(first, last, SUPERSEDED))
    found = supersede(before, "in", 99, tuple(ascending))
    assert (found.watermark, found.above) == (expected.watermark, expected.above)
    assert (found.superseded, found.superseding) == ({"in": 99}, {"in": 99})


def test_many_thousand_ranges_are_passed_at_once() -> None:
    """A supersession is linear in the ranges, as two alternating readers leave them."""
    count = 200_000
    state = supersede(settled((1, 1)), "in", 3 * count, tuple((3 * n, 3 * n) for n in range(count)))
    assert len(state.above) == count - 1
    assert (state.watermark, state.highest_offset()) == (1, 3 * count - 3)


def test_what_is_to_be_passed_is_told_until_it_is_passed() -> None:
    """A request lasts until its own end, and a released version's mark counts for both."""
    asked = begin_superseding(RouteState(), "in", 7)
    assert asked.readers_to_supersede() == {"in": 7}
    assert begin_superseding(asked, "in", 5).readers_to_supersede() == {"in": 7}
    assert supersede(asked, "in", 6, ()).readers_to_supersede() == {"in": 7}
    assert supersede(asked, "in", 7, ()).readers_to_supersede() == {}
    spared = supersede(RouteState(), "in", 9, (), redelivered_through=3)
    assert (spared.superseded, spared.superseding) == ({"in": 9}, {"in": 3})
    fields = supersede(RouteState(), "in", 4, ()).to_json()
    del fields["superseding"]
    assert RouteState.from_json(fields).superseding == {"in": 4}


def test_the_newest_offset_of_each_namespace_is_kept() -> None:
    """A namespace keeps its last offset, and the others are left as they are."""
    state = settle(RouteState(), Range(0, 3), {"a": 2, "b": 3})
    state = settle(state, Range(4, 4), {"a": 4})
    assert state.namespaces == {"a": 4, "b": 3}


def test_only_so_many_namespaces_are_kept() -> None:
    """Of more namespaces than fit, the newest stay (Invariant 17)."""
    most = MAX_NAMESPACES * 5 // 4
    many = {f"n{number}": number for number in range(most)}
    state = settle(RouteState(), Range(0, most), many)
    state = settle(state, Range(most, most), {"new": most})
    assert len(state.namespaces) == MAX_NAMESPACES
    assert "new" in state.namespaces
    assert "n0" not in state.namespaces


def test_a_replay_begins_in_the_next_generation() -> None:
    """A replay leaves the watermark as it is, because live entries wait."""
    state = begin_replay(settled((0, 9)), 2, 5)
    assert (state.replay, state.generation, state.watermark) == (Replay(2, 5, 2), 1, 9)


def test_a_replay_advances_and_ends() -> None:
    """Each settled part moves the replay on, and its last offset ends it."""
    state = advance_replay(begin_replay(settled((0, 9)), 2, 5), 3, 1)
    assert state.replay == Replay(2, 5, 4)
    assert advance_replay(state, 5, 1).replay is None
    assert advance_replay(state, 99, 1).replay is None


@pytest.mark.parametrize("through", [-1, 1, 3])
def test_a_replay_never_goes_back(through: int) -> None:
    """An outcome of offsets that were already replayed changes nothing."""
    state = advance_replay(begin_replay(settled((0, 9)), 2, 5), 3, 1)
    assert advance_replay(state, through, 1) == state


@pytest.mark.parametrize("through", [3, 5, 99])
def test_a_replay_is_not_moved_by_what_came_of_another(through: int) -> None:
    """An outcome of an older generation does not move the replay."""
    state = begin_replay(settled((0, 9)), 2, 5)
    assert advance_replay(state, through, 0) == state


def test_without_a_replay_there_is_nothing_to_advance() -> None:
    """An outcome after a replay's cancel changes nothing."""
    assert advance_replay(settled((0, 9)), 5, 0) == settled((0, 9))


def test_a_cancelled_replay_keeps_its_generation() -> None:
    """The next replay takes another generation, because sinks have seen the cancelled one."""
    state = cancel_replay(begin_replay(settled((0, 9)), 2, 5))
    assert (state.replay, state.generation) == (None, 1)
    assert begin_replay(state, 0, 0).generation == 2


@pytest.mark.parametrize(
    "state",
    [
        RouteState(),
        settled((0, 4), (6, 9), Range(12, 12, "operator"), Range(14, 15, "skipped")),
        advance_replay(begin_replay(settled((0, 9)), 2, 5), 3, 1),
        settle(RouteState(shards=3), Range(0, 0), {"é": 0}),
    ],
)
def test_a_state_survives_as_plain_values(state: RouteState) -> None:
    """A snapshot gives back exactly the state that it was made of."""
    assert RouteState.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_namespaces_are_not_sorted_at_each_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of very many namespaces the oldest are dropped many at once, and the rest stay bounded."""
    sorts: list[int] = []

    def counted(*arguments: Any, **named: Any) -> list[Any]:
        found = sorted(*arguments, **named)
        sorts.append(len(found))
        return found

    monkeypatch.setattr(module, "sorted", counted, raising=False)
    state = RouteState(namespaces={f"n{n}": n for n in range(MAX_NAMESPACES)})
    for offset in range(3000):
        state = settle(state, Range(offset, offset), {f"m{offset}": MAX_NAMESPACES + offset})
        assert len(state.namespaces) <= MAX_NAMESPACES * 5 // 4
    assert len([size for size in sorts if size > 100]) == 1
    assert f"m{2999}" in state.namespaces


def test_the_retry_of_what_is_not_asked_for_changes_nothing() -> None:
    """A retry that is answered twice, or was not requested, changes nothing."""
    state = request_retries(RouteState(), (7, 3, 5))
    assert finish_retry(state, 4) == state
    assert finish_retry(finish_retry(state, 5), 5).retries == (3, 7)

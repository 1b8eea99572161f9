"""A route's state against the simplest model of it: a set of settled offsets."""

from __future__ import annotations

import json
from itertools import groupby, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from transporter.offsets import state as states
from transporter.offsets.state import KINDS, Range, RouteState, settle

RANGES = st.builds(
    lambda first, length, kind: Range(first, first + length, kind),
    st.integers(0, 60),
    st.integers(0, 12),
    st.sampled_from(KINDS),
)


class Model:
    """Every settled offset with the kind under which it was first settled."""

    def __init__(self) -> None:
        self.kinds: dict[int, str] = {}

    def settle(self, part: Range) -> None:
        """Settle the offsets that are not settled yet."""
        for offset in range(part.first, part.last + 1):
            if offset > self.watermark:
                self.kinds.setdefault(offset, part.kind)

    @property
    def watermark(self) -> int:
        """The last offset before the first missing one."""
        offset = -1
        while offset + 1 in self.kinds:
            offset += 1
        return offset

    @property
    def above(self) -> tuple[Range, ...]:
        """The offsets settled beyond the watermark, in runs of one kind."""
        waiting = sorted((n, kind) for n, kind in self.kinds.items() if n > self.watermark)
        runs = groupby(enumerate(waiting), key=lambda pair: (pair[1][0] - pair[0], pair[1][1]))
        found = []
        for (_, kind), run in runs:
            offsets = [offset for _, (offset, _) in run]
            found.append(Range(offsets[0], offsets[-1], kind))
        return tuple(found)


@given(st.lists(RANGES, max_size=25))
@settings(max_examples=300)
def test_a_state_is_what_a_set_of_offsets_says(parts: list[Range]) -> None:
    """Watermark and ranges are those of the set, after every event (Invariant 5)."""
    state, model = RouteState(), Model()
    for part in parts:
        before = state
        state = settle(state, part)
        model.settle(part)
        assert (state.watermark, state.above) == (model.watermark, model.above)
        assert state.watermark >= before.watermark
        assert state.highest_offset() == max([-1, *model.kinds])


@given(st.lists(RANGES, max_size=25))
def test_ranges_are_apart_in_order_and_off_the_watermark(parts: list[Range]) -> None:
    """The ranges above the watermark are as few as possible."""
    state = RouteState()
    for part in parts:
        state = settle(state, part)
    assert all(part.first > state.watermark + 1 for part in state.above)
    for left, right in pairwise(state.above):
        assert left.last < right.first
        assert left.last + 1 < right.first or left.kind != right.kind


@given(st.lists(RANGES, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_events_does_not_move_the_watermark(
    parts: list[Range], random: st.random.Random
) -> None:
    """The watermark does not depend on the order of the events."""
    shuffled = list(parts)
    random.shuffle(shuffled)
    one, other = RouteState(), RouteState()
    for part in parts:
        one = settle(one, part)
    for part in shuffled:
        other = settle(other, part)
    assert (one.watermark, one.highest_offset()) == (other.watermark, other.highest_offset())


EVENTS = st.one_of(
    st.builds(
        states.settled_event,
        RANGES,
        st.dictionaries(st.text(max_size=5), st.integers(0, 60), max_size=3),
    ),
    st.builds(
        lambda first, length: states.replay_begun_event(first, first + length),
        st.integers(0, 60),
        st.integers(0, 9),
    ),
    st.builds(states.replay_advanced_event, st.integers(-1, 80), st.integers(0, 3)),
    st.just(states.replay_cancelled_event()),
    st.builds(states.retries_requested_event, st.lists(st.integers(0, 9), max_size=3)),
    st.builds(states.retry_finished_event, st.integers(0, 9)),
)


@given(st.lists(EVENTS, max_size=15), st.integers(0, 15))
def test_a_snapshot_may_stand_anywhere(events: list[dict[str, object]], at: int) -> None:
    """Folding all events, or those behind a snapshot onto it, gives the same state."""
    whole, tail = RouteState(), RouteState(watermark=-1)
    for number, event in enumerate(events):
        if number == at:
            tail = states.apply_event(tail, json.loads(json.dumps(states.snapshot_event(whole))))
        whole = states.apply_event(whole, event)
        tail = states.apply_event(tail, json.loads(json.dumps(event)))
    assert tail == whole

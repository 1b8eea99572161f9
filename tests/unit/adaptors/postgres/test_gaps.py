"""Gaps: which ids below the highest one are still waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)

from adaptors.postgres import gaps as module
from adaptors.postgres.gaps import LOWEST, MOST_GAPS, Gap, Gaps, Look

if TYPE_CHECKING:
    from collections.abc import Callable


def test_everything_below_the_first_row_is_a_gap() -> None:
    """Rows in flight when the term began are waited for, though their ids are not known."""
    gaps = Gaps()
    gaps.observe(Look([10, 11], xmin=5, xmax=7))
    assert gaps.ranges == [(LOWEST, 9)]
    assert gaps.low == 12


def test_a_late_row_splits_its_gap() -> None:
    """The rest of a gap stays open when one of its rows comes."""
    gaps = Gaps()
    gaps.observe(Look([10, 20], xmin=5, xmax=7))
    gaps.observe(Look([15], xmin=5, xmax=8))
    assert gaps.ranges == [(LOWEST, 9), (11, 14), (16, 19)]
    assert gaps.low == 21


def test_dense_ids_leave_no_gap() -> None:
    """Consecutive rows open nothing."""
    gaps = Gaps()
    gaps.observe(Look([LOWEST, LOWEST + 1, LOWEST + 2], xmin=1, xmax=1))
    gaps.observe(Look([LOWEST + 3], xmin=1, xmax=1))
    assert gaps.ranges == []


def test_a_gap_closes_one_sweep_after_its_transactions_ended() -> None:
    """Xmin must be past xmax, strictly, and a sweep after that must find nothing."""
    gaps = Gaps()
    gaps.observe(Look([LOWEST, LOWEST + 2], xmin=5, xmax=7))
    waited_for = [(LOWEST + 1, LOWEST + 1)]
    gaps.observe(Look([], xmin=7, xmax=9, sweep=True))
    gaps.observe(Look([], xmin=7, xmax=9, sweep=True))
    assert gaps.ranges == waited_for, "a transaction with number 7 may still be open"
    gaps.observe(Look([], xmin=8, xmax=9, sweep=True))
    assert gaps.ranges == waited_for, "this sweep only proved that all have ended"
    gaps.observe(Look([], xmin=8, xmax=9))
    assert gaps.ranges == waited_for, "a bounded look is no sweep"
    gaps.observe(Look([], xmin=8, xmax=9, sweep=True))
    assert gaps.ranges == []


def test_a_cut_look_closes_no_gap_above_its_last_row() -> None:
    """What the limit cut off may hold the row of the gap."""
    gaps = Gaps()
    gaps.observe(Look([LOWEST, LOWEST + 5, LOWEST + 9], xmin=5, xmax=5))
    for _ in range(3):
        gaps.observe(Look([LOWEST + 3], xmin=9, xmax=9, cut=True, sweep=True))
    assert gaps.ranges == [(LOWEST + 4, LOWEST + 4), (LOWEST + 6, LOWEST + 8)]
    for _ in range(3):
        gaps.observe(Look([], xmin=9, xmax=9, cut=True, sweep=True))
    assert gaps.ranges == [(LOWEST + 4, LOWEST + 4), (LOWEST + 6, LOWEST + 8)]


def test_many_gaps_are_joined() -> None:
    """The number of gaps is bounded, and joined ones still cover every id that was open."""
    gaps = Gaps()
    ids = list(range(0, 6 * MOST_GAPS, 2))
    gaps.observe(Look(ids, xmin=5, xmax=7))
    ranges = gaps.ranges
    assert len(ranges) <= MOST_GAPS
    assert all(
        any(first <= missing <= last for first, last in ranges) for missing in range(1, 999, 2)
    )
    for _ in range(2):
        gaps.observe(Look([], xmin=8, xmax=8, sweep=True))
    assert gaps.ranges == []


class Table(RuleBasedStateMachine):
    """A table whose transactions take ids and numbers in order and end in any order."""

    transactions = Bundle("transactions")

    def __init__(self) -> None:
        super().__init__()
        self.gaps = Gaps()
        self.next_id = 1
        self.next_xid = 1
        self.open: dict[int, list[int]] = {}
        self.waiting: set[int] = set()

    @rule(target=transactions, count=st.integers(1, 2))
    def begin(self, count: int) -> int:
        """Begin a transaction: it takes a number and the next ids."""
        xid, self.next_xid = self.next_xid, self.next_xid + 1
        self.open[xid] = []
        self.insert(xid, count)
        return xid

    @rule(transaction=transactions, count=st.integers(1, 2))
    def insert(self, transaction: int, count: int) -> None:
        """Take the next ids."""
        self.open[transaction].extend(range(self.next_id, self.next_id + count))
        self.next_id += count

    @rule(transaction=consumes(transactions))
    def commit(self, transaction: int) -> None:
        """Make the transaction's rows visible."""
        self.waiting.update(self.open.pop(transaction))

    @rule(transaction=consumes(transactions))
    def roll_back(self, transaction: int) -> None:
        """Leave a hole in the ids."""
        del self.open[transaction]

    @rule(sweep=st.booleans(), limit=st.integers(2, 9))
    def look(self, sweep: bool, limit: int) -> None:
        """Take what the bounds of the gaps allow."""
        seen = sorted(number for number in self.waiting if sweep or self.inside(number))
        taken = seen[:limit]
        self.waiting.difference_update(taken)
        xmin = min(self.open, default=self.next_xid)
        self.gaps.observe(Look(taken, xmin, self.next_xid, len(seen) > limit, sweep))

    def inside(self, number: int) -> bool:
        """Whether a bounded look would find the row."""
        ranges = self.gaps.ranges
        return number >= self.gaps.low or any(first <= number <= last for first, last in ranges)

    @invariant()
    def nothing_is_out_of_sight(self) -> None:
        """Invariant 8: every committed row that is not taken yet is within the bounds."""
        assert all(map(self.inside, self.waiting))

    @invariant()
    def gaps_ascend_below_the_highest_row(self) -> None:
        """Ranges are disjoint, in order, and below what is read anyway."""
        edges = [edge for span in self.gaps.ranges for edge in span]
        assert edges == sorted(edges)
        assert all(edge < self.gaps.low for edge in edges)

    def teardown(self) -> None:
        """Every row is found, and every gap closes, once all is quiet."""
        self.open.clear()
        while self.waiting:
            self.look(sweep=True, limit=9)
        self.next_xid += 1
        for _ in range(2):
            self.look(sweep=True, limit=9)
        assert self.gaps.ranges == []


SETTINGS = settings(max_examples=150, stateful_step_count=30, deadline=None)
# A control only has to find one counterexample, always the same, and need not make it small.
CONTROL = settings(
    SETTINGS, max_examples=400, derandomize=True, database=None, phases=[Phase.generate]
)
TestTable = Table.TestCase
TestTable.settings = SETTINGS


def _closed_too_early(gap: Gap, look: Look) -> Gap | None:
    return None if look.sweep else gap


def _never_opened(_: Gap, __: Look) -> None:
    return None


@pytest.mark.parametrize("rule_removed", [_closed_too_early, _never_opened])
def test_the_model_notices_a_missing_rule(
    monkeypatch: pytest.MonkeyPatch, rule_removed: Callable[[Gap, Look], Gap | None]
) -> None:
    """Mutation control: without the closing rule, a late row is out of sight."""
    monkeypatch.setattr(module, "_settle", rule_removed)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Table, settings=CONTROL)

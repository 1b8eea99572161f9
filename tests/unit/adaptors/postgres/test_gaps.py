"""Gaps: the ids below the highest one that may still get a row."""

from __future__ import annotations

from dataclasses import replace
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
from transporter_adaptors.postgres import gaps as module
from transporter_adaptors.postgres.gaps import (
    HIGHEST,
    LOWEST,
    MOST_GAPS,
    IdBounds,
    IdGap,
    IdGaps,
    Poll,
    Snapshot,
    _settle_gap,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def seen(
    ids: Sequence[int], *running: int, xmax: int = 9, cut: bool = False, settling: bool = False
) -> Poll:
    """Return a look whose snapshot's xmax is above every transaction in flight."""
    return Poll(ids, Snapshot(xmax, running), xmax, cut, settling)


def test_everything_below_the_first_row_is_a_gap() -> None:
    """The reader waits for rows in flight when the term began, although their ids are unknown."""
    gaps = IdGaps()
    gaps.observe(seen([10, 11]))
    assert gaps.bounds == IdBounds(12, [(LOWEST, 9, HIGHEST)])


def test_a_late_row_splits_its_gap() -> None:
    """The rest of a gap stays open when one of its rows comes."""
    gaps = IdGaps()
    gaps.observe(seen([10, 20]))
    gaps.observe(seen([15]))
    assert gaps.ranges == [(LOWEST, 9), (11, 14), (16, 19)]
    assert gaps.bounds.low == 21


def test_dense_ids_leave_no_gap() -> None:
    """Consecutive rows open nothing."""
    gaps = IdGaps()
    gaps.observe(seen([LOWEST, LOWEST + 1, LOWEST + 2]))
    gaps.observe(seen([LOWEST + 3]))
    assert gaps.ranges == []


def test_a_gap_closes_one_settling_look_after_its_transactions_ended() -> None:
    """A higher number must be in use, and a settling look a second later must find nothing."""
    gaps = IdGaps()
    gaps.observe(seen([LOWEST, LOWEST + 2], xmax=7))
    waited_for = [(LOWEST + 1, LOWEST + 1)]
    gaps.observe(seen([], xmax=7, settling=True))
    gaps.observe(seen([], xmax=7, settling=True))
    assert gaps.ranges == waited_for, "numbers up to 7 may be in use, and nobody knows them"
    gaps.observe(seen([], xmax=8, settling=True))
    assert gaps.ranges == waited_for, "this look only proved that all have ended"
    gaps.observe(seen([], xmax=8))
    assert gaps.ranges == waited_for, "a second has not passed"
    gaps.observe(seen([], xmax=8, settling=True))
    assert gaps.ranges == []


def test_a_gap_that_old_transactions_may_fill_waits_for_their_end_alone() -> None:
    """Such a gap is outside all looks until one of its transactions has ended, then in one look."""
    gaps = IdGaps()
    gaps.observe(seen([LOWEST, LOWEST + 5], 3, 5, 6, xmax=7))
    for _ in range(2):
        gaps.observe(seen([], 3, 5, 8, xmax=9, settling=True))
    waits = [(LOWEST + 1, LOWEST + 4, 7)]
    assert gaps.bounds == IdBounds(LOWEST + 6, waits, (3, 5)), "8 is too young to fill it"
    gaps.observe(seen([], 3, 5, xmax=20))
    assert gaps.bounds == IdBounds(LOWEST + 6, waits, (3, 5))
    gaps.observe(seen([LOWEST + 2], 3, xmax=20))
    halves = [(LOWEST + 1, LOWEST + 1, 7), (LOWEST + 3, LOWEST + 4, 7)]
    assert gaps.bounds == IdBounds(LOWEST + 6, halves, (3,))
    gaps.observe(seen([], xmax=20))
    assert gaps.bounds == IdBounds(LOWEST + 6, [])


def test_an_end_that_a_cut_look_saw_is_looked_into_again() -> None:
    """A gap above the last row of a cut look stays open for the next look."""
    gaps = IdGaps()
    gaps.observe(seen([LOWEST, LOWEST + 5, LOWEST + 9], 3, xmax=7))
    for _ in range(2):
        gaps.observe(seen([], 3, settling=True))
    gaps.observe(seen([LOWEST + 4], cut=True))
    assert gaps.bounds.gaps == [(LOWEST + 6, LOWEST + 8, HIGHEST)]


def test_a_cut_look_closes_no_gap_above_its_last_row() -> None:
    """A gap above the last row of a cut look stays open, because its row may have been cut off."""
    gaps = IdGaps()
    gaps.observe(seen([LOWEST, LOWEST + 5, LOWEST + 9], xmax=5))
    for _ in range(3):
        gaps.observe(seen([LOWEST + 3], cut=True, settling=True))
    assert gaps.ranges == [(LOWEST + 4, LOWEST + 4), (LOWEST + 6, LOWEST + 8)]
    for _ in range(3):
        gaps.observe(seen([], cut=True, settling=True))
    assert gaps.ranges == [(LOWEST + 4, LOWEST + 4), (LOWEST + 6, LOWEST + 8)]


def test_many_gaps_are_joined() -> None:
    """The number of gaps is bounded, and joined ones still cover every id that was open."""
    gaps = IdGaps()
    ids = list(range(0, 6 * MOST_GAPS, 2))
    gaps.observe(seen(ids, xmax=7))
    ranges = gaps.ranges
    assert len(ranges) <= MOST_GAPS
    assert all(
        any(first <= missing <= last for first, last in ranges) for missing in range(1, 999, 2)
    )
    for _ in range(2):
        gaps.observe(seen([], settling=True))
    assert gaps.ranges == []


def test_only_gaps_that_wait_for_the_same_are_joined() -> None:
    """A long transaction's gaps do not become part of each look, however many there are."""
    gaps = IdGaps()
    for after in range(10):
        first = after * MOST_GAPS
        gaps.observe(seen(range(first, first + MOST_GAPS, 2), 3, xmax=7 + after))
        for _ in range(2):
            gaps.observe(seen([], 3, xmax=99, settling=True))
        assert len(gaps.ranges) <= MOST_GAPS
        assert all(until < HIGHEST for _, _, until in gaps.bounds.gaps)
    gaps.observe(seen([], xmax=99))
    assert gaps.ranges == []


def test_more_kinds_of_gaps_than_are_joined_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of very many long transactions keeps its own gap."""
    monkeypatch.setattr(module, "MOST_GAPS", 5)
    gaps = IdGaps()
    running = tuple(range(10, 20))
    for number in running:
        gaps.observe(seen([2 * number], *range(10, number), xmax=number))
    for _ in range(2):
        gaps.observe(seen([], *running, xmax=99, settling=True))
    gaps.observe(seen([], *running[:-1], xmax=99))
    assert gaps.bounds.waited == running[:-1]
    gaps.observe(seen([], xmax=99))
    assert gaps.ranges == []


def test_a_snapshot_is_read_as_the_server_spells_it() -> None:
    """A snapshot is parsed with and without transactions between its ends."""
    assert Snapshot.parse("10:20:10,14,15") == Snapshot(20, (10, 14, 15))
    assert Snapshot.parse("20:20:") == Snapshot(20)


class Table(RuleBasedStateMachine):
    """A table whose transactions take ids and numbers in order and end in any order."""

    transactions = Bundle("transactions")

    def __init__(self) -> None:
        super().__init__()
        self.gaps = IdGaps()
        self.next_id = 1
        self.next_xid = 1
        self.completed = 0
        self.open: dict[int, list[int]] = {}
        self.waiting: set[int] = set()

    @rule(target=transactions, count=st.integers(1, 2))
    def begin(self, count: int) -> int:
        """Begin a transaction, which takes a number and the next ids."""
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
        self.completed = max(self.completed, transaction)

    @rule(transaction=consumes(transactions))
    def roll_back(self, transaction: int) -> None:
        """Leave a hole in the ids."""
        del self.open[transaction]
        self.completed = max(self.completed, transaction)

    @rule(sweep=st.booleans(), settling=st.booleans(), limit=st.integers(2, 9))
    def look(self, sweep: bool, settling: bool, limit: int) -> None:
        """Read the rows within bounds. A look that finds rows takes a number itself."""
        seen = sorted(number for number in self.waiting if sweep or self.inside(number))
        taken, snapshot = seen[:limit], self.snapshot
        self.waiting.difference_update(taken)
        horizon = self.next_xid
        if taken:
            self.completed, self.next_xid = horizon, horizon + 1
        self.gaps.observe(Poll(taken, snapshot, horizon, len(seen) > limit, settling))

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot as PostgreSQL takes it, covering nothing behind the last ended number."""
        xmax = self.completed + 1
        return Snapshot(xmax, tuple(sorted(number for number in self.open if number < xmax)))

    def inside(self, number: int) -> bool:
        """Return whether a bounded look would find the row."""
        bounds, snapshot = self.gaps.bounds, self.snapshot
        ended = min(
            (each for each in bounds.waited if each not in snapshot.running), default=HIGHEST
        )
        return number >= bounds.low or any(
            first <= number <= last and until >= ended for first, last, until in bounds.gaps
        )

    @invariant()
    def nothing_is_out_of_sight(self) -> None:
        """Assert that every committed row not read yet is within the bounds (Invariant 8)."""
        assert all(map(self.inside, self.waiting))

    @invariant()
    def gaps_ascend_below_the_highest_row(self) -> None:
        """Assert that ranges are disjoint, in order, and below the lower bound of looks."""
        edges = [edge for span in self.gaps.ranges for edge in span]
        assert edges == sorted(edges)
        assert all(edge < self.gaps.bounds.low for edge in edges)

    def teardown(self) -> None:
        """Check that every row is found, and every gap closes, after all transactions ended."""
        self.open.clear()
        self.completed = self.next_xid
        self.next_xid += 1
        while self.waiting:
            self.look(sweep=True, settling=False, limit=9)
        for _ in range(2):
            self.look(sweep=False, settling=True, limit=9)
        assert self.gaps.ranges == []


SETTINGS = settings(max_examples=150, stateful_step_count=30, deadline=None)
# A control must find any one counterexample, always the same, and need not make it small.
CONTROL = settings(
    SETTINGS, max_examples=400, derandomize=True, database=None, phases=[Phase.generate]
)
TestTable = Table.TestCase
TestTable.settings = SETTINGS


def _closed_too_early(gap: IdGap, look: Poll, _: int) -> IdGap | None:
    return None if look.settling else gap


def _never_opened(_: IdGap, __: Poll, ___: int) -> None:
    return None


def _held_for_good(gap: IdGap, look: Poll, _: int) -> IdGap | None:
    return _settle_gap(gap, look, HIGHEST)


@pytest.mark.parametrize("rule_removed", [_closed_too_early, _never_opened, _held_for_good])
def test_the_model_notices_a_missing_rule(
    monkeypatch: pytest.MonkeyPatch, rule_removed: Callable[[IdGap, Poll, int], IdGap | None]
) -> None:
    """Without the closing rule a late row is out of sight (mutation control)."""
    monkeypatch.setattr(module, "_settle_gap", rule_removed)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Table, settings=CONTROL)


def out_of_order() -> Table:
    """Return a table with a late row of a transaction above all that had ended."""
    table = Table()
    first, other, late = (table.begin(count=1) for _ in range(3))
    table.insert(first, count=1)
    table.commit(first)
    table.look(sweep=False, settling=False, limit=9)
    table.commit(other)
    for _ in range(3):
        table.look(sweep=False, settling=True, limit=9)
    table.commit(late)
    table.nothing_is_out_of_sight()
    return table


def test_a_number_above_all_that_have_ended_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A horizon at the snapshot's xmax would miss such a transaction (mutation control)."""

    def opened(gaps: IdGaps, look: Poll) -> Iterator[IdGap]:
        return _opened(gaps, replace(look, horizon=look.snapshot.xmax))

    out_of_order().teardown()
    _opened = IdGaps._new_gaps
    monkeypatch.setattr(IdGaps, "_new_gaps", opened)
    with pytest.raises(AssertionError):
        out_of_order()

"""The plan of single deliveries, as a pure value."""

from __future__ import annotations

from transporter.engine.routing.failure_policy import RedeliveryPlan, Suspects


def test_without_suspicion_slices_go_in_bulk() -> None:
    """A fresh plan delivers every slice in bulk."""
    assert RedeliveryPlan().cut(9, 15) == (15, False)


def test_an_unnamed_failure_makes_the_whole_rest_suspect() -> None:
    """A bulk that fails without naming an entry is delivered one at a time, to its end."""
    plan = RedeliveryPlan().after_failure(9, 15, None, single=False)
    assert plan.cut(9, 40) == (15, True)
    assert plan.cut(16, 40) == (40, False)


def test_a_named_failure_leaves_what_is_before_it_in_bulk() -> None:
    """Only the named entry is delivered alone, and the slices around it stay in bulk."""
    plan = RedeliveryPlan().after_failure(9, 15, 12, single=False)
    assert plan.cut(9, 40) == (11, False)
    assert plan.cut(12, 40) == (12, True)
    assert plan.cut(13, 40) == (40, False)


def test_attempts_count_only_when_an_entry_fails_alone() -> None:
    """Only a failure alone counts as an attempt, and another entry starts at none."""
    plan = RedeliveryPlan().after_failure(9, 15, 12, single=False)
    assert plan.attempts(12) == 0
    plan = plan.after_failure(12, 12, 12, single=True).after_failure(12, 12, 12, single=True)
    assert plan.attempts(12) == 2
    assert plan.attempts(13) == 0


def test_the_table_of_the_ancestor() -> None:
    """Of 9..15 failing unnamed, 9..13 are settled singly, 14 fails alone, and 15 stays suspect."""
    plan = RedeliveryPlan().after_failure(9, 15, None, single=False)
    plan = plan.after_settling(13).after_failure(14, 15, 14, single=True)
    assert plan.suspects == Suspects(14, 15, attempts=1)
    assert plan.after_settling(14).cut(15, 99) == (15, True)
    assert plan.after_settling(15) == RedeliveryPlan()


def test_the_first_death_in_bulk_is_taken_for_an_accident() -> None:
    """One death repeats the slice in bulk, and a second death of the slice makes it suspect."""
    once = RedeliveryPlan().after_death(9, 15, None, single=False)
    assert once.cut(9, 15) == (15, False)
    assert once.after_death(9, 15, None, single=False).cut(9, 15) == (15, True)
    assert once.after_death(16, 20, None, single=False).cut(16, 20) == (20, False)


def test_a_death_one_at_a_time_convicts_the_announced_entry() -> None:
    """A death one at a time is an attempt of the entry announced last, if any was."""
    plan = RedeliveryPlan(Suspects(9, 15))
    assert plan.after_death(11, 15, 11, single=True).attempts(11) == 1
    assert plan.after_death(9, 15, None, single=True) == plan


def test_slices_get_shorter_with_each_failure_and_longer_with_each_success() -> None:
    """A slice shrinks to a quarter with each failure and grows again with each success."""
    plan, sizes = RedeliveryPlan(), []
    for _ in range(5):
        last, single = plan.cut(0, 9999)
        assert not single
        sizes.append(last + 1)
        plan = plan.after_failure(0, last, 0, single=False).after_settling(0)
    assert sizes == [10_000, 2500, 625, 156, 64]
    for _ in range(12):
        plan = plan.after_success()
    assert plan == RedeliveryPlan()


def test_only_so_many_go_one_at_a_time_at_once() -> None:
    """The number of entries delivered one at a time at once is bounded."""
    plan = RedeliveryPlan(Suspects(0, 49_999))
    assert plan.cut(0, 49_999) == (999, True)
    assert plan.after_settling(999).cut(1000, 49_999) == (1999, True)


def test_a_large_slice_that_fails_without_a_name_is_divided_before_entries_go_alone() -> None:
    """A large slice that fails unnamed is quartered in bulk, and only a small one is suspect."""
    plan, cuts = RedeliveryPlan(), []
    for _ in range(6):
        cuts.append(plan.cut(0, 9999))
        plan = plan.after_failure(0, cuts[-1][0], None, single=False)
    assert cuts == [
        (9999, False),
        (2499, False),
        (624, False),
        (155, False),
        (63, False),
        (63, True),
    ]

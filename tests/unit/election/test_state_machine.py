"""The standing in an election, from observations and their times."""

from __future__ import annotations

import pytest

from transporter.election.state_machine import (
    ElectionState,
    Observation,
    Standing,
    StandingChange,
    Transition,
)

TERM = 5.0


def ours(asked: float) -> Observation:
    """Return an observation of holding the election."""
    return Observation(holding=True, asked_at=asked, why="ours")


def theirs(asked: float) -> Observation:
    """Return an observation of another holder."""
    return Observation(holding=False, asked_at=asked, why="theirs")


def leader(asked: float = 100.0) -> ElectionState:
    """Return a machine that leads since *asked*."""
    machine = ElectionState(TERM)
    machine.pulse(asked, ours(asked))
    return machine


def changes(found: tuple[Transition, ...]) -> list[StandingChange]:
    """Return the changes of the transitions."""
    return [each.change for each in found]


def test_a_candidate_leads_when_it_hears_that_it_holds_the_election() -> None:
    """A candidate leads only after an observation that it holds the election, with its reason."""
    machine = ElectionState(TERM)
    assert machine.pulse(1) == ()
    assert machine.pulse(2, theirs(2)) == ()
    assert machine.standing(2) is Standing.CANDIDATE
    assert machine.pulse(3, ours(3)) == (Transition(StandingChange.ACQUIRED, "ours"),)
    assert machine.standing(3) is Standing.LEADER


def test_a_leader_that_is_told_so_is_revoked_once() -> None:
    """A leader is revoked at once by an observation of another holder, and only once."""
    machine = leader()
    assert machine.pulse(101, theirs(101)) == (Transition(StandingChange.REVOKED, "theirs"),)
    assert machine.pulse(102, theirs(102)) == ()
    assert machine.standing(102) is Standing.CANDIDATE


def test_a_term_counts_from_the_question_and_not_from_its_answer() -> None:
    """An answer that took four of a term's five seconds leaves one."""
    machine = ElectionState(TERM)
    machine.pulse(104, ours(100))
    assert machine.standing(104.99) is Standing.LEADER
    assert machine.standing(105) is Standing.FENCED


def test_whoever_asks_late_hears_that_the_leader_is_fenced() -> None:
    """A leadership ends without a pulse."""
    machine = leader()
    assert machine.standing(104.9) is Standing.LEADER
    assert machine.standing(105) is Standing.FENCED
    assert machine.standing(1000) is Standing.FENCED


def test_a_leader_that_comes_late_is_fenced_before_it_hears_anything() -> None:
    """A late leader is fenced first, and acquires again even with a positive answer."""
    machine = leader()
    found = machine.pulse(106, ours(106))
    assert changes(found) == [StandingChange.FENCED, StandingChange.ACQUIRED]
    assert found[1].again
    assert "6s" in found[0].why
    assert "5s" in found[0].why


def test_an_answer_older_than_a_term_proves_nothing() -> None:
    """A late answer makes no candidate a leader, and a leader with it is fenced."""
    machine = ElectionState(TERM)
    assert machine.pulse(105, ours(100)) == ()
    assert machine.standing(105) is Standing.CANDIDATE
    machine = leader()
    assert changes(machine.pulse(106, ours(100.5))) == [StandingChange.FENCED]


def test_answers_out_of_order_never_shorten_what_is_proved() -> None:
    """The newest query counts, in any order of answers."""
    machine = leader()
    machine.pulse(102, ours(102))
    machine.pulse(103, ours(101))
    assert machine.standing(106.9) is Standing.LEADER


def test_who_was_fenced_and_then_refused_begins_as_any_candidate() -> None:
    """``again`` is set only if no other leader was observed in between."""
    machine = leader()
    assert changes(machine.pulse(105)) == [StandingChange.FENCED]
    assert machine.pulse(106) == ()
    assert machine.standing(106) is Standing.FENCED
    assert machine.pulse(107, theirs(107)) == ()
    assert machine.standing(107) is Standing.CANDIDATE
    assert machine.pulse(108, ours(108)) == (
        Transition(StandingChange.ACQUIRED, "ours", again=False),
    )


@pytest.mark.parametrize("silence", [0.0, 4.999])
def test_a_leader_is_not_fenced_within_its_term(silence: float) -> None:
    """A pulse in time changes nothing."""
    machine = leader()
    assert machine.pulse(100 + silence) == ()
    assert machine.standing(100 + silence) is Standing.LEADER

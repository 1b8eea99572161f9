"""Interface of all electors, and the elector without rivals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from transporter.election.state_machine import Standing, StandingChange, Transition


@dataclass(frozen=True, slots=True)
class Pulse:
    """Result of one pulse: the new standing, its transitions and the problem, if there is one.

    *problem* is a sentence for operators while the election cannot be reached or
    used. The elector keeps trying meanwhile. It is empty without a problem.
    """

    standing: Standing
    transitions: tuple[Transition, ...] = ()
    problem: str = ""


class Elector(Protocol):
    """Participant in an election, which decides whether this process may try to lead.

    The term number in the database decides what a leader may do. One thread calls
    ``pulse`` and ``close``. Any thread may call ``standing``.
    """

    def pulse(self, now: float) -> Pulse:
        """Take part in the election. *now* is ``time.monotonic()``.

        Call it several times a term. A leader whose pulses are a term apart is
        fenced, and its pulse reports that before it does anything else. The wait
        for answers lasts at most a tenth of the term and at most 200 ms, whatever
        hangs. Only the lookup of a host name may take longer.

        Raises:
            EnvironmentFault: If only an operator can help. Only candidates raise it,
                because a leader's revocation is reported first.
        """

    def standing(self, now: float) -> Standing:
        """Return the standing at the monotonic time *now*, fenced as soon as the term is over."""

    def close(self) -> None:
        """Leave the election, so that another can lead at once. Safe to call twice.

        The wait lasts at most a term and 5 s. No transition is reported, because a
        closed elector no longer leads.
        """


class SoleElector:
    """Elector that leads for ever from its first pulse on, because it has no rivals."""

    def __init__(self) -> None:
        """Start as a candidate."""
        self._standing = Standing.CANDIDATE

    def pulse(self, now: float) -> Pulse:  # noqa: ARG002 - as every elector
        """Return the standing of a leader, with the transition to it in the first pulse."""
        if self._standing is Standing.LEADER:
            return Pulse(Standing.LEADER)
        self._standing = Standing.LEADER
        return Pulse(Standing.LEADER, (Transition(StandingChange.ACQUIRED, "there is no elector"),))

    def standing(self, now: float) -> Standing:  # noqa: ARG002 - as every elector
        """Return the standing: a leader after the first pulse."""
        return self._standing

    def close(self) -> None:
        """Stop leading."""
        self._standing = Standing.CANDIDATE


def answer_timeout(term: float) -> float:
    """Return the seconds that a pulse may wait for answers."""
    return min(0.2, term / 10)

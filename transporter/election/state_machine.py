"""State machine of a standing in an election, driven by observations. Pure: time is an argument."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from transporter.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator


class Standing(StrEnum):
    """Standing of a candidate, as far as it may assume it."""

    CANDIDATE = "candidate"
    """Another candidate leads, or none does."""

    LEADER = "leader"
    """It leads, confirmed within the last term."""

    FENCED = "fenced"
    """It led, and then had no confirmation for a whole term. Another may lead by now."""


class StandingChange(StrEnum):
    """Kind of a change of leadership."""

    ACQUIRED = "acquired"
    REVOKED = "revoked"
    """The election revoked it, or the connection to the election broke."""
    FENCED = "fenced"
    """There was no confirmation for a whole term."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of standing, for an event. *why* is a sentence for operators.

    ``again`` marks an acquisition that follows a fence without a sign of another
    leader in between. Another may still have led meanwhile. Every acquisition,
    again or not, begins a new term in the database.
    """

    change: StandingChange
    why: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """Answer of the election: whether we hold it, and the time *asked_at* of the question.

    *asked_at* is a monotonic time in seconds. An answer is proof only for the moment
    of the question, because it may have been delayed for long.
    """

    holding: bool
    asked_at: float
    why: str


class ElectionState:
    """State machine from observations to a standing.

    At most one candidate leads if the election keeps this promise: a candidate
    that holds the election at *asked_at* keeps it until ``asked_at + term``, by its own
    clock. A leader therefore counts as leading until then and no longer, however
    late the standing is queried.

    One thread calls :meth:`pulse`. Any thread may call :meth:`standing`.
    """

    def __init__(self, term: float) -> None:
        """Start as a candidate. *term* is in seconds."""
        self._term = term
        # A single value, so that another thread never sees half of a change.
        self._state = (Standing.CANDIDATE, -math.inf)

    def standing(self, now: float) -> Standing:
        """Return the standing at the monotonic time *now* without changing it."""
        standing, proved = self._state
        if standing is Standing.LEADER and now >= proved + self._term:
            return Standing.FENCED
        return standing

    def pulse(self, now: float, observation: Observation | None = None) -> tuple[Transition, ...]:
        """Advance to the time *now*, then apply *observation*; return the transitions in order.

        After a pause, call it without *observation* before anything else, so that a
        late leader is fenced before it can act.
        """
        return (*self._fence(now), *self._apply_observation(now, observation))

    def _fence(self, now: float) -> Iterator[Transition]:
        standing, proved = self._state
        if standing is not self.standing(now):
            self._state = (Standing.FENCED, proved)
            silence = format_duration(round(now - proved, 3))
            term = format_duration(self._term)
            why = f"there was no answer from the election for {silence}; the term is {term}"
            yield Transition(StandingChange.FENCED, why)

    def _apply_observation(
        self, now: float, observation: Observation | None
    ) -> Iterator[Transition]:
        standing, proved = self._state
        if observation is None:
            return
        if not observation.holding:
            self._state = (Standing.CANDIDATE, -math.inf)
            if standing is Standing.LEADER:
                yield Transition(StandingChange.REVOKED, observation.why)
        elif now < observation.asked_at + self._term:
            self._state = (Standing.LEADER, max(proved, observation.asked_at))
            if standing is not Standing.LEADER:
                again = standing is Standing.FENCED
                yield Transition(StandingChange.ACQUIRED, observation.why, again)

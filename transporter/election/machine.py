"""Standing in an election, from what was heard and when. Pure: time is an argument."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from transporter.units import duration_text

if TYPE_CHECKING:
    from collections.abc import Iterator


class Standing(StrEnum):
    """What one who takes part in an election may believe of itself."""

    CANDIDATE = "candidate"
    """Somebody else leads, or nobody."""

    LEADER = "leader"
    """It leads, and has heard so within a term."""

    FENCED = "fenced"
    """It led, and then observation nothing for a whole term: another may lead by now."""


class Change(StrEnum):
    """What became of a leadership."""

    ACQUIRED = "acquired"
    REVOKED = "revoked"
    """The election took it away, or the way to the election broke."""
    FENCED = "fenced"
    """Nothing was heard for a whole term."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of standing, for an event. *why* is a sentence for people.

    ``again`` says of an acquisition that it follows a fence, and that nothing
    was heard of another leader in between. Another may have led all the same:
    whoever acquires, again or not, begins a new term in the database.
    """

    change: Change
    why: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """What the election said: whether we hold it, and when the question was *asked*.

    *asked* is a monotonic time, in seconds. An answer proves what it says for
    the moment of the question only: it may have been on its way for long.
    """

    holding: bool
    asked: float
    why: str


class Machine:
    """Turns what is heard into a standing. At most one leads where the election keeps its word.

    Its word: who is told at *asked* that it holds the election keeps it until
    ``asked + term``, measured by its own clock. So a leader believes that for
    so long and no longer, whoever asks, and however late.

    One thread calls :meth:`pulse`; any may call :meth:`standing`.
    """

    def __init__(self, term: float) -> None:
        """Begin as a candidate; *term* in seconds."""
        self._term = term
        # One value, so that another thread never sees half of a change.
        self._state = (Standing.CANDIDATE, -math.inf)

    def standing(self, now: float) -> Standing:
        """Return the standing at the monotonic time *now*; changes nothing."""
        standing, proved = self._state
        if standing is Standing.LEADER and now >= proved + self._term:
            return Standing.FENCED
        return standing

    def pulse(self, now: float, observation: Observation | None = None) -> tuple[Transition, ...]:
        """Take in that it is *now*, then what was *heard*; return what changed, in order.

        Call it without *heard* before anything else is done after a pause: a
        leader that comes late is fenced before it can act.
        """
        return (*self._fence(now), *self._apply_observation(now, observation))

    def _fence(self, now: float) -> Iterator[Transition]:
        standing, proved = self._state
        if standing is not self.standing(now):
            self._state = (Standing.FENCED, proved)
            silence = duration_text(round(now - proved, 3))
            term = duration_text(self._term)
            why = f"nothing was heard of the election for {silence}; the term is {term}"
            yield Transition(Change.FENCED, why)

    def _apply_observation(
        self, now: float, observation: Observation | None
    ) -> Iterator[Transition]:
        standing, proved = self._state
        if observation is None:
            return
        if not observation.holding:
            self._state = (Standing.CANDIDATE, -math.inf)
            if standing is Standing.LEADER:
                yield Transition(Change.REVOKED, observation.why)
        elif now < observation.asked + self._term:
            self._state = (Standing.LEADER, max(proved, observation.asked))
            if standing is not Standing.LEADER:
                again = standing is Standing.FENCED
                yield Transition(Change.ACQUIRED, observation.why, again)

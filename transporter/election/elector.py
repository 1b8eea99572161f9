"""What every elector is, and the one that has no rivals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from transporter.election.machine import Change, Standing, Transition


@dataclass(frozen=True, slots=True)
class Pulse:
    """What one pulse found: the standing behind it, what changed, and what is wrong, if anything.

    *problem* is a sentence for people while the election cannot be reached or
    used; an elector goes on trying. It is empty when nothing is wrong.
    """

    standing: Standing
    transitions: tuple[Transition, ...] = ()
    problem: str = ""


class Elector(Protocol):
    """Says who may try to lead. What a leader may do, the term number in the database decides.

    One thread calls ``pulse`` and ``close``; any thread may call ``standing``.
    """

    def pulse(self, now: float) -> Pulse:
        """Take part in the election; *now* is ``time.monotonic()``.

        Call it several times a term: a leader whose pulses are a term apart is
        fenced, and is told so before anything else is done. Waits for answers
        no longer than a tenth of the term and 200 ms, whatever hangs; only
        looking up the name of a host may take longer.

        Raises:
            EnvironmentFault: If only an operator can help. It is raised
                by candidates only: a leader hears of its revocation first.
        """

    def standing(self, now: float) -> Standing:
        """Return the standing at the monotonic time *now*: fenced as soon as the term is over."""

    def close(self) -> None:
        """Leave the election, so that another can lead at once; safe twice.

        Waits no longer than a term and 5 s. A transition is not told: whoever
        closes leads no more.
        """


class Alone:
    """Leads from the first pulse on and for ever: nobody else takes part."""

    def __init__(self) -> None:
        """Begin as a candidate."""
        self._standing = Standing.CANDIDATE

    def pulse(self, now: float) -> Pulse:  # noqa: ARG002 - as every elector
        """Return that we lead; the first time, that we began to."""
        if self._standing is Standing.LEADER:
            return Pulse(Standing.LEADER)
        self._standing = Standing.LEADER
        return Pulse(Standing.LEADER, (Transition(Change.ACQUIRED, "there is no elector"),))

    def standing(self, now: float) -> Standing:  # noqa: ARG002 - as every elector
        """Return whether there was a pulse."""
        return self._standing

    def close(self) -> None:
        """Lead no more."""
        self._standing = Standing.CANDIDATE


def patience(term: float) -> float:
    """Return how many seconds a pulse may wait for answers."""
    return min(0.2, term / 10)

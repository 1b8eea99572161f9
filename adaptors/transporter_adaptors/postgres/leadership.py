"""Participation in the election of an outbox's leader: when terms may begin and when they end.

An election decides only which engine may *try*. A leader's rights are decided by the term
number, in the database that holds the rows (Invariant 10).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from transporter.election.config import make_elector
from transporter.election.elector import SoleElector
from transporter.election.state_machine import Standing, StandingChange

if TYPE_CHECKING:
    from pydantic import SecretStr

    from transporter.adaptor import Resume
    from transporter.election.config import Election
    from transporter.election.elector import Elector
    from transporter_adaptors.postgres.term import Term

_PULSES: Final = 10
"""Least number of times that the elector is polled in a term."""


class Leadership:
    """One reader's part in the election of *outbox*'s leader. Not thread-safe.

    Reports the beginnings and ends of its terms to *resume*.
    """

    def __init__(self, election: Election, outbox: str, dsn: SecretStr, resume: Resume) -> None:
        """Take part from the first :meth:`pulse` on, but connect to nothing yet."""
        self._elector: Elector = make_elector(election, outbox, dsn)
        self._length = None if isinstance(self._elector, SoleElector) else election_term(election)
        self._resume = resume
        self._term: Term | None = None
        self._barred_until = 0.0
        self._is_new = True
        self._problem = ""

    @property
    def is_alone(self) -> bool:
        """Whether no other engine takes part, so that a term that is over stays over."""
        return self._length is None

    @property
    def patience(self) -> float:
        """Seconds that may pass between two pulses."""
        return float("inf") if self._length is None else self._length / _PULSES

    def pulse(self, now: float) -> bool:
        """Take part at the monotonic time *now*, and return whether the current term goes on.

        Raises:
            EnvironmentFault: Only an operator can help.
        """
        pulse = self._elector.pulse(now)
        if pulse.problem and pulse.problem != self._problem:
            self._resume.report("election-unavailable", problem=pulse.problem)
        self._problem = pulse.problem
        for each in pulse.transitions:
            if each.change is StandingChange.ACQUIRED:
                self._is_new = self._is_new or not each.again
            else:
                self._end_term(each.why, revoked=each.change is StandingChange.REVOKED)
        return self._term is not None

    def can_begin(self, now: float) -> bool:
        """Return whether to begin a term: elected, and not fenced within the last term."""
        leads = self._elector.standing(now) is Standing.LEADER
        return leads and self._term is None and now >= self._barred_until

    def record_term(self, term: Term) -> None:
        """Record that *term* has begun."""
        new, self._term, self._is_new = self._is_new, term, False
        leader = str(term.leader)
        self._resume.report(
            "leader-acquired" if new else "leader-refreshed", term=term.number, leader=leader
        )

    def record_fencing(self, why: str, now: float) -> None:
        """Record that the database has a later term, and let the leader of that one go on."""
        self._barred_until = now + (self._length or 0.0)
        self._end_term(why, revoked=False)

    def close(self) -> None:
        """Leave the election, so that another may lead at once."""
        self._elector.close()

    def _end_term(self, why: str, *, revoked: bool) -> None:
        term, self._term = self._term, None
        number = None if term is None else term.number
        self._resume.report(
            "leader-revoked" if revoked else "leader-fenced", term=number, problem=why
        )


def election_term(election: Election) -> float | None:
    """Return the length of a term in seconds, or ``None`` without an election."""
    return None if isinstance(election, str) else election.term

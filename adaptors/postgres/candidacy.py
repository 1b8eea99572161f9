"""Taking part in an election for an outbox: when a term may begin, and when it is over.

Only who may *try* is decided here. What a leader may do is decided by the term number, in
the database that holds the rows (Invariant 10).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from transporter.election.config import make_elector
from transporter.election.elector import Alone
from transporter.election.machine import Change, Standing

if TYPE_CHECKING:
    from pydantic import SecretStr

    from adaptors.postgres.term import Term
    from transporter.adaptor import Resume
    from transporter.election.config import Election
    from transporter.election.elector import Elector

_PULSES: Final = 10
"""How often in a term an election is asked, at least."""


class Candidacy:
    """One reader's part in the election of *outbox*'s leader. Not thread-safe.

    Tells *resume* what becomes of its terms.
    """

    def __init__(self, election: Election, outbox: str, dsn: SecretStr, resume: Resume) -> None:
        """Take part from the first :meth:`pulse` on; nothing is connected to yet."""
        self._elector: Elector = make_elector(election, outbox, dsn)
        self._length = None if isinstance(self._elector, Alone) else election_term(election)
        self._resume = resume
        self._term: Term | None = None
        self._barred = 0.0
        self._new = True
        self._problem = ""

    @property
    def alone(self) -> bool:
        """Whether nobody else takes part: then a term that is over stays over."""
        return self._length is None

    @property
    def patience(self) -> float:
        """Seconds that may pass between two pulses."""
        return float("inf") if self._length is None else self._length / _PULSES

    def pulse(self, now: float) -> bool:
        """Take part at the monotonic time *now*; tell whether the term that was begun goes on.

        Raise ``EnvironmentFault`` when only an operator can help.
        """
        pulse = self._elector.pulse(now)
        if pulse.problem and pulse.problem != self._problem:
            self._resume.tell("election-unavailable", problem=pulse.problem)
        self._problem = pulse.problem
        for each in pulse.transitions:
            if each.change is Change.ACQUIRED:
                self._new = self._new or not each.again
            else:
                self._over(each.why, revoked=each.change is Change.REVOKED)
        return self._term is not None

    def may_begin(self, now: float) -> bool:
        """Tell whether to begin a term: we are elected, and nobody has just ended our last one."""
        leads = self._elector.standing(now) is Standing.LEADER
        return leads and self._term is None and now >= self._barred

    def begun(self, term: Term) -> None:
        """Take note of a term that was begun."""
        new, self._term, self._new = self._new, term, False
        leader = str(term.leader)
        self._resume.tell(
            "leader-acquired" if new else "leader-refreshed", term=term.number, leader=leader
        )

    def ended(self, why: str, now: float) -> None:
        """Take note that the database knows of a later term: let whoever began it go on."""
        self._barred = now + (self._length or 0.0)
        self._over(why, revoked=False)

    def close(self) -> None:
        """Leave the election, so that another may lead at once."""
        self._elector.close()

    def _over(self, why: str, *, revoked: bool) -> None:
        term, self._term = self._term, None
        number = None if term is None else term.number
        self._resume.tell(
            "leader-revoked" if revoked else "leader-fenced", term=number, problem=why
        )


def election_term(election: Election) -> float | None:
    """Return how long a term is, in seconds; ``None`` without an election."""
    return None if isinstance(election, str) else election.term

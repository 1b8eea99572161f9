"""What an outcome means for its route: go on, try again later, set an entry aside, or halt.

Writes down what was settled; decides nothing about workers or threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from transporter.engine.protocol import Failure, FailureKind
from transporter.engine.redelivery import Redelivery
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from transporter.engine.cutter import Cutter
    from transporter.engine.events import Observer
    from transporter.engine.parking import Parking
    from transporter.engine.protocol import Outcome, Slice
    from transporter.log.commit_log import CommitLog
    from transporter.offsets.offset_log import OffsetLog
    from transporter.offsets.state import RouteState
    from transporter.pipeline.config import RouteConfig

_DIED: Final = "the worker died, or had to be ended, while it delivered this entry"
_NO_ROOM: Final = (
    "park_limit is reached; retry or skip parked entries, or raise the limit "
    "(see 'transporter parked list')"
)


class Action(Enum):
    """What the route does next."""

    GO = "go on"
    WAIT = "wait, then try again"
    HALT = "wait for an operator"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do, and what to tell people of it."""

    action: Action
    problem: str = ""
    offset: int | None = None


GO: Final = Verdict(Action.GO)


class Judge:
    """Judges the outcomes of one route. Belongs to the route's thread."""

    def __init__(
        self,
        config: RouteConfig,
        log: CommitLog,
        offsets: OffsetLog,
        parking: Parking,
        cutter: Cutter,
        observe: Observer,
    ) -> None:
        """Judge for the route of *config*, keeping the *cutter*'s plan current.

        The route keeps ``config`` current.
        """
        self.config, self._log, self._offsets = config, log, offsets
        self._parking, self._cutter, self._observe = parking, cutter, observe

    def judge(self, asked: Slice, outcome: Outcome) -> Verdict:
        """Settle what was delivered of *asked*, and decide about the rest."""
        self._settle(asked, outcome)
        self._cutter.plan = self._cutter.plan.settled(outcome.through)
        failure, state = outcome.failure, self._offsets.state
        if failure is None or self._begun_anew(asked, state):
            return GO
        if failure.kind not in (FailureKind.REJECTED, FailureKind.POISON):
            return self.not_its_fault(failure)
        first = state.next_offset()
        plan = self._cutter.plan.failed(first, asked.last, failure.offset, single=asked.single)
        return self._replanned(asked, plan, failure)

    def died(self, asked: Slice, announced: int | None) -> Verdict:
        """Decide after the worker died by itself while it delivered *asked*."""
        state = self._offsets.state
        if self._begun_anew(asked, state):
            return GO
        first = state.next_offset()
        plan = self._cutter.plan.died(first, asked.last, announced, single=asked.single)
        failure = Failure(FailureKind.REJECTED, _DIED, announced)
        return self._replanned(asked, plan, failure)

    def judge_parked(self, offset: int, failure: Failure | None) -> Verdict:
        """Decide after the parked entry at *offset* was delivered, or failed again."""
        if failure is None:
            self._parking.delivered(offset)
            self._tell("parked-delivered", offset)
        elif failure.kind in (FailureKind.REJECTED, FailureKind.POISON):
            self._parking.failed_again(offset, failure.text)
            self._tell("parked-failed", offset, problem=failure.text)
        else:
            return self.not_its_fault(failure)
        return GO

    def died_with_parked(self, offset: int) -> Verdict:
        """Decide after the worker died by itself while it delivered a parked entry."""
        return self.judge_parked(offset, Failure(FailureKind.REJECTED, _DIED, offset))

    def not_its_fault(self, failure: Failure) -> Verdict:
        """Try again for as long as it takes, or halt: nothing here is one entry's doing."""
        action = Action.WAIT if failure.kind.retriable else Action.HALT
        return Verdict(action, failure.text, failure.offset)

    def no_room(self, offset: int) -> Verdict:
        """Halt before *offset*, which must be parked and cannot be."""
        return Verdict(Action.HALT, _NO_ROOM, offset)

    def _replanned(self, asked: Slice, plan: Redelivery, failure: Failure) -> Verdict:
        """Go on by *plan*; say so where *failure* named no entry, for later all may succeed."""
        suspects, before = plan.suspects, self._cutter.plan.suspects
        self._cutter.plan = plan
        if failure.offset is None and suspects is not None and suspects != before:
            self._observe(
                "slice-divided",
                route=self.config.name,
                first=suspects.first,
                last=asked.last,
                problem=failure.text,
            )
        return self._attempted(asked, failure)

    def _attempted(self, asked: Slice, failure: Failure) -> Verdict:
        """Try the entry again, or give it up once it has failed alone often enough."""
        if failure.offset is None:
            return GO
        attempts = self._cutter.plan.attempts(failure.offset)
        if failure.kind is FailureKind.POISON or attempts >= self.config.retry.attempts:
            return self._give_up(asked, failure, failure.offset, attempts)
        if not attempts:
            return GO
        return Verdict(Action.WAIT, f"offset {failure.offset}: {failure.text}")

    def _give_up(self, asked: Slice, failure: Failure, offset: int, attempts: int) -> Verdict:
        """Do as ``on_error`` says; what its reader could not read is parked in any case."""
        if self._offsets.state.next_offset() > offset:
            # An operator acked it, or ended its replay, while it was being delivered.
            self._cutter.plan = self._cutter.plan.settled(offset)
            return GO
        on_error = "park" if failure.kind is FailureKind.POISON else self.config.on_error
        if on_error == "stop":
            return Verdict(Action.HALT, failure.text, offset)
        if on_error == "park":
            if self._parking.full:
                return self.no_room(offset)
            self._parking.park(offset, failure.text, attempts)
        else:
            self._offsets.settle(Range(offset, offset, "skipped"), self._log.durable)
            self._offsets.sync()
        if self._offsets.state.replay is not None:
            # Only that of *asked*: while the entry was set aside another one may have begun.
            self._offsets.advance_replay(offset, asked.generation)
        self._cutter.plan = self._cutter.plan.settled(offset)
        event = "entry-parked" if on_error == "park" else "entry-skipped"
        self._tell(event, offset, attempts=attempts, problem=failure.text)
        return GO

    def _settle(self, asked: Slice, outcome: Outcome) -> None:
        """Write down the settled prefix of *asked*, and nothing more (Invariant 5)."""
        if outcome.through < asked.first:
            return
        state = self._offsets.state
        # A replay that began meanwhile has another generation, and nothing of it was delivered.
        if state.replay is not None and state.generation == asked.generation:
            self._offsets.advance_replay(outcome.through, asked.generation)
        else:
            part = Range(asked.first, outcome.through)
            self._offsets.settle(part, self._log.durable, outcome.namespaces)

    def _begun_anew(self, asked: Slice, state: RouteState) -> bool:
        """Tell whether a replay began while *asked* was delivered; if so, suspect nothing yet.

        Whatever failed comes again, and is to be judged then.
        """
        if asked.generation == state.generation:
            return False
        self._cutter.plan = Redelivery()
        return True

    def _tell(self, event: str, offset: int, **details: object) -> None:
        self._observe(event, route=self.config.name, offset=offset, **details)

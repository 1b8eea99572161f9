"""Decisions after each outcome of a slice: continue, retry, park an entry, or halt.

Records settled entries. Decides nothing about workers or threads.

The redelivery plan (docs/design/delivery.md, "Failures"): entries go in bulk until a failure, then
in shorter slices. Suspected entries go one at a time, each announced before its delivery, so that
even the death of a worker identifies the entry. Afterwards slices grow again with each success.
A worker reads all of a slice, though only the beginning of a failed one counts.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, Self

from transporter.errors import Corrupt, EnvironmentFault
from transporter.offsets.state import Range
from transporter.protocol.messages import Failure, FailureKind

if TYPE_CHECKING:
    from transporter.engine.events import Observer
    from transporter.engine.routing.parking import Parking
    from transporter.log.commit_log import CommitLog
    from transporter.offsets.given_up import GivenUpLog
    from transporter.offsets.offset_log import OffsetLog
    from transporter.offsets.state import RouteState
    from transporter.pipeline.config import RouteConfig
    from transporter.protocol.messages import Outcome, Slice

_DIED: Final = "the worker died, or had to be ended, while it delivered this entry"
_MOST_IN_VAIN: Final = 10
"""How often a route goes on at once though nothing was settled: a large slice that fails as a
whole is divided so often at most."""
_NO_PROGRESS: Final = "the worker delivered nothing of its slice and gave no reason"
_FILTERED_OUT: Final = "the route's filter or steps drop it"
_NO_ROOM: Final = (
    "park_limit is reached; retry or skip parked entries, or raise the limit "
    "(see 'transporter parked list')"
)
_FEWEST: Final = 64
"""Offsets that go in bulk at once where many entries fail."""
_MOST: Final = 1 << 16
"""Offsets that go in bulk again after failures before the route's own settings bound them alone."""
_MOST_SINGLY: Final = 1000
"""Offsets that go one at a time in one batch, because entries after a failure are read again."""


@dataclass(frozen=True, slots=True)
class Suspects:
    """Offsets ``first`` to ``last`` are delivered one at a time.

    ``attempts`` counts how often ``first`` has failed alone.
    """

    first: int
    last: int
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class RedeliveryPlan:
    """The suspected offsets; without any, delivery goes in bulk.

    ``first_death`` is the first offset of a bulk slice with which a worker died once, because
    most deaths have other causes, and one at a time is slow. ``bulk_limit`` bounds bulk slices;
    with ``None`` only the route's settings do.
    """

    suspects: Suspects | None = None
    first_death: int | None = None
    bulk_limit: int | None = None

    def cut(self, first: int, last: int) -> tuple[int, bool]:
        """Return the last offset to hand over from *first* on, and whether one at a time.

        *last* bounds the slice in any case.
        """
        suspects = self.suspects
        if suspects is not None and suspects.first <= first <= suspects.last:
            return min(last, suspects.last, first + _MOST_SINGLY - 1), True
        if suspects is not None and first < suspects.first:
            last = min(last, suspects.first - 1)
        return (last if self.bulk_limit is None else min(last, first + self.bulk_limit - 1)), False

    def after_failure(self, first: int, last: int, offset: int | None, *, single: bool) -> Self:
        """Return the plan after the slice from *first* to *last* failed.

        Args:
            first: the first offset that is not settled now.
            last: the slice's last offset.
            offset: the entry that failed, if the failure or an announcement named it.
            single: whether the entries were delivered one at a time.

        """
        if offset is None:
            narrowed = self._with_shorter_slices(first, last)
            # A large slice goes in shorter slices first, because one at a time is slow.
            suspected = replace(self, suspects=Suspects(first, last))
            return suspected if narrowed == self else narrowed
        known = self.suspects
        if not single:
            end = known.last if known and known.first <= offset <= known.last else offset
            return replace(self._with_shorter_slices(first, last), suspects=Suspects(offset, end))
        again = known is not None and known.first == offset
        attempts = known.attempts + 1 if known and again else 1
        end = known.last if known else last
        return replace(self, suspects=Suspects(offset, max(end, offset), attempts))

    def after_death(self, first: int, last: int, announced: int | None, *, single: bool) -> Self:
        """Return the plan after a worker died by itself with this slice.

        In bulk the first death is taken for an accident, the second for the
        slice's doing. One at a time the entry *announced* last is guilty.
        """
        if single:
            return (
                self
                if announced is None
                else self.after_failure(first, last, announced, single=True)
            )
        if self.first_death != first:
            return replace(self, first_death=first)
        return replace(self, suspects=Suspects(first, last), first_death=None)

    def after_success(self) -> Self:
        """Return the plan after a slice in bulk was delivered to its end."""
        if self.bulk_limit is None:
            return self
        return replace(
            self, bulk_limit=2 * self.bulk_limit if 2 * self.bulk_limit < _MOST else None
        )

    def _with_shorter_slices(self, first: int, last: int) -> Self:
        """Return the plan with shorter slices in bulk, as the one from *first* to *last* failed."""
        size = last - first + 1
        return self if size <= _FEWEST else replace(self, bulk_limit=max(_FEWEST, size // 4))

    def attempts(self, offset: int) -> int:
        """Return how often the entry at *offset* has failed alone."""
        known = self.suspects
        return known.attempts if known is not None and known.first == offset else 0

    def after_settling(self, through: int) -> Self:
        """Return the plan once everything up to *through* is settled."""
        known = self.suspects
        if known is None or through < known.first:
            return self
        if through >= known.last:
            return replace(self, suspects=None)
        return replace(self, suspects=Suspects(through + 1, known.last))


class Action(Enum):
    """The next action of the route."""

    GO = "go on"
    WAIT = "wait, then try again"
    HALT = "wait for an operator"


@dataclass(frozen=True, slots=True)
class Decision:
    """The next action, with the message for operators."""

    action: Action
    problem: str = ""
    offset: int | None = None
    wait: float = 0.0
    """Seconds for which nothing is to be delivered, whatever else happens."""


GO: Final = Decision(Action.GO)


@dataclass(frozen=True, slots=True)
class EntryOutcome:
    """How the entry at ``offset`` was settled: ``delivered``, ``parked`` or ``skipped``, and why.

    Without an ``outcome`` it is unknown.
    """

    offset: int = -1
    outcome: str = ""
    reason: str = ""


class FailurePolicy:
    """Decides about the outcomes of one route. Belongs to the route's thread.

    Owns the delivery ``plan``: entries in bulk, and entries one at a time.
    """

    def __init__(
        self,
        config: RouteConfig,
        log: CommitLog,
        offsets: OffsetLog,
        parking: Parking,
        given_up: GivenUpLog,
        observe: Observer,
    ) -> None:
        """Decide for the route of *config*, which the route keeps current."""
        self.given_up = given_up
        self.config, self._log, self._offsets = config, log, offsets
        self._parking, self._observe = parking, observe
        self._plan = RedeliveryPlan()
        self._vain_attempts, self._position = 0, (-1, -1)
        self.newest_outcome = EntryOutcome()
        """The outcome of the entry that was settled last."""

    @property
    def plan(self) -> RedeliveryPlan:
        """The way in which the next slice is handed over."""
        return self._plan

    def clear_suspects(self) -> None:
        """Suspect nothing, for an operator has changed something."""
        self._plan, self._vain_attempts = RedeliveryPlan(), 0

    def decide(self, slice_: Slice, outcome: Outcome) -> Decision:
        """Settle the delivered part of *slice_*, and decide about the rest."""
        failure = outcome.failure and _drop_foreign_offset(slice_, outcome.failure)
        return self._limit_vain_attempts(self._settle_and_decide(slice_, outcome, failure), failure)

    def settle(self, slice_: Slice, outcome: Outcome) -> None:
        """Settle the part of *slice_* that *outcome*, partial or not, reports as delivered."""
        self._record_settled(slice_, outcome)
        self._plan = self._plan.after_settling(outcome.through)
        if outcome.through >= slice_.first:
            # Entries that a shard skips, because its sink has them, count as neither.
            left_out = outcome.skipped and not outcome.delivered
            self.newest_outcome = (
                EntryOutcome(outcome.through, "skipped", _FILTERED_OUT)
                if left_out
                else EntryOutcome(outcome.through, "delivered")
            )

    def decide_after_death(self, slice_: Slice, announced: int | None) -> Decision:
        """Decide after the worker died during the delivery of *slice_*."""
        failure = Failure(FailureKind.REJECTED, _DIED, announced)
        return self._limit_vain_attempts(self._plan_after_death(slice_, failure), failure)

    def decide_parked(self, offset: int, failure: Failure | None) -> Decision:
        """Decide after the parked entry at *offset* was delivered, or failed again."""
        if failure is None:
            # Before the copy goes, so that a crash in between delivers it again (Invariant 6).
            self._record_delivered(offset)
            self._parking.remove_delivered(offset)
            self._report("parked-delivered", offset)
        elif failure.kind in (FailureKind.REJECTED, FailureKind.POISON):
            self._parking.record_failure(offset, failure.text)
            self._report("parked-failed", offset, problem=failure.text)
        else:
            return self.wait_or_halt(failure)
        return GO

    def decide_parked_death(self, offset: int) -> Decision:
        """Decide after the worker died by itself while it delivered a parked entry."""
        return self.decide_parked(offset, Failure(FailureKind.REJECTED, _DIED, offset))

    def wait_or_halt(self, failure: Failure) -> Decision:
        """Try again for as long as it takes, or halt: nothing here is one entry's doing."""
        action = Action.WAIT if failure.kind.retriable else Action.HALT
        return Decision(action, failure.text, failure.offset, failure.wait)

    def halt_without_room(self, offset: int) -> Decision:
        """Halt before *offset*, which must be parked and cannot be."""
        return Decision(Action.HALT, _NO_ROOM, offset)

    def _limit_vain_attempts(self, decision: Decision, failure: Failure | None) -> Decision:
        """Return *decision*, or a wait instead of going on without progress once too often.

        So nothing that a worker or a writer answers makes its route spin.
        """
        state = self._offsets.state
        before, self._position = self._position, (state.generation, state.next_offset())
        if self._position != before:
            self._vain_attempts = 0
        elif decision.action is Action.GO:
            self._vain_attempts += 1
            if self._vain_attempts > _MOST_IN_VAIN:
                return Decision(Action.WAIT, failure.text if failure else _NO_PROGRESS)
        return decision

    def _settle_and_decide(
        self, slice_: Slice, outcome: Outcome, failure: Failure | None
    ) -> Decision:
        self.settle(slice_, outcome)
        state = self._offsets.state
        if failure is None and not slice_.single:
            self._plan = self._plan.after_success()
        if failure is None or self._reset_on_new_replay(slice_, state):
            return GO
        if failure.kind not in (FailureKind.REJECTED, FailureKind.POISON):
            return self.wait_or_halt(failure)
        first = state.next_offset()
        if slice_.single and failure.offset is None:
            # One at a time, the failing entry is the next one, even if it was not named.
            failure = replace(failure, offset=first)
        plan = self._plan.after_failure(first, slice_.last, failure.offset, single=slice_.single)
        return self._apply_plan(slice_, plan, failure)

    def _plan_after_death(self, slice_: Slice, failure: Failure) -> Decision:
        state = self._offsets.state
        if self._reset_on_new_replay(slice_, state):
            return GO
        first = state.next_offset()
        plan = self._plan.after_death(first, slice_.last, failure.offset, single=slice_.single)
        return self._apply_plan(slice_, plan, failure)

    def _apply_plan(self, slice_: Slice, plan: RedeliveryPlan, failure: Failure) -> Decision:
        """Continue by *plan*, and report a *failure* without an offset: all may succeed later."""
        divided = plan.suspects or plan.bulk_limit, self._plan.suspects or self._plan.bulk_limit
        self._plan = plan
        if failure.offset is None and divided[0] != divided[1]:
            self._observe(
                "slice-divided",
                route=self.config.name,
                first=self._offsets.state.next_offset(),
                last=slice_.last,
                problem=failure.text,
            )
        return self._retry_or_give_up(slice_, failure)

    def _retry_or_give_up(self, slice_: Slice, failure: Failure) -> Decision:
        """Try the entry again, or give it up once it has failed alone often enough."""
        if failure.offset is None:
            return GO
        attempts = self._plan.attempts(failure.offset)
        if failure.kind is FailureKind.POISON or attempts >= self.config.retry.attempts:
            return self._give_up(slice_, failure, failure.offset, attempts)
        if not attempts:
            return GO
        return Decision(Action.WAIT, f"offset {failure.offset}: {failure.text}")

    def _give_up(self, slice_: Slice, failure: Failure, offset: int, attempts: int) -> Decision:
        """Apply ``on_error``. An entry that its reader could not read is parked in any case."""
        if self._offsets.state.next_offset() > offset:
            # An operator acked it, or ended its replay, while it was being delivered.
            self._plan = self._plan.after_settling(offset)
            return GO
        if self._offsets.state.replay is not None and self._offsets.state.next_offset() < offset:
            # A replay has no gaps: what other shards have yet to deliver comes first.
            return GO
        on_error = "park" if failure.kind is FailureKind.POISON else self.config.on_error
        if on_error == "stop":
            return Decision(Action.HALT, failure.text, offset)
        if on_error == "park":
            if self._parking.is_full:
                return self.halt_without_room(offset)
            self._parking.park(offset, failure.text, attempts)
        else:
            # The line is durable before the watermark may pass, and a crash may repeat it.
            self._record_given_up("entry-skipped", offset, failure.text, attempts=attempts)
            self._offsets.settle(Range(offset, offset, "skipped"), self._log.durable)
            self._offsets.sync()
        if self._offsets.state.replay is not None:
            # Only the replay of *slice_*: another one may have begun while the entry was parked.
            self._offsets.advance_replay(offset, slice_.generation)
        self._plan = self._plan.after_settling(offset)
        parked = on_error == "park"
        self.newest_outcome = EntryOutcome(offset, "parked" if parked else "skipped", failure.text)
        event = "entry-parked" if parked else "entry-skipped"
        self._report(event, offset, attempts=attempts, problem=failure.text)
        return GO

    def _record_settled(self, slice_: Slice, outcome: Outcome) -> None:
        """Record the settled prefix of *slice_*, and nothing more (Invariant 5)."""
        if outcome.through < slice_.first:
            return
        state = self._offsets.state
        # A replay that began meanwhile has another generation, and nothing of it was delivered.
        if state.replay is not None and state.generation == slice_.generation:
            self._offsets.advance_replay(outcome.through, slice_.generation)
        else:
            part = Range(slice_.first, outcome.through)
            self._offsets.settle(part, self._log.durable, outcome.namespaces)

    def _reset_on_new_replay(self, slice_: Slice, state: RouteState) -> bool:
        """Return whether a replay began while *slice_* was delivered; if so, suspect nothing.

        The failed entry comes again, and is decided about then.
        """
        if slice_.generation == state.generation:
            return False
        self._plan = RedeliveryPlan()
        return True

    def _record_delivered(self, offset: int) -> None:
        """Record that a parked entry was delivered, and why it was parked, if that is readable."""
        error, details = "", dict[str, object]()
        with suppress(Corrupt, EnvironmentFault):
            reason = self._parking.reason_of(offset)
            error = reason.error
            details = {"attempts": reason.attempts, "parked_at": reason.parked_at / 1_000_000}
        self._record_given_up("parked-delivered", offset, error, **details)

    def _record_given_up(self, event: str, offset: int, error: str, **details: object) -> None:
        """Record what became of an entry, and report once that lines wait for room."""
        waited = bool(self.given_up.waiting)
        details |= {"generation": self._offsets.state.generation}
        if not self.given_up.record(event, offset, error, **details) and not waited:
            problem = "no room to record what is skipped: until there is, a crash loses the lines"
            self._observe("given-up-unwritten", route=self.config.name, problem=problem)

    def _report(self, event: str, offset: int, **details: object) -> None:
        self._observe(event, route=self.config.name, offset=offset, **details)


def _drop_foreign_offset(slice_: Slice, failure: Failure) -> Failure:
    """Return *failure*, without its offset if that is not of *slice_*."""
    named = failure.offset
    if named is None or slice_.first <= named <= slice_.last:
        return failure
    problem = f"it names offset {named}, which is not in its slice {slice_.first}..{slice_.last}"
    return replace(failure, text=f"{failure.text} ({problem})", offset=None)

"""The session of a route with one worker: slice after slice, until either ends."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from transporter.engine.events import State
from transporter.engine.routing.failure_policy import GO, Action
from transporter.engine.workers.worker_connection import IDLE, WorkerSession
from transporter.offsets.state import Range
from transporter.protocol.messages import (
    Failure,
    FailureKind,
    Opened,
    OpenFailed,
    Outcome,
    Retry,
    Slice,
)
from transporter.worker.writers import is_from_forgotten

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from transporter.adaptor import StoredOffset
    from transporter.engine.meters import RouteLatency, RouteMeter
    from transporter.engine.reading.delivery_progress import DeliveryProgress
    from transporter.engine.routing.condition import Mailbox, RouteCondition
    from transporter.engine.routing.failure_policy import Decision, FailurePolicy
    from transporter.engine.routing.parking import Parking
    from transporter.engine.routing.slicer import RateLimit, Slicer
    from transporter.engine.thread_heartbeat import Heartbeat
    from transporter.engine.tracer import Tracer
    from transporter.engine.workers.shard_group import ShardGroup
    from transporter.engine.workers.spark_supervisor import SparkSupervisor
    from transporter.engine.workers.worker_connection import WorkerConnection
    from transporter.log.commit_log import CommitLog
    from transporter.offsets.offset_log import OffsetLog


class OffsetAdoption:
    """Settles entries by the stored offset of one route's sink. Belongs to the route's thread."""

    def __init__(self, offsets: OffsetLog, log: CommitLog) -> None:
        """Compare with *offsets*, and prove by the history of *log*."""
        self._offsets, self._log = offsets, log
        self.highest_handed = -1
        """The highest offset that this run has handed to a worker."""

    def record_handed(self, through: int) -> None:
        """Record that offsets up to *through* are in a worker's hands."""
        self.highest_handed = max(self.highest_handed, through)

    def adopt(self, opened: Opened, shards: int) -> Failure | None:
        """Settle entries by the sink's stored offsets; return the reason if that is impossible.

        Offsets that were stored with another number of *shards* do not count.
        """
        offsets = filter(None, opened.shards or (opened.stored,))
        for each in (stored for stored in offsets if self._is_ahead(stored, shards)):
            if each.offset > self._log.durable or not self._is_proved(each):
                # Invariant 5: an entry that this offset stood for in a copy of the log is
                # not the one that stands there now.
                return _foreign_history(each, self._offsets.route)
        if opened.stored is not None and self._is_ahead(opened.stored, shards):
            self._settle(opened.stored.offset)
        return None

    def _is_ahead(self, stored: StoredOffset, shards: int) -> bool:
        """Return whether *stored* is of this route as it is now, and beyond the settled entries."""
        state = self._offsets.state
        origin = (stored.log_id, stored.route, stored.generation, stored.shards)
        own = (self._log.log_id, self._offsets.route, state.generation, shards)
        if origin != own or stored.offset < state.next_offset():
            return False
        return not is_from_forgotten(stored, self._log.runs, state.declared)

    def _is_proved(self, stored: StoredOffset) -> bool:
        return self._log.runs.has_offset(
            stored.run, stored.epoch, stored.offset, self.highest_handed
        )

    def _settle(self, through: int) -> None:
        state = self._offsets.state
        if state.replay is not None:
            state = self._offsets.advance_replay(min(through, state.replay.last), state.generation)
        if state.replay is None and through > state.watermark:
            self._offsets.settle(Range(state.next_unsettled(), through), self._log.durable)


def _foreign_history(stored: StoredOffset, route: str) -> Failure:
    run = f"run {stored.run}" if stored.run else "no run"
    return Failure(
        FailureKind.FAULT,
        f"the sink has stored offset {stored.offset} (epoch {stored.epoch}, {run}), which belongs "
        "to another history of this log: the log was replaced by an older copy while the sink was "
        "ahead, so another entry may have that offset now. Restore the newer log. Without it, "
        f"empty the sink, or replay the newest offset of route {route} with 'transporter replay': "
        "this begins a new generation, in which the route delivers all later entries, including "
        "those that the sink may already have",
    )


T = TypeVar("T")


@dataclass(slots=True)
class RouteContext:
    """What a route shares with the sessions with its workers. Belongs to the route's thread."""

    log: CommitLog
    offsets: OffsetLog
    deliveries: DeliveryProgress
    spark: SparkSupervisor
    tracer: Tracer | None
    mailbox: Mailbox
    stopping: threading.Event
    draining: threading.Event
    condition: RouteCondition
    slicer: Slicer
    parking: Parking
    policy: FailurePolicy
    adoption: OffsetAdoption
    meter: RouteMeter
    latency: RouteLatency
    rate_limit: RateLimit
    heartbeat: Heartbeat

    @property
    def is_caught_up(self) -> bool:
        """Whether everything in the log is settled, and no replay or retry is pending."""
        state = self.offsets.state
        settled = state.watermark >= self.log.durable
        return settled and state.replay is None and not state.retries

    def is_drained(self) -> bool:
        """Return whether the route is to end, and has delivered everything."""
        return self.draining.is_set() and self.is_caught_up


class RouteSession:
    """Delivers slices through one worker, and records what it settles.

    Belongs to the route's thread.
    """

    def __init__(
        self,
        context: RouteContext,
        worker: WorkerConnection | ShardGroup,
        is_needed: Callable[[], bool],
    ) -> None:
        """Serve *worker* while *is_needed*, which runs requested calls, returns true."""
        self._context, self._worker, self._is_needed = context, worker, is_needed
        self._condition, self._offsets = context.condition, context.offsets
        self._policy, self._slicer = context.policy, context.slicer
        self._channel = WorkerSession(context.stopping, context.heartbeat.beat)
        self._confirmed_by: object = None
        """The feeds that have confirmed that they lead."""

    def serve(self) -> None:
        """Deliver slice after slice until the worker or the route ends.

        Raises:
            EOFError: the worker is gone.

        """
        self._condition.state = State.STARTING
        if not self._process_first_answer():
            return
        draining, rate_limit = self._context.draining, self._context.rate_limit
        while self._is_needed() and not self._context.is_drained():
            self._context.heartbeat.beat()
            left = max(self._condition.not_before - time.monotonic(), rate_limit.seconds_left())
            if left > 0 or (self._condition.is_blocked() and not draining.is_set()):
                # A pause that the sink requested holds for other workers, too, as does `max_rate`.
                self._condition.wait(min(left, IDLE) if left > 0 else IDLE)
            elif self._confirm_leaders() and self._wait_for_sources() and not self._deliver_next():
                return

    def _process_first_answer(self) -> bool:
        """Process the worker's first answer: its writer is open, or could not be opened."""
        match self._channel.receive_answer(self._worker):
            case Opened() as opened:
                self._condition.note_opened()
                parallelism = self._condition.config.parallelism
                failure = self._context.adoption.adopt(opened, parallelism)
                if failure is None:
                    return True
                self._apply(self._policy.wait_or_halt(failure))
            case OpenFailed(failure):
                self._apply(self._policy.wait_or_halt(failure))
        return False

    def _confirm_leaders(self) -> bool:
        """Make leading readers confirm their leadership after a writer may have fenced others.

        A reader that still leads is then the only leader, because a later leader's writer will
        fence ours (Invariant 10). Entries of one that lost it are superseded by then.
        """
        deliveries = self._context.deliveries
        feeds = deliveries.feeds
        if self._confirmed_by is not feeds and deliveries.wait_until_confirmed(self._is_unneeded):
            self._confirmed_by = feeds
        return self._confirmed_by is feeds

    def _is_unneeded(self) -> bool:
        self._context.heartbeat.beat()
        return self._context.is_drained() or not self._is_needed()

    def _wait_for_sources(self) -> bool:
        """Wait until a shared source has the acknowledgement, where a key's entries must wait.

        Otherwise the next leader would redeliver an entry that others of its key have followed
        here (Invariant 9).
        """
        state = self._offsets.state
        if self._condition.config.max_in_flight_per_key is None or state.replay is not None:
            return True
        return self._context.deliveries.wait_until_acknowledged(state.next_unsettled(), IDLE)

    def _deliver_next(self) -> bool:
        """Deliver the next slice, or wait for one. Returns false at the route's end."""
        # Invariant 14: deliveries during a full disk are recorded before further ones.
        self._offsets.write_pending()
        if self._policy.given_up.waiting:
            self._policy.given_up.write_waiting()
        state = self._offsets.state
        if state.retries or state.skips:
            retry = self._context.parking.next_retry()
            if retry is not None:
                self._deliver_at_rate(self._retry_parked, retry)
                return True
        self._slicer.wait(IDLE)
        slice_ = self._slicer.cut(self._policy.plan, self._context.rate_limit.max_rows)
        if slice_ is not None:
            self._deliver_at_rate(self._deliver, slice_)
            return True
        self._context.meter.note_idle()
        return not self._context.draining.is_set()

    def _deliver_at_rate(self, deliver: Callable[[T], None], slice_: T) -> None:
        """Deliver *slice_*. Entries that the sink took count against ``max_rate``."""
        meter = self._context.meter
        before = meter.delivered
        try:
            deliver(slice_)
        finally:
            self._context.rate_limit.spend(meter.delivered - before)

    def _deliver(self, slice_: Slice) -> None:
        parking = self._context.parking
        screened = parking.park_followers(slice_) if parking.store.key_by_offset else slice_
        if screened is None:
            self._apply(self._policy.halt_without_room(slice_.first))
            return
        begun = time.monotonic()
        self._context.latency.begin(self._slicer.appends)
        self._context.adoption.record_handed(screened.last)
        on_death = partial(self._policy.decide_after_death, screened)
        outcome = self._request_outcome(screened, on_death, partial(self._settle_part, screened))
        if outcome is not None:
            self._context.meter.add(screened.first, outcome, begun)
            self._observe_entries(screened, outcome)
            decision = self._policy.decide(screened, outcome)
            if (
                decision.action is Action.HALT
                and self._offsets.state.next_offset() > outcome.through + 1
            ):
                # The entry at which it halted was released or acked during its delivery.
                decision = GO
            self._apply(decision)

    def _settle_part(self, slice_: Slice, part: Outcome) -> None:
        """Settle the reported part of *slice_* before its end. A kill repeats the rest."""
        self._context.meter.add_part(slice_.first, part)
        self._observe_entries(slice_, part)
        self._policy.settle(slice_, part)

    def _observe_entries(self, slice_: Slice, outcome: Outcome) -> None:
        """Record the latency of the entries, and trace them, except for replays."""
        self._context.latency.settle(outcome)
        tracer = self._context.tracer
        if tracer is not None and self._slicer.appends:
            tracer.record_settled(self._condition.config, slice_, outcome)

    def _retry_parked(self, offset: int) -> None:
        """Deliver a parked entry that an operator wants delivered."""
        begun = time.monotonic()
        on_death = lambda _: self._policy.decide_parked_death(offset)  # noqa: E731 - nothing is announced
        outcome = self._request_outcome(Retry(offset), on_death)
        if outcome is not None:
            self._context.meter.add(offset, outcome, begun)
            self._apply(self._policy.decide_parked(offset, outcome.failure))

    def _request_outcome(
        self,
        message: Slice | Retry,
        on_death: Callable[[int | None], Decision],
        settle: Callable[[Outcome], None] | None = None,
    ) -> Outcome | None:
        """Return the outcome of *message*, or ``None`` if it is not delivered or the route stops.

        Calls *settle* with each partial outcome. Raises ``EOFError`` if the worker is gone,
        after *on_death* has decided about it, unless its host ended as well.
        """
        if not self._may_deliver(message):
            return None
        try:
            answer = self._channel.request(self._worker, message, settle)
        except (EOFError, ConnectionError):
            name = self._condition.config.name
            if not self._context.spark.was_host_lost(name, self._worker.shard):
                self._apply(on_death(self._channel.announced))
            raise EOFError from None
        return answer if isinstance(answer, Outcome) else None

    def _may_deliver(self, message: Slice | Retry) -> bool:
        """Return whether *message* is still to be delivered after the waits.

        The one place of this decision: every request comes before a new slice.
        """
        pending = self._context.mailbox or self._offsets.state.readers_to_supersede()
        if pending or self._context.stopping.is_set():
            return False
        if isinstance(message, Slice):
            return self._slicer.is_current(message)
        return not self._offsets.state.paused

    def _apply(self, decision: Decision) -> None:
        if decision.action is Action.WAIT:
            # Its writer may open the sink again.
            self._confirmed_by = None
        self._condition.apply(decision)

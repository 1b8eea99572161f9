"""A route: its own way through the log, in a thread of its own."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from transporter.engine.backoff import Backoff
from transporter.engine.events import RouteStatus, State
from transporter.engine.latency import RouteLatency
from transporter.engine.meters import RouteMeter
from transporter.engine.reading.superseding import supersede
from transporter.engine.routing.failure_policy import (
    GO,
    Action,
    Decision,
    EntryOutcome,
    FailurePolicy,
)
from transporter.engine.routing.mailbox import Mailbox
from transporter.engine.routing.parking import Parking
from transporter.engine.routing.rate_limit import RateLimit
from transporter.engine.routing.slicer import Slicer
from transporter.engine.routing.stored_offset import OffsetAdoption
from transporter.engine.workers.shard_group import connect
from transporter.engine.workers.worker_session import IDLE, WorkerSession
from transporter.engine.workers.worker_spec import worker_specs
from transporter.errors import (
    Corrupt,
    EngineUnreachable,
    EntriesLost,
    EnvironmentFault,
    HostFailed,
    LogFull,
    OffsetRefused,
)
from transporter.log.commit_log import wall_clock
from transporter.log.reader import LogReader
from transporter.protocol.messages import Failure, Opened, OpenFailed, Outcome, Retry, Slice

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from transporter.engine.services import EngineServices
    from transporter.engine.workers.shard_group import ShardGroup
    from transporter.engine.workers.worker_connection import WorkerConnection
    from transporter.offsets.offset_log import OffsetLog
    from transporter.pipeline.config import Pipeline, RouteConfig
    from transporter.protocol.messages import WorkerSpec

T = TypeVar("T")


class Route:
    """Cuts slices, lets a worker deliver them, and records the settled entries.

    Slices of a route follow one another. A failing route never blocks another one
    (Invariant 15). ``parking`` belongs to the route's thread: see :meth:`submit`.
    """

    def __init__(
        self,
        config: RouteConfig,
        services: EngineServices,
        offsets: OffsetLog,
        upstream: OffsetLog | None = None,
    ) -> None:
        """Prepare the route of *config* with its *offsets*. It follows the route of *upstream*."""
        self._config, self._pipeline = config, services.pipeline
        self._deliveries, self._spark = services.deliveries, services.spark
        log = self._log = services.log
        self._offsets = offsets
        self._observe, self._on_failure = services.observe, services.on_failure
        self._register_secrets, self._tracer = services.register_secrets, services.tracer
        self._reader = LogReader(log.directory)
        self._stopping, self._draining = threading.Event(), threading.Event()
        self._wake_event = threading.Event()
        self._mailbox = Mailbox(self._wake)
        is_interrupted = self._is_interrupted
        self._slicer = Slicer(config, log, self._reader, self._offsets, upstream, is_interrupted)
        self.parking = Parking(config, log, self._reader, self._offsets, wall_clock)
        self._policy = FailurePolicy(config, log, self._offsets, self.parking, self._observe)
        self._adoption = OffsetAdoption(self._offsets, log)
        self._backoff = Backoff(*config.retry.backoff)
        # Starting a worker is Spark's work, however eagerly the sink is tried again.
        self._start_backoff = Backoff()
        self._session = WorkerSession(self._stopping)
        self._not_before, self._rate_limit = 0.0, RateLimit(config.max_rate)
        self._confirmed_by: object = None
        """The feeds that have confirmed that they lead."""
        self._has_opened = False
        self._attempts, self._outdated, self._paused = services.attempts, False, False
        self._state, self._problem = State.STARTING, ""
        self.leaving = False
        """Whether it was removed from the pipeline, and ends."""
        self._meter, self._latency = RouteMeter(), RouteLatency(wall_clock)
        self._thread = threading.Thread(target=self._run, name=f"route-{config.name}")

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def drain(self) -> None:
        """Request the end after everything in the log is delivered."""
        self._draining.set()
        self._wake()

    def stop(self) -> None:
        """Request the end at once. The next start repeats a slice that was in flight."""
        self._stopping.set()
        self._wake()

    def leave(self) -> None:
        """End after the slice that it is at, for the engine goes on without this route."""
        self.leaving = True
        with suppress(EngineUnreachable):
            self._mailbox.post(self._stopping.set)

    @property
    def has_left(self) -> bool:
        """Whether it was removed and has ended."""
        return self.leaving and not self._thread.is_alive()

    def discard(self) -> None:
        """Close the files of a route that was never started."""
        self._mailbox.close()
        self._reader.close()

    def _wake(self) -> None:
        """End every wait, so that the route reconsiders its next action."""
        self._wake_event.set()
        self._spark.wake()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Schedule *call* on the route's own thread, between two slices; see :class:`Mailbox`."""
        return self._mailbox.submit(call)

    def revive(self) -> None:
        """Continue if the route waits for an operator. Only to be called through :meth:`submit`."""
        if self.halted:
            self._outdated = self._outdated or self._config.writer.is_outdated()
            self._state, self._problem = State.STARTING, ""
            self._policy.clear_suspects()
        self._backoff.reset()
        self._not_before = 0.0

    def supersede(self, reader: str, through: int) -> None:
        """Pass, between two slices, the undelivered entries of *reader* up to *through*.

        The request is durable on return.
        """
        if self._mailbox.closed and not self.leaving:
            # A route that has ended delivers nothing any more: whether this is to be passed
            # is found out at the next start. One that was removed may come back without the
            # reader, so it is written down here.
            return
        self._offsets.begin_superseding(reader, through)
        with suppress(EngineUnreachable):
            self._mailbox.post(lambda: None)  # the request is in the offset log; ends waits

    def _run_requests(self) -> None:
        """Run the requested calls. A call that cannot be done yet blocks all deliveries."""
        self._mailbox.run()
        for reader, through in self._offsets.state.readers_to_supersede().items():
            if self.halted or self._stopping.is_set():
                return
            try:
                supersede(reader, through, self._reader, self._offsets, self.parking)
            except LogFull as error:
                self._retry_later(str(error))  # Invariant 14
            except (Corrupt, EnvironmentFault, OffsetRefused) as error:
                self._apply(self._policy.wait_or_halt(Failure.of(error)))

    def outcome_of(self, offset: int) -> EntryOutcome:
        """Return how *offset*, the last one, was settled. Call only through :meth:`submit`."""
        if offset in self.parking.parked_offsets:
            return EntryOutcome(offset, "parked", self.parking.error_of(offset))
        newest = self._policy.newest_outcome
        return newest if newest.offset == offset else EntryOutcome(offset)

    def configure(self, config: RouteConfig, pipeline: Pipeline) -> None:
        """Continue with other settings and a new worker. Call only through :meth:`submit`."""
        self._pipeline = pipeline
        self._config = self._slicer.config = self._policy.config = config
        self.parking.configure(config)
        self._backoff = Backoff(*config.retry.backoff)
        self._rate_limit = RateLimit(config.max_rate)
        self._outdated = True
        self.revive()

    @property
    def name(self) -> str:
        """The route's name."""
        return self._config.name

    @property
    def config(self) -> RouteConfig:
        """The settings that the route has now."""
        return self._config

    def join(self, timeout: float | None = None) -> bool:
        """Wait up to *timeout* seconds, and return whether the route has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _is_interrupted(self) -> bool:
        return self._stopping.is_set() or self._draining.is_set() or bool(self._mailbox)

    @property
    def halted(self) -> bool:
        """Whether the route waits for an operator."""
        return self._state is State.STOPPED

    @property
    def has_died(self) -> bool:
        """Whether its thread is gone without a request to end."""
        ended = self._state in (State.STOPPED, State.ENDED)
        return self._thread.ident is not None and not (self._thread.is_alive() or ended)

    @property
    def is_caught_up(self) -> bool:
        """Whether everything in the log is settled, and no replay or retry is pending."""
        state = self._offsets.state
        settled = state.watermark >= self._log.durable
        return settled and state.replay is None and not state.retries

    def status(self) -> RouteStatus:
        """Return the current status."""
        state = self._offsets.state
        return RouteStatus(
            name=self._config.name,
            adaptor=self._config.writer.adaptor,
            state=State.PAUSED if self._paused and not self.halted else self._state,
            delivered=self._meter.delivered,
            skipped=self._meter.skipped,
            watermark=state.watermark,
            lag=max(0, self._log.durable - state.watermark),
            parked=len(self.parking),
            problem=self._problem,
            size=self._meter.size,
            # A slice that lingers is not stuck, nor is a route that keeps its rate.
            still=max(
                0.0,
                self._meter.idle_seconds() - self._config.linger - self._rate_limit.longest_wait,
            ),
            limited=self._rate_limit.active_rate,
            replaying=state.replay is not None,
            slices=self._meter.slices(),
            waiting=self._backoff.current_wait() or self._start_backoff.current_wait(),
            leaving=self.leaving,
            latency=self._latency.read(),
        )

    def _run(self) -> None:
        try:
            self._serve_until_ended()
            self._report("route-ended")
            if not self.halted:
                self._state = State.ENDED
        except BaseException as error:  # noqa: BLE001 - a thread must not die silently
            self._state, self._problem = State.STOPPED, str(error)
            self._on_failure(error)
        finally:
            self._mailbox.close()
            self._reader.close()

    def _serve_until_ended(self) -> None:
        while True:
            self._run_requests()
            wanted = self._offsets.state.next_offset()
            try:
                if self._should_end():
                    return
                if self._is_blocked():
                    self._wait(IDLE)
                else:
                    self.parking.check_damaged()
                    self._connect_and_serve()
            except (Corrupt, EntriesLost, EnvironmentFault, OffsetRefused) as error:
                if isinstance(error, OffsetRefused) and self._offsets.state.next_offset() > wanted:
                    # It was released while it was being cut: go on behind.
                    continue
                # Invariant 3: a route that needs damaged entries halts there. Others continue.
                self._apply(self._policy.wait_or_halt(Failure.of(error)))

    def _is_blocked(self) -> bool:
        """Return whether delivery is blocked: the route has halted, or is paused."""
        state = self._offsets.state
        limit = state.delivery_limit()
        self._paused = limit is not None and limit < state.next_offset()
        return self.halted or self._paused

    def _wait(self, seconds: float) -> None:
        """Wait for a request, at most *seconds*."""
        self._wake_event.wait(seconds)
        # Cleared before the state is checked again, so that no call is missed.
        self._wake_event.clear()

    def _should_end(self) -> bool:
        return self._stopping.is_set() or (
            self._draining.is_set() and (self._is_blocked() or self._has_nothing_to_do())
        )

    def _has_nothing_to_do(self) -> bool:
        return not self._offsets.state.retries and self._slicer.cut(self._policy.plan) is None

    def _should_not_wait(self) -> bool:
        """Return whether a worker would have nothing to do, so that Spark is not waited for."""
        unwanted = self._stopping.is_set() or bool(self._mailbox) or self._is_blocked()
        return unwanted or self._is_drained()

    def _is_drained(self) -> bool:
        return self._draining.is_set() and self.is_caught_up

    def _connect_and_serve(self) -> None:
        self._has_opened = False
        try:
            self._offsets.write_pending()
            worker = connect(self._spark, self._create_specs(), self._should_not_wait)
            if worker is not None:
                with worker:
                    self._serve(worker)
        except HostFailed as error:
            self._retry_later(str(error), self._start_backoff)
        except LogFull as error:
            # Invariant 14: an entry that finds no room to be parked waits for it.
            self._retry_later(str(error))
        except (EOFError, ConnectionError):
            problem = self._spark.take_problem(self._config.name)
            self._report("worker-lost", problem=problem)
            if not self._has_opened and not self.halted:
                text = "the worker died while it opened its writer"
                self._retry_later(f"{text}: {problem}" if problem else text, self._start_backoff)

    def _create_specs(self) -> list[WorkerSpec]:
        self._outdated = False
        self._renew_secrets()
        return worker_specs(
            self._config,
            self._pipeline,
            self._log,
            self._offsets.state,
            next(self._attempts),
            self._adoption.highest_handed,
        )

    def _renew_secrets(self) -> None:
        """Read the writer's secret files again, for the connections of new workers."""
        try:
            writer = self._config.writer.renew_secrets()
        except EnvironmentFault as error:
            raise HostFailed(str(error)) from error
        if writer is not self._config.writer:
            self._config = self._config.model_copy(update={"writer": writer})
            self._register_secrets(writer.secrets)
            self._observe("route-secrets-renewed", route=self._config.name)

    def _serve(self, worker: WorkerConnection | ShardGroup) -> None:
        """Deliver slice after slice through *worker* until it or the route ends."""
        self._state = State.STARTING
        if not self._process_first_answer(worker):
            return
        self._confirmed_by = None
        while self._is_worker_needed() and not self._is_drained():
            left = max(self._not_before - time.monotonic(), self._rate_limit.seconds_left())
            if left > 0 or (self._is_blocked() and not self._draining.is_set()):
                # A pause that the sink requested holds for other workers, too, as does `max_rate`.
                self._wait(min(left, IDLE) if left > 0 else IDLE)
            elif (
                self._confirm_leaders()
                and self._wait_for_sources()
                and not self._deliver_next(worker)
            ):
                return

    def _process_first_answer(self, worker: WorkerConnection | ShardGroup) -> bool:
        """Process the worker's first answer: its writer is open, or could not be opened."""
        match self._session.receive_answer(worker):
            case Opened() as opened:
                self._start_backoff.reset()
                self._has_opened, self._state, self._problem = True, State.RUNNING, ""
                failure = self._adoption.adopt(opened, self._config.parallelism)
                if failure is None:
                    return True
                self._apply(self._policy.wait_or_halt(failure))
            case OpenFailed(failure):
                self._apply(self._policy.wait_or_halt(failure))
        return False

    def _deliver_next(self, worker: WorkerConnection | ShardGroup) -> bool:
        """Deliver the next slice, or wait for one. Returns false at the route's end."""
        # Invariant 14: deliveries during a full disk are recorded before further ones.
        self._offsets.write_pending()
        if (retry := self.parking.next_retry()) is not None:
            self._deliver_at_rate(self._retry_parked, worker, retry)
            return True
        self._slicer.wait(IDLE)
        if (slice_ := self._slicer.cut(self._policy.plan, self._rate_limit.max_rows)) is not None:
            self._deliver_at_rate(self._deliver, worker, slice_)
            return True
        self._meter.note_idle()
        return not self._draining.is_set()

    def _deliver_at_rate(
        self,
        deliver: Callable[[WorkerConnection | ShardGroup, T], None],
        worker: WorkerConnection | ShardGroup,
        slice_: T,
    ) -> None:
        """Deliver *slice_*. Entries that the sink took count against ``max_rate``."""
        before = self._meter.delivered
        try:
            deliver(worker, slice_)
        finally:
            self._rate_limit.spend(self._meter.delivered - before)

    def _confirm_leaders(self) -> bool:
        """Make leading readers confirm their leadership after a writer may have fenced others.

        A reader that still leads is then the only leader, because a later leader's writer will
        fence ours (Invariant 10). Entries of one that lost it are superseded by then.
        """
        feeds = self._deliveries.feeds
        if self._confirmed_by is not feeds and self._deliveries.wait_until_confirmed(
            self._is_unneeded
        ):
            self._confirmed_by = feeds
        return self._confirmed_by is feeds

    def _wait_for_sources(self) -> bool:
        """Wait until a shared source has the acknowledgement, where a key's entries must wait.

        Otherwise the next leader would redeliver an entry that others of its key have followed
        here (Invariant 9).
        """
        state = self._offsets.state
        if self._config.max_in_flight_per_key is None or state.replay is not None:
            return True
        return self._deliveries.wait_until_acknowledged(state.next_unsettled(), IDLE)

    def _is_unneeded(self) -> bool:
        return self._is_drained() or not self._is_worker_needed()

    def _is_worker_needed(self) -> bool:
        """Run requested calls between two slices; return whether this worker is still needed."""
        self._run_requests()
        held = self.halted or self._offsets.state.readers_to_supersede()
        return not (self._stopping.is_set() or held or self._outdated)

    def _deliver(self, worker: WorkerConnection | ShardGroup, slice_: Slice) -> None:
        screened = self.parking.park_followers(slice_)
        if screened is None:
            self._apply(self._policy.halt_without_room(slice_.first))
            return
        begun = time.monotonic()
        self._latency.begin(self._slicer.appends)
        self._adoption.record_handed(screened.last)
        on_death = partial(self._policy.decide_after_death, screened)
        outcome = self._request_outcome(
            worker, screened, on_death, partial(self._settle_part, screened)
        )
        if outcome is not None:
            self._meter.add(screened.first, outcome, begun)
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
        self._meter.add_part(slice_.first, part)
        self._observe_entries(slice_, part)
        self._policy.settle(slice_, part)

    def _observe_entries(self, slice_: Slice, outcome: Outcome) -> None:
        """Record the latency of the entries, and trace them, except for replays."""
        self._latency.settle(outcome)
        if self._tracer is not None and self._slicer.appends:
            self._tracer.record_settled(self._config, slice_, outcome)

    def _retry_parked(self, worker: WorkerConnection | ShardGroup, offset: int) -> None:
        """Deliver a parked entry that an operator wants delivered."""
        begun = time.monotonic()
        on_death = lambda _: self._policy.decide_parked_death(offset)  # noqa: E731 - nothing is announced
        outcome = self._request_outcome(worker, Retry(offset), on_death)
        if outcome is not None:
            self._meter.add(offset, outcome, begun)
            self._apply(self._policy.decide_parked(offset, outcome.failure))

    def _may_deliver(self, message: Slice | Retry) -> bool:
        """Return whether *message* is still to be delivered after the waits.

        The one place of this decision: every request comes before a new slice.
        """
        pending = self._mailbox or self._offsets.state.readers_to_supersede()
        if pending or self._stopping.is_set():
            return False
        if isinstance(message, Slice):
            return self._slicer.is_current(message)
        return not self._offsets.state.paused

    def _request_outcome(
        self,
        worker: WorkerConnection | ShardGroup,
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
            answer = self._session.request(worker, message, settle)
        except (EOFError, ConnectionError):
            if not self._spark.was_host_lost(self._config.name, worker.shard):
                self._apply(on_death(self._session.announced))
            raise EOFError from None
        return answer if isinstance(answer, Outcome) else None

    def _apply(self, decision: Decision) -> None:
        """Apply the decision of the failure policy."""
        match decision.action:
            case Action.GO:
                self._state, self._problem = State.RUNNING, ""
                self._backoff.reset()
            case _ if self._config.writer.is_outdated():
                # The sink may have refused a secret that was replaced since: a new worker.
                self._confirmed_by, self._outdated = None, True
                self._retry_later(decision.problem)
            case Action.WAIT:
                # Its writer may open the sink again.
                self._confirmed_by = None
                self._not_before = time.monotonic() + decision.wait
                self._retry_later(decision.problem, least=decision.wait)
            case Action.HALT:
                self._halt(decision)

    def _halt(self, decision: Decision) -> None:
        """Wait for an operator, visibly (Invariant 15)."""
        with suppress(LogFull):
            self._offsets.sync()
        offset, problem = decision.offset, decision.problem
        place = f"offset {offset}: " if offset is not None else ""
        self._state, self._problem = State.STOPPED, f"{place}{problem}"
        self._report("route-stopped", offset=offset, problem=problem)

    def _retry_later(
        self, problem: str, backoff: Backoff | None = None, least: float = 0.0
    ) -> None:
        if self._stopping.is_set():
            return
        self._state, self._problem = State.RETRYING, problem
        delay = (backoff or self._backoff).next(least)
        self._report("route-retrying", problem=problem, retry_in=round(delay, 2))
        self._wait(delay)

    def _report(self, event: str, **details: object) -> None:
        progress = {
            "watermark": self._offsets.state.watermark,
            "delivered": self._meter.delivered,
        }
        self._observe(event, route=self._config.name, **details, **progress)

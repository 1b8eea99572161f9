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
from transporter.engine.timings import RouteMeter
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

    from transporter.engine.routing.route_context import EngineServices
    from transporter.engine.workers.shard_group import ShardGroup
    from transporter.engine.workers.worker_connection import WorkerConnection
    from transporter.offsets.offset_log import OffsetLog
    from transporter.pipeline.config import Pipeline, RouteConfig
    from transporter.protocol.messages import WorkerSpec

T = TypeVar("T")


class Route:
    """Cuts slices, lets a worker deliver them, and records the settled entries.

    Slices of a route follow one another. A failing route never blocks another one
    (Invariant 15). ``parking`` belongs to the route's thread: see :meth:`ask`.
    """

    def __init__(
        self,
        config: RouteConfig,
        around: EngineServices,
        offsets: OffsetLog,
        ahead: OffsetLog | None = None,
    ) -> None:
        """Prepare the route of *config* with its *offsets*. It follows the route of *ahead*."""
        self._config, self._pipeline = config, around.pipeline
        self._deliveries, self._carrier = around.deliveries, around.carrier
        log = self._log = around.log
        self._offsets = offsets
        self._observe, self._on_failure = around.observe, around.on_failure
        self._learn, self._tracer = around.learn, around.tracer
        self._reader = LogReader(log.directory)
        self._stopping, self._draining = threading.Event(), threading.Event()
        self._called = threading.Event()
        self._errands = Mailbox(self._call)
        hurried = self._in_a_hurry
        self._cutter = Slicer(config, log, self._reader, self._offsets, ahead, hurried)
        self.parking = Parking(config, log, self._reader, self._offsets, wall_clock)
        self._judge = FailurePolicy(config, log, self._offsets, self.parking, self._observe)
        self._adoption = OffsetAdoption(self._offsets, log)
        self._backoff = Backoff(*config.retry.backoff)
        # Starting a worker is Spark's work, however eagerly the sink is tried again.
        self._starts = Backoff()
        self._talk = WorkerSession(self._stopping)
        self._not_before, self._pace = 0.0, RateLimit(config.max_rate)
        self._sure: object = None
        """The feeds that have made sure that they lead."""
        self._opened = False
        self._attempts, self._outdated, self._paused = around.attempts, False, False
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
        self._call()

    def stop(self) -> None:
        """Request the end at once. The next start repeats a slice that was in flight."""
        self._stopping.set()
        self._call()

    def leave(self) -> None:
        """End after the slice that it is at, for the engine goes on without this route."""
        self.leaving = True
        with suppress(EngineUnreachable):
            self._errands.order(self._stopping.set)

    @property
    def gone(self) -> bool:
        """Whether it was removed and has ended."""
        return self.leaving and not self._thread.is_alive()

    def discard(self) -> None:
        """Close the files of a route that was never started."""
        self._errands.end()
        self._reader.close()

    def _call(self) -> None:
        """End every wait, so that the route reconsiders its next action."""
        self._called.set()
        self._carrier.wake()

    def ask(self, do: Callable[[], T]) -> Future[T]:
        """Schedule *do* on the route's own thread, between two slices; see :class:`Mailbox`."""
        return self._errands.ask(do)

    def revive(self) -> None:
        """Continue if the route waits for an operator. Only to be called through :meth:`ask`."""
        if self.halted:
            self._outdated = self._outdated or self._config.writer.is_outdated()
            self._state, self._problem = State.STARTING, ""
            self._judge.forget()
        self._backoff.reset()
        self._not_before = 0.0

    def supersede(self, reader: str, through: int) -> None:
        """Pass, between two slices, the undelivered entries of *reader* up to *through*.

        The request is durable on return.
        """
        if self._errands.over and not self.leaving:
            # A route that has ended delivers nothing any more: whether this is to be passed
            # is found out at the next start. One that was removed may come back without the
            # reader, so it is written down here.
            return
        self._offsets.begin_superseding(reader, through)
        with suppress(EngineUnreachable):
            self._errands.order(lambda: None)  # the request is in the offset log; ends waits

    def _attend(self) -> None:
        """Run the requested calls. A call that cannot be done yet blocks all deliveries."""
        self._errands.run()
        for reader, through in self._offsets.state.to_supersede().items():
            if self.halted or self._stopping.is_set():
                return
            try:
                supersede(reader, through, self._reader, self._offsets, self.parking)
            except LogFull as error:
                self._retry_later(str(error))  # Invariant 14
            except (Corrupt, EnvironmentFault, OffsetRefused) as error:
                self._follow(self._judge.not_its_fault(Failure.of(error)))

    def outcome_of(self, offset: int) -> EntryOutcome:
        """Return how *offset*, the last one, was settled. Call only through :meth:`ask`."""
        if offset in self.parking.known:
            return EntryOutcome(offset, "parked", self.parking.error_of(offset))
        newest = self._judge.newest
        return newest if newest.offset == offset else EntryOutcome(offset)

    def configure(self, config: RouteConfig, pipeline: Pipeline) -> None:
        """Continue with other settings and a new worker. Only to be called through :meth:`ask`."""
        self._pipeline = pipeline
        self._config = self._cutter.config = self._judge.config = config
        self.parking.configure(config)
        self._backoff = Backoff(*config.retry.backoff)
        self._pace = RateLimit(config.max_rate)
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

    def _in_a_hurry(self) -> bool:
        return self._stopping.is_set() or self._draining.is_set() or bool(self._errands)

    @property
    def halted(self) -> bool:
        """Whether the route waits for an operator."""
        return self._state is State.STOPPED

    @property
    def lost(self) -> bool:
        """Whether its thread is gone without a request to end."""
        ended = self._state in (State.STOPPED, State.ENDED)
        return self._thread.ident is not None and not (self._thread.is_alive() or ended)

    @property
    def caught_up(self) -> bool:
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
            still=max(0.0, self._meter.still() - self._config.linger - self._pace.gap),
            limited=self._pace.limited,
            replaying=state.replay is not None,
            slices=self._meter.slices(),
            waiting=self._backoff.waiting() or self._starts.waiting(),
            leaving=self.leaving,
            latency=self._latency.read(),
        )

    def _run(self) -> None:
        try:
            self._serve_until_ended()
            self._tell("route-ended")
            if not self.halted:
                self._state = State.ENDED
        except BaseException as error:  # noqa: BLE001 - a thread must not die silently
            self._state, self._problem = State.STOPPED, str(error)
            self._on_failure(error)
        finally:
            self._errands.end()
            self._reader.close()

    def _serve_until_ended(self) -> None:
        while True:
            self._attend()
            wanted = self._offsets.state.next_offset()
            try:
                if self._should_end():
                    return
                if self._held():
                    self._rest(IDLE)
                else:
                    self.parking.refuse_damaged()
                    self._connect_and_serve()
            except (Corrupt, EntriesLost, EnvironmentFault, OffsetRefused) as error:
                if isinstance(error, OffsetRefused) and self._offsets.state.next_offset() > wanted:
                    # It was released while it was being cut: go on behind.
                    continue
                # Invariant 3: a route that needs damaged entries halts there. Others continue.
                self._follow(self._judge.not_its_fault(Failure.of(error)))

    def _held(self) -> bool:
        """Return whether delivery is blocked: the route has halted, or is paused."""
        state = self._offsets.state
        limit = state.limit()
        self._paused = limit is not None and limit < state.next_offset()
        return self.halted or self._paused

    def _rest(self, seconds: float) -> None:
        """Wait for a request, at most *seconds*."""
        self._called.wait(seconds)
        # Cleared before the state is checked again, so that no call is missed.
        self._called.clear()

    def _should_end(self) -> bool:
        return self._stopping.is_set() or (
            self._draining.is_set() and (self._held() or self._nothing_to_do())
        )

    def _nothing_to_do(self) -> bool:
        return not self._offsets.state.retries and self._cutter.cut(self._judge.plan) is None

    def _should_not_wait(self) -> bool:
        """Return whether a worker would have nothing to do, so that Spark is not waited for."""
        unwanted = self._stopping.is_set() or bool(self._errands) or self._held()
        return unwanted or self._drained()

    def _drained(self) -> bool:
        return self._draining.is_set() and self.caught_up

    def _connect_and_serve(self) -> None:
        self._opened = False
        try:
            self._offsets.write_pending()
            worker = connect(self._carrier, self._specs(), self._should_not_wait)
            if worker is not None:
                with worker:
                    self._serve(worker)
        except HostFailed as error:
            self._retry_later(str(error), self._starts)
        except LogFull as error:
            # Invariant 14: an entry that finds no room to be parked waits for it.
            self._retry_later(str(error))
        except (EOFError, ConnectionError):
            problem = self._carrier.take_problem(self._config.name)
            self._tell("worker-lost", problem=problem)
            if not self._opened and not self.halted:
                text = "the worker died while it opened its writer"
                self._retry_later(f"{text}: {problem}" if problem else text, self._starts)

    def _specs(self) -> list[WorkerSpec]:
        self._outdated = False
        self._renew()
        return worker_specs(
            self._config,
            self._pipeline,
            self._log,
            self._offsets.state,
            next(self._attempts),
            self._adoption.handed,
        )

    def _renew(self) -> None:
        """Read the writer's secret files again, for the connections of new workers."""
        try:
            writer = self._config.writer.renew_secrets()
        except EnvironmentFault as error:
            raise HostFailed(str(error)) from error
        if writer is not self._config.writer:
            self._config = self._config.model_copy(update={"writer": writer})
            self._learn(writer.secrets)
            self._observe("route-secrets-renewed", route=self._config.name)

    def _serve(self, worker: WorkerConnection | ShardGroup) -> None:
        """Deliver slice after slice through *worker* until it or the route ends."""
        self._state = State.STARTING
        if not self._is_open(worker):
            return
        self._sure = None
        while self._goes_on() and not self._drained():
            left = max(self._not_before - time.monotonic(), self._pace.left())
            if left > 0 or (self._held() and not self._draining.is_set()):
                # A pause that the sink requested holds for other workers, too, as does `max_rate`.
                self._rest(min(left, IDLE) if left > 0 else IDLE)
            elif self._leads() and self._sources_know() and not self._serve_next(worker):
                return

    def _is_open(self, worker: WorkerConnection | ShardGroup) -> bool:
        """Process the worker's first answer: its writer is open, or could not be opened."""
        match self._talk.answer(worker):
            case Opened() as opened:
                self._starts.reset()
                self._opened, self._state, self._problem = True, State.RUNNING, ""
                failure = self._adoption.adopt(opened, self._config.parallelism)
                if failure is None:
                    return True
                self._follow(self._judge.not_its_fault(failure))
            case OpenFailed(failure):
                self._follow(self._judge.not_its_fault(failure))
        return False

    def _serve_next(self, worker: WorkerConnection | ShardGroup) -> bool:
        """Deliver the next slice, or wait for one. Returns false at the route's end."""
        # Invariant 14: deliveries during a full disk are recorded before further ones.
        self._offsets.write_pending()
        if (retry := self.parking.next_retry()) is not None:
            self._paced(self._retry, worker, retry)
            return True
        self._cutter.wait(IDLE)
        if (asked := self._cutter.cut(self._judge.plan, self._pace.rows)) is not None:
            self._paced(self._deliver, worker, asked)
            return True
        self._meter.idle()
        return not self._draining.is_set()

    def _paced(
        self,
        deliver: Callable[[WorkerConnection | ShardGroup, T], None],
        worker: WorkerConnection | ShardGroup,
        asked: T,
    ) -> None:
        """Deliver *asked*. Entries that the sink took count against ``max_rate``."""
        before = self._meter.delivered
        try:
            deliver(worker, asked)
        finally:
            self._pace.spend(self._meter.delivered - before)

    def _leads(self) -> bool:
        """Make leading readers confirm their leadership after a writer may have fenced others.

        A reader that still leads is then the only leader, because a later leader's writer will
        fence ours (Invariant 10). Entries of one that lost it are superseded by then.
        """
        feeds = self._deliveries.feeds
        if self._sure is not feeds and self._deliveries.confirmed(self._unwanted):
            self._sure = feeds
        return self._sure is feeds

    def _sources_know(self) -> bool:
        """Wait until a shared source has the acknowledgement, where a key's entries must wait.

        Otherwise the next leader would redeliver an entry that others of its key have followed
        here (Invariant 9).
        """
        state = self._offsets.state
        if self._config.max_in_flight_per_key is None or state.replay is not None:
            return True
        return self._deliveries.wait_until_told(state.next_live(), IDLE)

    def _unwanted(self) -> bool:
        return self._drained() or not self._goes_on()

    def _goes_on(self) -> bool:
        """Run requested calls between two slices; return whether this worker is still needed."""
        self._attend()
        held = self.halted or self._offsets.state.to_supersede()
        return not (self._stopping.is_set() or held or self._outdated)

    def _deliver(self, worker: WorkerConnection | ShardGroup, asked: Slice) -> None:
        screened = self.parking.screen(asked)
        if screened is None:
            self._follow(self._judge.no_room(asked.first))
            return
        begun = time.monotonic()
        self._latency.begin(self._cutter.appends)
        self._adoption.note_handed(screened.last)
        died = partial(self._judge.died, screened)
        outcome = self._outcome(worker, screened, died, partial(self._settle_part, screened))
        if outcome is not None:
            self._meter.add(screened.first, outcome, begun)
            self._follow_entries(screened, outcome)
            verdict = self._judge.judge(screened, outcome)
            if (
                verdict.action is Action.HALT
                and self._offsets.state.next_offset() > outcome.through + 1
            ):
                # The entry at which it halted was released or acked during its delivery.
                verdict = GO
            self._follow(verdict)

    def _settle_part(self, asked: Slice, part: Outcome) -> None:
        """Settle the reported part of *asked* before its end. A kill repeats the rest."""
        self._meter.add_part(asked.first, part)
        self._follow_entries(asked, part)
        self._judge.settle(asked, part)

    def _follow_entries(self, asked: Slice, outcome: Outcome) -> None:
        """Record the latency of the entries, and trace them, except for replays."""
        self._latency.settle(outcome)
        if self._tracer is not None and self._cutter.appends:
            self._tracer.settled(self._config, asked, outcome)

    def _retry(self, worker: WorkerConnection | ShardGroup, offset: int) -> None:
        """Deliver a parked entry that an operator wants delivered."""
        begun = time.monotonic()
        died = lambda _: self._judge.died_with_parked(offset)  # noqa: E731 - nothing is announced
        outcome = self._outcome(worker, Retry(offset), died)
        if outcome is not None:
            self._meter.add(offset, outcome, begun)
            self._follow(self._judge.judge_parked(offset, outcome.failure))

    def _may_go_out(self, message: Slice | Retry) -> bool:
        """Return whether *message* is still to be delivered after the waits.

        The one place of this decision: every request comes before a new slice.
        """
        pending = self._errands or self._offsets.state.to_supersede()
        if pending or self._stopping.is_set():
            return False
        if isinstance(message, Slice):
            return self._cutter.is_current(message)
        return not self._offsets.state.paused

    def _outcome(
        self,
        worker: WorkerConnection | ShardGroup,
        message: Slice | Retry,
        died: Callable[[int | None], Decision],
        settle: Callable[[Outcome], None] | None = None,
    ) -> Outcome | None:
        """Return the outcome of *message*, or ``None`` if it is not delivered or the route stops.

        Calls *settle* with each partial outcome. Raises ``EOFError`` if the worker is gone,
        after *died* has decided about it, unless its host ended as well.
        """
        if not self._may_go_out(message):
            return None
        try:
            answer = self._talk.ask(worker, message, settle)
        except (EOFError, ConnectionError):
            if not self._carrier.host_was_lost(self._config.name, worker.shard):
                self._follow(died(self._talk.announced))
            raise EOFError from None
        return answer if isinstance(answer, Outcome) else None

    def _follow(self, verdict: Decision) -> None:
        """Apply the judge's decision."""
        match verdict.action:
            case Action.GO:
                self._state, self._problem = State.RUNNING, ""
                self._backoff.reset()
            case _ if self._config.writer.is_outdated():
                # The sink may have refused a secret that was replaced since: a new worker.
                self._sure, self._outdated = None, True
                self._retry_later(verdict.problem)
            case Action.WAIT:
                # Its writer may open the sink again.
                self._sure = None
                self._not_before = time.monotonic() + verdict.wait
                self._retry_later(verdict.problem, least=verdict.wait)
            case Action.HALT:
                self._halt(verdict)

    def _halt(self, verdict: Decision) -> None:
        """Wait for an operator, visibly (Invariant 15)."""
        with suppress(LogFull):
            self._offsets.sync()
        offset, problem = verdict.offset, verdict.problem
        place = f"offset {offset}: " if offset is not None else ""
        self._state, self._problem = State.STOPPED, f"{place}{problem}"
        self._tell("route-stopped", offset=offset, problem=problem)

    def _retry_later(
        self, problem: str, backoff: Backoff | None = None, least: float = 0.0
    ) -> None:
        if self._stopping.is_set():
            return
        self._state, self._problem = State.RETRYING, problem
        delay = (backoff or self._backoff).next(least)
        self._tell("route-retrying", problem=problem, retry_in=round(delay, 2))
        self._rest(delay)

    def _tell(self, event: str, **details: object) -> None:
        progress = {
            "watermark": self._offsets.state.watermark,
            "delivered": self._meter.delivered,
        }
        self._observe(event, route=self._config.name, **details, **progress)

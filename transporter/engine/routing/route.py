"""A route: its own way through the log, in a thread of its own."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from transporter.engine.events import RouteStatus, State
from transporter.engine.meters import RouteLatency, RouteMeter
from transporter.engine.routing.condition import Mailbox, RouteCondition
from transporter.engine.routing.failure_policy import EntryOutcome, FailurePolicy
from transporter.engine.routing.parking import Parking
from transporter.engine.routing.session import OffsetAdoption, RouteContext, RouteSession
from transporter.engine.routing.slicer import RateLimit, Slicer
from transporter.engine.routing.superseding import supersede
from transporter.engine.thread_heartbeat import Heartbeat
from transporter.engine.workers.shard_group import connect
from transporter.engine.workers.worker_connection import IDLE
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
from transporter.offsets.given_up import GivenUpLog
from transporter.offsets.halt_reason import HaltReason
from transporter.protocol.messages import Failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from transporter.engine.engine_services import EngineServices
    from transporter.engine.workers.shard_group import ShardGroup
    from transporter.engine.workers.worker_connection import WorkerConnection
    from transporter.offsets.offset_log import OffsetLog
    from transporter.offsets.state import Replay
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
        self._pipeline = services.pipeline
        self._spark, self._on_failure = services.spark, services.on_failure
        self._observe, self._register_secrets = services.observe, services.register_secrets
        self._attempts = services.attempts
        log = self._log = services.log
        self._offsets = offsets
        self._reader = LogReader(log.directory)
        self._stopping, self._draining = threading.Event(), threading.Event()
        self._mailbox = Mailbox(self._wake)
        meter = self._meter = RouteMeter()
        halt_reason = self._halt_reason = HaltReason(
            offsets.folder, services.redact, guard=log.check_lock
        )
        condition = self._condition = RouteCondition(
            config, offsets, meter, self._observe, self._stopping, halt_reason
        )
        is_interrupted = self._is_interrupted
        self.parking = Parking(config, log, self._reader, offsets, wall_clock)
        self._slicer = Slicer(config, log, self._reader, offsets, upstream, is_interrupted)
        given_up = GivenUpLog(offsets.folder, guard=log.check_lock)
        self._policy = FailurePolicy(config, log, offsets, self.parking, given_up, self._observe)
        self._reserve_room()
        self._context = RouteContext(
            log=log,
            offsets=offsets,
            deliveries=services.deliveries,
            spark=services.spark,
            tracer=services.tracer,
            mailbox=self._mailbox,
            stopping=self._stopping,
            draining=self._draining,
            condition=condition,
            slicer=self._slicer,
            parking=self.parking,
            policy=self._policy,
            adoption=OffsetAdoption(offsets, log),
            meter=meter,
            latency=RouteLatency(wall_clock),
            rate_limit=RateLimit(config.max_rate),
            heartbeat=Heartbeat(),
        )
        offsets.on_replay_delivered = self._report_replay_end
        self.leaving = False
        """Whether it was removed from the pipeline, and ends."""
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
        self._condition.wake()
        self._spark.wake()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Schedule *call* on the route's own thread, between two slices; see :class:`Mailbox`."""
        return self._mailbox.submit(call)

    def revive(self) -> None:
        """Continue if the route waits for an operator. Only to be called through :meth:`submit`."""
        if self.halted:
            self._policy.clear_suspects()
        self._condition.revive()

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
        # A call may read all of a long log.
        with self._context.heartbeat.suspended():
            self._run_requested()

    def _run_requested(self) -> None:
        self._mailbox.run()
        for reader, through in self._offsets.state.readers_to_supersede().items():
            if self.halted or self._stopping.is_set():
                return
            try:
                supersede(reader, through, self._reader, self._offsets, self.parking)
            except LogFull as error:
                self._condition.retry_later(str(error))  # Invariant 14
            except (Corrupt, EnvironmentFault, OffsetRefused) as error:
                self._condition.apply(self._policy.wait_or_halt(Failure.of(error)))

    def _report_replay_end(self, ended: Replay) -> None:
        self._condition.report("replay-ended", first=ended.first, last=ended.last)

    def outcome_of(self, offset: int) -> EntryOutcome:
        """Return how *offset*, the last one, was settled. Call only through :meth:`submit`."""
        if offset in self.parking.parked_offsets:
            return EntryOutcome(offset, "parked", self.parking.error_of(offset))
        newest = self._policy.newest_outcome
        return newest if newest.offset == offset else EntryOutcome(offset)

    def configure(self, config: RouteConfig, pipeline: Pipeline) -> None:
        """Continue with other settings and a new worker. Call only through :meth:`submit`."""
        self._pipeline = pipeline
        self._slicer.config = self._policy.config = config
        self.parking.configure(config)
        self._context.rate_limit = RateLimit(config.max_rate)
        self._condition.configure(config)
        self._reserve_room()
        self.revive()

    def _reserve_room(self) -> None:
        """Reserve room for the lines of skipped entries, if any may be skipped."""
        if self._policy.config.on_error == "skip":
            self._policy.given_up.reserve()

    @property
    def name(self) -> str:
        """The route's name."""
        return self.config.name

    @property
    def config(self) -> RouteConfig:
        """The settings that the route has now."""
        return self._condition.config

    def join(self, timeout: float | None = None) -> bool:
        """Wait up to *timeout* seconds, and return whether the route has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _is_interrupted(self) -> bool:
        # The slicer calls it while it waits for a fuller slice, as long as `linger` is.
        self._context.heartbeat.beat()
        return self._stopping.is_set() or self._draining.is_set() or bool(self._mailbox)

    @property
    def halted(self) -> bool:
        """Whether the route waits for an operator."""
        return self._condition.halted

    @property
    def has_died(self) -> bool:
        """Whether its thread is gone without a request to end."""
        ended = self._condition.state in (State.STOPPED, State.ENDED)
        return self._thread.ident is not None and not (self._thread.is_alive() or ended)

    @property
    def is_hung(self) -> bool:
        """Whether its thread has not come through its loop for minutes, beside a worker."""
        is_running = self._condition.state is State.RUNNING and not self.leaving
        return is_running and self._context.heartbeat.is_overdue

    @property
    def awaits_spark(self) -> bool:
        """Whether the route cannot move before Spark has started a worker. Thread-safe."""
        return self._condition.awaits_spark

    @property
    def is_caught_up(self) -> bool:
        """Whether everything in the log is settled, and no replay or retry is pending."""
        return self._context.is_caught_up

    def status(self) -> RouteStatus:
        """Return the current status."""
        state, condition = self._offsets.state, self._condition
        rate_limit = self._context.rate_limit
        return RouteStatus(
            name=self.name,
            adaptor=self.config.writer.adaptor,
            state=State.PAUSED if condition.paused and not self.halted else condition.state,
            delivered=self._meter.delivered,
            skipped=self._meter.skipped,
            watermark=state.watermark,
            lag=max(0, self._log.durable - state.watermark),
            parked=len(self.parking),
            problem=condition.problem,
            size=self._meter.size,
            # A slice that lingers is not stuck, nor is a route that keeps its rate.
            still=max(
                0.0,
                self._meter.idle_seconds() - self.config.linger - rate_limit.longest_wait,
            ),
            limited=rate_limit.active_rate,
            replaying=state.replay is not None,
            slices=self._meter.slices(),
            waiting=condition.current_wait,
            leaving=self.leaving,
            latency=self._context.latency.read(),
        )

    def _run(self) -> None:
        try:
            self._serve_until_ended()
            with suppress(EnvironmentFault):
                self._policy.given_up.write_waiting(now=True)
            if self.leaving:
                self._halt_reason.clear()  # Nobody will try it again.
            self._condition.report("route-ended")
            if not self.halted:
                self._condition.state = State.ENDED
        except BaseException as error:  # noqa: BLE001 - a thread must not die silently
            self._condition.fail(error)
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
                if self._condition.is_blocked():
                    self._condition.wait(IDLE)
                else:
                    self.parking.check_damaged()
                    self._connect_and_serve()
            except (Corrupt, EntriesLost, EnvironmentFault, OffsetRefused) as error:
                if isinstance(error, OffsetRefused) and self._offsets.state.next_offset() > wanted:
                    # It was released while it was being cut: go on behind.
                    continue
                # Invariant 3: a route that needs damaged entries halts there. Others continue.
                self._condition.apply(self._policy.wait_or_halt(Failure.of(error)))

    def _should_end(self) -> bool:
        return self._stopping.is_set() or (
            self._draining.is_set() and (self._condition.is_blocked() or self._has_nothing_to_do())
        )

    def _has_nothing_to_do(self) -> bool:
        return not self._offsets.state.retries and self._slicer.cut(self._policy.plan) is None

    def _should_not_wait(self) -> bool:
        """Return whether a worker would have nothing to do, so that Spark is not waited for."""
        unwanted = self._stopping.is_set() or bool(self._mailbox) or self._condition.is_blocked()
        return unwanted or self._context.is_drained()

    def _connect_and_serve(self) -> None:
        self._condition.has_opened = False
        try:
            self._offsets.write_pending()
            worker = self._connect()
            if worker is not None:
                with worker:
                    RouteSession(self._context, worker, self._is_worker_needed).serve()
        except HostFailed as error:
            self._condition.start_later(str(error))
        except LogFull as error:
            # Invariant 14: an entry that finds no room to be parked waits for it.
            self._condition.retry_later(str(error))
        except (EOFError, ConnectionError):
            problem = self._spark.take_problem(self.name)
            self._condition.report("worker-lost", problem=problem)
            if not self._condition.has_opened and not self.halted:
                text = "the worker died while it opened its writer"
                self._condition.start_later(f"{text}: {problem}" if problem else text)

    def _connect(self) -> WorkerConnection | ShardGroup | None:
        """Wait for a worker. Meanwhile the route is not stuck (docs/design/log.md, the budget)."""
        self._condition.awaits_spark = True
        try:
            with self._context.heartbeat.suspended():
                return connect(self._spark, self._create_specs(), self._should_not_wait)
        finally:
            self._condition.awaits_spark = False

    def _is_worker_needed(self) -> bool:
        """Run requested calls between two slices; return whether this worker is still needed."""
        self._run_requests()
        held = self.halted or self._offsets.state.readers_to_supersede()
        return not (self._stopping.is_set() or held or self._condition.outdated)

    def _create_specs(self) -> list[WorkerSpec]:
        self._condition.outdated = False
        self._renew_secrets()
        return worker_specs(
            self.config,
            self._pipeline,
            self._log,
            self._offsets.state,
            next(self._attempts),
            self._context.adoption.highest_handed,
        )

    def _renew_secrets(self) -> None:
        """Read the writer's secret files again, for the connections of new workers."""
        try:
            writer = self.config.writer.renew_secrets()
        except EnvironmentFault as error:
            raise HostFailed(str(error)) from error
        if writer is not self.config.writer:
            self._condition.config = self.config.model_copy(update={"writer": writer})
            self._register_secrets(writer.secrets)
            self._observe("route-secrets-renewed", route=self.name)

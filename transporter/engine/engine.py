"""The engine: owns the log, the offset logs, the feeds, the routes and the Spark supervisor."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import count
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from transporter.audit import AuditFile
from transporter.engine.engine_services import EngineServices
from transporter.engine.event_ring import EventRing
from transporter.engine.events import EngineStatus, State
from transporter.engine.history import History
from transporter.engine.maintenance.committer import Committer, LogWarnings
from transporter.engine.maintenance.log_budget import Housekeeper
from transporter.engine.maintenance.retention_holds import RetentionHolds
from transporter.engine.meters import TimedFileSystem
from transporter.engine.reading.delivery_progress import DeliveryProgress
from transporter.engine.reload import EngineParts
from transporter.engine.renamed_pipeline import record_names
from transporter.engine.workers.spark_supervisor import SparkSupervisor
from transporter.errors import EngineUnreachable
from transporter.log.commit_log import CommitLog
from transporter.log.inspection import segments_size
from transporter.offsets.offset_log import StoredRoutes, declared_routes
from transporter.pipeline.reload_changes import describe_changes, member_texts
from transporter.protocol.network import network_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from transporter.engine.events import Observer, ReaderStatus, RouteStatus
    from transporter.engine.reading.feed import Feed
    from transporter.engine.routing.route import Route
    from transporter.engine.tracer import Tracer
    from transporter.engine.workers.spark_supervisor import Launch
    from transporter.log.operator_pauses import PausedReaders
    from transporter.offsets.offset_log import OffsetLog
    from transporter.pipeline.config import Pipeline
    from transporter.pipeline.secrets import Secrets


class Service(Protocol):
    """A service that runs beside an engine, as long as it."""

    def start(self, on_failure: Callable[[BaseException], None]) -> None:
        """Begin. An error that ends the service is passed to *on_failure*."""

    def stop(self) -> None:
        """End, and return when nothing of it runs any more. Safe if it never began."""


class Engine:
    """Runs one pipeline until it is stopped, its sources end, or it fails.

    ``start``, ``wait`` and ``stop`` belong to one thread; ``status`` and
    ``request_stop`` may be called from any, ``request_stop`` from a signal handler.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        launch: Launch,
        observe: Observer,
        *,
        fail_fast: bool = False,
        tracer: Tracer | None = None,
    ) -> None:
        """Open the log and declare the routes. Nothing runs yet.

        With *fail_fast* a source that is away at its first open ends the engine. Otherwise it
        is retried, and everything else runs meanwhile. *tracer* follows single entries.

        Raises:
            LogLocked: another engine runs on this log.
            EnvironmentFault: the log directory cannot be used.
            Corrupt: the log is damaged. Nothing was changed.

        """
        self._pipeline, self._secrets = pipeline, pipeline.secrets
        self._fail_fast, self._tracer = fail_fast, tracer
        self._secrets_lock = threading.Lock()
        self.events = EventRing(observe)
        self._observe = observe = _redact_events(lambda: self._secrets, self.events)
        directory = pipeline.log.dir
        self._files = TimedFileSystem()
        self._stored = StoredRoutes(directory)
        self._log = CommitLog.open(
            directory,
            # Called with the log's lock held, so that its findings stay true.
            proved=self._stored.highest_offset,
            segment_bytes=pipeline.log.segment_bytes,
            compression=pipeline.log.codec,
            max_bytes=pipeline.log.max_bytes,
            files=self._files,
        )
        self._log.set_segment_age(pipeline.log.roll_after)
        self._size = 0
        self.audit = AuditFile(directory)
        self.started_at = time.time()
        """The time of the start in seconds since 1970, for display only (Invariant 16)."""
        self.version = ""
        """The version of this program, for its status. The monitor sets it."""
        self.url: str | None = None
        """The address of metrics and health, if they are served. The monitor sets it."""
        self._failure: BaseException | None = None
        self._reason = ""
        self._ending = False
        # A signal handler requests stops, and only this `put` may interrupt its own `get`.
        self._ending_calls: SimpleQueue[None] = SimpleQueue()
        with ExitStack() as opened:
            opened.callback(self._log.close)
            self._assemble(launch, opened)
            opened.pop_all()

    def _assemble(self, launch: Launch, opened: ExitStack) -> None:
        """Create everything that runs over the log. *opened* closes it if that fails."""
        pipeline, observe = self._pipeline, self._observe
        self._spark = SparkSupervisor(launch, observe, self._fail, network_of(pipeline.spark))
        opened.callback(self._spark.stop)
        services = EngineServices(
            pipeline,
            self._log,
            self._files,
            self._spark,
            DeliveryProgress(lambda: self._log.durable),
            observe,
            self._fail,
            self._register_secrets,
            count(1),
            self.redact,
            self._tracer,
        )
        stored = self._stored
        self._running = EngineParts(services, stored, self.audit, fail_fast=self._fail_fast)
        self._running.assemble(opened)
        self._holds = RetentionHolds(self._log, self._running, observe, self.audit, stored)
        self._services: list[Service] = []
        self._change_lock = threading.Lock()
        self._stop_began: float | None = None
        self._housekeeper = Housekeeper(self._log, pipeline.log, self._holds, observe, self._fail)
        self._watch = LogWarnings(self._log, observe)
        self._committer = Committer(
            lambda: [*self._running.offsets.values()],
            lambda: self._pipeline.commit_interval,
            self._check_parts,
            self._fail,
        )
        self._stopped = threading.Event()
        self.history = History(self.status, self._fail)

    def _register_secrets(self, secrets: Secrets) -> None:
        """Hide *secrets* as well from now on."""
        with self._secrets_lock:
            self._secrets |= secrets

    def _report_unused_logs(self) -> None:
        """Name the offset logs that no route of this pipeline uses: they hold the log back."""
        for name in declared_routes(self._log.directory):
            if name not in self._running.offsets:
                self._observe("offset-log-unused", route=name)

    def attach(self, service: Service) -> None:
        """Run *service* from the engine's start on until shortly before its log is closed."""
        self._services.append(service)

    def start(self) -> None:
        """Start everything and return. Readers begin before Spark is up."""
        self._observe(
            "engine-started",
            log=str(self._log.directory),
            log_id=self._log.log_id,
            epoch=self._log.epoch,
            last_offset=self._log.durable,
        )
        self._report_unused_logs()
        record_names(self._pipeline, self._files, self._observe)
        self._housekeeper.begin()
        self._watch.begin()
        for feed in self._running.feeds:
            feed.start()
        self._spark.start()
        for route in self._running.routes:
            route.start()
        self._committer.start()
        self.history.start()
        self._housekeeper.start()
        for service in self._services:
            service.start(self.fail)

    def wait(self, timeout: float) -> bool:
        """Wait up to *timeout* seconds; return whether the engine has nothing left to do."""
        if not self._ending:
            with suppress(Empty):
                self._ending_calls.get(timeout=timeout)
        return self._ending or self._is_finished()

    def request_stop(self, reason: str = "a stop was requested") -> None:
        """Let :meth:`wait` return; *reason* is for the event ``engine-stopping``."""
        self._reason = self._reason or reason
        self._end()

    def _end(self) -> None:
        self._ending = True
        self._ending_calls.put(None)

    def stop(self, timeout: float | None = None) -> None:
        """Drain for up to *timeout* seconds (default: as configured), then leave all in order.

        Raises:
            TransporterError: why the engine failed, if it did.

        """
        with self._change_lock:
            self._stop_began = time.monotonic()
        self._observe("engine-stopping", reason=self._stop_reason())
        limit = self._pipeline.shutdown_timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        feeds = self._running.feeds
        for feed in feeds:
            feed.stop()
        for feed in feeds:
            feed.wait_until_read()
        self._end_routes(deadline)
        for feed in feeds:
            feed.finish()
        self._housekeeper.stop()
        self._spark.stop()
        self._stopped.set()
        self._committer.stop()
        self.history.stop()
        for service in self._services:
            service.stop()
        for offsets in self._running.offsets.values():
            offsets.close()
        self._log.close()
        self._observe("engine-stopped", last_offset=self._log.durable)
        if self._failure is not None:
            raise self._failure

    def _stop_reason(self) -> str:
        if self._failure is not None:
            return f"the engine has failed: {self._failure}"
        if not self._reason and self._is_finished():
            return "all sources have ended, and no route has anything left to deliver"
        return self._reason or "a stop was requested"

    def redact(self, text: str) -> str:
        """Return *text* without the values of secrets (Invariant 20)."""
        return self._secrets.hide(text)

    @property
    def observe(self) -> Observer:
        """The observer of this engine's events. It redacts secrets, and keeps the newest events."""
        return self._observe

    @property
    def log(self) -> CommitLog:
        """The log that this engine owns."""
        return self._log

    @property
    def pipeline(self) -> Pipeline:
        """The running pipeline, as it was read last."""
        return self._pipeline

    @property
    def stopping(self) -> bool:
        """Whether :meth:`stop` was called. From then on requests are refused."""
        return self._stop_began is not None

    def route(self, name: str) -> tuple[Route, OffsetLog] | None:
        """Return the running route *name* and its offset log, or ``None``."""
        running = self._running.offsets
        found = self._running.route(name)
        return (found, running[name]) if found is not None and name in running else None

    def offsets(self, route: str) -> OffsetLog | None:
        """Return the offset log of *route*, also while it leaves, or ``None``."""
        return self._running.offsets.get(route)

    def feed(self, name: str) -> Feed | None:
        """Return the feed of the reader *name*, or ``None``."""
        return self._running.feed(name)

    @property
    def paused_readers(self) -> PausedReaders:
        """Which readers are paused, whatever restarts."""
        return self._running.paused_readers

    def reconfigure(self, wanted: Pipeline) -> list[tuple[str, Future[None]]]:
        """Continue with the pipeline *wanted*, from ``reread``.

        See :mod:`transporter.pipeline.reload_changes`.

        Returns the changed routes, each with a future that is done when the route has applied
        the change, after its current slice. If it raises, nothing has changed.

        Raises:
            EngineUnreachable: the engine is stopping.
            ActionRefused: a new reader or route is still leaving.
            ConfigError: a route may have been renamed, or would be left out.

        """
        with self._change_lock:
            if self.stopping:
                raise EngineUnreachable("the engine is stopping; nothing was changed")
            changed = describe_changes(self._pipeline, wanted)
            self._register_secrets(wanted.secrets)
            futures = self._running.apply(wanted, self._housekeeper.record_readers)
            self._pipeline = wanted
            self._log.set_max_bytes(wanted.log.max_bytes)
            self._log.set_segment_age(wanted.log.roll_after)
            self._housekeeper.configure(wanted.log)
        parts = {kind: ", ".join(changed[kind]) for kind in ("routes", "readers")}
        parts |= {kind: ", ".join(member_texts(changed[kind])) for kind in ("added", "removed")}
        self._observe("pipeline-reloaded", file=str(wanted.file), **parts)
        return futures

    def refuse_leaving(self, wanted: Pipeline) -> None:
        """Raise as :meth:`reconfigure` if a new reader or route is still leaving."""
        self._running.refuse_leaving(wanted)

    def release_ended(self, *, wait: bool = True) -> list[str]:
        """Release removed readers and routes that have ended; return the names of the others.

        During a reload this waits for its end, or does nothing.
        """
        for route in self._running.release_ended(wait=wait):
            self._observe("offset-log-unused", route=route)
        return self._running.leaving_names()

    def forget(self, route: str) -> None:
        """Remove the offset log of *route*, which this pipeline does not run, durably.

        Raises:
            EnvironmentFault: there is none.

        """
        self._holds.forget(route)

    @property
    def halted(self) -> list[str]:
        """The readers and routes that wait for an operator."""
        status = self.status()
        both: tuple[ReaderStatus | RouteStatus, ...] = (*status.readers, *status.routes)
        return [each.name for each in both if each.state is State.STOPPED and not each.leaving]

    def status(self) -> EngineStatus:
        """Return the current status of everything."""
        budget, size = self._pipeline.log.max_bytes, self._measure_size()
        return EngineStatus(
            directory=str(self._log.directory),
            last=self._log.durable,
            size=size,
            spark=self._spark.ready,
            readers=tuple(feed.status() for feed in self._running.feeds),
            routes=tuple(self._route_status(route) for route in self._running.routes),
            used=self._log.used_bytes if budget and not self._stopped.is_set() else size,
            max_bytes=budget,
            syncs=self._files.syncs.read(),
            dead=tuple(self._dead_threads()),
            hung=tuple(self._hung_threads()),
            ending=None if self._stop_began is None else time.monotonic() - self._stop_began,
        )

    def _measure_size(self) -> int:
        """Return the log's size in bytes, or the last one if no descriptor is free."""
        with suppress(OSError):
            self._size = segments_size(self._log.directory)
        return self._size

    def _dead_threads(self) -> list[str]:
        """Name the threads that should be running and are not: each ends the engine."""
        threads = [
            self._committer.thread,
            self.history.thread,
            *self._housekeeper.threads,
            *self._spark.threads,
        ]
        dead = [each.name for each in threads if each.ident is not None and not each.is_alive()]
        dead += [f"reader-{each.name}" for each in self._running.feeds if each.has_died]
        dead += [f"route-{each.name}" for each in self._running.routes if each.has_died]
        return [] if self._stopped.is_set() else dead

    def _hung_threads(self) -> list[str]:
        """Name the threads that run, and have not come through their loop for minutes."""
        hung = [self._committer.thread.name] if self._committer.is_hung else []
        hung += [f"reader-{each.name}" for each in self._running.feeds if each.is_hung]
        hung += [f"route-{each.name}" for each in self._running.routes if each.is_hung]
        return [] if self._stopped.is_set() else hung

    def _route_status(self, route: Route) -> RouteStatus:
        """Return the route's status, and in it that the route holds a log that is nearly full."""
        status = route.status()
        status = replace(status, problem=self.redact(status.problem))
        if self._housekeeper.holder not in (f"route {status.name}", f"replay of {status.name}"):
            return status
        held = "it holds the oldest entries of a log that has nearly reached max_bytes"
        if limit := self._housekeeper.release_limit:
            held += f", and is not released because of {limit}"
        return replace(status, problem="; ".join(filter(None, (status.problem, held))))

    def _end_routes(self, deadline: float) -> None:
        routes = self._running.routes
        for wave in _drain_waves(routes):
            self._drain(wave, deadline)
        for route in routes:
            route.join()

    def _drain(self, routes: list[Route], deadline: float) -> None:
        for route in routes:
            route.drain()
        for route in routes:
            # A failed engine has nothing to wait for, least of all a Spark that never came.
            patience = 0.0 if self._failure else max(0.0, deadline - time.monotonic())
            if not route.join(patience):
                self._observe(
                    "route-abandoned", route=route.name, lag=self._route_status(route).lag
                )
                route.stop()

    def _is_finished(self) -> bool:
        feeds = (each for each in self._running.feeds if not each.leaving)
        routes = (each for each in self._running.routes if not each.leaving)
        return all(feed.ended for feed in feeds) and all(
            route.halted or route.is_caught_up for route in routes
        )

    def fail(self, error: BaseException) -> None:
        """End the engine because a service of its has failed."""
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the engine because of *error*. The first error is the reason."""
        self._secrets.hide_in(error)
        if self._failure is None:
            self._failure = error
        self._end()

    def _check_parts(self) -> None:
        """Look at the log's surroundings, and release parts that have left."""
        self._watch.check()
        self.release_ended(wait=False)


def _drain_waves(routes: Sequence[Route]) -> list[list[Route]]:
    """Return *routes* so that each comes in a later wave than the one it follows.

    One that was removed may be left behind alone.
    """
    waves: list[list[Route]] = []
    rest = {route.name: route for route in routes}
    while rest:
        ready = [name for name, route in rest.items() if route.config.after not in rest]
        waves.append([rest.pop(name) for name in ready])
    return waves


def _redact_events(secrets: Callable[[], Secrets], observe: Observer) -> Observer:
    """Redact *secrets* in all events to *observe* (Invariant 20)."""

    def observe_redacted(event: str, **details: Any) -> None:  # noqa: ANN401 - plain values
        observe(event, **secrets().hide_all(details))

    return observe_redacted

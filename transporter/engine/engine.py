"""The engine: owns the log, the offset logs, the feeds, the routes and their carrier."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from transporter.audit import AuditFile
from transporter.engine.carrier import Carrier
from transporter.engine.deliveries import Deliveries, Delivering, refuse_strangers
from transporter.engine.events import EngineStatus, State
from transporter.engine.feed import Feed
from transporter.engine.housekeeper import Housekeeper
from transporter.engine.log_watch import LogWatch
from transporter.engine.naming import refuse_renamed, tell_names
from transporter.engine.network import network_of
from transporter.engine.retention_holds import RetentionHolds
from transporter.engine.route import Route
from transporter.engine.surroundings import Surroundings
from transporter.engine.timings import TimedFileSystem
from transporter.errors import Corrupt, LogFull
from transporter.log.commit_log import CommitLog
from transporter.log.inspect import segments_size
from transporter.log.maintenance import read_record
from transporter.log.paused_readers import PausedReaders
from transporter.log.reader import LogReader
from transporter.log.search import first_since
from transporter.offsets.offset_log import OffsetLog, StoredRoutes, declared_routes
from transporter.pipeline.reloading import changed_routes

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from transporter.engine.carrier import Launch
    from transporter.engine.events import Observer, RouteStatus
    from transporter.engine.tracing import Tracer
    from transporter.pipeline.config import Pipeline, ReaderConfig, RouteConfig
    from transporter.pipeline.secrets import Secrets


class Service(Protocol):
    """What runs beside an engine for as long as that does."""

    def start(self, on_failure: Callable[[BaseException], None]) -> None:
        """Begin; whatever ends it before its time goes to *on_failure*."""

    def stop(self) -> None:
        """End, and return when nothing of it runs any more; safe if it never began."""


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
        """Open the log and declare the routes; nothing runs yet.

        With *fail_fast* a source that is away when it is opened for the first time ends the
        engine; else it is tried again, and everything else runs meanwhile. *tracer* follows
        single entries.

        Raises:
            LogLocked: another engine runs on this log.
            EnvironmentFault: the log directory cannot be used.
            Corrupt: the log is damaged; nothing was changed.

        """
        self._pipeline, self._secrets = pipeline, pipeline.secrets
        self._fail_fast, self._tracer = fail_fast, tracer
        self._learning = threading.Lock()
        self._observe = observe = _hiding(lambda: self._secrets, observe)
        directory = pipeline.log.dir
        self._files = TimedFileSystem()
        self._stored = StoredRoutes(directory)
        self._log = CommitLog.open(
            directory,
            # Asked with the log's lock held, so that what it has read stays true.
            proved=self._stored.highest,
            segment_bytes=pipeline.log.segment_bytes,
            compression=pipeline.log.codec,
            max_bytes=pipeline.log.max_bytes,
            files=self._files,
        )
        self._log.roll_after(pipeline.log.roll_after)
        self._size = 0
        self.audit = AuditFile(directory)
        self._failure: BaseException | None = None
        self._ending = threading.Event()
        with ExitStack() as opened:
            opened.callback(self._log.close)
            self._assemble(launch, opened)
            opened.pop_all()

    def _assemble(self, launch: Launch, opened: ExitStack) -> None:
        """Make all that runs over the log; *opened* takes what is to be closed if that fails."""
        pipeline, observe = self._pipeline, self._observe
        refuse_renamed(pipeline, declared_routes(self._log.directory))
        self.paused_readers = PausedReaders(self._log.directory, guard=self._log.check_lock)
        # Declared before the first append that could follow (Invariant 11).
        self._offsets = self._declared(opened)
        refuse_strangers(pipeline, self._offsets)
        self._carrier = Carrier(launch, observe, self._fail, network_of(pipeline.spark))
        opened.callback(self._carrier.stop)
        deliveries = self._deliveries = Deliveries(lambda: self._log.durable)
        self._feeds = [self._feed(reader) for reader in pipeline.readers]
        around = Surroundings(
            pipeline,
            self._log,
            self._offsets,
            self._carrier,
            deliveries,
            observe,
            self._fail,
            self._learn,
            self._tracer,
        )
        self._routes = [Route(route, around) for route in pipeline.routes]
        deliveries.routes = [
            Delivering(offsets, route.parking, route.supersede)
            for route, offsets in zip(self._routes, self._offsets.values(), strict=True)
        ]
        waiting = zip(pipeline.readers, self._feeds, strict=True)
        deliveries.feeds = [feed for config, feed in waiting if config.waits_for_delivery]
        self._holds = RetentionHolds(
            self._log, self._offsets, self._feeds, observe, self.audit, self._stored
        )
        self._services: list[Service] = []
        self._stopping = False
        self._housekeeper = Housekeeper(self._log, pipeline.log, self._holds, observe, self._fail)
        self._watch = LogWatch(self._log, observe)
        self._committer = threading.Thread(target=self._commit_regularly, name="committer")
        self._stopped = threading.Event()

    def _feed(self, config: ReaderConfig) -> Feed:
        deliveries = self._deliveries if config.waits_for_delivery else None
        return Feed(
            config,
            self._log,
            self._observe,
            self._fail,
            deliveries,
            self._superseded_through,
            self._learn,
            fail_fast=self._fail_fast,
            paused_behind=self._paused_behind(config.name),
            tracer=self._tracer,
        )

    def _paused_behind(self, reader: str) -> int | None:
        """Return up to where a paused reader needs nothing of the log; ``None``: not paused."""
        if reader not in self.paused_readers.names:
            return None
        with suppress(Corrupt):
            record = read_record(self._files, self._log.directory)
            return record.readers.get(reader, -1) if record is not None else -1
        return -1

    def _learn(self, secrets: Secrets) -> None:
        """Hide *secrets* as well from now on."""
        with self._learning:
            self._secrets |= secrets

    def _superseded_through(self, reader: str) -> int:
        """Return up to where any route of this log has passed *reader*'s entries; else -1."""
        states = [offsets.state for offsets in self._offsets.values()]
        names = declared_routes(self._log.directory)
        states += [self._stored.state(name) for name in names if name not in self._offsets]
        return max((state.superseding.get(reader, -1) for state in states), default=-1)

    def _declared(self, opened: ExitStack) -> dict[str, OffsetLog]:
        found: dict[str, OffsetLog] = {}
        for route in self._pipeline.routes:
            found[route.name] = self._declare(route)
            opened.callback(found[route.name].close)
        return found

    def _declare(self, route: RouteConfig) -> OffsetLog:
        """Open the route's offset log; a new route begins where its ``start`` says."""
        offsets = OffsetLog(
            self._log.directory,
            route.name,
            begin=lambda: self._first_of(route),
            gate=self._log.gate,
            stored=self._stored,
            epoch=self._log.epoch,
            audit=self.audit,
            guard=self._log.check_lock,
        )
        if offsets.is_new:
            self._observe("route-begins", route=route.name, offset=offsets.state.next_live())
        return offsets

    def _first_of(self, route: RouteConfig) -> int:
        with LogReader(self._log.directory) as reader:
            match route.start:
                case ("latest", _):
                    return self._log.durable + 1
                case ("offset", offset):
                    return min(offset, self._log.durable + 1)
                case ("time", time):
                    return first_since(reader, time, self._log.durable)
                case _:
                    return reader.first_offset()

    def _tell_of_strangers(self) -> None:
        """Name the offset logs that no route of this pipeline uses: they hold the log back."""
        for name in declared_routes(self._log.directory):
            if name not in self._offsets:
                self._observe("offset-log-unused", route=name)

    def attach(self, service: Service) -> None:
        """Run *service* from the engine's start on until shortly before its log is closed."""
        self._services.append(service)

    def start(self) -> None:
        """Start everything and return; readers begin before Spark is up."""
        self._observe(
            "engine-started",
            log=str(self._log.directory),
            log_id=self._log.log_id,
            epoch=self._log.epoch,
            last_offset=self._log.durable,
        )
        self._tell_of_strangers()
        tell_names(self._pipeline, self._files, self._observe)
        self._housekeeper.begin()
        self._watch.begin()
        for feed in self._feeds:
            feed.start()
        self._carrier.start()
        for route in self._routes:
            route.start()
        self._committer.start()
        self._housekeeper.start()
        for service in self._services:
            service.start(self.fail)

    def wait(self, timeout: float) -> bool:
        """Wait up to *timeout* seconds; return whether there is nothing more to wait for."""
        return self._ending.wait(timeout) or self._finished()

    def request_stop(self) -> None:
        """Let :meth:`wait` return."""
        self._ending.set()

    def stop(self, timeout: float | None = None) -> None:
        """Drain for up to *timeout* seconds (default: as configured), then leave all in order.

        Raises:
            TransporterError: why the engine failed, if it did.

        """
        self._stopping = True
        limit = self._pipeline.shutdown_timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        for feed in self._feeds:
            feed.stop()
        for feed in self._feeds:
            feed.wait_until_read()
        self._end_routes(deadline)
        for feed in self._feeds:
            feed.finish()
        self._housekeeper.stop()
        self._carrier.stop()
        self._stopped.set()
        if self._committer.ident is not None:
            self._committer.join()
        for service in self._services:
            service.stop()
        for offsets in self._offsets.values():
            offsets.close()
        self._log.close()
        self._observe("engine-stopped", last_offset=self._log.durable)
        if self._failure is not None:
            raise self._failure

    def redacted(self, text: str) -> str:
        """Return *text* without the values of secrets (Invariant 20)."""
        return self._secrets.hide(text)

    @property
    def log(self) -> CommitLog:
        """The log that this engine owns."""
        return self._log

    @property
    def pipeline(self) -> Pipeline:
        """What is running, as it was read last."""
        return self._pipeline

    @property
    def stopping(self) -> bool:
        """Whether :meth:`stop` was called: from then on nothing is to be asked of the engine."""
        return self._stopping

    def route(self, name: str) -> tuple[Route, OffsetLog] | None:
        """Return the running route *name* and its offset log; ``None`` when there is none."""
        found = (route for route in self._routes if route.config.name == name)
        return next(((route, self._offsets[name]) for route in found), None)

    def feed(self, name: str) -> Feed | None:
        """Return the feed of the reader *name*; ``None`` when there is none."""
        return next((feed for feed in self._feeds if feed.name == name), None)

    def reconfigure(self, wanted: Pipeline) -> list[tuple[str, Future[None]]]:
        """Go on as *wanted* says, which ``reread`` gave; see :mod:`transporter.pipeline.reloading`.

        Returns the changed routes, each with what is done when it has taken that up: after
        the slice it is at.
        """
        changed = {route.name: route for route in changed_routes(self._pipeline, wanted)}
        self._pipeline = wanted
        self._learn(wanted.secrets)
        self._log.limit(wanted.log.max_bytes)
        self._log.roll_after(wanted.log.roll_after)
        self._housekeeper.configure(wanted.log)
        asked = ((each, changed.get(each.config.name)) for each in self._routes)
        told = [(new.name, each.ask(partial(each.configure, new))) for each, new in asked if new]
        self._observe("pipeline-reloaded", file=str(wanted.file), routes=", ".join(changed))
        return told

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
        stopped = (each.name for each in status.readers if each.state is State.STOPPED)
        halted = (each.name for each in status.routes if each.state is State.STOPPED)
        return [*stopped, *halted]

    def status(self) -> EngineStatus:
        """Return what everything is doing now."""
        budget, size = self._pipeline.log.max_bytes, self._measured()
        return EngineStatus(
            directory=str(self._log.directory),
            last=self._log.durable,
            size=size,
            spark=self._carrier.ready,
            readers=tuple(feed.status() for feed in self._feeds),
            routes=tuple(self._route_status(route) for route in self._routes),
            used=self._log.used if budget and not self._stopped.is_set() else size,
            max_bytes=budget,
            syncs=self._files.syncs.read(),
            dead=tuple(self._dead()),
        )

    def _measured(self) -> int:
        """Return the log's bytes; what they were, when no descriptor is free to look."""
        with suppress(OSError):
            self._size = segments_size(self._log.directory)
        return self._size

    def _dead(self) -> list[str]:
        """Name the threads that should be running and are not: each ends the engine."""
        threads = [self._committer, *self._housekeeper.threads, *self._carrier.threads]
        dead = [each.name for each in threads if each.ident is not None and not each.is_alive()]
        dead += [f"reader-{each.status().name}" for each in self._feeds if each.lost]
        dead += [f"route-{each.status().name}" for each in self._routes if each.lost]
        return [] if self._stopped.is_set() else dead

    def _route_status(self, route: Route) -> RouteStatus:
        """Return the route's status, and in it that the route holds a log that is nearly full."""
        status = route.status()
        status = replace(status, problem=self.redacted(status.problem))
        if self._housekeeper.holder not in (f"route {status.name}", f"replay of {status.name}"):
            return status
        held = "it holds the oldest entries of a log that has nearly spent max_bytes"
        return replace(status, problem="; ".join(filter(None, (status.problem, held))))

    def _end_routes(self, deadline: float) -> None:
        for wave in self._waves():
            self._drain(wave, deadline)
        for route in self._routes:
            route.join()

    def _waves(self) -> list[list[Route]]:
        """Return the routes so that each comes in a later wave than the one it follows."""
        waves: list[list[Route]] = []
        placed: set[str | None] = {None}
        named = zip(self._pipeline.routes, self._routes, strict=True)
        rest = {config.name: (config.after, route) for config, route in named}
        while rest:
            ready = [name for name, (after, _) in rest.items() if after in placed]
            waves.append([rest.pop(name)[1] for name in ready])
            placed |= set(ready)
        return waves

    def _drain(self, routes: list[Route], deadline: float) -> None:
        for route in routes:
            route.drain()
        for route in routes:
            # A failed engine has nothing to wait for, least of all a Spark that never came.
            patience = 0.0 if self._failure else max(0.0, deadline - time.monotonic())
            if not route.join(patience):
                self._observe("route-abandoned", route=route.status().name)
                route.stop()

    def _finished(self) -> bool:
        return all(feed.ended for feed in self._feeds) and all(
            route.halted or route.caught_up for route in self._routes
        )

    def fail(self, error: BaseException) -> None:
        """End the engine because a service of its has failed."""
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the engine because of *error*; the first one is the reason."""
        self._secrets.hide_in(error)
        if self._failure is None:
            self._failure = error
        self._ending.set()

    def _commit_regularly(self) -> None:
        try:
            while not self._stopped.wait(self._pipeline.commit_interval):
                self._watch.look()
                for offsets in self._offsets.values():
                    # Its route says that it waits for room, and delivers nothing (Invariant 14).
                    with suppress(LogFull):
                        offsets.sync()
        except BaseException as error:  # noqa: BLE001 - a thread must not die silently
            self._fail(error)


def _hiding(secrets: Callable[[], Secrets], observe: Observer) -> Observer:
    """Keep *secrets* from *observe*, whoever repeats them (Invariant 20)."""

    def told(event: str, **details: Any) -> None:  # noqa: ANN401 - plain values
        observe(event, **secrets().hide_all(details))

    return told

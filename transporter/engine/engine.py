"""The engine: owns the log, the offset logs, the feeds, the routes and their carrier."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from transporter.engine.carrier import Carrier
from transporter.engine.events import EngineStatus, State
from transporter.engine.feed import Feed
from transporter.engine.route import Route
from transporter.log.commit_log import CommitLog
from transporter.log.inspect import segments_size
from transporter.log.reader import LogReader
from transporter.offsets.offset_log import OffsetLog, declared_routes, proved_offset

if TYPE_CHECKING:
    from transporter.engine.carrier import Launch
    from transporter.engine.events import Observer
    from transporter.pipeline.config import Pipeline, RouteConfig


class Engine:
    """Runs one pipeline until it is stopped, its sources end, or it fails.

    ``start``, ``wait`` and ``stop`` belong to one thread; ``status`` and
    ``request_stop`` may be called from any, ``request_stop`` from a signal handler.
    """

    def __init__(self, pipeline: Pipeline, launch: Launch, observe: Observer) -> None:
        """Open the log and declare the routes; nothing runs yet.

        Raises:
            LogLocked: another engine runs on this log.
            EnvironmentFault: the log directory cannot be used.
            Corrupt: the log is damaged; nothing was changed.

        """
        self._pipeline, self._observe = pipeline, observe
        directory = pipeline.log.dir
        self._log = CommitLog.open(
            directory,
            proved=lambda: proved_offset(directory),
            segment_bytes=pipeline.log.segment_bytes,
            compression=None if pipeline.log.compression == "none" else pipeline.log.compression,
        )
        self._failure: BaseException | None = None
        self._ending = threading.Event()
        # Declared before the first append that could follow (Invariant 11).
        self._offsets = self._declared()
        self._carrier = Carrier(launch, observe, self._fail)
        self._feeds = [Feed(reader, self._log, observe, self._fail) for reader in pipeline.readers]
        self._routes = [
            Route(
                config,
                pipeline.file.parent,
                self._log,
                self._offsets,
                self._carrier,
                observe,
                self._fail,
            )
            for config in pipeline.routes
        ]
        self._committer = threading.Thread(target=self._commit_regularly, name="committer")
        self._stopped = threading.Event()

    def _declared(self) -> dict[str, OffsetLog]:
        try:
            return {route.name: self._declare(route) for route in self._pipeline.routes}
        except BaseException:
            self._log.close()
            raise

    def _declare(self, route: RouteConfig) -> OffsetLog:
        """Open the route's offset log; a new route begins where its ``start`` says."""
        offsets = OffsetLog(self._log.directory, route.name, begin=lambda: self._first_of(route))
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
                    return reader.offset_at(time, self._log.durable)
                case _:
                    return reader.first_offset()

    def _tell_of_strangers(self) -> None:
        """Name the offset logs that no route of this pipeline uses: they hold the log back."""
        for name in declared_routes(self._log.directory):
            if name not in self._offsets:
                self._observe("offset-log-unused", route=name)

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
        for feed in self._feeds:
            feed.start()
        self._carrier.start()
        for route in self._routes:
            route.start()
        self._committer.start()

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
        limit = self._pipeline.shutdown_timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        for feed in self._feeds:
            feed.stop()
        for feed in self._feeds:
            feed.join()
        self._end_routes(deadline)
        self._carrier.stop()
        self._stopped.set()
        if self._committer.ident is not None:
            self._committer.join()
        for offsets in self._offsets.values():
            offsets.close()
        self._log.close()
        self._observe("engine-stopped", last_offset=self._log.durable)
        if self._failure is not None:
            raise self._failure

    @property
    def halted(self) -> list[str]:
        """The readers and routes that wait for an operator."""
        status = self.status()
        stopped = (each.name for each in status.readers if each.state is State.STOPPED)
        halted = (each.name for each in status.routes if each.state is State.STOPPED)
        return [*stopped, *halted]

    def status(self) -> EngineStatus:
        """Return what everything is doing now."""
        return EngineStatus(
            directory=str(self._log.directory),
            last=self._log.durable,
            size=segments_size(self._log.directory),
            spark=self._carrier.ready,
            readers=tuple(feed.status() for feed in self._feeds),
            routes=tuple(route.status() for route in self._routes),
        )

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

    def _fail(self, error: BaseException) -> None:
        """End the engine because of *error*; the first one is the reason."""
        if self._failure is None:
            self._failure = error
        self._ending.set()

    def _commit_regularly(self) -> None:
        try:
            while not self._stopped.wait(self._pipeline.commit_interval):
                for offsets in self._offsets.values():
                    offsets.sync()
        except BaseException as error:  # noqa: BLE001 - a thread must not die silently
            self._fail(error)

"""The running readers and routes, which a reload adds, changes and removes.

The steps by which a removed one leaves, and the code that upholds each:

 1. A reader stops polling, appends its polled messages, acknowledges deliveries to its source,
    and closes. Entries that other engines then deliver are superseded here (``Feed.leave``,
    Invariant 10).
 2. A route ends after its current slice, or at once if it waits (``Route.leave``). Later entries
    are left.
 3. Its offset log stays among ``offsets`` until it is closed. From then on it is read from disk,
    as that of any route that does not run, so that its holds stay (Invariant 11).
 4. While a reader leaves whose source waits for deliveries, no route is released, because the
    source would get acknowledgements without that route.
 5. Entries of a reader that has left are still taken from no route (``on_full: stop-route``) if
    its source would not give them again when the reader is back (``LeftReader``).
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from transporter.engine.reading.delivery_progress import DeliveringRoute
from transporter.engine.reading.feed import Feed
from transporter.engine.routing.route import Route
from transporter.errors import ActionRefused, Corrupt
from transporter.log.maintenance import read_maintenance
from transporter.log.operator_pauses import PausedReaders
from transporter.log.reader import LogReader
from transporter.log.search import first_offset_since
from transporter.offsets.offset_log import (
    OffsetLog,
    declared_routes,
    delete_route,
    is_declared,
    read_state,
)
from transporter.pipeline.reload_changes import changed_readers, changed_routes, member_texts
from transporter.pipeline.route_changes import refuse_changed_routes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from transporter.audit import AuditFile
    from transporter.engine.engine_services import EngineServices
    from transporter.offsets.offset_log import StoredRoutes
    from transporter.pipeline.config import Pipeline, ReaderConfig, RouteConfig


class _Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=_Named)


class LeftReader(NamedTuple):
    """A reader that ran on this log, as it was when it ended.

    Attributes:
        through: the offset up to which it needed nothing of the log any more.
        waits_through: the last offset that its source may wait for and will not give again, or -1.

    """

    through: int
    waits_through: int


class EngineParts:
    """The feeds, the routes and the routes' offset logs of an engine, in the pipeline's order.

    Thread-safe. Each change replaces the tuples and the mapping, so an iteration keeps the
    state of its beginning.
    """

    def __init__(
        self,
        services: EngineServices,
        stored: StoredRoutes | None,
        audit: AuditFile,
        *,
        fail_fast: bool = False,
    ) -> None:
        """Begin empty. *audit* is the engine's audit file.

        *stored* has read the offset logs, and is valid until the first change. With *fail_fast*
        a source that is away at its first open ends the engine.
        """
        self._services, self._stored, self._audit = services, stored, audit
        self._log, self._deliveries = services.log, services.deliveries
        self._fail_fast = fail_fast
        self._change_lock = threading.Lock()
        self.handover_lock = threading.Lock()
        """Held while an offset log changes hands, between those that run and those on the disk."""
        self.handovers = 0
        """Number of routes that began or were forgotten; a change invalidates earlier reads."""
        self.left: Mapping[str, LeftReader] = {}
        """The readers of earlier runs, and those that have left. One that is back counts as new."""
        self.feeds: tuple[Feed, ...] = ()
        self.routes: tuple[Route, ...] = ()
        self.offsets: Mapping[str, OffsetLog] = {}
        directory = self._log.directory
        self.paused_readers = PausedReaders(directory, guard=self._log.check_lock)

    def assemble(self, opened: ExitStack) -> None:
        """Declare and create the pipeline's readers and routes. *opened* closes them on failure.

        Raises:
            ConfigError: a route may have been renamed, or would be left out.

        """
        pipeline = self._services.pipeline
        refuse_changed_routes(pipeline, declared_routes(self._log.directory))
        self.left = self._read_left()
        # Declared before the first append that could follow (Invariant 11).
        for route in pipeline.routes:
            self._declare(route)
            opened.callback(self.offsets[route.name].close)
        self.routes = tuple(self._create_route(route, self._services) for route in pipeline.routes)
        self.feeds = tuple(self._create_feed(reader, self._services) for reader in pipeline.readers)
        self._update_waiting_feeds()

    def feed(self, name: str) -> Feed | None:
        """Return the feed of the reader *name*, or ``None`` if it is absent or leaving."""
        return next((each for each in self.feeds if each.name == name and not each.leaving), None)

    def route(self, name: str) -> Route | None:
        """Return the route *name*, or ``None`` if it is absent or leaving."""
        return next((each for each in self.routes if each.name == name and not each.leaving), None)

    def apply(
        self, wanted: Pipeline, record_readers: Callable[[], None]
    ) -> list[tuple[str, Future[None]]]:
        """Continue with the readers and routes of *wanted*, from ``reread``.

        *record_readers* is called before a new reader appends anything.

        Returns the changed routes, each with a future that is done when the route has applied
        the change, after its current slice. If it raises one of these, nothing has changed.

        Raises:
            ActionRefused: a new reader or route is still leaving.
            ConfigError: a route may have been renamed, or would be left out.
            EnvironmentFault, LogFull: the disk has no room for a new route.

        """
        with self._change_lock:
            self.refuse_leaving(wanted)
            refuse_changed_routes(wanted, declared_routes(self._log.directory))
            self._stored = None
            before, after = self._services, self._services._replace(pipeline=wanted)
            with ExitStack() as undo:
                routes, feeds = self._prepare(wanted, after, undo)
                undo.pop_all()
            try:
                self._services = after
                self._remove_unwanted(wanted)
                futures = self._reconfigure(before.pipeline, wanted)
                self._start_new(wanted, routes, feeds, record_readers)
            except BaseException as error:
                # Half of a pipeline is not to run on.
                after.on_failure(error)
                raise
            return futures

    def _prepare(
        self, wanted: Pipeline, services: EngineServices, undo: ExitStack
    ) -> tuple[list[Route], list[Feed]]:
        """Create new readers and routes, ready to start. *undo* removes them again."""
        new = [each for each in wanted.routes if self.route(each.name) is None]
        known = declared_routes(self._log.directory)
        for config in new:
            undo.callback(self._undeclare, config.name, new=config.name not in known)
            self._declare(config)
        routes = []
        for config in new:
            undo.callback(self._deliveries.remove, self.offsets[config.name])
            routes.append(self._create_route(config, services))
            undo.callback(routes[-1].discard)
        feeds = [
            self._create_feed(each, services, late=True)
            for each in wanted.readers
            if self.feed(each.name) is None
        ]
        for feed in feeds:
            feed.prepare()
        return routes, feeds

    def _remove_unwanted(self, wanted: Pipeline) -> None:
        readers = {each.name for each in wanted.readers}
        routes = {each.name for each in wanted.routes}
        for feed in self.feeds:
            if feed.name not in readers and not feed.leaving:
                feed.leave()
        for route in self.routes:
            if route.name not in routes and not route.leaving:
                route.leave()

    def _reconfigure(self, before: Pipeline, wanted: Pipeline) -> list[tuple[str, Future[None]]]:
        """Apply the settings of *wanted* to those that stay and have changed."""
        for reader in changed_readers(before, wanted):
            if (feed := self.feed(reader.name)) is not None:
                feed.configure(reader)
        return [
            (config.name, route.submit(partial(route.configure, config, wanted)))
            for config in changed_routes(before, wanted)
            if (route := self.route(config.name)) is not None
        ]

    def _start_new(
        self,
        wanted: Pipeline,
        routes: Sequence[Route],
        feeds: Sequence[Feed],
        record_readers: Callable[[], None],
    ) -> None:
        """Start new ones in the order of a start, so that superseded entries are loaded by then."""
        self.routes = tuple(_sort_by_pipeline((*self.routes, *routes), wanted.routes))
        self.feeds = tuple(_sort_by_pipeline((*self.feeds, *feeds), wanted.readers))
        self._update_waiting_feeds()
        if feeds:
            record_readers()
        for feed in feeds:
            feed.run()
        for route in routes:
            route.start()

    def release_ended(self, *, wait: bool = True) -> list[str]:
        """Release leaving readers and routes that have ended; return the routes among them.

        Does nothing during a reload, unless it may wait for that.
        """
        if not self._change_lock.acquire(blocking=wait):
            return []
        try:
            gone = [each for each in self.feeds if each.try_release()]
            # In this order: a reader is always seen in one of the two.
            self.left = {**self.left, **{feed.name: self._leave_behind(feed) for feed in gone}}
            self.feeds = tuple(each for each in self.feeds if each not in gone)
            self._update_waiting_feeds()
            if any(feed.leaving for feed in self._deliveries.feeds):
                return []
            ended = [route for route in self.routes if route.has_left]
            for route in ended:
                self._deliveries.remove(self.offsets[route.name])
                self._services.spark.forget(route.name)
                self._undeclare(route.name, new=False)
                self.routes = tuple(each for each in self.routes if each is not route)
            return [route.name for route in ended]
        finally:
            self._change_lock.release()

    def leaving_names(self) -> list[str]:
        """Name the readers and routes that were removed and have not ended, as ``route orders``."""
        return member_texts(self._leaving_by_kind())

    def _leaving_by_kind(self) -> dict[str, list[str]]:
        return {
            "readers": [each.name for each in self.feeds if each.leaving],
            "routes": [each.name for each in self.routes if each.leaving],
        }

    def refuse_leaving(self, wanted: Pipeline) -> None:
        """Raise :class:`ActionRefused` if *wanted* has one back that was removed and still ends."""
        back = {
            kind: [name for name in names if name in {each.name for each in getattr(wanted, kind)}]
            for kind, names in self._leaving_by_kind().items()
        }
        for each in member_texts(back):
            raise ActionRefused(
                f"{each} was removed and has not ended yet; reload again when 'transporter "
                "status' no longer lists it"
            )

    def _create_feed(
        self, config: ReaderConfig, services: EngineServices, *, late: bool = False
    ) -> Feed:
        return Feed(
            config,
            services.log,
            services.observe,
            services.on_failure,
            services.deliveries if config.waits_for_delivery else None,
            self._superseded_through,
            services.register_secrets,
            fail_fast=self._fail_fast,
            late=late,
            paused_behind=self._paused_behind(config.name),
            tracer=services.tracer,
        )

    def _update_waiting_feeds(self) -> None:
        waiting = [feed for feed in self.feeds if feed.waits_for_delivery]
        # Replaced only if they differ, because routes then confirm the leaders again.
        if waiting != self._deliveries.feeds:
            self._deliveries.feeds = waiting

    def _paused_behind(self, reader: str) -> int | None:
        """Return the offset up to which a paused reader needs nothing; ``None`` if not paused."""
        if reader not in self.paused_readers.names:
            return None
        return self.left[reader].through if reader in self.left else -1

    def _read_left(self) -> dict[str, LeftReader]:
        """Read which readers the last engine had, and which of them may wait for deliveries."""
        durable, record = self._log.durable, None
        with suppress(Corrupt):
            record = read_maintenance(self._services.files, self._log.directory)
        if record is None:
            # Nobody knows which of them waited.
            return {name: LeftReader(-1, durable) for name in self._log.positions}
        known = {**record.readers, **record.waiting}
        return {
            name: LeftReader(through, durable if name in record.waiting else -1)
            for name, through in known.items()
        }

    def _leave_behind(self, feed: Feed) -> LeftReader:
        hold, durable = feed.hold(), self._log.durable
        through = durable if hold is None else hold.through
        return LeftReader(through, durable if feed.loses_released else -1)

    def _superseded_through(self, reader: str) -> int:
        """Return the offset up to which any route has passed *reader*'s entries, or -1."""
        running, directory = self.offsets, self._log.directory
        states = [offsets.state for offsets in running.values()]
        stored = self._stored.state if self._stored else partial(read_state, directory)
        names = declared_routes(directory)
        states += [stored(name) for name in names if name not in running]
        return max((state.superseding.get(reader, -1) for state in states), default=-1)

    def _create_route(self, config: RouteConfig, services: EngineServices) -> Route:
        offsets = self.offsets
        ahead = offsets[config.after] if config.after else None
        route = Route(config, services, offsets[config.name], ahead)
        self._deliveries.add(DeliveringRoute(offsets[config.name], route.parking, route.supersede))
        return route

    def _undeclare(self, route: str, *, new: bool) -> None:
        """Close the offset log of *route*, and remove it if it is *new*."""
        with self.handover_lock:
            found = self.offsets.get(route)
            self.offsets = {name: each for name, each in self.offsets.items() if name != route}
            if found is not None:
                found.close()
            if new and is_declared(self._log.directory, route):
                delete_route(self._log.directory, route)

    def _declare(self, route: RouteConfig) -> None:
        """Open the route's offset log. A new route begins at its ``start``."""
        # Invariant 11: its first entry is not removed between this check and its declaration.
        with self._log.gate.register_hold(), self.handover_lock:
            offsets = OffsetLog(
                self._log.directory,
                route.name,
                first_offset=lambda: self._start_offset(route),
                gate=self._log.gate,
                stored_routes=self._stored,
                epoch=self._log.epoch,
                audit=self._audit,
                guard=self._log.check_lock,
            )
            self.offsets = {**self.offsets, route.name: offsets}
            self.handovers += 1
        if offsets.is_new:
            first = offsets.state.next_unsettled()
            self._services.observe("route-begins", route=route.name, offset=first)

    def _start_offset(self, route: RouteConfig) -> int:
        with LogReader(self._log.directory) as reader:
            match route.start:
                case ("latest", _):
                    return self._log.durable + 1
                case ("offset", offset):
                    return min(offset, self._log.durable + 1)
                case ("time", time):
                    return first_offset_since(reader, time, self._log.durable)
                case _:
                    return reader.first_offset()


def _sort_by_pipeline(found: Iterable[T], wanted: Sequence[_Named]) -> list[T]:
    """Return *found* in the order of *wanted*, with leaving ones last."""
    places = {each.name: place for place, each in enumerate(wanted)}
    return sorted(found, key=lambda each: places.get(each.name, len(places)))

"""The holds on an engine's log: which entries are still needed, by which route or reader.

docs/design/log.md, "Holds". Thread-safe: the housekeeper and the compactor read, operators forget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from transporter.errors import ActionRefused
from transporter.offsets.offset_log import OffsetLog, declared_routes, delete_route, is_declared
from transporter.offsets.retention_holds import Hold, confirmed_hold, hold_of, lowest_hold, release

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from threading import Lock

    from transporter.audit import AuditFile
    from transporter.engine.events import Observer
    from transporter.engine.reading.feed import Feed
    from transporter.engine.reload import LeftReader
    from transporter.engine.routing.route import Route
    from transporter.log.commit_log import CommitLog
    from transporter.offsets.offset_log import StoredRoutes


class Holders(Protocol):
    """The readers and routes of an engine; see ``reload.EngineParts``."""

    handover_lock: Lock
    handovers: int

    @property
    def feeds(self) -> Sequence[Feed]:
        """Those that read."""

    @property
    def routes(self) -> Sequence[Route]:
        """Those that deliver."""

    @property
    def offsets(self) -> Mapping[str, OffsetLog]:
        """The offset logs of the routes that run."""

    @property
    def left(self) -> Mapping[str, LeftReader]:
        """Those that read once, by name; also some that are back."""


class RetentionHolds:
    """The holds of the routes and readers of one engine, and of routes that it does not run."""

    def __init__(
        self,
        log: CommitLog,
        running: Holders,
        observe: Observer,
        audit: AuditFile,
        stored: StoredRoutes | None = None,
    ) -> None:
        """Read the holds of *log* and of the *running* readers and routes.

        *stored* may have read the offset logs of the others, before any changed hands. *audit* is
        the engine's audit file.
        """
        self._stored, self._audit = stored, audit
        self._log, self._running, self._observe = log, running, observe
        self._stored_holds: dict[str, Hold] = {}
        self._handovers = running.handovers

    def least_hold(self) -> Hold:
        """Return the hold on the oldest entry, as no power cut can take it back (Invariant 11).

        Raises:
            LockLost: the routes of another engine may need it (Invariant 12).

        """
        self._log.check_lock()
        feeds = self._running.feeds
        holds = [each for feed in feeds if (each := feed.hold()) is not None]
        with self._running.handover_lock:
            running, routes = self._running.offsets, declared_routes(self._log.directory)
            holds += [self._stored_hold(route) for route in routes if route not in running]
        for route, offsets in running.items():
            holds.append(hold_of(route, offsets.confirmed_state()))
        return lowest_hold(holds) or Hold(-1, "no route")

    def acknowledged_offsets(self) -> dict[str, int]:
        """Return for each reader an offset up to which its source needs nothing any more."""
        # In this order: a reader that holds nothing now appends behind it.
        durable = self._log.durable
        holds = {feed.name: feed.hold() for feed in self._running.feeds}
        return {
            name: durable if hold is None else min(hold.through, durable)
            for name, hold in holds.items()
        }

    def waiting_offsets(self) -> dict[str, int]:
        """Return for each reader whose entries would be lost by a release what the above returns.

        Also for readers that have left, as long as some route has yet to deliver their entries.
        """
        # In this order: one that leaves is among the left before it is gone from the feeds.
        acknowledged, feeds = self.acknowledged_offsets(), self._running.feeds
        waiting = {feed.name for feed in feeds if feed.loses_released}
        running = {name: through for name, through in acknowledged.items() if name in waiting}
        return running | {hold.name: hold.through for hold in self._left_holds(feeds)}

    def release_limit(self) -> Hold | None:
        """Return the hold of the reader beyond which nothing is released, or ``None``."""
        feeds = self._running.feeds
        limits = [each for feed in feeds if (each := feed.release_limit()) is not None]
        limits += self._left_holds(feeds)
        return lowest_hold(limits)

    def _left_holds(self, feeds: Sequence[Feed]) -> list[Hold]:
        """Return the holds of readers that have left, and whose entries are not delivered yet.

        When such a reader is back it goes on behind the log's entries, and its source is told of
        them. So nothing of them may be taken from a route.
        """
        present = {feed.name for feed in feeds}
        waiting = {
            name: left
            for name, left in self._running.left.items()
            if name not in present and left.through < left.waits_through
        }
        delivered = self.least_hold().through if waiting else 0
        return [
            Hold(left.through, name, "removed reader")
            for name, left in waiting.items()
            if delivered < left.waits_through
        ]

    def awaits_spark(self, route: str) -> bool:
        """Return whether *route* cannot move before Spark has started a worker for it."""
        return any(each.name == route and each.awaits_spark for each in self._running.routes)

    def release(self, route: str, through: int) -> None:
        """Release the entries of *route* up to *through* (``on_full: stop-route``).

        A route that an operator has forgotten meanwhile holds nothing and stays forgotten.
        """
        with self._running.handover_lock:
            offsets = self._running.offsets.get(route)
            if offsets is not None:
                self._release(offsets, through)
                return
            self._log.check_lock()
            if not is_declared(self._log.directory, route):
                return
            with OffsetLog(self._log.directory, route, audit=self._audit) as stranger:
                self._release(stranger, through)
            self._stored_holds.pop(route, None)

    def forget(self, route: str) -> None:
        """Remove the offset log of *route*, which this engine does not run, durably.

        Raises:
            ActionRefused: it runs, or has not ended yet.
            EnvironmentFault: there is none.

        """
        self._log.check_lock()
        with self._running.handover_lock:
            if route in self._running.offsets:
                raise ActionRefused(
                    f"route {route} has not ended yet; forget it when 'transporter status' no "
                    "longer lists it"
                )
            delete_route(self._log.directory, route)
            self._running.handovers += 1

    def _stored_hold(self, route: str) -> Hold:
        """Return the hold of a route that does not run, so nothing changes it."""
        if self._handovers != self._running.handovers:
            self._handovers, self._stored_holds = self._running.handovers, {}
            self._stored = None
        if route not in self._stored_holds:
            self._stored_holds[route] = confirmed_hold(
                self._log.directory, route, stored_routes=self._stored
            )
        return self._stored_holds[route]

    def _release(self, offsets: OffsetLog, through: int) -> None:
        lost = release(offsets, through, self._log.durable, "log.max_bytes was reached")
        if lost is not None:
            self._observe("entries-released", route=offsets.route, first=lost.first, last=lost.last)

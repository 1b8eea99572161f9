"""The delivery progress of all routes, for ``release: delivered``.

The steps of ``release: delivered`` in their order, and the code that upholds each:

An entry on its way
 1. The feed appends a batch and opens it (``feed``, ``acknowledgement``).
 2. A route delivers entries, or parks them: a copy is durable before the watermark passes its
    entry (``parking``). A reader of watermarks first, and of parked entries afterwards, takes no
    parked entry for delivered: ``DeliveryProgress.through``, then ``DeliveryProgress.parked``.
 3. The feed releases entries that every route has passed and none has parked
    (``UnacknowledgedBatches.deliver``).
 4. It acknowledges them to the source (``DeliveredReader.delivered``, or ``commit`` of whole
    batches in order).
 5. Only then the reader's hold on the log moves, and routes with ``max_in_flight_per_key`` go on
    (``Feed.first_unacknowledged``, :meth:`DeliveryProgress.notify_acknowledged`).

The end of a term, or of a reader that does not go on
 1. The deliveries are recorded before any entry is passed, because watermarks do not show them
    afterwards (``LogResume.supersede``).
 2. The request to pass entries, up to the last one that the reader logged, is durable in each
    route's offset log (``OffsetLog.begin_superseding``).
 3. Only now may the reader log later entries. Polled entries that are not appended are dropped.
 4. Between two slices, and before any other, the route drops the parked copies, then passes the
    entries in one record (``superseding``). After a crash or a failure before that record the
    whole step is repeated: at the next open, or when the route continues.

A restart
 1. Before any route runs, superseded entries are loaded (``LogResume.begin``), and entries that
    were acknowledged without a new route are kept from it
    (:meth:`DeliveryProgress.spare_new_routes`).
 2. The reader decides once it is certain whether another engine can have had the entries: they
    are reopened where they are (``LogResume.reopen``), or superseded as above. Until then
    ``confirm`` returns ``False`` and no route of a shared reader delivers.
 3. Undelivered entries are looked up before delivered ones: an entry that is delivered in between
    is then in both answers. In the other order it would be in neither.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from transporter.errors import Corrupt, EnvironmentFault
from transporter.offsets.parked import ParkedStore
from transporter.offsets.state import MOST_RELEASED, RELEASED, Range

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transporter.engine.routing.parking import Parking
    from transporter.offsets.offset_log import OffsetLog
    from transporter.offsets.parked import ParkedEntry


class DeliveringRoute(NamedTuple):
    """A route: its progress, its parked entries, and the way to make it pass entries."""

    offsets: OffsetLog
    parking: Parking
    supersede: Callable[[str, int], None]


class AwaitingFeed(Protocol):
    """A feed whose source waits for deliveries."""

    @property
    def name(self) -> str:
        """Its reader's name."""

    @property
    def leaving(self) -> bool:
        """Whether it was removed, and ends."""

    @property
    def first_unacknowledged(self) -> int | None:
        """The first offset that is not acknowledged to the source yet."""

    def wait_until_confirmed(self, cancelled: Callable[[], bool]) -> bool:
        """Wait until the reader has confirmed that it leads; false if *cancelled* came first."""


class DeliveryProgress:
    """Stands between the routes and the feeds whose sources wait for them. Thread-safe.

    Each change of ``routes`` and ``feeds`` puts other ones in place.
    """

    def __init__(self, durable: Callable[[], int]) -> None:
        """Begin without routes. *durable* returns the log's last offset."""
        self._durable = durable
        self.routes: Sequence[DeliveringRoute] = ()
        self.feeds: Sequence[AwaitingFeed] = ()
        self._acknowledged = threading.Condition()
        self._change_lock = threading.RLock()

    def add(self, route: DeliveringRoute) -> None:
        """Make every source wait for *route* as well, which has not begun to deliver.

        It also delivers their entries that are in the log and may be acknowledged already.
        """
        with self._change_lock:
            readers = [feed.name for feed in self.feeds]
            superseded = {reader: self.superseded_through(reader) for reader in readers}
            # In this order: a source that was acknowledged without it has no entry that is
            # durable only later, so all of that is spared.
            self.routes = (*self.routes, route)
            for reader in readers:
                self._spare(route, reader, superseded[reader])

    def remove(self, offsets: OffsetLog) -> None:
        """Have no source wait any more for the route with *offsets*."""
        with self._change_lock:
            self.routes = tuple(each for each in self.routes if each.offsets is not offsets)

    @property
    def through(self) -> int:
        """The offset up to which no route has anything left to deliver, parked entries aside."""
        return min(route.offsets.state.watermark for route in self.routes)

    @property
    def parked(self) -> frozenset[int]:
        """The offsets that some route has set aside."""
        return frozenset[int]().union(*(route.parking.parked_offsets for route in self.routes))

    @property
    def released(self) -> tuple[Range, ...]:
        """The ranges that were released from some route undelivered, to keep the log in its budget.

        Read after :attr:`through`, they include all such ranges below it. States have only the
        newest of them: entries before it may have been released as well.
        """
        ranges = [part for route in self.routes for part in route.offsets.state.released]
        full = [
            Range(0, state.released[0].last, RELEASED)
            for state in (route.offsets.state for route in self.routes)
            if len(state.released) >= MOST_RELEASED
        ]
        return (*full, *ranges)

    @property
    def slowest_route(self) -> str:
        """The route that is furthest behind."""
        return self._slowest.offsets.route

    @property
    def _slowest(self) -> DeliveringRoute:
        return min(self.routes, key=lambda route: route.offsets.state.watermark)

    def read_copy(self, offset: int) -> ParkedEntry | None:
        """Return a copy of the parked entry at *offset*, or ``None`` without a readable one."""
        for route in self.routes:
            if offset in route.parking.parked_offsets:
                # Its route may remove it at this moment, and another route may have an intact copy.
                with suppress(EnvironmentFault, Corrupt):
                    return ParkedStore.read_entry(route.offsets.folder, offset)
        return None

    def wait(self, offset: int, timeout: float) -> None:
        """Wait up to *timeout* seconds for the slowest route to deliver *offset*."""
        self._slowest.offsets.wait_beyond(offset - 1, timeout)

    def superseded_through(self, reader: str) -> int:
        """Return up to which offset *reader*'s entries were superseded where not delivered.

        A route may still have to pass some of them.
        """
        return max(route.offsets.state.superseding.get(reader, -1) for route in self.routes)

    def spare_new_routes(self, reader: str) -> None:
        """Let a route for which *reader*'s source never waited deliver the log's entries.

        The source does not redeliver them, because they were acknowledged without that route.
        Only to be called before anything is read and delivered.
        """
        with self._change_lock:
            superseded = self.superseded_through(reader)
            for route in self.routes:
                self._spare(route, reader, superseded)

    def _spare(self, route: DeliveringRoute, reader: str, superseded: int) -> None:
        if reader not in route.offsets.state.superseded:
            route.offsets.skip_superseding(reader, self._durable(), superseded)

    def supersede(self, reader: str, through: int) -> None:
        """Make each route pass its undelivered entries of *reader* up to *through*.

        A route does so before its next slice. The request is durable on return, so that later
        entries are not among them after any crash (Invariant 10).
        """
        with self._change_lock:
            for route in self.routes:
                if _has_undelivered(route, reader, through):
                    route.supersede(reader, through)

    def notify_acknowledged(self) -> None:
        """Record that something was acknowledged to a source."""
        with self._acknowledged:
            self._acknowledged.notify_all()

    def wait_until_acknowledged(self, offset: int, timeout: float) -> bool:
        """Wait up to *timeout* seconds until all before *offset* is acknowledged to the sources."""
        with self._acknowledged:
            return self._acknowledged.wait_for(lambda: self._all_acknowledged(offset), timeout)

    def _all_acknowledged(self, offset: int) -> bool:
        offsets = (feed.first_unacknowledged for feed in self.feeds)
        return all(first is None or first >= offset for first in offsets)

    def wait_until_confirmed(self, cancelled: Callable[[], bool]) -> bool:
        """Wait until every leading reader has confirmed it; false if *cancelled* came first."""
        return all(feed.wait_until_confirmed(cancelled) for feed in self.feeds)


def _has_undelivered(route: DeliveringRoute, reader: str, through: int) -> bool:
    """Return whether *route* may have undelivered entries of *reader* up to *through*.

    It is asked to pass them only if needed, because deliveries below that point are then lost
    to view.
    """
    state = route.offsets.state
    superseded = max(state.superseded.get(reader, -1), state.superseding.get(reader, -1))
    return superseded < through and (
        state.watermark < through
        or any(superseded < each <= through for each in route.parking.parked_offsets)
    )

"""The delivery progress of all routes, for ``release: delivered``.

The order on which ``release: delivered`` rests, and where each step is upheld:

An entry on its way
 1. The feed appends a batch and opens it (``feed``, ``open_batches``).
 2. A route delivers entries, or parks them: a copy is durable before the watermark passes its
    entry (``parking``). So whoever reads watermarks first, and what is parked afterwards, takes no
    parked entry for delivered: :attr:`Deliveries.through`, then :attr:`Deliveries.parked`.
 3. The feed releases what every route has passed and none has parked (``OpenBatches.deliver``).
 4. It tells the source (``DeliveredReader.delivered``, or ``commit`` of whole batches in order).
 5. Only then the reader's hold on the log moves, and routes with ``max_in_flight_per_key`` go on
    (``Feed.untold``, :meth:`Deliveries.told`).

The end of a term, or of a reader that does not go on
 1. What is delivered is noted before anything is passed: from then on a watermark tells no more
    what was delivered (``LogResume.supersede``).
 2. It is durable in each route's offset log that entries are to be passed, up to the last one that
    the reader logged (``OffsetLog.begin_superseding``).
 3. Only now may the reader log anything later; what was polled and not appended is dropped.
 4. Between two slices, and before any other, the route drops the parked copies, then passes the
    entries in one record (``superseding``). A crash, or a failure, before that record has all of
    it begun again: at the next open, or when the route goes on.

A restart
 1. Before any route runs: what was superseded is known (``LogResume.begin``), and a route that is
    new to a reader is spared what others were told of (:meth:`Deliveries.keep`).
 2. The reader decides, once it knows whether anybody else can have had the entries since: they
    are reopened where they are (``LogResume.reopen``), or superseded as above. Until then
    ``confirm`` returns ``False`` and no route of a shared reader delivers.
 3. What is not delivered is looked up before what is: entries that are delivered in between are
    in both answers, and in neither the other way round.
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
    from transporter.offsets.parked import Parked
    from transporter.pipeline.config import Pipeline


class Delivering(NamedTuple):
    """A route: how far it has come, what it has parked, and how it is made to pass entries."""

    offsets: OffsetLog
    parking: Parking
    supersede: Callable[[str, int], None]


class Waiting(Protocol):
    """A feed whose source waits for deliveries."""

    @property
    def name(self) -> str:
        """Its reader's name."""

    @property
    def leaving(self) -> bool:
        """Whether it was removed, and ends."""

    @property
    def untold(self) -> int | None:
        """The first offset that its source still has to be told of."""

    def confirmed(self, unwanted: Callable[[], bool]) -> bool:
        """Wait until the reader knows that it still leads; false when *unwanted* came first."""


class Deliveries:
    """Stands between the routes and the feeds whose sources wait for them. Thread-safe.

    Each change of ``routes`` and ``feeds`` puts other ones in place.
    """

    def __init__(self, durable: Callable[[], int]) -> None:
        """Begin without anybody; *durable* tells the log's last offset."""
        self._durable = durable
        self.routes: Sequence[Delivering] = ()
        self.feeds: Sequence[Waiting] = ()
        self._told = threading.Condition()
        self._changing = threading.RLock()

    def add(self, route: Delivering) -> None:
        """Have every source wait for *route*, too, which has not begun to deliver.

        It delivers what the log holds of them already: they may have been told of that.
        """
        with self._changing:
            readers = [feed.name for feed in self.feeds]
            asked = {reader: self.superseded(reader) for reader in readers}
            # In this order: a source that was told without it was told of nothing that is
            # durable only later, so all of that is spared.
            self.routes = (*self.routes, route)
            for reader in readers:
                self._spare(route, reader, asked[reader])

    def remove(self, offsets: OffsetLog) -> None:
        """Have no source wait any more for the route with *offsets*."""
        with self._changing:
            self.routes = tuple(each for each in self.routes if each.offsets is not offsets)

    @property
    def through(self) -> int:
        """The offset up to which no route has anything left to deliver, parked entries aside."""
        return min(route.offsets.state.watermark for route in self.routes)

    @property
    def parked(self) -> frozenset[int]:
        """The offsets that some route has set aside."""
        return frozenset[int]().union(*(route.parking.known for route in self.routes))

    @property
    def released(self) -> tuple[Range, ...]:
        """The ranges that some route gave up undelivered, to keep the log in its budget.

        Asked after :attr:`through`, they hold all of what that has passed so. States know the
        newest of them only: what came before might have been released as well.
        """
        ranges = [part for route in self.routes for part in route.offsets.state.released]
        full = [
            Range(0, state.released[0].last, RELEASED)
            for state in (route.offsets.state for route in self.routes)
            if len(state.released) >= MOST_RELEASED
        ]
        return (*full, *ranges)

    @property
    def slowest(self) -> str:
        """The route that is furthest behind."""
        return self._slowest.offsets.route

    @property
    def _slowest(self) -> Delivering:
        return min(self.routes, key=lambda route: route.offsets.state.watermark)

    def copy_of(self, offset: int) -> Parked | None:
        """Return a copy of the parked entry at *offset*; ``None`` without one that can be read."""
        for route in self.routes:
            if offset in route.parking.known:
                # Its route may remove it at this moment; what is damaged another may have whole.
                with suppress(EnvironmentFault, Corrupt):
                    return ParkedStore.read_entry(route.offsets.folder, offset)
        return None

    def wait(self, offset: int, timeout: float) -> None:
        """Wait up to *timeout* seconds for the slowest route to deliver *offset*."""
        self._slowest.offsets.wait_beyond(offset - 1, timeout)

    def superseded(self, reader: str) -> int:
        """Return up to which offset *reader*'s entries were superseded where not delivered.

        A route may still have to pass some of them.
        """
        return max(route.offsets.state.superseding.get(reader, -1) for route in self.routes)

    def keep(self, reader: str) -> None:
        """Let a route that *reader*'s source never waited for deliver what the log holds.

        That source gives nothing of it again: it was told without that route. Only to be
        called before anything is read and delivered.
        """
        with self._changing:
            asked = self.superseded(reader)
            for route in self.routes:
                self._spare(route, reader, asked)

    def _spare(self, route: Delivering, reader: str, asked: int) -> None:
        if reader not in route.offsets.state.superseded:
            route.offsets.spare(reader, self._durable(), asked)

    def supersede(self, reader: str, through: int) -> None:
        """Have each route pass what *reader* has logged up to *through* and it has not delivered.

        A route does so before its next slice. Returns when it is durable that it has to: what
        is logged from now on is not among it, whatever crashes (Invariant 10).
        """
        with self._changing:
            for route in self.routes:
                if _has_left(route, reader, through):
                    route.supersede(reader, through)

    def told(self) -> None:
        """Take note that a source was told of something."""
        with self._told:
            self._told.notify_all()

    def wait_until_told(self, offset: int, timeout: float) -> bool:
        """Wait up to *timeout* seconds until the sources know of all before *offset*."""
        with self._told:
            return self._told.wait_for(lambda: self._all_told(offset), timeout)

    def _all_told(self, offset: int) -> bool:
        untold = (feed.untold for feed in self.feeds)
        return all(first is None or first >= offset for first in untold)

    def confirmed(self, unwanted: Callable[[], bool]) -> bool:
        """Wait until every reader that leads has made sure of that; false if *unwanted* first."""
        return all(feed.confirmed(unwanted) for feed in self.feeds)


def _has_left(route: Delivering, reader: str, through: int) -> bool:
    """Tell whether *route* may have something of *reader*'s up to *through* to deliver.

    Not without need is it asked to pass that: behind it nobody can tell what was delivered.
    """
    state = route.offsets.state
    known = max(state.superseded.get(reader, -1), state.superseding.get(reader, -1))
    return known < through and (
        state.watermark < through or any(known < each <= through for each in route.parking.known)
    )


def refuse_strangers(pipeline: Pipeline, declared: Sequence[str]) -> None:
    """Let no source be told without a route that has begun in this log and may come back.

    *declared* are the routes that have begun. Raise ``EnvironmentFault`` when the pipeline
    lacks one of them, and a source waits for delivery.
    """
    strangers = pipeline.left_out(declared)
    if strangers and pipeline.waits_for_delivery:
        name = strangers[0]
        raise EnvironmentFault(
            f"route {name} has an offset log in {pipeline.log.dir} and is not in the pipeline. A "
            "source that waits for delivery would be told without it, so what is logged meanwhile "
            "would be lost to it: put it back, or end it for good with 'transporter route forget "
            f"{pipeline.file} {name}' while no engine runs"
        )

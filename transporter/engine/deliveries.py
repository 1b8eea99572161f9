"""What every route has delivered: for readers whose sources are told only of that."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol

from transporter.errors import EnvironmentFault
from transporter.offsets.offset_log import declared_routes

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from transporter.engine.parking import Parking
    from transporter.offsets.offset_log import OffsetLog
    from transporter.pipeline.config import Pipeline


class Delivering(NamedTuple):
    """A route: how far it has come, what it has parked, and how it is made to pass entries."""

    offsets: OffsetLog
    parking: Parking
    supersede: Callable[[str, int], None]


class Waiting(Protocol):
    """A feed whose source waits for deliveries."""

    @property
    def untold(self) -> int | None:
        """The first offset that its source still has to be told of."""

    def confirmed(self, unwanted: Callable[[], bool]) -> bool:
        """Wait until the reader knows that it still leads; false when *unwanted* came first."""


class Deliveries:
    """Stands between the routes and the feeds whose sources wait for them. Thread-safe.

    ``routes`` and ``feeds`` are filled before any of them starts.
    """

    def __init__(self, durable: Callable[[], int]) -> None:
        """Begin without anybody; *durable* tells the log's last offset."""
        self._durable = durable
        self.routes: Sequence[Delivering] = ()
        self.feeds: Sequence[Waiting] = ()
        self._told = threading.Condition()

    @property
    def through(self) -> int:
        """The offset up to which no route has anything left to deliver, parked entries aside."""
        return min(route.offsets.state.watermark for route in self.routes)

    @property
    def parked(self) -> frozenset[int]:
        """The offsets that some route has set aside."""
        return frozenset[int]().union(*(route.parking.known for route in self.routes))

    def wait(self, offset: int, timeout: float) -> None:
        """Wait up to *timeout* seconds for the slowest route to deliver *offset*."""
        slowest = min(self.routes, key=lambda route: route.offsets.state.watermark)
        slowest.offsets.wait_beyond(offset - 1, timeout)

    def superseded(self, reader: str) -> int:
        """Return up to which offset *reader*'s entries were superseded where not delivered."""
        return max(route.offsets.state.superseded.get(reader, -1) for route in self.routes)

    def keep(self, reader: str) -> None:
        """Let a route that *reader*'s source never waited for deliver what the log holds.

        That source gives nothing of it again: it was told without that route. Only to be
        called before anything is read and delivered.
        """
        durable = self._durable()
        for route in self.routes:
            if reader not in route.offsets.state.superseded:
                route.offsets.supersede(reader, durable, (), durable)

    def supersede(self, reader: str) -> None:
        """Have each route pass what *reader* has logged and that route has not delivered.

        Returns at once: a route does so before its next slice. What is logged from now on
        is not among it.
        """
        through = self._durable()
        for route in self.routes:
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


def refuse_strangers(pipeline: Pipeline, known: Container[str]) -> None:
    """Let no source be told without a route that has begun in this log and may come back.

    *known* are the routes that the pipeline has. Raise ``EnvironmentFault`` when there is
    another one, and a source waits for delivery.
    """
    directory = pipeline.log.dir
    strangers = [name for name in declared_routes(directory) if name not in known]
    if strangers and any(reader.waits_for_delivery for reader in pipeline.readers):
        name = strangers[0]
        raise EnvironmentFault(
            f"route {name} has an offset log in {directory} and is not in the pipeline. A source "
            "that waits for delivery would be told without it, so what is logged meanwhile would "
            "be lost to it: put it back, or end it for good with 'transporter route forget "
            f"{pipeline.file} {name}'"
        )

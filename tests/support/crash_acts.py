"""Acts of readers, routes and operators on a log, drawn at random, with a record of the truth."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from crash_oracle import LOG, SEGMENT_BYTES, Frame, RouteTruth, Truth, messages

from transporter.engine.routing.parking import Parking
from transporter.log.format import Source
from transporter.log.reader import LogReader
from transporter.offsets.offset_log import OffsetLog, route_folder
from transporter.offsets.parked import ParkedStore
from transporter.offsets.state import Range, RouteState, begin_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from disks.simulated import SimulatedDisk

    from transporter.log.commit_log import CommitLog

ROUTES: Final = ("r", "s")
CONFIG: Final = SimpleNamespace(
    namespace="", park_order="key", park_limit=SimpleNamespace(entries=5, bytes=1 << 20)
)


@dataclass
class Route:
    """An open route: its offset log and its parked entries."""

    name: str
    offsets: OffsetLog
    parking: Parking


class Acts:
    """Acts of a running process: ``log`` and ``routes`` are open, ``rng`` draws."""

    rng: Random
    clock: Callable[[], int]
    disk: SimulatedDisk
    truth: Truth
    log: CommitLog | None
    routes: dict[str, Route]
    number: int

    # Acts of readers.

    def append(self) -> None:
        """Append, and acknowledge to the reader."""
        assert self.log is not None
        proves = self.log.durable
        frame = self._frame()
        first, last = self.log.append(messages(frame.data), frame.reader, frame.position)
        assert (first, last) == (frame.first, frame.last)
        self.truth.must = self.truth.given = last
        # The frame is durable, so the durable offset in its header counts as proved.
        self.truth.proved = max(self.truth.proved, proves)

    def write(self) -> None:
        """Write a reader's frame that is not yet synced."""
        assert self.log is not None
        frame = self._frame()
        source = Source(frame.reader, frame.position)
        active = self.log._active
        active.write(messages(frame.data), source, self.clock(), self.log.durable)

    def sync(self) -> None:
        """Sync the written frames."""
        assert self.log is not None
        with self.log._condition:
            self.log._sync_through(self.log._active.last)

    def roll(self) -> None:
        """Append to a full segment."""
        assert self.log is not None
        self.log._segment_bytes = 1
        try:
            self.append()
        finally:
            self.log._segment_bytes = SEGMENT_BYTES

    # Acts of routes.

    def declare(self) -> None:
        """Run a route for the first time."""
        assert self.log is not None
        absent = [name for name in ROUTES if name not in self.routes]
        if absent:
            first = self.rng.choice([0, self.log.durable + 1])
            self._open_route(self.rng.choice(absent), first)

    def deliver(self) -> None:
        """Deliver a slice of a route and write its progress."""
        for route in self._some_route():
            assert self.log is not None
            first = route.offsets.state.next_unsettled()
            last = min(self.log.durable, first + self.rng.randrange(4))
            if first <= last:
                self._seen(first, last)
                self._settle(route, Range(first, last))

    def commit(self) -> None:
        """Sync a route's offset log."""
        for route in self._some_route():
            route.offsets.sync()
            self._synced(route)

    def skip(self) -> None:
        """Skip a route's next entry."""
        for route in self._some_route():
            assert self.log is not None
            first = route.offsets.state.next_unsettled()
            if first <= self.log.durable:
                self._settle(route, Range(first, first, "skipped"))

    def acknowledge(self) -> None:
        """Ack entries that were not delivered, as an operator."""
        for route in self._some_route():
            assert self.log is not None
            first = route.offsets.state.next_unsettled() + self.rng.randrange(3)
            last = min(self.log.durable, first + self.rng.randrange(2))
            if first <= last:
                self._settle(route, Range(first, last, "operator"))
                route.offsets.sync()
                self._synced(route)
                self.number += 1
                why = f"why {self.number}"
                route.offsets.audit("ack", first=first, last=last, reason=why)
                self.truth.audits.append(why)

    def park(self) -> None:
        """Park a route's next entry."""
        for route in self._some_route():
            assert self.log is not None
            offset = route.offsets.state.next_unsettled()
            if self._holds(offset) and offset <= self.log.durable and not route.parking.is_full:
                known = self.truth.routes[route.name]
                known.parked[offset] = None
                known.settled.discard(offset)
                route.parking.park(offset, "no", 1)
                known.parked[offset] = True
                known.settled.add(offset)
                self._synced(route)

    def replay(self) -> None:
        """Begin a replay, deliver a part of it, or end it."""
        for route in self._some_route():
            state = route.offsets.state
            if state.replay is None and state.watermark >= 0:
                first = self.rng.randint(0, state.watermark)
                route.offsets.begin_replay(first, self.rng.randint(first, state.watermark))
                self._synced(route)
            elif state.replay is not None and self.rng.random() < 0.2:
                route.offsets.cancel_replay()
                self._synced(route)
            elif state.replay is not None:
                through = self.rng.randint(state.replay.next, state.replay.last)
                if route.offsets.advance_replay(through, state.generation).replay is None:
                    self._synced(route)

    def retry(self) -> None:
        """Request delivery of parked entries, some of which fail again."""
        for route in self._some_route():
            known = self.truth.routes[route.name]
            there = [offset for offset, kept in known.parked.items() if kept]
            if not there:
                continue
            route.offsets.request_retries(self.rng.sample(there, self.rng.randint(1, len(there))))
            self._synced(route)
            while (offset := route.parking.next_retry()) is not None:
                if self.rng.random() < 0.5:
                    known.parked[offset] = None
                    route.parking.remove_delivered(offset)
                    known.parked[offset] = False
                else:
                    route.parking.record_failure(offset, "no again")
            self._synced(route)

    # Helpers of the acts.

    def _frame(self) -> Frame:
        assert self.log is not None
        self.number += 1
        size = self.rng.choice((0, 10, 60, 300, 700))
        rows = self.rng.randint(1, 3)
        data = tuple(b"%d/%d " % (self.number, row) + b"x" * size for row in range(rows))
        position = str(self.number) if self.rng.random() < 0.8 else None
        reader = self.rng.choice(("a", "b"))
        frame = Frame(self.log._active.next, data, reader, position)
        assert frame.first > self.truth.given, f"{frame.first} is given twice"
        self.truth.frames.append(frame)
        return frame

    def _holds(self, offset: int) -> bool:
        return any(frame.first <= offset <= frame.last for frame in self.truth.frames)

    def _some_route(self) -> list[Route]:
        return [self.rng.choice(list(self.routes.values()))] if self.routes else []

    def _some_name(self) -> list[str]:
        return [self.rng.choice(list(self.truth.routes))] if self.truth.routes else []

    def _open_route(self, name: str, first: int) -> None:
        assert self.log is not None
        known = self.truth.routes.get(name)
        if known is None:
            known = RouteTruth([None, begin_at(RouteState(), first)])
            known.settled = set(range(first))
            self.truth.routes[name] = known
        offsets = OffsetLog(LOG, name, self.disk, lambda: first)
        assert offsets.state == known.legal[-1], f"{offsets.state} for {known.legal[-1]}"
        known.legal = [offsets.state]
        _note_before_writing(offsets, known)
        # No other process reads this log, so the reader may stay open.
        reader = LogReader(LOG, self.disk)
        parking = Parking(CONFIG, self.log, reader, offsets, self.clock)  # type: ignore[arg-type]
        parking.store = ParkedStore(route_folder(LOG, name), self.disk)
        self.routes[name] = Route(name, offsets, parking)

    def _settle(self, route: Route, part: Range) -> None:
        assert self.log is not None
        self.truth.routes[route.name].settled.update(range(part.first, part.last + 1))
        route.offsets.settle(part, self.log.durable, {"n": part.last})

    def _synced(self, route: Route) -> None:
        """Record the route's state as reported durable."""
        self.truth.routes[route.name].legal = [route.offsets.state]
        self.truth.proved = max(self.truth.proved, route.offsets.state.highest_offset())

    def _seen(self, first: int, last: int) -> None:
        """Read the slice as a worker does."""
        with LogReader(LOG, self.disk) as reader:
            for batch in reader.read(first, last):
                offsets = batch.column("offset").to_pylist()
                for offset, data in zip(offsets, batch.column("data").to_pylist(), strict=True):
                    frame = next(f for f in self.truth.frames if f.first <= offset <= f.last)
                    assert data == frame.data[offset - frame.first]


def _note_before_writing(offsets: OffsetLog, known: RouteTruth) -> None:
    """Let a crash in the middle of a write find the new state legal."""
    put = offsets._put_event

    def putting(event: dict[str, Any], after: RouteState) -> None:
        known.legal.append(after)
        put(event, after)

    offsets._put_event = putting  # type: ignore[method-assign]

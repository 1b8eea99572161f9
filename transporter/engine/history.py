"""Half an hour of an engine's counts, for operators who look after something began."""

from __future__ import annotations

import threading
import time
from array import array
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from transporter.engine.events import EngineStatus, ReaderStatus, RouteStatus

INTERVAL: Final = 5.0
"""Seconds between two points."""
POINTS: Final = 360
"""Points of a series: 30 minutes."""
MOST_SERIES: Final = 64
"""Series in memory: 180 KiB together (Invariant 17)."""
_UNKNOWN: Final = -1
_Member = tuple[str, str]
"""The kind of a member, ``reader`` or ``route``, and its name."""


class History:
    """Series of counts, one point each :data:`INTERVAL`. Thread-safe.

    A route has ``delivered``, ``lag`` and ``parked``. A reader has ``logged``, and as ``lag`` the
    backlog of its source where that is measured. ``delivered`` and ``logged`` count from the
    engine's start. A member that has left keeps its series until they are half an hour old, or
    until another one needs the room.
    """

    def __init__(
        self,
        read: Callable[[], EngineStatus],
        on_failure: Callable[[BaseException], None],
        interval: float = INTERVAL,
    ) -> None:
        """Record what *read* returns, from :meth:`start` on."""
        self._read, self._on_failure, self._interval = read, on_failure, interval
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._times: array[int] = array("q", [_UNKNOWN] * POINTS)
        """The wall time of each point in milliseconds, for display only (Invariant 16)."""
        self._series: dict[_Member, dict[str, array[int]]] = {}
        self._seen: dict[_Member, int] = {}
        """The number of the newest point of each member."""
        self._left_out: tuple[_Member, ...] = ()
        self._count = 0
        self.thread = threading.Thread(target=self._run, name="history")

    def start(self) -> None:
        """Begin to record."""
        self.thread.start()

    def stop(self) -> None:
        """Record no more. Safe if it never began."""
        self._stopping.set()
        if self.thread.ident is not None:
            self.thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self._interval):
                self.record(self._read(), time.time())
        except BaseException as error:  # noqa: BLE001 - a thread must not die silently
            self._on_failure(error)

    def record(self, status: EngineStatus, at: float) -> None:
        """Add a point of *status*, taken at the wall time *at*."""
        found: dict[_Member, Mapping[str, int]] = {
            **{("reader", each.name): _reader_counts(each) for each in status.readers},
            **{("route", each.name): _route_counts(each) for each in status.routes},
        }
        with self._lock:
            place = self._count % POINTS
            self._count += 1
            self._times[place] = round(at * 1_000)
            for series in self._all_series():
                series[place] = _UNKNOWN
            for member in [each for each in self._seen if self._count - self._seen[each] >= POINTS]:
                self._remove(member)
            self._left_out = tuple(each for each in found if not self._admit(each, found))
            for member, counts in found.items():
                for name, series in self._series.get(member, {}).items():
                    series[place] = counts[name]

    def _admit(self, member: _Member, found: Mapping[_Member, Mapping[str, int]]) -> bool:
        """Note that *member* was seen. Return false if there is no room for its series."""
        names = found[member]
        if member not in self._series:
            gone = sorted((each for each in self._seen if each not in found), key=self._seen.get)  # type: ignore[arg-type]
            while gone and len(list(self._all_series())) + len(names) > MOST_SERIES:
                self._remove(gone.pop(0))
            if len(list(self._all_series())) + len(names) > MOST_SERIES:
                return False
            self._series[member] = {name: array("q", [_UNKNOWN] * POINTS) for name in names}
        self._seen[member] = self._count
        return True

    def _remove(self, member: _Member) -> None:
        del self._series[member], self._seen[member]

    def _all_series(self) -> Iterator[array[int]]:
        for each in self._series.values():
            yield from each.values()

    def to_json(self, route: str = "") -> dict[str, Any]:
        """Return all series as plain values, the oldest point first, or those of *route* only.

        ``times`` are in seconds since 1970. A point without a count is ``None``. ``left_out``
        names the members for which there was no room.
        """
        with self._lock:
            members = {key: dict(each) for key, each in self._series.items()}
            wanted = [key for key in members if not route or key == ("route", route)]
            series = [
                {
                    "kind": kind,
                    "name": name,
                    **{what: self._ordered(each) for what, each in members[kind, name].items()},
                }
                for kind, name in wanted
            ]
            times, left_out = self._ordered(self._times), self._left_out
        return {
            "interval": self._interval,
            "times": [each / 1_000 for each in times if each is not None],
            "series": series,
            "left_out": [f"{kind} {name}" for kind, name in left_out],
        }

    def _ordered(self, series: array[int]) -> list[int | None]:
        """Return the points recorded so far, the oldest first."""
        place = self._count % POINTS
        values = series[:place] if self._count < POINTS else series[place:] + series[:place]
        return [None if each == _UNKNOWN else each for each in values]


def _reader_counts(reader: ReaderStatus) -> Mapping[str, int]:
    backlog = reader.measured.get("backlog_messages", _UNKNOWN)
    return {"logged": reader.logged, "lag": _whole(backlog)}


def _route_counts(route: RouteStatus) -> Mapping[str, int]:
    return {"delivered": route.delivered, "lag": route.lag, "parked": route.parked}


def _whole(value: float) -> int:
    """Return *value* as a number that a series can hold."""
    return round(min(max(value, _UNKNOWN), 1 << 62)) if isfinite(value) else _UNKNOWN

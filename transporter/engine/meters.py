"""Counters and histograms of durations and latencies in the engine, read by metrics.

Each count takes a fraction of a microsecond. Latency is counted per append and not per entry, so
the cost does not grow with the rows.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from transporter.log.filesystem import RealFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from transporter.log.filesystem import File
    from transporter.log.reader import Append
    from transporter.protocol.messages import Outcome


BOUNDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Upper bounds of the buckets in seconds. One more bucket has all longer ones."""
LATENCY_BOUNDS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    *(10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)
"""The same for latencies, which reach an hour with a backlog."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many took up to each of *bounds* (and, last, longer), and their sum in seconds."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    total: float = 0.0
    bounds: tuple[float, ...] = BOUNDS


NOTHING: Final = Histogram()
NO_LATENCY: Final = Histogram((0,) * (len(LATENCY_BOUNDS) + 1), 0.0, LATENCY_BOUNDS)


class Timings:
    """Sorts durations into buckets. One thread adds at a time, any may read."""

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self._bounds = bounds
        self._counts, self._total = [0] * (len(bounds) + 1), 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count *count* that took *seconds* each."""
        self._counts[bisect_left(self._bounds, seconds)] += count
        self._total += seconds * count

    def bucket_of(self, seconds: float) -> int:
        """Return which bucket *seconds* belong to."""
        return bisect_left(self._bounds, seconds)

    def add_counts(self, counts: Sequence[int], total: float) -> None:
        """Add sorted values: *counts* of the first buckets, *total* seconds in all."""
        for bucket, count in enumerate(counts):
            self._counts[bucket] += count
        self._total += total

    def read(self) -> Histogram:
        """Return the counts so far."""
        return Histogram(tuple(self._counts), self._total, self._bounds)


class RouteMeter:
    """Counts of a route in this run, and the time since its last progress.

    Belongs to the route's thread. Any thread may read.
    """

    def __init__(self) -> None:
        self.delivered = self.skipped = self.size = 0
        self._slices = Timings()
        self._last_progress = time.monotonic()

    def note_idle(self) -> None:
        """Take note that there is nothing to do just now."""
        self._last_progress = time.monotonic()

    def add(self, first: int, outcome: Outcome, begun: float) -> None:
        """Count the outcome of a slice from *first* on that was sent at the time *begun*."""
        self._slices.add(time.monotonic() - begun)
        self.add_part(first, outcome)

    def add_part(self, first: int, outcome: Outcome) -> None:
        """Count the outcome of a part of a slice that begins at *first*."""
        self.delivered += outcome.delivered
        self.skipped += outcome.skipped
        self.size += outcome.size
        if outcome.through >= first:
            self._last_progress = time.monotonic()

    def slices(self) -> Histogram:
        """Return how long slices took."""
        return self._slices.read()

    def idle_seconds(self) -> float:
        """Return the seconds since it last settled anything, or had nothing to do."""
        return time.monotonic() - self._last_progress


class TimedFileSystem(RealFileSystem):
    """The operating system's files, with the duration of each sync in ``syncs``."""

    def __init__(self) -> None:
        self.syncs = Timings()

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open *path*, and time its syncs if it is to be written."""
        file = super().open(path, write=write, create=create)
        if write:
            _time_syncs(file, self.syncs)
        return file


def _time_syncs(file: File, syncs: Timings) -> None:
    sync = file.sync

    def timed() -> None:
        begun = time.monotonic()
        sync()
        syncs.add(time.monotonic() - begun)

    # A subclass would have to forward ten calls.
    file.sync = timed  # type: ignore[method-assign]


_MICRO: Final = 1_000_000
_FEW: Final = 32
"""Rows up to which a loop is faster than calls of Arrow's."""
# Typed: for a plain value Arrow would look for pandas, 0.1 ms each time where there is none.
_NONE: Final = pa.scalar(0, pa.int64())
_SECOND: Final = pa.scalar(float(_MICRO), pa.float64())
_BOUNDS: Final = tuple(pa.scalar(round(bound * _MICRO), pa.int64()) for bound in LATENCY_BOUNDS)
_LARGEST_SUM: Final = 1 << 62


def add_source_latency(timings: Timings, timestamps: pa.Array, now: int) -> None:
    """Count how long before *now* (µs UTC) the messages of these *timestamps* were made.

    Two clocks are compared: a message from the future counts as no time. One without a
    timestamp, which is 0, is left out.
    """
    times = timestamps.view(pa.int64())
    if len(times) <= _FEW:
        for time in times.to_pylist():
            if time > 0:
                timings.add(max(0, now - time) / _MICRO)
        return
    ages = pc.subtract(pa.scalar(now, pa.int64()), times)
    least, most = _least_and_most(ages)
    if least < 0 or most >= now:
        ages = ages.filter(pc.less(ages, pa.scalar(now, pa.int64())))
        if not len(ages):
            return
        ages = pc.max_element_wise(ages, _NONE)
        least, most = _least_and_most(ages)
    timings.add_counts(
        _count_by_bucket(ages, timings.bucket_of(least / _MICRO), timings.bucket_of(most / _MICRO)),
        _sum_seconds(ages, most),
    )


def _least_and_most(ages: pa.Array) -> tuple[int, int]:
    """Return the least and the greatest of *ages*, in µs."""
    found = pc.min_max(ages)
    return found["min"].as_py(), found["max"].as_py()


def _count_by_bucket(ages: pa.Array, first: int, last: int) -> list[int]:
    """Count *ages* by bucket. All of them are within *first* to *last*."""
    counts, below = [0] * (last + 1), 0
    for bucket in range(first, last):
        reached = pc.sum(pc.less_equal(ages, _BOUNDS[bucket])).as_py()
        counts[bucket], below = reached - below, reached
    counts[last] = len(ages) - below
    return counts


def _sum_seconds(ages: pa.Array, most: int) -> float:
    """Return the sum of *ages* in seconds. Arrow's sum of integers would overflow silently."""
    if most > _LARGEST_SUM // len(ages):
        return float(pc.sum(pc.divide(ages, _SECOND)).as_py())
    return float(pc.sum(ages).as_py() / _MICRO)


class RouteLatency:
    """Latency from log time to ack, of entries that a route delivers for the first time.

    Belongs to the route's thread. Any thread may read.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        """Compare log times with *clock*, the wall time in µs UTC."""
        self._clock, self._timings = clock, Timings(LATENCY_BOUNDS)
        self._open: list[Append] = []
        self._delivered = 0

    def begin(self, appends: Sequence[Append]) -> None:
        """Record that a slice of *appends* is sent; without any if it has no new entry."""
        self._open, self._delivered = list(appends), 0

    def settle(self, outcome: Outcome) -> None:
        """Count the deliveries of *outcome*, partial or not.

        The entries of a slice that the filter has left out are unknown here. Every append
        counts with its share of the delivered ones.
        """
        if not self._open:
            return
        appends = self._take(outcome.through)
        held = sum(append.entries for append in appends)
        # Shards that are ahead have delivered more than the part that all of them settle.
        self._delivered += outcome.delivered
        count = min(held, self._delivered)
        self._delivered -= count
        now, seen, counted = self._clock(), 0, 0
        for append in appends:
            seen += append.entries
            share = count * seen // held - counted
            counted += share
            if share:
                self._timings.add(max(0, now - append.logged_at) / _MICRO, share)

    def read(self) -> Histogram:
        """Return the counts so far."""
        return self._timings.read()

    def _take(self, through: int) -> list[Append]:
        """Return the part of the appends up to *through*, and keep the rest."""
        whole = 0
        while whole < len(self._open) and self._open[whole].last <= through:
            whole += 1
        taken, self._open = self._open[:whole], self._open[whole:]
        if self._open:
            begun, rest = self._open[0].split(through)
            if begun.entries:
                taken.append(begun)
                self._open[0] = rest
        return taken

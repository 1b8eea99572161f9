"""Counters and duration histograms of the engine, read by metrics.

Each count takes a fraction of a microsecond.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from transporter.log.filesystem import RealFileSystem

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transporter.log.filesystem import File
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

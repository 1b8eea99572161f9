"""Load generator that fills an outbox with made-up records."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Final

from transporter.outbox.database import require_table, translate_errors
from transporter.outbox.record import Record
from transporter.outbox.stashing import stash_many
from transporter.outbox.table import USUAL, Columns

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from transporter.outbox.database import Connection

METER: Final = 5.0
"""Seconds between two readings of the meter."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load of one run.

    Attributes:
        run: Name of the run.
        keys: Number of keys.
        records: Number of records.
        rows: Rows of one transaction.
        rate: Rows a second; 0: as fast as possible.
        value_bytes: Minimum size of each value.
        topic: Topic of the records.
    """

    run: str
    keys: int = 10
    records: int = 1000
    rows: int = 20
    rate: float = 0.0
    value_bytes: int = 200
    topic: str = "pump"

    def transactions(self, rng: random.Random) -> Iterator[list[Record]]:
        """Yield the records of one transaction after the other. *rng* chooses the keys.

        The header ``seq`` counts the records of a key from 1, within the run in the
        header ``run``. A consumer that sees it fall has found a break of order, and
        a gap is a loss.
        """
        counts = [0] * self.keys
        for first in range(0, self.records, self.rows):
            yield [
                self._next_record(counts, rng) for _ in range(min(self.rows, self.records - first))
            ]

    def _next_record(self, counts: list[int], rng: random.Random) -> Record:
        key = rng.randrange(self.keys)
        counts[key] += 1
        return self._make_record(f"key-{key:x}", counts[key])

    def _make_record(self, key: str, sequence: int) -> Record:
        start = f'{{"key":"{key}","seq":{sequence},"pad":"'
        value = f'{start}{"x" * (self.value_bytes - len(start) - 2)}"}}'
        return Record(self.topic, key, value, (("seq", str(sequence)), ("run", self.run)))


@dataclass(frozen=True, slots=True)
class Reading:
    """Reading of a meter: rows so far, and rows a second since the last reading and in all."""

    rows: int
    seconds: float
    rate: float
    mean: float


class LoadMeter:
    """Meter of the rate, with a reading every few seconds. Pure except for its state."""

    def __init__(self, now: float, interval: float = METER) -> None:
        """Start at the time *now*, in seconds of a monotonic clock."""
        self._started_at = self._last_reading_at = now
        self._interval = interval
        self._last_rows = 0

    def seconds_left(self, now: float) -> float:
        """Return the seconds until the next reading."""
        return self._last_reading_at + self._interval - now

    def take_reading(self, rows: int, now: float) -> Reading:
        """Record that there are *rows* at the time *now*, and return the reading."""
        rate = (rows - self._last_rows) / max(now - self._last_reading_at, 1e-9)
        self._last_reading_at, self._last_rows = now, rows
        seconds = now - self._started_at
        return Reading(rows, seconds, rate, rows / max(seconds, 1e-9))


@dataclass
class Pump:
    """Writer of a load into the outbox *table*, one transaction after the other.

    Not thread-safe. It calls *on_commit* after each commit with the rows so far.
    It calls *on_reading* with a reading every few seconds, also while it waits
    because of the rate. *wait* waits for a number of seconds by *clock*.
    """

    connection: Connection
    table: str
    on_commit: Callable[[int], object]
    on_reading: Callable[[Reading], object]
    clock: Callable[[], float] = monotonic
    wait: Callable[[float], object] = field(default_factory=lambda: Event().wait)
    rows: int = 0
    columns: Columns = USUAL

    def run(self, load: Load, rng: random.Random) -> Reading:
        """Insert all of *load*, and return the reading over all of it.

        Raises:
            SourceUnavailable: If the database goes away. ``rows`` are committed then,
                and perhaps those of the transaction in flight.
        """
        require_table(self.connection, self.table)
        meter = LoadMeter(self.clock())
        began = self.clock()
        for records in load.transactions(rng):
            if load.rate:
                self._wait_until(began + self.rows / load.rate, meter)
            self._insert(records)
            if meter.seconds_left(self.clock()) <= 0:
                self.on_reading(meter.take_reading(self.rows, self.clock()))
        if load.rate:
            # So that a load of one transaction has the requested rate as well.
            self._wait_until(began + self.rows / load.rate, meter)
        return LoadMeter(began).take_reading(self.rows, self.clock())

    def _wait_until(self, due: float, meter: LoadMeter) -> None:
        while (seconds := due - self.clock()) > 0:
            self.wait(min(seconds, max(meter.seconds_left(self.clock()), 0.0)))
            if meter.seconds_left(self.clock()) <= 0:
                self.on_reading(meter.take_reading(self.rows, self.clock()))

    def _insert(self, records: list[Record]) -> None:
        action = (
            f"cannot insert into the outbox table {self.table} ({self.rows} rows are committed)"
        )
        with (
            translate_errors(action),
            self.connection.transaction(),
            self.connection.cursor() as cursor,
        ):
            stash_many(cursor, records, table=self.table, columns=self.columns)
        self.rows += len(records)
        self.on_commit(self.rows)

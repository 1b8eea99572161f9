"""Fills an outbox with made-up records, so that a pipeline has something to do."""

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
    """What is inserted: *records* of *keys* keys, *rows* to a transaction, as *run*.

    *rate* is in rows a second, 0 for as fast as it goes; *value_bytes* is the
    least that each value takes.
    """

    run: str
    keys: int = 10
    records: int = 1000
    rows: int = 20
    rate: float = 0.0
    value_bytes: int = 200
    topic: str = "pump"

    def transactions(self, chance: random.Random) -> Iterator[list[Record]]:
        """Yield the records of one transaction after the other; *chance* chooses the keys.

        The header ``seq`` counts the records of a key from 1, within the run
        that the header ``run`` names: whoever sees it fall has found a break of
        order, and whoever sees a gap a loss.
        """
        counts = [0] * self.keys
        for first in range(0, self.records, self.rows):
            yield [self._next(counts, chance) for _ in range(min(self.rows, self.records - first))]

    def _next(self, counts: list[int], chance: random.Random) -> Record:
        key = chance.randrange(self.keys)
        counts[key] += 1
        return self._record(f"key-{key:x}", counts[key])

    def _record(self, key: str, sequence: int) -> Record:
        start = f'{{"key":"{key}","seq":{sequence},"pad":"'
        value = f'{start}{"x" * (self.value_bytes - len(start) - 2)}"}}'
        return Record(self.topic, key, value, (("seq", str(sequence)), ("run", self.run)))


@dataclass(frozen=True, slots=True)
class Reading:
    """What a meter shows: rows so far, and rows a second since the last reading and in all."""

    rows: int
    seconds: float
    rate: float
    mean: float


class Meter:
    """Tells every few seconds how fast it goes. Pure but for its memory."""

    def __init__(self, now: float, interval: float = METER) -> None:
        """Begin at the time *now*, in seconds of a monotonic clock."""
        self._began = self._last = now
        self._interval = interval
        self._rows = 0

    def seconds_left(self, now: float) -> float:
        """Return the seconds until the next reading."""
        return self._last + self._interval - now

    def take_reading(self, rows: int, now: float) -> Reading:
        """Take note that *rows* are there at the time *now*, and show it."""
        rate = (rows - self._rows) / max(now - self._last, 1e-9)
        self._last, self._rows = now, rows
        seconds = now - self._began
        return Reading(rows, seconds, rate, rows / max(seconds, 1e-9))


@dataclass
class Pump:
    """Puts a load into the outbox *table*, one transaction after the other. Not thread-safe.

    *on_commit* hears each commit, with the rows so far; *on_reading* a reading every
    few seconds, also while the rate leaves nothing to do. *wait* waits so many
    seconds by *clock*.
    """

    connection: Connection
    table: str
    on_commit: Callable[[int], object]
    on_reading: Callable[[Reading], object]
    clock: Callable[[], float] = monotonic
    wait: Callable[[float], object] = field(default_factory=lambda: Event().wait)
    rows: int = 0
    columns: Columns = USUAL

    def run(self, load: Load, chance: random.Random) -> Reading:
        """Insert all of *load*; return the reading over all of it.

        Raise ``SourceUnavailable`` when the database goes away: ``rows`` are
        committed then, and perhaps those of the transaction that was on its way.
        """
        require_table(self.connection, self.table)
        meter = Meter(self.clock())
        began = self.clock()
        for records in load.transactions(chance):
            if load.rate:
                self._wait_until(began + self.rows / load.rate, meter)
            self._insert(records)
            if meter.seconds_left(self.clock()) <= 0:
                self.on_reading(meter.take_reading(self.rows, self.clock()))
        return Meter(began).take_reading(self.rows, self.clock())

    def _wait_until(self, due: float, meter: Meter) -> None:
        while (seconds := due - self.clock()) > 0:
            self.wait(min(seconds, max(meter.seconds_left(self.clock()), 0.0)))
            if meter.seconds_left(self.clock()) <= 0:
                self.on_reading(meter.take_reading(self.rows, self.clock()))

    def _insert(self, records: list[Record]) -> None:
        doing = f"cannot insert into the outbox table {self.table} ({self.rows} rows are committed)"
        with (
            translate_errors(doing),
            self.connection.transaction(),
            self.connection.cursor() as cursor,
        ):
            stash_many(cursor, records, table=self.table, columns=self.columns)
        self.rows += len(records)
        self.on_commit(self.rows)

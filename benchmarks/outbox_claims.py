"""Claiming, logging and purging rows of an outbox, against the bare statements."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import psycopg

from benchmarks.claim_workers import BATCH
from benchmarks.figures import OURS, Aim, Comparison, Section, percentile
from benchmarks.latency import RATE, pace_rows
from benchmarks.report import number
from benchmarks.setting import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benchmarks.services import Outbox
    from benchmarks.setting import Setting

_AIMS: Final = {"mark": 0.8, "take": 0.5}
_FLOORS: Final = {"mark": "parsed", "take": "bare"}
"""Which of the rivals is the floor: rows of UPDATE … RETURNING are fetched, lines of COPY read."""
_SHARES: Final = {"p50": 0.5, "p99": 0.99}
_LATE_MS: Final = {"p50": 3.0, "p99": 10.0}
_SLOWER: Final = 1.25
_STATEMENTS: Final = {"mark": "UPDATE … RETURNING + DELETE = ANY", "take": "COPY (SELECT) + DELETE"}
_FILL: Final = """
INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT 'orders', 'customer-' || number %% 1000, json_build_object(
    'order', number, 'customer', 'customer-' || number %% 1000, 'state', 'placed',
    'amount', number %% 100000 / 100.0, 'currency', 'EUR', 'trace', md5(number::text),
    'note', 'leave it with the neighbours, please ring twice'
)::text, ARRAY['trace', 'sequence'], ARRAY['t-' || number, number::text]
FROM generate_series(1, %s) AS number"""

METHOD: Final = f"""\
Rows of about 200 bytes of JSON, 1000 keys, two headers, in outboxes as `transporter outbox init`
makes them, each side with its own database and process. "Claim, log, purge" is the reader of
`postgres-outbox` in the loop of a feed, without Spark: poll, append to a real log on the same
disk, synced, commit, in batches of {BATCH} rows, the default.

The bare statements take as many rows at a time, those behind the last ones. They need no term,
no limit of bytes and no search for late commits, and discard the rows afterwards.

- The driver receives all that `UPDATE … RETURNING` returns. Only the ids become Python objects, for
  `DELETE … WHERE id = ANY`, in a second commit.
- `COPY (SELECT …) TO STDOUT` returns a line of bytes for each row, only the last of which is
  looked at. Its `DELETE` of that range is in the same transaction.
- "As Python objects" is the same with each row made a tuple by psycopg, which a program that uses
  the row needs. With `UPDATE … RETURNING` it is the usual program, so that is the floor of `mark`.

`VACUUM` and `CHECKPOINT` come before each turn, then the rows in one commit. Clocks run from the
start command to the commit that has deleted the last row.

"Until purged" and "until logged" use {RATE} commits a second of one row each. The clock runs
from the return of the application's commit to the commit of the row's purge, or to the moment
when the row is durable in the log. (From the commit to a Kafka consumer: see `latency`.) The
bare statements wait for the same notification. Their rows are "at hand" when the driver has
them.

"A batch of a backlog" is the time of {BATCH} rows claimed, logged and purged: the median of a
turn of ten at the beginning of a table with very many rows. The rival is a table which holds no
more than a turn takes. "The slowest" of a turn is mostly its first, with a sweep from the
table's beginning. Sweeps take a twentieth of the time at most. `VACUUM` and `CHECKPOINT` come
after the filling on both sides.

"An old snapshot" is the same while a `REPEATABLE READ` transaction stays open. It has read the
table before the first of these turns, so no vacuum removes the rows purged since, directly
before the rows that are still to be taken."""  # noqa: S608 - no statement
LIMITS: Final = """\
Our side makes an Arrow batch of the rows, compresses it and syncs it, one thread after the
server's work and before its next. Its statements read the term, add up sizes and look for gaps.
A batch of a large backlog comes from pages that are not in the server's buffers."""


def measure(setting: Setting) -> Section:
    """Drain at full speed, then row by row, then the beginning of a backlog."""
    comparisons = (*_measure_drain(setting), *_measure_waits(setting), *_measure_backlogs(setting))
    return Section("outbox-claims", METHOD, comparisons, limits=LIMITS)


class _Taker:
    """A process of :mod:`benchmarks.claim_workers` on an outbox."""

    def __init__(self, stack: ExitStack, role: str, outbox: Outbox, folder: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.claim_workers", role, outbox.dsn, str(folder)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        stack.callback(self._process.wait)
        stack.enter_context(self._process)
        stack.callback(self._process.kill)
        self.outbox, self._role = outbox, role
        self._read_line()

    def start(self, rows: int) -> None:
        """Start it on *rows* rows, which it takes as soon as they are there."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.write(f"{rows}\n")
        self._process.stdin.flush()

    def result(self) -> Any:  # noqa: ANN401 - when it began, and its steps
        """Wait until it has taken them, and return the times."""
        return json.loads(self._read_line())

    def _read_line(self) -> str:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"the process of {self._role!r} has ended by itself")
        return line


def _start_taker(setting: Setting, stack: ExitStack, role: str, kind: str) -> _Taker:
    name = f"{kind}-{role.replace(' ', '-')}"
    outbox = setting.services.postgres.outbox(f"claims-{name}")
    stack.callback(outbox.connection.close)
    return _Taker(stack, role, outbox, setting.make_folder(name))


# At full speed


def _measure_drain(setting: Setting) -> list[Comparison]:
    rows = setting.scale(200_000, 20_000)
    with ExitStack() as stack:
        roles = [f"{kind}{claim}" for claim in _AIMS for kind in ("", "bare ", "parsed ")]
        found = setting.interleave(
            {
                role: partial(_rate, _start_taker(setting, stack, role, "drain"), rows)
                for role in roles
            }
        )
    return [
        Comparison(
            f"claim, log, purge, by {claim}",
            f"{_STATEMENTS[claim]}{how}",
            "rows/s",
            found[claim],
            found[f"{kind} {claim}"],
            aim,
        )
        for claim, least in _AIMS.items()
        for kind, how in (("bare", ""), ("parsed", ", as Python objects"))
        for aim in (Aim(least, at_least=True) if kind == _FLOORS[claim] else None,)
    ]


def _rate(taker: _Taker, rows: int) -> float:
    taker.outbox.tidy()
    with taker.outbox.connection.transaction():
        taker.outbox.fill(rows)
    found = _take_rows(taker, rows)
    if not taker.outbox.empty:
        raise RuntimeError("rows that were taken are still in the table")
    return float(rows / (found["steps"][-1][-1] - found["began"]))


def _take_rows(taker: _Taker, rows: int) -> Any:  # noqa: ANN401 - when it began, and its steps
    """Have *taker* take *rows* rows that are there, and return the times."""
    taker.start(rows)
    found = taker.result()
    if (count := found["steps"][-1][0]) != rows:
        raise RuntimeError(f"{count} rows of {rows} were taken")
    return found


# Row by row


def _measure_waits(setting: Setting) -> list[Comparison]:
    rows = setting.scale(2 * RATE, RATE // 2)
    with ExitStack() as stack:
        roles = [f"{kind}{claim}" for claim in _AIMS for kind in ("", "bare ")]
        takers = {role: _start_taker(setting, stack, role, "wait") for role in roles}
        found = setting.interleave(
            {role: partial(_take_one_by_one, taker, rows) for role, taker in takers.items()}
        )
    return [
        Comparison(
            f"until {end}, by {claim}, {label}",
            f"{_STATEMENTS[claim]}, until {rival}, {label}",
            "ms",
            tuple(percentile(times[at], share) for times in found[claim]),
            tuple(percentile(times[at], share) for times in found[f"bare {claim}"]),
            Aim(_LATE_MS[label], at_least=False, figure=OURS) if end == "purged" else None,
        )
        for claim in _AIMS
        for at, end, rival in ((1, "purged", "deleted"), (0, "logged", "at hand"))
        for label, share in _SHARES.items()
    ]


def _take_one_by_one(taker: _Taker, rows: int) -> tuple[list[float], list[float]]:
    """Commit *rows* rows at a steady rate. Return the ms of each until at hand and purged."""
    taker.outbox.tidy()
    taker.start(rows)
    sent = []
    for row in pace_rows(rows):
        taker.outbox.insert(*row)
        sent.append(time.time())
    return waits(sent, taker.result()["steps"])


def waits(
    sent: Sequence[float], steps: Sequence[tuple[int, float, float]]
) -> tuple[list[float], list[float]]:
    """Return the ms that each row took until it was at hand, and until it was purged.

    Rows are taken in the order in which they are sent. A step has the number of those taken by
    then, and the times when its own were at hand and purged.
    """
    at_hand: list[float] = []
    purged: list[float] = []
    for count, had, done in steps:
        for began in sent[len(purged) : count]:
            at_hand.append(1000 * (had - began))
            purged.append(1000 * (done - began))
    if len(purged) != len(sent):
        raise RuntimeError(f"{len(purged)} rows of {len(sent)} were taken")
    return at_hand, purged


# The beginning of a backlog


def _measure_backlogs(setting: Setting) -> list[Comparison]:
    rows = setting.scale(10_000_000, 400_000)
    with ExitStack() as stack:
        large = setting.services.postgres.outbox("claims-large")
        stack.callback(large.connection.close)
        small = setting.services.postgres.outbox("claims-small")
        stack.callback(small.connection.close)
        setting.report(f"filling an outbox with {rows} rows")
        large.connection.execute(_FILL, [rows])
        what = f"of a backlog of {number(rows)} rows"
        found = [
            each
            for held in (False, True)
            for claim in _AIMS
            for each in _measure_backlog(setting, claim, large, small, what, held=held)
        ]
        large.connection.execute("TRUNCATE outbox")
    return found


def _measure_backlog(
    setting: Setting, claim: str, large: Outbox, small: Outbox, what: str, *, held: bool
) -> Iterator[Comparison]:
    """Measure batches at the beginning of *large*, which holds a backlog."""
    count = BATCH * setting.scale(10, 3)
    name = f"{claim}-{'snapshot' if held else 'free'}"
    with ExitStack() as stack:
        begin = _Taker(stack, claim, large, setting.make_folder(f"large-{name}"))
        empty = _Taker(stack, claim, small, setting.make_folder(f"small-{name}"))
        if held:
            stack.enter_context(_old_snapshot(large))
        found = setting.interleave(
            {
                "backlog": partial(_batches, begin, count),
                "empty": partial(_batches, empty, count, fill=True),
            },
            setting.scale(3, 2),
        )
    for which, pick, aim in (
        ("a batch", median, Aim(_SLOWER, at_least=False)),
        ("the slowest batch", max, None),
    ):
        yield Comparison(
            f"{which} {what}{', an old snapshot' * held}, by {claim}",
            f"{which} of an almost empty table",
            "ms",
            tuple(map(pick, found["backlog"])),
            tuple(map(pick, found["empty"])),
            aim,
        )


def _batches(taker: _Taker, rows: int, *, fill: bool = False) -> list[float]:
    """Return the ms that each batch of *rows* rows took."""
    if fill:
        taker.outbox.connection.execute(_FILL, [rows])
    taker.outbox.tidy()
    found = _take_rows(taker, rows)
    return batch_times(found["began"], found["steps"])


def batch_times(began: float, steps: Sequence[tuple[int, float, float]]) -> list[float]:
    """Return the ms from the end of each step to that of the next. The first began at *began*."""
    ends = [began, *(done for *_, done in steps)]
    return [1000 * (end - start) for start, end in pairwise(ends)]


@contextmanager
def _old_snapshot(outbox: Outbox) -> Iterator[None]:
    """Hold a snapshot of the table open during the block."""
    with psycopg.connect(outbox.dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT FROM outbox LIMIT 1")
        yield

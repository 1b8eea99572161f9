"""Several readers that append at once, against one: the gain of a sync that serves many."""

from __future__ import annotations

import threading
import time
from functools import partial
from itertools import count as numbers
from typing import TYPE_CHECKING, Final

from benchmarks.figures import Aim, Comparison, Section
from benchmarks.log_append import SlowDisk
from benchmarks.messages import batches
from transporter.log.commit_log import CommitLog

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from benchmarks.setting import Setting

_READERS: Final = 8
_ROWS: Final = 100
_DELAY: Final = 0.002
_AIM: Final = Aim(6.0, at_least=True)

METHOD: Final = f"""\
{_READERS} threads each append {_ROWS} messages at a time and wait until they are durable, as
readers do. They are compared with one such thread, on the same log's code. Every `fdatasync` is
preceded by a sleep of 2 ms, as a disk without a write cache needs. "This disk" is without it. A
reader makes as many appends on both sides. If every sync served all, the ratio would be
{_READERS}."""
LIMITS: Final = """\
Threads that one sync has served come back while the next one runs, and wait for the one after
it. The encoding of eight appends takes one core 1.7 ms, beside 2.2 for the sync."""


def measure(setting: Setting) -> Section:
    """Compare many readers with one, on a slow disk and on this one."""
    ready, place = batches(_READERS, _ROWS), setting.make_folder("logs")
    slow, quick = setting.scale(200, 40), setting.scale(800, 80)
    fresh = map("log-{}".format, numbers())

    def run(readers: int, each: int, delay: float) -> float:
        return append_rate(place / next(fresh), ready[:readers], each, delay)

    found = setting.interleave(
        {
            "many, slow": partial(run, _READERS, slow, _DELAY),
            "one, slow": partial(run, 1, slow, _DELAY),
            "many": partial(run, _READERS, quick, 0.0),
            "one": partial(run, 1, quick, 0.0),
        }
    )
    many, unit = f"{_READERS} readers", "messages/s"
    return Section(
        "group-commit",
        METHOD,
        (
            Comparison(
                f"{many}, sync + 2 ms",
                "one reader, sync + 2 ms",
                unit,
                found["many, slow"],
                found["one, slow"],
                _AIM,
            ),
            Comparison(
                f"{many}, this disk", "one reader, this disk", unit, found["many"], found["one"]
            ),
        ),
        limits=LIMITS,
    )


def append_rate(directory: Path, ready: list[pa.RecordBatch], each: int, delay: float) -> float:
    """Return the messages that threads, one for each of *ready*, append in a second.

    Raises:
        RuntimeError: not all that they appended is durable.

    """
    with CommitLog.open(directory, files=SlowDisk(delay)) as log:
        threads = [
            threading.Thread(target=_append, args=(log, batch, each, f"reader-{number}"))
            for number, batch in enumerate(ready)
        ]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - began
        rows = each * sum(int(batch.num_rows) for batch in ready)
        if log.durable != rows - 1:
            raise RuntimeError(f"{rows} were appended, and {log.durable + 1} are durable")
        return rows / took


def _append(log: CommitLog, batch: pa.RecordBatch, count: int, reader: str) -> None:
    for _ in range(count):
        log.append(batch, reader, "position")

"""Compaction: its speed and memory alone, and its effect on an appender beside it."""

from __future__ import annotations

import base64
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from benchmarks.figures import OURS, Aim, Comparison, Section, percentile
from benchmarks.messages import batches
from transporter.engine.maintenance.compactor import CompactionStopped, Throttle
from transporter.log.commit_log import CommitLog
from transporter.log.compaction import CompactionSettings, compact
from transporter.message import MESSAGE_SCHEMA, Message, messages_to_batch
from transporter.pipeline.retention_config import CompactionConfig

if TYPE_CHECKING:
    from benchmarks.setting import Setting

_ROWS: Final = 1000
_DATA: Final = 1000
_LATE: Final = 1 << 60
_ALONE: Final = Aim(100.0, at_least=True, figure=OURS)
_RATE: Final = Aim(0.8, at_least=True)
_TAIL: Final = Aim(2.0, at_least=False)
_FLAT: Final = Aim(1.25, at_least=False)

METHOD: Final = """\
A log of {size} GiB in segments of {segment} MiB, lz4, with messages of about 1 KiB. Their data is
random base64. Every second message has its own key, and the others have one of 500 keys that all
frames repeat. Half the entries survive (`keep: key`), some of every frame.

"Alone" is `compact` of all sealed segments in its own process: its input divided by the time,
including several passes over the keys. Memory is that process's peak, against one that compacts a
tenth of the log. "Beside" is one caller that appends frames of 1000 messages of about 200 bytes,
each durable before the next. It runs with and without a compaction of another log on the same
disk, at its default rate."""
LIMITS: Final = """\
The surviving part of a frame is decompressed, filtered and compressed again, and whole keys are
compared. If millions of them do not fit into 64 MiB, the keys are read in several passes."""


class Alone(NamedTuple):
    """A compaction in a process of its own: MB/s of input, peak MiB, share kept."""

    rate: float
    memory: float
    kept: float


class Append(NamedTuple):
    """The speed of an appender: messages a second, and the p99 of an append in ms."""

    rate: float
    tail: float


def measure(setting: Setting) -> Section:
    """Compact a large log and a small one alone, then append beside a compaction."""
    size = setting.scale(10 << 30, 256 << 20)
    segment = setting.scale(1 << 30, 32 << 20)
    large, small = setting.make_folder("large") / "log", setting.make_folder("small") / "log"
    setting.report(f"writing {size >> 20} MiB")
    write_log(large, size, segment)
    write_log(small, size // 10, segment // 10)
    alone, little = compact_alone(large), compact_alone(small)
    shutil.rmtree(large)
    found = _append_beside(setting, small, size // 10, segment // 10)
    method = METHOD.format(size=round(size / (1 << 30), 2), segment=segment >> 20)
    note = f"{alone.kept:.1%} of the entries were kept; the peak was {alone.memory:.0f} MiB."
    comparisons = (
        Comparison(
            "compaction alone",
            "a tenth of the log",
            "MB/s of input",
            (alone.rate,),
            (little.rate,),
            _ALONE,
        ),
        Comparison(
            "peak memory", "a tenth of the log", "MiB", (alone.memory,), (little.memory,), _FLAT
        ),
        _compare("append beside compaction", found, "messages/s", 0, _RATE),
        _compare("append beside compaction, p99", found, "ms", 1, _TAIL),
    )
    return Section("compaction", method, comparisons, (note,), LIMITS)


def write_log(directory: Path, size: int, segment_bytes: int) -> None:
    """Make a log of about *size* bytes of which half the entries are obsolete."""
    chance = random.Random(7)  # noqa: S311 - the same bytes in every run
    ready = [_data(chance) for _ in range(16)]
    with CommitLog.open(directory, segment_bytes=segment_bytes) as log:
        frames = 0
        while frames * _ROWS * (_DATA + 30) < size:
            log.append(_frame(ready[frames % len(ready)], frames), "bench", str(frames))
            frames += 1


def _data(chance: random.Random) -> pa.RecordBatch:
    texts = (base64.b64encode(chance.randbytes(_DATA * 3 // 4)) for _ in range(_ROWS))
    return messages_to_batch([Message("orders.placed", text) for text in texts])


def _frame(ready: pa.RecordBatch, number: int) -> pa.RecordBatch:
    keys = [
        b"customer-%012d" % (number * _ROWS + row) if row % 2 else b"hot-%d" % (row // 2)
        for row in range(_ROWS)
    ]
    at = MESSAGE_SCHEMA.get_field_index("key")
    return ready.set_column(at, MESSAGE_SCHEMA.field("key"), pa.array(keys, pa.binary()))


def compact_alone(directory: Path) -> Alone:
    """Compact the log in *directory* in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.compaction", str(directory)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return Alone(*json.loads(said))


def _compact(directory: Path) -> Alone:
    import resource  # noqa: PLC0415 - not on every system, and needed here only

    began = time.perf_counter()
    report = compact(
        directory, watermark=lambda: _LATE, settings=CompactionSettings(0.0, "key"), now=_LATE
    )
    took = time.perf_counter() - began
    before = sum(each.before for each in report.segments)
    kept = sum(each.kept for each in report.segments) / sum(
        each.entries for each in report.segments
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Alone(before / took / 1e6, peak, kept)


def _append_beside(
    setting: Setting, directory: Path, size: int, segment_bytes: int
) -> dict[str, tuple[Append, ...]]:
    seconds = setting.scale(20, 3)
    place = setting.make_folder("append") / "log"

    def quiet() -> Append:
        return _append(place, seconds)

    def busy() -> Append:
        shutil.rmtree(directory, ignore_errors=True)
        write_log(directory, size, segment_bytes)
        stopping = threading.Event()
        compaction = threading.Thread(target=partial(_compact_at_rate, directory, stopping))
        compaction.start()
        try:
            return _append(place, seconds)
        finally:
            stopping.set()
            compaction.join()

    return setting.interleave({"quiet": quiet, "busy": busy}, setting.scale(3, 1))


def _compact_at_rate(directory: Path, stopping: threading.Event) -> None:
    pace = Throttle(CompactionConfig().rate, stopping)
    settings = CompactionSettings(0.0, "key")
    with suppress(CompactionStopped):
        compact(directory, watermark=lambda: _LATE, settings=settings, now=_LATE, progress=pace)


def _append(directory: Path, seconds: float) -> Append:
    shutil.rmtree(directory, ignore_errors=True)
    ready = batches(20, _ROWS)
    took: list[float] = []
    with CommitLog.open(directory) as log:
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            log.append(ready[len(took) % len(ready)], "bench", "position")
            took.append(time.perf_counter() - began)
    return Append(len(took) * _ROWS / sum(took), 1000 * percentile(took, 0.99))


def _compare(
    subject: str, found: dict[str, tuple[Append, ...]], unit: str, which: int, aim: Aim
) -> Comparison:
    ours = tuple(each[which] for each in found["busy"])
    theirs = tuple(each[which] for each in found["quiet"])
    return Comparison(subject, "append alone", unit, ours, theirs, aim)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_compact(Path(sys.argv[1]))))

"""Growth curves: the time of each thing against its size."""

from __future__ import annotations

import json
import shutil
import time
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.figures import Aim, Comparison, Curve, Section
from benchmarks.messages import batches
from benchmarks.report import number
from benchmarks.setting import wait_until
from benchmarks.sparkless import launch
from transporter.engine.engine import Engine
from transporter.engine.reading.acknowledgement import UnacknowledgedBatches
from transporter.engine.reading.reader_resume import LogResume
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.index import reindex
from transporter.log.reader import LogReader
from transporter.message import Message, messages_to_batch, with_offsets
from transporter.offsets.offset_log import OffsetLog, StoredRoutes, route_folder
from transporter.offsets.parked import ParkedEntry, ParkedStore, ParkReason
from transporter.offsets.state import Range, RouteState, settle
from transporter.pipeline.config import load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.setting import Setting

_NEAR_LINEAR: Final = Aim(1.25, at_least=False)
_PROMPT: Final = Aim(1.0, at_least=False)
_REPEATS: Final = 3
_FAR: Final = 1 << 60
_MIB: Final = 1 << 20

METHOD: Final = """\
Each curve does the same thing with increasing sizes, on the parts themselves, in one process.
Its figure is the *slope*: the exponent of the power of the size that the median times follow, by
least squares over their logarithms. 1 is linear, 2 quadratic, and 0 does not grow. A curve that
stops growing at some bound shows a small slope.

The sizes and times are in the notes. Times are CPU time of the process, on which a busy machine
or a slow disk has little effect. "Routes" and the stops use the clock's.

"Routes" is a whole engine with forked workers, without Spark, into a writer that does nothing. A
log of {routes_rows} entries waits for each of them. "Start" opens full offset logs (1 MiB of
events each). "New reader" and "lost indexes" represent a log of 10 GiB by one of at most
{log_mib} MiB. A stop is timed while the engine of the curve is at work: {stops}."""
LIMITS: Final = """\
A slope above the aim means work that grows faster than its subject. The stop of 64 routes comes
while most of their workers are still starting, on few cores: the engine's own part takes 0.1 s."""


def measure(setting: Setting) -> Section:
    """Measure every curve."""
    curves, stops = [], {}
    for name, sizes, of in _curves(setting):
        setting.report(f"{name}: {', '.join(map(str, sizes))}")
        points = []
        for size in sizes:
            place = setting.make_folder(f"{name.replace(' ', '-')}-{size}")
            points.append((size, of(place, size)))
            shutil.rmtree(place)
        curves.append(Curve(name, _UNITS[name], tuple(points)))
    for what, stop in _STOPS.items():
        setting.report(f"stop: {what}")
        times = []
        for _ in range(_REPEATS):
            place = setting.make_folder(f"stop-{what.replace(' ', '-')}")
            times.append(stop(place, setting.scale(1, 16)))
            shutil.rmtree(place)
        stops[what] = tuple(times)
    comparisons = [
        Comparison(f"slope, {each.what}", "linear", "", (each.slope,), (1.0,), _NEAR_LINEAR)
        for each in curves
    ] + [
        Comparison(f"a stop, {what}", "a second", "s", seconds, (1.0,) * _REPEATS, _PROMPT)
        for what, seconds in stops.items()
    ]
    method = METHOD.format(
        routes_rows=_ROUTE_ROWS,
        log_mib=setting.scale(1024, 64),
        stops=", ".join(_STOPS),
    )
    notes = tuple(map(_note, curves))
    return Section("growth", method, tuple(comparisons), notes, LIMITS, tuple(curves))


def _note(curve: Curve) -> str:
    """Return the sizes of *curve* and their times."""
    parts = (f"{size:,}: {number(1e3 * each)} ms".replace(",", " ") for size, each in curve.points)
    return f"{curve.what} ({curve.unit}): {' · '.join(parts)}"


_UNITS: Final = {
    "routes": "routes; until all have delivered",
    "parking": "entries; until all are parked",
    "opening parked": "parked entries; one open",
    "keys of parked": "parked entries; one slice screened",
    "namespaces": "known namespaces; one settle",
    "superseding": "interleaved ranges; one record",
    "segments": "segments; one open of the log",
    "max in flight": "entries of two readers; all delivered",
    "start": "routes; all offset logs opened",
    "new reader": "MiB of log; before its first poll",
    "lost indexes": "MiB of log; all of them made again",
}


def _curves(
    setting: Setting,
) -> list[tuple[str, Sequence[int], Callable[[Path, int], float]]]:
    """Return each curve's name, its sizes, and the function that times one of them."""
    logs = (64, 256, 1024) if not setting.quick else (16, 32, 64)
    many = (1_000, 10_000, 100_000) if not setting.quick else (250, 500, 1_000)
    return [
        ("routes", (1, 4, 16, 64) if not setting.quick else (1, 2, 4), _routes),
        ("parking", many, _park),
        ("opening parked", many, _open_parked),
        ("keys of parked", many, _screen),
        ("namespaces", (1, 100, 10_000, 100_000), _namespaces),
        ("superseding", many, _supersede),
        ("segments", (10, 100, 1_000, 10_000) if not setting.quick else (5, 10, 20), _segments),
        ("max in flight", many, _deliver_in_flight),
        ("start", (1, 7, 50) if not setting.quick else (1, 2, 4), _start),
        ("new reader", logs, _new_reader),
        ("lost indexes", logs, _lost_indexes),
    ]


def _time_call(do: Callable[[], object], repeats: int = _REPEATS) -> float:
    """Return the median seconds of this process's CPU that *do* takes."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        do()
        times.append(time.process_time() - began)
    return max(median(times), 1e-9)


# Routes

_ROUTE_ROWS: Final = 20_000


def _routes(place: Path, size: int) -> float:
    _fill(place / "log", rows=_ROUTE_ROWS)
    engine = _engine(place, size)
    began = time.perf_counter()
    engine.start()
    try:
        wait_until(lambda: _lag(engine) == 0, 600, "all routes have delivered")
        return time.perf_counter() - began
    finally:
        engine.stop(0)


def _lag(engine: Engine) -> int:
    return max(each.lag for each in engine.status().routes)


def _engine(place: Path, routes: int, **route: object) -> Engine:
    """Return an engine of *routes* null routes on the log in *place*. Its source is empty."""
    path = place / "growth.yaml"
    reader = {"name": "none", "adaptor": "file", "path": "none/*.jsonl", "follow": True}
    writer = {"adaptor": "benchmarks.null:NullWriter"}
    document = {
        "log": {"dir": "log"},
        "readers": [reader],
        "routes": [{"name": f"r{n}", "writer": writer, **route} for n in range(routes)],
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return Engine(load(path, {}), launch, _ignore)


def _ignore(event: str, **details: object) -> None:
    """Ignore an event."""


def _fill(directory: Path, rows: int, segment_bytes: int = 1 << 30) -> None:
    ready = batches(20, 1000)
    with CommitLog.open(directory, segment_bytes=segment_bytes) as log:
        for done in range(0, rows, 1000):
            log.append(ready[done // 1000 % len(ready)].slice(0, rows - done), "bench")


# Parked entries


def _parked_entries(size: int) -> list[ParkedEntry]:
    ready = [Message("n", b"x" * 100, b"key-%d" % n) for n in range(size)]
    batch = with_offsets(messages_to_batch(ready), 0, 1)
    return [ParkedEntry(n, batch.slice(n, 1), ParkReason("no", 1, 0)) for n in range(size)]


def _store(place: Path, size: int) -> ParkedStore:
    store, entries = ParkedStore(place), _parked_entries(size)
    for first in range(0, size, 500):
        store.park_all(entries[first : first + 500])
    return store


def _park(place: Path, size: int) -> float:
    return _time_call(lambda: _store(place, size), 1)


def _open_parked(place: Path, size: int) -> float:
    _store(place, size)
    return _time_call(lambda: ParkedStore(place))


def _screen(place: Path, size: int) -> float:
    """Time a slice's queries of a store: all its keys, and the first entry of 1 000 of them."""
    store = _store(place, size)

    def screen() -> None:
        keys = list(store.keys())
        for turn in range(1_000):
            store.first_of(keys[turn % len(keys)])
        _ = store.known_offsets

    return _time_call(screen)


# Offset logs


def _namespaces(place: Path, size: int) -> float:  # noqa: ARG001 - pure
    state = RouteState(namespaces={f"orders.{n}": n for n in range(size)})
    settles = 500

    def settle_all() -> None:
        after, first = state, size
        for offset in range(first, first + settles):
            after = settle(after, Range(offset, offset), {f"new.{offset}": offset})

    return _time_call(settle_all) / settles


def _supersede(place: Path, size: int) -> float:
    numbers = count()
    parts = [(2 * n + 1, 2 * n + 1) for n in range(size)]

    def supersede() -> None:
        with OffsetLog(place, f"r{next(numbers)}") as offsets:
            offsets.supersede("in", 2 * size, parts, _FAR)

    return _time_call(supersede)


def _start(place: Path, size: int) -> float:
    _fill_offset_log(place, "r0")
    for route in range(1, size):
        shutil.copytree(route_folder(place, "r0"), route_folder(place, f"r{route}"))

    def start() -> None:
        stored = StoredRoutes(place)
        stored.highest_offset()
        for route in range(size):
            offsets = OffsetLog(place, f"r{route}", stored_routes=stored)
            del offsets  # Not closed: the next start finds full files again.

    return _time_call(start, 1)


def _fill_offset_log(place: Path, route: str) -> None:
    """Leave an offset log whose file in use is nearly full, as a killed engine does."""
    offsets = OffsetLog(place, route)
    for offset in range(9_000):
        offsets.settle(Range(offset, offset), _FAR, {f"orders.{offset % 100}": offset})
    offsets.sync()


# The log


def _segments(place: Path, size: int) -> float:
    (row,) = batches(1, 1)
    with CommitLog.open(place, segment_bytes=1) as log:
        for _ in range(size):
            log.append(row, "bench")

    def opened() -> None:
        with CommitLog.open(place), LogReader(place) as reader:
            reader.first_offset()

    return _time_call(opened)


def _deliver_in_flight(place: Path, size: int) -> float:  # noqa: ARG001 - pure
    """Time two readers whose batches of one entry each alternate. Routes advance by 1 000."""

    def deliver_all() -> None:
        readers = UnacknowledgedBatches(), UnacknowledgedBatches()
        for offset in range(size):
            readers[offset % 2].add(str(offset), [(offset, offset)])
        for through in range(999, size + 999, 1_000):
            for each in readers:
                each.deliver(through, frozenset())
                each.take_whole_position()
        if any(len(each) for each in readers):
            raise RuntimeError("not all is delivered")

    return _time_call(deliver_all)


def _fill_megabytes(directory: Path, size: int) -> None:
    """Make a log of about *size* MiB, in segments of 4 MiB."""
    ready = batches(20, 100)
    wanted, turn = size * _MIB, count()
    with CommitLog.open(directory, segment_bytes=4 * _MIB, compression=None) as log:
        while log.used_bytes < wanted:
            for _ in range(200):
                log.append(ready[next(turn) % len(ready)], "bench")


def _new_reader(place: Path, size: int) -> float:
    _fill_megabytes(place, size)
    with CommitLog.open(place) as log:
        return _time_call(lambda: list(LogResume(log, "nobody", _ignore).recent()), 1)


def _lost_indexes(place: Path, size: int) -> float:
    _fill_megabytes(place, size)
    for path in place.glob("*.index"):
        path.unlink()
    return _time_call(lambda: reindex(RealFileSystem(), place), 1)


# Stops


def _stop_routes(place: Path, less: int) -> float:
    _fill(place / "log", rows=200_000 // less)
    engine = _engine(place, 64 // less)
    engine.start()
    wait_until(lambda: engine.status().routes[0].delivered > 0, 60, "a route delivers")
    return _time_stop(engine)


def _stop_parked(place: Path, less: int) -> float:
    _fill(place / "log", rows=100_000 // less)
    OffsetLog(place / "log", "r0").close()
    _store(route_folder(place / "log", "r0"), 10_000 // less)
    engine = _engine(place, 1)
    engine.start()
    return _time_stop(engine)


def _stop_without_indexes(place: Path, less: int) -> float:
    _fill_megabytes(place / "log", 512 // less)
    for path in (place / "log").glob("*.index"):
        path.unlink()
    engine = _engine(place, 1, start="latest")
    engine.start()
    return _time_stop(engine)


def _time_stop(engine: Engine) -> float:
    began = time.perf_counter()
    engine.stop(0)
    return time.perf_counter() - began


_STOPS: Final = {
    "64 routes": _stop_routes,
    "10 000 parked": _stop_parked,
    "lost indexes": _stop_without_indexes,
}

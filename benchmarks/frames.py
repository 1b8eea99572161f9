"""The cost of a slice as a DataFrame into Parquet, and its rows a second."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psutil  # type: ignore[import-untyped]
import pyarrow.dataset as ds

from benchmarks.figures import OURS, Aim, Comparison, Section, percentile
from benchmarks.messages import batches
from benchmarks.setting import ROOT
from benchmarks.spark_workers import run_spark
from transporter.embed import cache_directory
from transporter.log.commit_log import CommitLog
from transporter.offsets.offset_log import route_folder
from transporter.pipeline.steps.step import StepConfig
from transporter.protocol.messages import Outcome, Slice, WorkerSpec
from transporter.spark.launch import SparkLauncher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from benchmarks.setting import Setting

_FRAME: Final = 1000
_LARGE: Final = 250_000
_RATE: Final = Aim(600_000, at_least=True, figure=OURS)
_OVERHEAD: Final = Aim(60, at_least=False, figure=OURS)
_QUERY: Final = "SELECT offset, timestamp, namespace, key, data FROM entries WHERE op <> 'delete'"

METHOD: Final = f"""\
`{_QUERY}` of messages of about 200 bytes of JSON into Parquet on this disk. Each slice is one
job, whose files are synced, committed by a synced rename, and moved to their place. The rival is
a route whose worker in the same Spark gives the same slices of the same log to a null writer.

A round trip is everything that the route waits for: the request, the read of the log, the
delivery, the outcome. Large slices have {_LARGE} rows, in frames of {_FRAME}. Rates are rows of
such slices over their time. Before the measurement, 300 slices (100 in a quick run) let the JVM
compile its code."""
LIMITS: Final = """\
Each slice is a Spark job. For a slice of 1 row, Spark's own planning, tasks and file take 84 %,
making the DataFrame 5 %, its count of the rows 4 %, our syncs and renames 3 %. A cold JVM also
compiles: a small slice took 165 ms of CPU after 140 slices, 126 ms after 640. Without Hadoop's
native library each new file, and each task's folder, costs a process, which runs chmod. Large
slices pass through a Python process into the JVM, and become rows there. Half of the tasks'
computation after that is Spark's Parquet writer."""


def measure(setting: Setting) -> Section:
    """Time slices of three sizes, through Spark and to nowhere, in turns."""
    slices = setting.scale(4, 1)
    few, warm = setting.scale(20, 5), setting.scale(300, 100)
    routes = _Routes(setting, slices * _LARGE)
    with routes.run_workers():
        setting.report(f"{warm} slices to warm Spark up")
        routes.trips("daily", _FRAME, warm)
        sides: dict[str, Callable[[], _Turn]] = {}
        for route in ("daily", "null"):
            sides[f"{route} 1"] = partial(routes.trips, route, 1, few)
            sides[f"{route} {_FRAME}"] = partial(routes.trips, route, _FRAME, few)
            sides[f"{route} {_LARGE}"] = partial(routes.trips, route, _LARGE, slices)
        found = setting.interleave(sides, setting.scale(3, 2))
    routes.check()
    return Section("frames", METHOD, _compare(found), limits=LIMITS)


@dataclass(frozen=True, slots=True)
class _Turn:
    """The milliseconds of each slice, and the CPU seconds of all processes for all of them."""

    times: list[float]
    cpu: float


def _compare(found: dict[str, tuple[_Turn, ...]]) -> tuple[Comparison, ...]:
    def median(route: str, rows: int) -> tuple[float, ...]:
        return tuple(percentile(turn.times, 0.5) for turn in found[f"{route} {rows}"])

    def rate(route: str) -> tuple[float, ...]:
        return tuple(
            len(turn.times) * _LARGE * 1000 / sum(turn.times) for turn in found[f"{route} {_LARGE}"]
        )

    def cpu(route: str, rows: int, each: float) -> tuple[float, ...]:
        return tuple(
            turn.cpu * each / (len(turn.times) * rows) for turn in found[f"{route} {rows}"]
        )

    rival = "to a null writer in a worker"
    return (
        Comparison(f"slices of {_LARGE}", rival, "rows/s", rate("daily"), rate("null"), _RATE),
        Comparison(
            "CPU of a million rows, all processes",
            rival,
            "s",
            cpu("daily", _LARGE, 1e6),
            cpu("null", _LARGE, 1e6),
        ),
        Comparison(
            "CPU of a slice of 1, all processes",
            rival,
            "ms",
            cpu("daily", 1, 1e3),
            cpu("null", 1, 1e3),
        ),
        *(
            Comparison(
                f"slice of {rows}, p50",
                rival,
                "ms",
                median("daily", rows),
                median("null", rows),
                _OVERHEAD,
            )
            for rows in (1, _FRAME)
        ),
    )


class _Routes:
    """Two routes on one log and one Spark: ``daily`` into Parquet, ``null`` to nowhere."""

    def __init__(self, setting: Setting, rows: int) -> None:
        self._setting, self._rows = setting, rows
        self._directory, self._out = setting.make_folder("log"), setting.make_folder("daily")
        self._workers: dict[str, Connection[Any, Any]] = {}
        self._delivered = 0

    @contextmanager
    def run_workers(self) -> Iterator[None]:
        """Have a worker for each route, which the supervisor starts in a real Spark."""
        log_id = self._fill()
        launcher = SparkLauncher(self._directory, cache_directory(), "local", {}, frames=True)
        with ExitStack() as stack:
            spark = stack.enter_context(run_spark(self._setting, launcher))
            for route in ("daily", "null"):
                worker = spark.run_worker(self._spec(log_id, route))
                self._workers[route] = stack.enter_context(worker)
            yield

    def trips(self, route: str, rows: int, count: int) -> _Turn:
        """Return the times of *count* slices of *rows*, from the log's start on."""
        before = self._cpu()
        times = [self._trip(route, number * rows, rows) for number in range(count)]
        return _Turn(times, self._cpu() - before)

    def _cpu(self) -> float:
        # The host, its JVM, Python's daemon and its workers. This process is the engine's part.
        processes = psutil.Process().children(recursive=True)
        return time.process_time() + sum(sum(each.cpu_times()[:2]) for each in processes)

    def check(self) -> None:
        """Raise unless every sent row is in Parquet."""
        written = ds.dataset(self._out, format="parquet").count_rows()
        if written != self._delivered:
            raise RuntimeError(f"{written} rows are in Parquet, {self._delivered} were sent")

    def _trip(self, route: str, first: int, rows: int) -> float:
        worker = self._workers[route]
        began = time.perf_counter()
        worker.send(Slice(first, first + rows - 1, 0))
        outcome = worker.recv()
        took = time.perf_counter() - began
        if not isinstance(outcome, Outcome) or outcome.failure or outcome.delivered != rows:
            raise RuntimeError(f"{rows} rows from {first} came back as {outcome}")
        self._delivered += rows if route == "daily" else 0
        return took * 1000

    def _fill(self) -> str:
        ready = batches(10, _FRAME)
        with CommitLog.open(self._directory) as log:
            for number in range(self._rows // _FRAME):
                log.append(ready[number % len(ready)], "bench")
            for route in ("daily", "null"):
                route_folder(self._directory, route).mkdir(parents=True)
            return log.log_id

    def _spec(self, log_id: str, route: str) -> WorkerSpec:
        frames = route == "daily"
        return WorkerSpec(
            route=route,
            shard=0,
            shards=1,
            epoch=1,
            generation=0,
            log_directory=str(self._directory),
            log_id=log_id,
            namespace=".*",
            writer="spark" if frames else "benchmarks.null:NullWriter",
            settings={"path": str(self._out)} if frames else {},
            folder=str(ROOT),
            steps=(StepConfig(name="sql", settings=_QUERY),) if frames else (),
            on_frames=frames,
        )

"""The cost of sending a slice to a worker in Spark, against an echo over such a socket."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from typing import TYPE_CHECKING, Any, Final

from benchmarks.figures import OURS, Aim, Comparison, Section, percentile
from benchmarks.messages import batches
from benchmarks.setting import ROOT
from benchmarks.spark_workers import run_spark
from transporter.embed import cache_directory
from transporter.log.commit_log import CommitLog
from transporter.offsets.offset_log import route_folder
from transporter.protocol.messages import Outcome, Slice, WorkerSpec
from transporter.spark.launch import SparkLauncher

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.setting import Setting
    from transporter.log.runs import Runs

_AIM: Final = Aim(0.15, at_least=False, figure=OURS)
_PATIENCE: Final = 30.0
_LARGE: Final = 1000
_ECHO: Final = "from benchmarks.slice_overhead import echo; echo()"

METHOD: Final = """\
Slices go to a null writer in a worker that our supervisor started in a real Spark. A round trip
is everything that the route waits for: the request, the worker's read of the log (frame found,
checksum verified, Arrow decoded), the namespace filter, the call of the writer, the outcome. The
floor is a process that sends every request back over `multiprocessing.connection`.
One slice is one frame, of one message or of 1000."""
LIMITS: Final = """\
The worker's own work: in a loop it takes a third of this time, but a process that slept finds its
caches cold. The benchmark's slices are read from the file. Those of a route that keeps up bring
their bytes with them, which saves 0.04 ms."""


def measure(setting: Setting) -> Section:
    """Time round trips in turns, for small slices and for large ones."""
    small, large = setting.scale(1000, 200), setting.scale(200, 50)
    with _start_worker(setting, small, large) as worker, _start_echo() as echoer:
        found = setting.interleave(
            {
                "small": partial(_trips, worker, range(small), 1),
                "large": partial(_trips, worker, range(small, small + large * _LARGE), _LARGE),
                "echo": partial(_echoes, echoer, small),
            }
        )
    subjects = {"small": "slice of 1 message", "large": f"slice of {_LARGE} messages"}
    shares = {"p50": 0.5, "p99": 0.99}
    return Section(
        "slice-overhead",
        METHOD,
        tuple(
            Comparison(
                f"{subject}, {label}",
                f"echo, {label}",
                "ms",
                tuple(percentile(times, share) for times in found[name]),
                tuple(percentile(times, share) for times in found["echo"]),
                _AIM if (name, label) == ("small", "p50") else None,
            )
            for name, subject in subjects.items()
            for label, share in shares.items()
        ),
        limits=LIMITS,
    )


@contextmanager
def _start_worker(setting: Setting, small: int, large: int) -> Iterator[Connection[Any, Any]]:
    """Yield a worker in Spark that serves a log of *small* and then *large* frames."""
    directory = setting.make_folder("log")
    log_id, runs = _fill(directory, small, large)
    launcher = SparkLauncher(directory, cache_directory(), "local", {})
    spec = _spec(directory, log_id, runs)
    with run_spark(setting, launcher) as spark, spark.run_worker(spec) as worker:
        yield worker


def _fill(directory: Path, small: int, large: int) -> tuple[str, Runs]:
    """Make a log of *small* frames of one message and *large* ones of many.

    Returns its id, and its runs: a worker of the last one reads what that has written.
    """
    ready = batches(10, _LARGE)
    with CommitLog.open(directory) as log:
        for number in range(small):
            log.append(ready[0].slice(number % _LARGE, 1), "bench")
        for number in range(large):
            log.append(ready[number % len(ready)], "bench")
        route_folder(directory, "null").mkdir(parents=True)
        return log.log_id, log.runs


def _spec(directory: Path, log_id: str, runs: Runs) -> WorkerSpec:
    return WorkerSpec(
        route="null",
        shard=0,
        shards=1,
        epoch=1,
        generation=0,
        log_directory=str(directory),
        log_id=log_id,
        namespace=".*",
        writer="benchmarks.null:NullWriter",
        settings={},
        folder=str(ROOT),
        runs=runs,
    )


def _trips(worker: Connection[Any, Any], offsets: range, rows: int) -> list[float]:
    """Return the milliseconds of each slice of *rows* messages. The log is read in order."""
    starts = offsets[::rows]
    return [_trip(worker, Slice(first, first + rows - 1, 0)) for first in starts]


def _trip(worker: Connection[Any, Any], slice_: Slice) -> float:
    began = time.perf_counter()
    worker.send(slice_)
    outcome = worker.recv()
    took = time.perf_counter() - began
    if not isinstance(outcome, Outcome) or outcome.failure:
        raise RuntimeError(f"{slice_} came back as {outcome}")
    return took * 1000


def _echoes(echoer: Connection[Any, Any], count: int) -> list[float]:
    times = []
    for offset in range(count):
        began = time.perf_counter()
        echoer.send(Slice(offset, offset, 0))
        echoer.recv()
        times.append((time.perf_counter() - began) * 1000)
    return times


@contextmanager
def _start_echo() -> Iterator[Connection[Any, Any]]:
    """Yield the connection to a process that sends everything back."""
    with Listener(family="AF_UNIX", authkey=b"echo") as listener:
        command = [sys.executable, "-c", _ECHO, str(listener.address)]
        with (
            subprocess.Popen(command, cwd=ROOT) as process,  # its end follows the connection's
            listener.accept() as connection,
        ):
            yield connection
        process.wait(_PATIENCE)


def echo() -> None:
    """Send back all input, until the other side closes."""
    with Client(sys.argv[1], authkey=b"echo") as connection:
        while True:
            try:
                connection.send(connection.recv())
            except EOFError:
                return

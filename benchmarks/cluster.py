"""Delivery by a worker on another host, which receives every entry, against one on this host."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks.figures import Aim, Comparison, Section
from benchmarks.messages import batches
from benchmarks.services import import_test_tool
from benchmarks.setting import ROOT
from benchmarks.spark_workers import run_spark
from transporter.embed import cache_directory
from transporter.log.commit_log import CommitLog
from transporter.offsets.offset_log import route_folder
from transporter.pipeline.config import SparkConfig
from transporter.protocol.messages import Outcome, PartialOutcome, Slice, WorkerSpec
from transporter.protocol.network import network_of
from transporter.spark.launch import SparkLauncher

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

    from benchmarks.setting import Setting
    from benchmarks.spark_workers import BenchmarkSpark

_AIM: Final = Aim(0.7, at_least=True)
_FRAME: Final = 1000
_SLICES: Final = (1, 20)
"""Frames in a slice: of a route that keeps up, and of one that catches up."""

METHOD: Final = """\
The same slices of the same log go to the same writer, in a worker of a local master and in one of
a standalone cluster. Master, worker and executor are processes here. The worker has its own
mounts, so that it sees neither the log nor our code. It requests the frames of each slice from the
engine, over TCP on the loopback device, and verifies them again. These figures do not include the
cost of a network."""
LIMITS: Final = """\
The engine reads the frames and sends them, and the worker receives them. With all processes on the
same few cores that is additional work. A cluster has its own cores for it."""


def measure(setting: Setting) -> Section:
    """Time slices in turns, in a worker here and in one without our files."""
    frames = setting.scale(200, 40)
    broker = setting.services.broker
    writers: dict[str, dict[str, Any]] = {
        "null": {"writer": "benchmarks.null:NullWriter", "settings": {}},
        "kafka": {
            "writer": "kafka",
            "settings": {"bootstrap_servers": broker.bootstrap_servers, "topic": "cluster"},
        },
    }
    broker.create_topic("cluster", partitions=4)
    directory = setting.make_folder("log")
    log_id = _fill(directory, frames, writers)
    comparisons: list[Comparison] = []
    with ExitStack() as stack:
        here, far = (
            {
                name: stack.enter_context(
                    spark.run_worker(_spec(directory, log_id, f"{name}-{side}", writer))
                )
                for name, writer in writers.items()
            }
            # Routes of their own: two workers of one would wait for each other, for ever.
            for side, spark in (
                ("here", stack.enter_context(_start_local(setting))),
                ("far", stack.enter_context(_start_cluster(setting, directory))),
            )
        )
        for name in writers:
            for size in _SLICES:
                found = setting.interleave(
                    {
                        "far": partial(_rate, far[name], frames, size),
                        "here": partial(_rate, here[name], frames, size),
                    }
                )
                comparisons.append(
                    Comparison(
                        f"{name}, slices of {size * _FRAME}, cluster",
                        "local master",
                        "messages/s",
                        found["far"],
                        found["here"],
                        _AIM,
                    )
                )
    return Section("cluster", METHOD, tuple(comparisons), limits=LIMITS)


def _fill(directory: Path, frames: int, routes: dict[str, Any]) -> str:
    ready = batches(10, _FRAME)
    with CommitLog.open(directory) as log:
        for number in range(frames):
            log.append(ready[number % len(ready)], "bench")
        for route in routes:
            for side in ("here", "far"):
                route_folder(directory, f"{route}-{side}").mkdir(parents=True)
        return log.log_id


@contextmanager
def _start_local(setting: Setting) -> Iterator[BenchmarkSpark]:
    launcher = SparkLauncher(setting.make_folder("local"), cache_directory(), "local", {})
    with run_spark(setting, launcher) as spark:
        yield spark


@contextmanager
def _start_cluster(setting: Setting, directory: Path) -> Iterator[BenchmarkSpark]:
    """Yield the Spark of a cluster whose worker sees neither *directory* nor our code."""
    tools = import_test_tool("cluster_tools")
    with tools.cluster(setting.make_folder("cluster")) as cluster:
        cluster.start_master(tools.Node("127.0.0.1"))
        cluster.start_worker(tools.Node("127.0.0.1", tools.hiding([directory], *tools.unsharing())))
        config = {"spark.executor.memory": "512m", tools.SECRET_KEY: tools.SECRET}
        network = network_of(SparkConfig(master=cluster.master, config=config))
        scratch = setting.make_folder("far")
        launcher = SparkLauncher(scratch, cache_directory(), cluster.master, config, network)
        with run_spark(setting, launcher, network) as spark:
            yield spark


def _spec(directory: Path, log_id: str, route: str, writer: dict[str, Any]) -> WorkerSpec:
    return WorkerSpec(
        route=route,
        shard=0,
        shards=1,
        epoch=1,
        generation=0,
        log_directory=str(directory),
        log_id=log_id,
        namespace=".*",
        folder=str(ROOT),
        **writer,
    )


def _rate(line: Connection[Any, Any], frames: int, size: int) -> float:
    """Return the messages a second of all frames of the log, in slices of *size* frames."""
    rows = size * _FRAME
    began = time.perf_counter()
    for first in range(0, frames * _FRAME, rows):
        line.send(Slice(first, first + rows - 1, 0))
        while isinstance(outcome := line.recv(), PartialOutcome):
            pass  # A part is reported early. The rest of the slice goes on.
        if not isinstance(outcome, Outcome) or outcome.failure:
            raise RuntimeError(f"the slice from {first} came back as {outcome}")
    return frames * _FRAME / (time.perf_counter() - began)

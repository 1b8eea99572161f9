"""From the start of ``transporter run`` to the first delivered row."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from benchmarks.data_source import spark_environment
from benchmarks.figures import OURS, Aim, Comparison, Section
from benchmarks.services import import_test_tool
from benchmarks.setting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.setting import Setting

_AIM: Final = Aim(3.5, at_least=False, figure=OURS)
_PATIENCE: Final = 120.0
_PIPELINE: Final = """\
name: start
log: {dir: log}
readers:
  - {name: lines, adaptor: file, path: "in/*.jsonl", follow: true}
routes:
  - {name: out, writer: {adaptor: file, path: out.jsonl}}
"""
_BARE: Final = """\
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(spark.range(1).count(), flush=True)
spark.stop()
"""

METHOD: Final = """\
A new process of `transporter run` reads one line from a file, logs it, starts Spark and a worker,
and writes the line to another file. The clock runs from the start of the process until the line is
there. The rival is a program that makes a `SparkSession` and counts one row, from its start until
it prints the number. The first turn, which does not count, has warmed the disk up for both."""
LIMITS: Final = """\
The JVM loads Spark's classes, and the interpreter imports of two processes run beside that on few
cores. A bare session without any engine takes as long as is shown beside it."""


def measure(setting: Setting) -> Section:
    """Start both in turns."""
    numbers = count()
    found = setting.interleave(
        {"ours": partial(_first_row, setting, numbers), "bare": _bare_session}
    )
    row = Comparison(
        "start to the first row",
        "a bare Spark session and one job",
        "s",
        found["ours"],
        found["bare"],
        _AIM,
    )
    return Section("start", METHOD, (row,), limits=LIMITS)


def _first_row(setting: Setting, numbers: Iterator[int]) -> float:
    folder = setting.make_folder(f"engine-{next(numbers)}")
    (folder / "in").mkdir()
    (folder / "in" / "one.jsonl").write_text('{"order": 1}\n')
    (folder / "pipeline.yaml").write_text(_PIPELINE)
    sink = folder / "out.jsonl"
    running = import_test_tool("acceptance_tools").running
    began = time.perf_counter()
    with running(folder / "pipeline.yaml") as engine:
        wait_until(
            lambda: sink.exists() and sink.stat().st_size > 0, _PATIENCE, "the first row", 0.005
        )
        took = time.perf_counter() - began
        engine.stop()
    return took


def _bare_session() -> float:
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", _BARE],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=spark_environment(),
    ) as process:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        line = process.stdout.readline()
        took = time.perf_counter() - began
    if line.strip() != b"1":
        raise RuntimeError(f"the bare session printed {line!r}")
    return took

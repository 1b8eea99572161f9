"""A host of a cluster that is stopped in the middle of a slice, and resumes too late."""

from __future__ import annotations

import json
import logging
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psutil
import pyarrow.dataset as ds
import pytest
from acceptance_tools import Running, await_true, running
from cluster_tools import SECRET, below, executors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cluster_tools import Cluster

logger = logging.getLogger(__name__)
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

SLICE = 100
ROWS = 3 * SLICE
_PATIENCE = 400
_LATE = 20.0
"""Seconds in which a task that resumes has written its rows, or was ended."""
PIPELINE = """\
name: late
log: {dir: log}
observe: {listen: "off"}
readers:
  - {name: in, adaptor: file, path: in.jsonl, follow: true, key: customer}
routes:
  - name: daily
    slice_rows: 100
    slice_timeout: 30s
    retry: {backoff: 1s..2s}
    steps:
      - python: {function: "mine:held"}
      - sql: SELECT offset, data FROM entries
    writer: {adaptor: spark, path: "file://${OUT}/daily"}
spark:
  master: "${MASTER}"
  config:
    spark.authenticate.secret: "${SECRET}"
    spark.executor.memory: 768m
    spark.network.timeout: 20s
    spark.network.timeoutInterval: 5s
    spark.executor.heartbeatInterval: 5s
"""
MINE = """\
import os
import time
from pathlib import Path

PLACE = Path(%r)


def held(message):
    # Of all tasks one waits, once, in the middle of the second slice.
    if message.data.startswith(b'{"number": 150,'):
        try:
            (PLACE / "held.new").open("x").close()
        except FileExistsError:
            return message
        (PLACE / "pid").write_text(str(os.getpid()))
        (PLACE / "pid").rename(PLACE / "held")
        while not (PLACE / "go").exists():
            time.sleep(0.01)
    return message
"""


@pytest.fixture
def file(far: Cluster, place: Path, tmp_path: Path) -> Path:
    """Write the pipeline and its first lines, with ``tmp_path`` visible to all hosts."""
    (place / "mine.py").write_text(MINE % str(tmp_path), encoding="utf-8")
    add(place / "in.jsonl", 0)
    path = place / "pipeline.yaml"
    path.write_text(PIPELINE, encoding="utf-8")
    return path


def add(path: Path, first: int) -> None:
    """Add lines to the reader's file, of which the first gets the offset *first*."""
    with path.open("a", encoding="utf-8") as lines:
        for number in range(first, first + ROWS):
            lines.write(f"{json.dumps({'number': number, 'customer': f'c{number % 7}'})}\n")


def offsets(out: Path) -> list[int]:
    """Return the offsets that readers of the folder see."""
    if not out.exists():
        return []
    data = ds.dataset(out, format="parquet")
    return sorted(data.to_table(columns=["offset"])["offset"].to_pylist()) if data.files else []


def left_aside(out: Path) -> list[Path]:
    """Return the folders of slices that are not committed, or were not when a task began."""
    return list(out.glob("_transporter/*/daily/slice-*"))


@contextmanager
def still(processes: list[psutil.Process]) -> Iterator[None]:
    """Suspend *processes* during a block."""
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.suspend()
    try:
        yield
    finally:
        for each in processes:
            with suppress(psutil.NoSuchProcess):
                each.resume()


def until(engine: Running, offset: int, out: Path) -> None:
    """Wait until everything up to *offset* can be read."""

    def holds() -> bool:
        return engine.process.poll() is not None or offsets(out)[-1:] == [offset]

    await_true(holds, _PATIENCE, f"offset {offset}")
    assert engine.process.poll() is None, (engine.events[-5:], engine.noise[-20:])


def late_files(out: Path) -> set[Path]:
    """Return the temporary files of a late task, which readers must not see at any moment."""
    deadline, late = time.monotonic() + _LATE, set()
    while time.monotonic() < deadline:
        assert offsets(out) == list(range(ROWS))
        # A task that is ended removes its files.
        with suppress(FileNotFoundError):
            late |= {found for each in left_aside(out) for found in each.rglob("*.parquet")}
        time.sleep(0.05)
    return late


@pytest.mark.parametrize("standing", ["jvm", "host"])
def test_a_task_that_goes_on_too_late_adds_nothing(
    standing: str, far: Cluster, file: Path, tmp_path: Path
) -> None:
    """Another host delivered its slice, so readers see no row twice, and none of its files stays.

    If only the JVMs were suspended, the rows are ready and are written late. If the whole host
    was, the watchdog of the task's Python ends it.
    """
    out = tmp_path / "daily"
    with running(file, MASTER=far.master, OUT=str(tmp_path), SECRET=SECRET) as engine:
        await_true((tmp_path / "held").exists, _PATIENCE, "a task in the middle of its slice")
        pid = int((tmp_path / "held").read_text())
        worker = next(
            each for each in far.workers if pid in {found.pid for found in below(each.pid)}
        )
        stopped = executors(worker) if standing == "jvm" else below(worker.pid)
        # Spark's worker stays suspended for longer: it would end the executor that resumes.
        with still([worker]):
            with still(stopped):
                if standing == "jvm":
                    (tmp_path / "go").touch()
                until(engine, ROWS - 1, out)
            (tmp_path / "go").touch()
            late = late_files(out)
        logger.warning("%s: %d late files, %d folders", standing, len(late), len(left_aside(out)))
        add(file.parent / "in.jsonl", ROWS)
        until(engine, 2 * ROWS - 1, out)
        assert engine.stop() == 0
    assert offsets(out) == list(range(2 * ROWS))
    assert left_aside(out) == []

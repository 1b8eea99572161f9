"""A real standalone cluster on separate hosts: kills, cuts, and the resulting deliveries.

Each host is a network and mount namespace (as root, with iproute2) that sees neither
the log directory nor this checkout: the code that runs there was shipped.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from acceptance_tools import Running, await_true, gone, running
from cluster_tools import Cluster, busy, check, delivered, executors, kill, pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cluster_tools import Wire

logger = logging.getLogger(__name__)
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
ROWS = 500
PACE = 0.01
SLICE = 50


@contextmanager
def delivering(file: Path, sink: Path, count: int = 20) -> Iterator[Running]:
    """Run *file* once its first *count* entries have been delivered."""
    with running(file) as engine:
        await_true(lambda: len(delivered(sink)) > count, 90, "the first deliveries")
        yield engine


def test_a_pipeline_file_gives_the_same_on_a_cluster_as_locally(
    tmp_path: Path, far: Cluster, place: Path
) -> None:
    """The same offsets and bytes arrive, though no worker sees log, modules or transporter."""
    found = {}
    for master, folder in (("local", tmp_path), (far.master, place)):
        sink = tmp_path / f"{folder.name}.jsonl"
        with running(pipeline(folder, master, sink, 2000)) as engine:
            assert engine.wait(120) == 0, engine.noise
        found[master] = delivered(sink)
    assert {each["host"] for each in found[far.master]} == {"hidden"}
    same: list[list[Any]] = [
        [(each["offset"], each["data"]) for each in lines] for lines in found.values()
    ]
    assert same[0] == same[1]
    assert len(same[0]) == 2000


@pytest.mark.parametrize("victim", ["python", "executor", "host"])
def test_what_runs_a_worker_is_killed_in_the_middle_of_a_slice(
    victim: str, tmp_path: Path, far: Cluster, place: Path
) -> None:
    """Nothing is missing, keys are in order, and at most one slice comes twice."""
    sink = tmp_path / "out.jsonl"
    with delivering(pipeline(place, far.master, sink, ROWS, pace=PACE), sink) as engine:
        number, python = busy(far, sink)
        victims = {"python": [python], "executor": executors(far.workers[number])}
        for each in victims.get(victim, ()):
            kill(each)
        if victim == "host":
            far.kill_host(number)
        await_another(sink, python.pid)
        assert engine.wait(180) == 0, engine.noise
    far.boot_host(number)
    check(delivered(sink), ROWS)
    assert len(delivered(sink)) <= ROWS + SLICE


def test_an_engine_is_killed_in_the_middle_of_a_slice(
    tmp_path: Path, far: Cluster, place: Path
) -> None:
    """The next engine waits until the last one's worker cannot deliver, and then continues."""
    sink = tmp_path / "out.jsonl"
    # Longer than an engine and its executors need to start here, beside everything else.
    file = pipeline(place, far.master, sink, ROWS, pace=0.4, slice_timeout="120s")
    with delivering(file, sink) as engine:
        _, python = busy(far, sink)
        left = engine.kill()
    began = time.monotonic()
    with running(file) as engine:
        held = engine.await_event("worker-held-back", timeout=120)
        await_another(sink, python.pid)
        hurry(sink)
        assert held["seconds"] <= time.monotonic() - began
        assert engine.wait(180) == 0, engine.noise
    assert gone(left) == []
    check(delivered(sink), ROWS)


def test_a_worker_that_is_cut_off_delivers_beside_no_other(
    tmp_path: Path, wire: Wire, far: Cluster, place: Path
) -> None:
    """An unreachable worker may finish its slice before the next worker begins."""
    sink = tmp_path / "out.jsonl"
    config = {
        "spark.network.timeout": "20s",
        "spark.network.timeoutInterval": "5s",
        "spark.executor.heartbeatInterval": "5s",
    }
    # A slice takes 80 s: longer than the detection of the cut, and less than slice_timeout.
    route = {"slice_rows": 20, "slice_timeout": "90s", "config": config}
    with delivering(pipeline(place, far.master, sink, 60, pace=4.0, **route), sink, 1) as engine:
        number, python = busy(far, sink)
        address = far.nodes[number].address
        cable = [each for each, _ in wire.hosts].index(address)
        wire.cut(cable)
        try:
            engine.await_event("worker-held-back", timeout=120)
            told = len(delivered(sink))
            await_another(sink, python.pid)
            assert len(delivered(sink)) > told + 1, "the worker that was cut off had ended before"
            hurry(sink)
        finally:
            wire.mend(cable)
        assert engine.wait(300) == 0, engine.noise
    check(delivered(sink), 60)


def hurry(sink: Path) -> None:
    """Make all further entries instantaneous."""
    sink.with_name(f"{sink.name}.hurry").touch()


def await_another(sink: Path, pid: int) -> None:
    """Wait until a process other than *pid* delivers, and log the duration."""
    began = time.monotonic()
    await_true(lambda: delivered(sink)[-1]["pid"] != pid, 240, "deliveries of another worker")
    logger.warning("%s: %.1f s", sink.parent.name, time.monotonic() - began)

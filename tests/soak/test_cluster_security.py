"""Attacks on a standalone cluster by somebody without its secret."""

from __future__ import annotations

from contextlib import suppress

import psutil
import pytest
from acceptance_tools import await_true, running
from cluster_tools import SECRET, Cluster, below, check, delivered, pipeline
from spark_ports import blocks, listening_ports

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
CANARY = "canary-17"


def test_ports_and_command_lines_give_nothing(near: Cluster) -> None:
    """Neither the cluster's secret, nor a setting of the pipeline's, nor a job, on any host."""
    sink = near.folder / f"{CANARY}.jsonl"
    file = pipeline(near.folder / "engine", near.master, sink, 100, pace=0.2)
    with running(file) as engine:
        await_true(lambda: len(delivered(sink)) > 3, 180, "the first deliveries")
        hosts = [each for root in near.roots() for each in (root, *below(root.pid))]
        ours = [psutil.Process(engine.process.pid), *engine.descendants()]
        for process in (*hosts, *ours):
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                line = " ".join(process.cmdline())
                assert SECRET not in line
                assert CANARY not in line
        ports = listening_ports((*hosts, *ours))
        assert len(ports) >= 5, "master, workers, an executor, the driver and the engine's door"
        assert b"".join(blocks(port, 20) for port in ports) == b""
        sink.with_name(f"{sink.name}.hurry").touch()
        assert engine.wait(120) == 0, engine.noise
    check(delivered(sink), 100)


def test_a_cluster_with_another_secret_is_named(near: Cluster) -> None:
    """The engine says that Spark is not let in, what to look at, and delivers nothing."""
    sink = near.folder / "never.jsonl"
    config = {"spark.authenticate.secret": "another"}
    file = pipeline(near.folder / "engine" / "wrong", near.master, sink, 10, config=config)
    with running(file) as engine:
        lost = engine.await_event("spark-host-lost", timeout=240)
        assert "the same spark.authenticate.secret" in lost["problem"]
        engine.stop(60)
    assert delivered(sink) == []

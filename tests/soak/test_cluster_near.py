"""A standalone Spark cluster on this host, whose workers see neither the log nor our code."""

from __future__ import annotations

import pytest
from acceptance_tools import await_true, gone, running, transporter
from cluster_tools import Cluster, busy, check, delivered, kill, pipeline

pytestmark = pytest.mark.spark


def test_a_worker_gets_code_modules_and_entries_from_the_engine(near: Cluster) -> None:
    """A worker that dies in a slice is replaced at once, all arrives in order, a stop is clean."""
    sink = near.folder / "out.jsonl"
    file = pipeline(near.folder / "engine", near.master, sink, 300, pace=0.005)
    with running(file) as engine:
        await_true(lambda: len(delivered(sink)) > 60, 60, "the first deliveries")
        _, python = busy(near, sink)
        kill(python)
        left = engine.descendants()
        assert engine.wait(60) == 0, engine.noise
        assert gone(left) == []
    check(delivered(sink), 300)
    assert {each["host"] for each in delivered(sink)} == {"hidden"}
    assert len(delivered(sink)) <= 350
    (route,) = transporter("offsets", "list", str(file))
    assert (route["watermark"], route["lag"]) == (299, 0)
    lock = near.folder / "engine" / "log" / "offsets" / "out" / "0.lock"
    assert lock.read_text() == "", "the next engine would wait for a worker that is gone"

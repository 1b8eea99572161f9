"""A standalone Spark cluster on this host, whose worker sees neither the log nor our code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from acceptance_tools import await_true, gone, running, transporter
from cluster_tools import (
    Cluster,
    Node,
    check,
    cluster,
    delivered,
    hiding,
    kill,
    pipeline,
    python_workers,
    unsharing,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Have a cluster on loopback, whose worker has mounts of its own: ``engine`` is empty there."""
    unshared = unsharing()
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "engine").mkdir()
    with cluster(folder) as made:
        made.start_master(Node("127.0.0.1"))
        made.start_worker(Node("127.0.0.1", hiding([folder / "engine"], *unshared)))
        yield made


def test_a_worker_gets_code_modules_and_entries_from_the_engine(near: Cluster) -> None:
    """A worker that dies in a slice is replaced at once, all arrives in order, a stop is clean."""
    sink = near.folder / "out.jsonl"
    file = pipeline(near.folder / "engine", near.master, sink, 300, pace=0.005)
    with running(file) as engine:
        await_true(lambda: len(delivered(sink)) > 60, 60, "the first deliveries")
        (python,) = python_workers(near.workers[0])
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

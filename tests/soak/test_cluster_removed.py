"""An application that its standalone master removes, again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from acceptance_tools import await_true, gone, running
from cluster_tools import Cluster, check, delivered, pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from acceptance_tools import Running

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
ROWS = 400


def test_a_removed_application_is_replaced(near: Cluster) -> None:
    """The cause is reported, a new host delivers the rest, and no route retries in a tight loop."""
    sink = near.folder / "out.jsonl"
    file = pipeline(near.folder / "engine", near.master, sink, ROWS, pace=0.05)
    with running(file) as engine:
        for turn in (1, 2):
            _await_more(sink)
            near.remove_applications()
            _await_lost(engine, turn)
        sink.with_name(f"{sink.name}.hurry").touch()
        left = engine.descendants()
        assert engine.wait(180) == 0, engine.noise
        assert gone(left) == []
    check(delivered(sink), ROWS)
    assert all("removed" in each["problem"] for each in _named(engine, "spark-host-lost"))
    assert len(_named(engine, "route-retrying")) <= 4


def _await_more(sink: Path) -> None:
    reached = len(delivered(sink))
    await_true(lambda: len(delivered(sink)) > reached + 20, 120, "deliveries")


def _await_lost(engine: Running, hosts: int) -> None:
    await_true(lambda: len(_named(engine, "spark-host-lost")) >= hosts, 60, "a lost host")


def _named(engine: Running, event: str) -> list[dict[str, Any]]:
    return [each for each in engine.events if each["event"] == event]

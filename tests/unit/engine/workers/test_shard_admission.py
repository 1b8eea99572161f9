"""Admission of workers while an engine ends."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from transporter.engine.workers.shard_admission import Admission
from transporter.engine.workers.shard_lease import ShardLease
from transporter.protocol.messages import WorkerSpec

if TYPE_CHECKING:
    import pytest


def spec(log: Path, route: str) -> WorkerSpec:
    """Return what a worker of *route* is told."""
    (log / "offsets" / route).mkdir(parents=True, exist_ok=True)
    return WorkerSpec(route, 0, 1, 1, 0, str(log), "id", ".*", "null", {}, str(log))


def test_a_route_that_comes_back_waits_for_its_last_worker(tmp_path: Path) -> None:
    """What a remote worker may still deliver counts from its route's removal."""
    admission = Admission(threading.Condition(), lambda *_, **__: None)
    admission._began -= 3600
    route = spec(tmp_path, "a")
    lease = admission._lease(route)
    assert lease.acquire()
    line: Any = SimpleNamespace(last_sent_at=time.monotonic(), closed_by_worker=False)
    lease.grant(line, 1, 60.0)
    admission.forget("a")
    assert admission._lease(route).remaining(time.monotonic()) > 59
    admission.close()


def test_a_route_that_is_late_disturbs_no_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed route may ask for a worker while the engine closes, and leaves nothing open."""
    admission = Admission(threading.Condition(), lambda *_, **__: None)
    for route in ("a", "b"):
        assert admission.wait_for_vacancy(spec(tmp_path, route), lambda: False)
    before = len([*Path("/proc/self/fd").iterdir()])
    close = ShardLease.close

    def closing(lease: ShardLease, now: float) -> Any:
        close(lease, now)
        monkeypatch.setattr(ShardLease, "close", close)
        assert not admission.wait_for_vacancy(spec(tmp_path, "late"), lambda: True)

    monkeypatch.setattr(ShardLease, "close", closing)
    admission.close()
    assert len([*Path("/proc/self/fd").iterdir()]) == before - 2

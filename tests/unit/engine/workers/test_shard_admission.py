"""Admission of workers while an engine ends, and the lease that decides when the next may start."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from transporter.engine.workers.shard_admission import Admission, ShardLease
from transporter.errors import EnvironmentFault
from transporter.protocol.messages import WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = 1000.0
TIMEOUT = 60.0
WHOLE = 61.0
"""The timeout, and a second for a process to end."""


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


@dataclass
class Known:
    """The part of a worker's line that a fence reads."""

    last_sent_at: float = NOW
    closed_by_worker: bool = False


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a lock file."""
    return tmp_path / "0.lock"


@pytest.fixture
def fence(path: Path) -> Iterator[ShardLease]:
    """Return a fence that lends to worker 7, which has no lock."""
    made = ShardLease(path, NOW)
    yield made
    made.close(NOW + 10 * WHOLE)


def lend(fence: ShardLease, line: Known, attempt: int = 7) -> None:
    """Let a worker without a lock start."""
    assert fence.acquire()
    fence.grant(line, attempt, TIMEOUT)  # type: ignore[arg-type]


def test_nobody_is_waited_for_at_first(fence: ShardLease) -> None:
    """The first worker of a shard begins at once."""
    assert fence.remaining(NOW) == 0


def test_a_worker_that_is_out_of_sight_is_waited_for(fence: ShardLease) -> None:
    """A lost worker's time runs from the last answer to it, not from its loss."""
    line = Known()
    lend(fence, line)
    line.last_sent_at = NOW + 5
    assert fence.remaining(NOW + 25) == WHOLE - 20
    assert fence.remaining(NOW + 5 + WHOLE) == 0


def test_a_hung_up_line_alone_proves_nothing(fence: ShardLease) -> None:
    """A closed line alone proves nothing, because any party on the network may have closed it."""
    lend(fence, Known(closed_by_worker=True))
    assert fence.remaining(NOW) == WHOLE


def test_a_task_that_has_ended_is_not_waited_for(fence: ShardLease) -> None:
    """A task whose Python process has ended according to Spark is not waited for."""
    lend(fence, Known())
    fence.record_end(7, gone=True)
    assert fence.remaining(NOW) == 0


def test_a_lost_executor_counts_only_with_a_line_that_was_hung_up(fence: ShardLease) -> None:
    """A lost executor counts only with a closed line, because it may still run."""
    line = Known()
    lend(fence, line)
    fence.record_end(7, gone=False)
    assert fence.remaining(NOW) == WHOLE
    line.closed_by_worker = True
    assert fence.remaining(NOW) == 0


def test_the_end_of_another_worker_proves_nothing(fence: ShardLease) -> None:
    """A late report on an older task proves nothing."""
    lend(fence, Known())
    fence.record_end(6, gone=True)
    assert fence.remaining(NOW) == WHOLE
    assert fence.was_lost


def test_a_worker_that_died_by_itself_is_told_from_one_that_was_lost(fence: ShardLease) -> None:
    """Only a worker whose end Spark reports has died by itself."""
    assert not fence.was_lost
    lend(fence, Known())
    assert fence.was_lost
    fence.record_end(7, gone=True)
    assert not fence.was_lost


def test_a_worker_that_holds_the_lock_is_not_waited_for(fence: ShardLease) -> None:
    """A worker that holds the lock is not waited for, and Spark reports whether it was lost."""
    lend(fence, Known())
    fence.record_end(7, gone=True)
    fence.release(8)
    assert fence.remaining(NOW) == 0
    assert fence.was_lost
    fence.record_end(8, gone=True)
    assert not fence.was_lost


def test_the_next_engine_waits_for_the_worker_of_a_killed_one(path: Path) -> None:
    """The next engine waits for workers in the lock file, counting from its own start."""
    killed = ShardLease(path, NOW)
    lend(killed, Known())
    os.close(killed._descriptor)
    following = ShardLease(path, NOW + 3)
    assert following.remaining(NOW + 4) == WHOLE - 1
    assert following.remaining(NOW + 3 + WHOLE) == 0
    following.close(NOW + 4)
    third = ShardLease(path, NOW)
    assert third.remaining(NOW) == WHOLE, "a stop during the wait must not forget it"
    third.close(NOW + WHOLE)
    fourth = ShardLease(path, NOW)
    assert fourth.remaining(NOW) == 0
    fourth.close(NOW)


def test_a_clean_stop_leaves_nothing_to_wait_for(path: Path) -> None:
    """After a stop in which every worker's end is certain, the next engine starts at once."""
    stopped = ShardLease(path, NOW)
    lend(stopped, Known())
    stopped.record_end(7, gone=True)
    stopped.close(NOW)
    following = ShardLease(path, NOW)
    assert following.remaining(NOW) == 0
    following.close(NOW)


def test_the_lock_is_held_in_place_of_a_worker_that_cannot(path: Path, fence: ShardLease) -> None:
    """The fence holds the lock for a worker without one, so that no other worker gets it."""
    other = os.open(path, os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert not fence.acquire()
    fcntl.flock(other, fcntl.LOCK_UN)
    assert fence.acquire()
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fence.release(8)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


def test_a_lock_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A lock file that cannot be created is a fault that names the path."""
    with pytest.raises(EnvironmentFault, match=r"nowhere/0\.lock"):
        ShardLease(tmp_path / "nowhere" / "0.lock", NOW)

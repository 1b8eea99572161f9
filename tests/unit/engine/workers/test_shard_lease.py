"""The fence: when the next worker of a shard may begin. Time is given, nothing waits."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from transporter.engine.workers.shard_lease import Fence
from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = 1000.0
TIMEOUT = 60.0
WHOLE = 61.0
"""The timeout, and a second for a process to end."""


@dataclass
class Known:
    """What a fence looks at of a worker's line."""

    answered: float = NOW
    hung_up: bool = False


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a lock file."""
    return tmp_path / "0.lock"


@pytest.fixture
def fence(path: Path) -> Iterator[Fence]:
    """Have a fence that answers for worker 7 without a lock."""
    made = Fence(path, NOW)
    yield made
    made.close(NOW + 10 * WHOLE)


def lend(fence: Fence, line: Known, attempt: int = 7) -> None:
    """Let a worker without a lock begin."""
    assert fence.take()
    fence.lend(line, attempt, TIMEOUT)  # type: ignore[arg-type]


def test_nobody_is_waited_for_at_first(fence: Fence) -> None:
    """The first worker of a shard begins at once."""
    assert fence.wait(NOW) == 0


def test_a_worker_that_is_out_of_sight_is_waited_for(fence: Fence) -> None:
    """Its time runs from what it was last told, and not from when it was missed."""
    line = Known()
    lend(fence, line)
    line.answered = NOW + 5
    assert fence.wait(NOW + 25) == WHOLE - 20
    assert fence.wait(NOW + 5 + WHOLE) == 0


def test_a_hung_up_line_alone_proves_nothing(fence: Fence) -> None:
    """Something between us and the worker may have closed it."""
    lend(fence, Known(hung_up=True))
    assert fence.wait(NOW) == WHOLE


def test_a_task_that_has_ended_is_not_waited_for(fence: Fence) -> None:
    """Spark tells that the Python process of the task is gone."""
    lend(fence, Known())
    fence.told(7, gone=True)
    assert fence.wait(NOW) == 0


def test_a_lost_executor_counts_only_with_a_line_that_was_hung_up(fence: Fence) -> None:
    """Spark loses sight of executors that still run; then the worker's own end must show."""
    line = Known()
    lend(fence, line)
    fence.told(7, gone=False)
    assert fence.wait(NOW) == WHOLE
    line.hung_up = True
    assert fence.wait(NOW) == 0


def test_the_end_of_another_worker_proves_nothing(fence: Fence) -> None:
    """News of an older task may come late."""
    lend(fence, Known())
    fence.told(6, gone=True)
    assert fence.wait(NOW) == WHOLE
    assert fence.lost


def test_a_worker_that_died_by_itself_is_told_from_one_that_was_lost(fence: Fence) -> None:
    """Only what Spark has seen end has ended by its own doing."""
    assert not fence.lost
    lend(fence, Known())
    assert fence.lost
    fence.told(7, gone=True)
    assert not fence.lost


def test_a_worker_that_holds_the_lock_is_not_waited_for(fence: Fence) -> None:
    """The lock sees to that; Spark's word of its end tells only whether it was lost."""
    lend(fence, Known())
    fence.told(7, gone=True)
    fence.give_back(8)
    assert fence.wait(NOW) == 0
    assert fence.lost
    fence.told(8, gone=True)
    assert not fence.lost


def test_the_next_engine_waits_for_the_worker_of_a_killed_one(path: Path) -> None:
    """What may still run is in the lock file, and the wait begins with the new engine."""
    killed = Fence(path, NOW)
    lend(killed, Known())
    os.close(killed._descriptor)
    following = Fence(path, NOW + 3)
    assert following.wait(NOW + 4) == WHOLE - 1
    assert following.wait(NOW + 3 + WHOLE) == 0
    following.close(NOW + 4)
    third = Fence(path, NOW)
    assert third.wait(NOW) == WHOLE, "a stop during the wait must not forget it"
    third.close(NOW + WHOLE)
    fourth = Fence(path, NOW)
    assert fourth.wait(NOW) == 0
    fourth.close(NOW)


def test_a_clean_stop_leaves_nothing_to_wait_for(path: Path) -> None:
    """When every worker is known to have ended, the next engine begins at once."""
    stopped = Fence(path, NOW)
    lend(stopped, Known())
    stopped.told(7, gone=True)
    stopped.close(NOW)
    following = Fence(path, NOW)
    assert following.wait(NOW) == 0
    following.close(NOW)


def test_the_lock_is_held_in_place_of_a_worker_that_cannot(path: Path, fence: Fence) -> None:
    """No worker that sees the log gets the lock meanwhile, and the other way round."""
    other = os.open(path, os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert not fence.take()
    fcntl.flock(other, fcntl.LOCK_UN)
    assert fence.take()
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fence.give_back(8)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


def test_a_lock_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """The fault tells the path."""
    with pytest.raises(EnvironmentFault, match=r"nowhere/0\.lock"):
        Fence(tmp_path / "nowhere" / "0.lock", NOW)

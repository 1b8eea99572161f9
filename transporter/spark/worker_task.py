"""The body of a worker's Spark task: one long-running task a shard.

The idea of Spark's continuous processing: the task stays, and slices come to
it over a socket, so a slice costs no job. DESIGN.md, "Alternatives rejected", has the figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark import TaskContext

from transporter.errors import HostFailed
from transporter.worker.worker import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.protocol.messages import Invitation

_AGAIN: Final = "Spark runs this worker a second time"
_ENDED: Final = ("PythonException", "Python worker exited unexpectedly")
"""What Spark says when the Python process of a task has failed, or is gone."""
_LOST: Final = ("ExecutorLost", "ExecutorDead", _AGAIN)


def pump(invitation: Invitation, partition: Iterator[int]) -> Iterator[int]:
    """Serve as *invitation* says until the engine closes the connection.

    Once only: what Spark repeats by itself, for it has lost an executor, is not the
    worker that the engine knows of, and its end would say nothing of that one's.
    """
    # A task that leaves input behind costs its Python process.
    for _ in partition:
        pass
    task = TaskContext.get()
    if task is not None and task.attemptNumber() > 0:
        raise HostFailed(f"{_AGAIN}; the engine asks for another one")
    run(invitation)
    return iter(())


def has_ended(problem: str) -> bool:
    """Tell whether the job's failure for *problem* proves that its Python process has ended.

    It does not when Spark has lost sight of the executor: the worker may run on there.
    """
    lost = any(each in problem for each in _LOST)
    return not lost and any(each in problem for each in _ENDED)

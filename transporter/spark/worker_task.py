"""The body of a worker's Spark task: one long-running task per shard.

The idea is that of Spark's continuous processing. The task stays, and slices come to it over a
socket, so a slice costs no job. DESIGN.md, "Alternatives rejected", has the figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark import TaskContext

from transporter.errors import HostFailed
from transporter.worker.worker import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.protocol.messages import Invitation

_AGAIN: Final = "Spark repeats this worker"
_ENDED: Final = ("PythonException", "Python worker exited unexpectedly")
"""Texts in Spark's errors when the Python process of a task has failed, or is gone."""
_LOST: Final = ("ExecutorLost", "ExecutorDead", _AGAIN)


def pump(invitation: Invitation, partition: Iterator[int]) -> Iterator[int]:
    """Serve *invitation* until the engine closes the connection.

    A task that Spark repeats by itself, because it has lost an executor, is refused. It is not
    the engine's worker, and its end would prove nothing about that worker's end.
    """
    # A task that leaves input behind costs its Python process.
    for _ in partition:
        pass
    task = TaskContext.get()
    if task is not None and task.attemptNumber() > 0:
        raise HostFailed(f"{_AGAIN}; the engine starts another one")
    run(invitation)
    return iter(())


def has_ended(problem: str) -> bool:
    """Return whether *problem*, the job's failure, proves that its Python process has ended.

    It does not when Spark has lost the executor, where the worker may still run.
    """
    lost = any(each in problem for each in _LOST)
    return not lost and any(each in problem for each in _ENDED)

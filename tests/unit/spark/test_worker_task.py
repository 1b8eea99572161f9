"""Tests of the body of a worker's task, without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from transporter.errors import HostFailed
from transporter.spark import worker_task as module
from transporter.spark.worker_task import has_ended, pump


@dataclass
class Task:
    """A task's context with its attempt number."""

    number: int

    def attemptNumber(self) -> int:  # noqa: N802 - Spark's name
        return self.number


@pytest.mark.parametrize("number", [None, 0])
def test_a_first_task_serves_and_takes_all_of_its_input(
    number: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first task serves, and reads its input to the end to keep its Python process."""
    served: list[Any] = []
    monkeypatch.setattr(module, "run", served.append)
    task = None if number is None else Task(number)
    monkeypatch.setattr(module.TaskContext, "get", lambda: task)
    rows = iter([1, 2])
    assert list(pump("spec", rows)) == []  # type: ignore[arg-type]
    assert served == ["spec"]
    assert list(rows) == []


def test_a_task_that_spark_repeats_serves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated task is refused, and its end does not count as that of the lost task."""
    monkeypatch.setattr(module, "run", lambda _: pytest.fail("it serves"))
    monkeypatch.setattr(module.TaskContext, "get", lambda: Task(1))
    with pytest.raises(HostFailed) as caught:
        pump("spec", iter([0]))  # type: ignore[arg-type]
    assert not has_ended(f"PythonException: {caught.value}")

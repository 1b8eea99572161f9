"""The work that the benchmark of ``postgres-cdc`` measures, checked for completeness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.cdc import log_batches
from benchmarks.messages import batches
from transporter.adaptor import Batch
from transporter.log.commit_log import CommitLog

if TYPE_CHECKING:
    from pathlib import Path


class Source:
    """A reader that gives these batches, and records what was durable at each commit."""

    def __init__(self, log: CommitLog, *given: Batch) -> None:
        self.log, self.left, self.committed = log, list(given), []

    def keep_alive(self) -> None:
        """Do nothing."""

    def poll(self, _: float) -> Batch:
        """Return the next batch."""
        return self.left.pop(0)

    def commit(self, position: str) -> None:
        """Record the commit."""
        self.committed.append((position, self.log.durable))


def test_every_row_is_durable_before_its_position_is_confirmed(tmp_path: Path) -> None:
    """Batches without messages are passed, and the clock stops at the last row."""
    first, second = batches(2, 30)
    with CommitLog.open(tmp_path) as log:
        source: Any = Source(log, Batch(first, "a"), Batch(()), Batch((), "b"), Batch(second, "c"))
        log_batches(source, log, 60)
        assert source.committed == [("a", 29), ("b", 29), ("c", 59)]
        assert source.left == []


def test_rows_that_come_twice_are_an_error(tmp_path: Path) -> None:
    """A side that repeats rows is an error, not a faster side."""
    (batch,) = batches(1, 30)
    with CommitLog.open(tmp_path) as log:
        source: Any = Source(log, Batch(batch, "a"), Batch(batch, "b"))
        with pytest.raises(RuntimeError, match="60 messages, where 40 rows"):
            log_batches(source, log, 40)

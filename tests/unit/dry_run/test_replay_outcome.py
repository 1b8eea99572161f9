"""The outcome of a replay, and the amount of the log in one run of its route."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from transporter.dry_run.outcome import DryRunResult
from transporter.dry_run.replay_outcome import count_deliveries
from transporter.log.commit_log import CommitLog
from transporter.message import Entries, Message, batch_bytes, messages_to_batch

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

MIB = 1 << 20


class Route:
    """A route that delivers everything, and records the sizes of its runs."""

    name, refusal = "all", None

    def __init__(self) -> None:
        """Start without runs."""
        self.rows: list[int] = []
        self.sizes: list[int] = []

    def run(self, entries: pa.RecordBatch) -> list[DryRunResult]:
        """Deliver *entries*."""
        self.rows.append(entries.num_rows)
        self.sizes.append(batch_bytes(entries))
        return [DryRunResult(each, (each.message,), None) for each in Entries(entries)]


@pytest.mark.parametrize(
    ("size", "rows"),
    [(3 * MIB, [3, 3, 1]), (10, [7])],
)
def test_small_frames_are_run_together_and_large_ones_stay_bounded(
    tmp_path: Path, size: int, rows: list[int]
) -> None:
    """A run holds 8 MiB and the frame that exceeds them, however long the log (Invariant 17)."""
    with CommitLog.open(tmp_path / "log", compression=None) as log:
        for number in range(7):
            log.append(messages_to_batch([Message("n", bytes([65 + number]) * size)]), "in")
    route = Route()
    found = count_deliveries(tmp_path / "log", route, 0, 6, "")
    assert (found.delivered, found.messages) == (7, 7)
    assert route.rows == rows
    assert max(route.sizes) < 12 * MIB

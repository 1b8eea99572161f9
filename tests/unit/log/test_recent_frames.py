"""The newest small frames of a log, kept in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.log.commit_log import CommitLog
from transporter.log.reader import LogReader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    Make = Callable[..., pa.RecordBatch]


def test_recent_frames_are_the_bytes_of_the_file(tmp_path: Path, batch: Make) -> None:
    """Frames with exactly the requested offsets are returned as they were written."""
    with CommitLog.open(tmp_path) as log, LogReader(tmp_path) as reader:
        log.append(batch(3), "r")
        log.append(batch(1), "r")
        found = log.recent_frames(0, 3)
        assert [each.header for each in found] == [at.frame for at in reader.frames(0, 3)]
        content = next(tmp_path.glob("*.log")).read_bytes()
        assert all(content[at.byte : at.end] == data for at, data in found)
        assert len(log.recent_frames(3, 3)) == 1
        for first, last in ((1, 3), (0, 1), (2, 2), (0, 4), (4, 4)):
            assert log.recent_frames(first, last) == []


def test_recent_frames_are_small_and_few(tmp_path: Path, batch: Make) -> None:
    """Neither a large frame nor more than the newest ones are kept (Invariant 17)."""
    with CommitLog.open(tmp_path, compression=None) as log:
        log.append(batch(1, size=17_000), "r")
        assert log.recent_frames(0, 0) == []
        for _ in range(65):
            log.append(batch(1, size=14_000), "r")
        assert log.recent_frames(1, 1) == []
        kept = log.recent_frames(2, 65)
        assert len(kept) == 64
        assert sum(len(each.data) for each in kept) <= 1 << 20


def test_the_frames_of_an_earlier_engine_are_read(tmp_path: Path, batch: Make) -> None:
    """A log that is opened again knows none of its frames."""
    with CommitLog.open(tmp_path) as log:
        log.append(batch(1), "r")
    with CommitLog.open(tmp_path) as log:
        assert log.recent_frames(0, 0) == []

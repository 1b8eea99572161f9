"""Entries that come with a slice instead of being read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import worker_spec
from log_tools import descriptors

from transporter.log.commit_log import CommitLog
from transporter.log.reader import LogReader
from transporter.log.segment import segment_bases, segment_name
from transporter.protocol.messages import Slice
from transporter.worker.entry_source import LocalEntries

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    Make = Callable[..., pa.RecordBatch]


def _buffers(entries: pa.RecordBatch) -> list[Any]:
    found = [buffer for column in entries.columns for buffer in column.buffers()]
    return [buffer for buffer in found if buffer is not None and buffer.size]


@pytest.mark.parametrize("reader", ["r", "re", "rea", "read"])
def test_values_are_aligned_whatever_precedes_them(
    tmp_path: Path, batch: Make, reader: str
) -> None:
    """Without a codec the entries lie in the frame itself, behind a name of any length."""
    spec = worker_spec(tmp_path)
    with CommitLog.open(tmp_path / "log", compression=None) as log:
        log.append(batch(3), reader)
        frames = tuple(each.data for each in log.recent_frames(0, 2))
    with LocalEntries.open(spec) as source:
        batches, failure = source.read(Slice(0, 2, 0, frames=frames))
    assert failure is None
    (entries,) = batches
    assert [buffer.address % 8 for buffer in _buffers(entries)] == [0] * len(_buffers(entries))


def test_slices_that_are_not_read_close_removed_segments_too(
    tmp_path: Path, batch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of a route that keeps up reads no file. It still gives free room back."""
    spec = worker_spec(tmp_path)
    with CommitLog.open(tmp_path / "log", segment_bytes=4096) as log:
        while len(bases := segment_bases(log.files, tmp_path / "log")) < 3:
            log.append(batch(4), "r")
        last = log.durable
        frames = tuple(each.data for each in log.recent_frames(last - 3, last))
        with LogReader(tmp_path / "log") as reader:
            source = LocalEntries(spec, reader)
            assert source.read(Slice(0, last, 0))[1] is None
            (tmp_path / "log" / segment_name(bases[0])).unlink()
            monkeypatch.setattr("transporter.log.open_segments.SWEEP", 0.0)
            assert source.read(Slice(last - 3, last, 0, frames=frames))[1] is None
            assert descriptors(tmp_path / "log", removed=True) == 0

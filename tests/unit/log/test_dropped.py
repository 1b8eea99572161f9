"""The count of the entries that compaction has dropped from a range of offsets."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from compaction_tools import Frame, compacted, everything, letters, write_log
from log_tools import crash, damage, unsynced

from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.inspection import inspect
from transporter.log.reader import LocatedFrame, LogReader
from transporter.log.search import offset_before_newer, offset_behind_older
from transporter.log.segment import Segment, segment_bases, segment_name
from transporter.message import Message, messages_to_batch
from transporter.offsets.verify_repair import repair_log, verify

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    import pytest

    from transporter.log.format import FrameHeader


def counted(directory: Path, first: int = 0, last: int = 1 << 40) -> int:
    """Return how many entries of a range were dropped."""
    with LogReader(directory) as reader:
        return reader.count_dropped(first, last)


def no_payload(*_: object) -> pa.RecordBatch:
    """Refuse to read a payload."""
    raise AssertionError


def test_what_was_dropped_is_counted_by_frame_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole segments are counted without a payload, and a range within a frame reads that one."""
    last = write_log(
        tmp_path, [[Frame(letters("AAAB"))], [Frame(letters("AAA"))], [Frame(letters("A"))]]
    )
    assert counted(tmp_path) == 0
    compacted(tmp_path, last)
    assert list(everything(tmp_path)) == [3, 6, 7]
    assert [counted(tmp_path, first, end) for first, end in ((1, 3), (2, 5), (6, 7))] == [2, 3, 0]
    monkeypatch.setattr(LocatedFrame, "entries", no_payload)
    assert counted(tmp_path) == 5
    assert counted(tmp_path, 4, 6) == 2
    assert counted(tmp_path, 8) == 0


def test_a_segment_that_was_never_compacted_is_not_walked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that was never compacted is recognised by one frame, without a walk."""
    row = messages_to_batch([Message("n", b"x" * 100_000)])
    with CommitLog.open(tmp_path, compression=None, segment_bytes=4 << 20) as log:
        for _ in range(70):
            log.append(row, "r")
    walked: list[int] = []
    frame_at = Segment.frame_at

    def noted(segment: Segment, byte: int) -> FrameHeader | None:
        walked.append(byte)
        return frame_at(segment, byte)

    monkeypatch.setattr(Segment, "frame_at", noted)
    assert counted(tmp_path) == 0
    assert len(segment_bases(RealFileSystem(), tmp_path)) == 2
    assert len(walked) < 10


def test_offsets_that_recovery_cut_are_not_taken_for_dropped(tmp_path: Path) -> None:
    """Offsets cut by recovery stay a gap in the segment, however often it is compacted."""
    log = CommitLog.open(tmp_path, compression=None, clock=lambda: 0)
    log.append(messages_to_batch(letters("AA")), "r")
    unsynced(log, messages_to_batch(letters("AAB")))
    torn = unsynced(log, messages_to_batch(letters("ABAB")))
    crash(log)
    damage(tmp_path, torn.payload_byte)
    with CommitLog.open(tmp_path, compression=None, clock=lambda: 0) as again:
        again.append(messages_to_batch(letters("AB")), "r")
        again.append(messages_to_batch(letters("A")), "r")
        again._segment_bytes = 1
        again.append(messages_to_batch(letters("A")), "r")
        last = again.durable
    before = everything(tmp_path)
    assert list(before) == [0, 1, 2, 3, 4, 9, 10, 11, 12]
    for _ in range(2):
        compacted(tmp_path, last)
        after = everything(tmp_path)
        assert list(after) == [1, 10, 11, 12]
        assert counted(tmp_path) == len(before) - len(after) == 5
        with closing(Segment(RealFileSystem(), tmp_path / segment_name(2))) as segment:
            header, (first, *_) = segment.header, segment.frames()
        # Wherever the gap lies now, no frame begins behind the offset that verify allows.
        assert first.first <= header.next_offset == 9
    assert inspect(tmp_path).last == last
    assert verify(tmp_path).damages == ()


def test_what_was_dropped_of_a_repaired_segment_is_counted(tmp_path: Path) -> None:
    """Entries dropped before a repair are counted in the segment that the repair has moved."""
    frames = [Frame(letters("AD"), "r"), Frame(letters("AE"), "s"), Frame(letters("BBC"), "r")]
    last = write_log(tmp_path, [frames, [Frame(letters("AB"))], [Frame(letters("A"))]])
    compacted(tmp_path, last)
    with closing(Segment(RealFileSystem(), tmp_path / segment_name(0))) as segment:
        found = list(segment.frames())
    dropped = counted(tmp_path, found[-1].first, last)
    assert dropped > 0
    damage(tmp_path, found[0].byte)
    assert repair_log(tmp_path, verify(tmp_path), 0).kept
    assert counted(tmp_path, found[-1].first, last) == dropped


def test_times_include_what_may_have_been_logged_then(tmp_path: Path) -> None:
    """A dropped entry's time lies between the entry before it and the next one."""
    times = iter(range(0, 1000, 10))
    with CommitLog.open(tmp_path, compression=None, clock=lambda: next(times)) as log:
        for text in ("AB", "AB", "AB", "AB"):
            log.append(messages_to_batch(letters(text)), "r")
        log._segment_bytes = 1
        log.append(messages_to_batch(letters("AB")), "r")
        last = log.durable
    with LogReader(tmp_path) as reader:
        middle = int(next(reader.read(4, 4)).column("logged_at")[0].value)
        assert offset_behind_older(reader, middle, 0, last) == 4
        assert offset_before_newer(reader, middle, 0, last) == 5
        assert offset_behind_older(reader, 0, 0, last) == 0
        assert offset_before_newer(reader, 1 << 50, 0, last) == last
    compacted(tmp_path, last)
    assert list(everything(tmp_path)) == [6, 7, 8, 9]
    with LogReader(tmp_path) as reader:
        assert offset_behind_older(reader, middle, 0, last) == 0
        assert offset_before_newer(reader, middle, 0, last) == 5

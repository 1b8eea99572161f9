"""Compaction: the entries that are dropped and kept, unnoticed by readers beside it."""

from __future__ import annotations

import errno
import threading
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from compaction_tools import (
    LATE,
    SECOND,
    Frame,
    append_segments,
    compacted,
    everything,
    expected,
    keyed,
    letters,
    write_log,
)
from log_tools import Disk, crash, damage, unsynced

from transporter.errors import LogFull, LogPoisoned
from transporter.log import segment_rewriter
from transporter.log.commit_log import CommitLog
from transporter.log.compaction import CompactionSettings, compact
from transporter.log.filesystem import RealFileSystem
from transporter.log.index import confirmed_entries, index_path, reindex
from transporter.log.open_segments import MOST
from transporter.log.reader import LogReader
from transporter.log.retention import RetentionSettings, apply_retention
from transporter.log.retention_gate import RetentionGate
from transporter.log.sealed_segments import sealed_segments
from transporter.log.search import first_offset_since
from transporter.log.segment import Segment, segment_name
from transporter.log.segment_rewriter import ROOM
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import OffsetLog
from transporter.offsets.retention_holds import hold_of, least_hold
from transporter.offsets.state import Range
from transporter.offsets.verify_repair import repair_log, verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transporter.log.filesystem import File
    from transporter.message import Entry

OLD, ACTIVE = "AABBAABBCACBAACBA", "AABBAABBCAC"
"""The namespaces of the first design's tables, offsets 0..16 and 17..27."""


def one_by_one(text: str) -> list[Frame]:
    """Return a frame for each letter of *text*."""
    return [Frame([each]) for each in letters(text)]


def data_of(entries: dict[int, Entry]) -> dict[int, bytes | None]:
    """Return the data at each offset."""
    return {offset: entry.message.data for offset, entry in entries.items()}


def _while_it_is_written(
    directory: Path, act: Callable[[], None], base: int = 0
) -> Callable[[int], None]:
    """Return a progress callback that calls *act* once, while *base*'s replacement is written."""
    left = [act]

    def hear(_: int) -> None:
        if left and list(directory.glob(f"{segment_name(base)}.tmp")):
            left.pop()()

    return hear


@pytest.mark.parametrize("whole", [True, False], ids=["one frame", "a frame each"])
def test_the_tables_of_the_first_design(tmp_path: Path, whole: bool) -> None:
    """Of the old segment 14 (C), 15 (B) and 16 (A) stay, and so do the active one and offsets."""
    segments = [[Frame(letters(OLD))], [Frame(letters(ACTIVE))]]
    if not whole:
        segments = [one_by_one(OLD), one_by_one(ACTIVE)]
    last = write_log(tmp_path, segments)
    before = everything(tmp_path)
    # c0 has acked up to 26 for A, 23 for B and 27 for C, so it passed everything up to 27.
    with OffsetLog(tmp_path, "c0") as c0:
        for namespace, newest in (("A", 26), ("B", 23), ("C", 27)):
            c0.settle(Range(0, newest), last, {namespace: newest})
    hold = least_hold(tmp_path)
    assert hold is not None
    assert hold.through == 27
    report = compacted(tmp_path, hold.through)
    after = everything(tmp_path)
    assert list(after) == [14, 15, 16, *range(17, 28)]
    assert [after[at].message.namespace for at in (14, 15, 16)] == ["C", "B", "A"]
    assert after == {offset: before[offset] for offset in after}
    assert (report.dropped_entries, report.problems) == (14, ())
    with OffsetLog(tmp_path, "c0") as c0:
        assert c0.state.namespaces == {"A": 26, "B": 23, "C": 27}


def test_entries_in_the_active_segment_make_nothing_obsolete(tmp_path: Path) -> None:
    """A later entry counts only when it lies in a sealed segment itself."""
    last = write_log(tmp_path, [[Frame(letters("AB"))], [Frame(letters("AB"))]])
    assert compacted(tmp_path, last).segments == ()
    assert list(everything(tmp_path)) == [0, 1, 2, 3]


def test_a_log_of_one_segment_is_never_touched(tmp_path: Path) -> None:
    """The active segment of an idle log stays as it is, and appends follow it."""
    write_log(tmp_path, [[Frame(letters("AAAA"))]])
    content = (tmp_path / segment_name(0)).read_bytes()
    assert compacted(tmp_path, 3).looked_at == 0
    assert (tmp_path / segment_name(0)).read_bytes() == content
    with CommitLog.open(tmp_path) as log:
        append_segments(log, [[Frame(letters("A" * 100))]])
    assert list(everything(tmp_path)) == list(range(104))


def test_an_entry_is_obsoleted_from_another_segment(tmp_path: Path) -> None:
    """A namespace's last entry in a much later segment makes an earlier one obsolete."""
    last = write_log(
        tmp_path, [[Frame(letters("AB"))], [Frame(letters("CA"))], [Frame([*letters("D")])]]
    )
    compacted(tmp_path, last)
    # 1 is the last of B and the end of its segment, 2 the last of C, 3 that of A.
    assert list(everything(tmp_path)) == [1, 2, 3, 4]


@pytest.mark.parametrize("watermark", [-1, 1, 2, 3, 4, 5])
def test_what_a_route_has_not_settled_stays(tmp_path: Path, watermark: int) -> None:
    """Entries above the least watermark stay and obsolete no others (Invariant 11)."""
    write_log(tmp_path, [[Frame(letters("AAA"))], [Frame(letters("AAA"))], [Frame(letters("A"))]])
    before = everything(tmp_path)
    compacted(tmp_path, watermark)
    after = everything(tmp_path)
    assert set(after) == expected(before, [2, 5], watermark, "namespace")
    assert set(before) - set(after) <= set(range(watermark + 1))


def test_a_route_that_never_acked_keeps_everything(tmp_path: Path) -> None:
    """A route without an ack, also one whose folder is empty, holds the whole log."""
    last = write_log(tmp_path, [[Frame(letters("AAA"))], [Frame(letters("A"))]])
    with OffsetLog(tmp_path, "fast") as fast:
        fast.settle(Range(0, last), last)
    OffsetLog(tmp_path, "dead").close()
    hold = least_hold(tmp_path)
    assert hold is not None
    assert (hold.through, str(hold)) == (-1, "route dead")
    compacted(tmp_path, hold.through)
    assert list(everything(tmp_path)) == [0, 1, 2, 3]


def test_young_segments_stay(tmp_path: Path) -> None:
    """A segment is compacted only when its newest entry is older than ``after``."""
    times = iter([5, 10, 20, 30])
    write_log(
        tmp_path,
        [[Frame(letters("A")), Frame(letters("A"))], [Frame(letters("AA"))]],
        clock=lambda: next(times, 40) * SECOND,
    )
    settings = CompactionSettings(after=60.0, compression=None)

    def run(now: int) -> int:
        return compact(
            tmp_path, watermark=lambda: 3, settings=settings, now=now * SECOND
        ).dropped_entries

    newest = sealed_segments(RealFileSystem(), tmp_path)[0].newest // SECOND
    assert (run(newest + 60), run(newest + 61)) == (0, 1)


def test_the_last_of_each_key_stays_and_every_entry_without_one(tmp_path: Path) -> None:
    """``keep: key`` drops an entry that a later one of its namespace and key replaces."""
    other = Message("other", b"0", b"a")
    last = write_log(
        tmp_path,
        [
            [Frame([*keyed("a=1", "=x", "b=1", "a=2", "=y"), other])],
            [Frame(keyed("b=2", "c=1"))],
            [Frame(keyed("a=3"))],
        ],
    )
    report = compacted(tmp_path, last, "key")
    after = everything(tmp_path)
    assert list(after) == [1, 3, 4, 5, 6, 7, 8]
    assert report.dropped_entries == 2


def test_an_empty_key_is_a_key(tmp_path: Path) -> None:
    """Empty and missing keys differ, and a namespace never runs into a key."""
    pairs = [("n", b""), ("n", None), ("n", b""), ("na", b"b"), ("n", b"ab"), ("n", b"z")]
    messages = [Message(namespace, b"d", key) for namespace, key in pairs]
    last = write_log(tmp_path, [[Frame(messages)], [Frame(letters("A"))]])
    compacted(tmp_path, last, "key")
    assert list(everything(tmp_path)) == [1, 2, 3, 4, 5, 6]


def test_a_tombstone_goes_after_its_grace_with_all_that_it_buried(tmp_path: Path) -> None:
    """A tombstone that is its key's last entry is dropped after the grace period."""
    last = write_log(
        tmp_path,
        [
            [Frame(keyed("a=1", "b=1", "a", "c=1"))],
            [Frame(keyed("b", "d=1"))],
            [Frame(keyed("e=1"))],
        ],
    )
    compacted(tmp_path, last, "key")
    assert list(everything(tmp_path)) == [2, 3, 4, 5, 6]
    compacted(tmp_path, last, "key", tombstones=0.0)
    assert list(everything(tmp_path)) == [3, 5, 6]


def test_a_tombstone_stays_while_an_older_segment_holds_its_key(tmp_path: Path) -> None:
    """A tombstone stays while an obsolete entry of its key marks the end of a segment."""
    last = write_log(
        tmp_path,
        [[Frame(keyed("b=1", "a=1"))], [Frame(keyed("a", "b", "d=1"))], [Frame(keyed("e=1"))]],
    )
    for _ in range(2):
        compacted(tmp_path, last, "key", tombstones=0.0)
        # 1 marks the end of its segment, so its tombstone 2 stays, and 3 is dropped with 0.
        assert list(everything(tmp_path)) == [1, 2, 4, 5]


def test_a_tombstone_behind_a_damaged_segment_stays(tmp_path: Path) -> None:
    """A tombstone behind an unreadable segment stays, because that may hold its key."""
    last = write_log(
        tmp_path, [[Frame(keyed("a=1", "c=1"))], [Frame(keyed("a", "d=1"))], [Frame(keyed("e=1"))]]
    )
    sealed = sealed_segments(RealFileSystem(), tmp_path)[0]
    with closing(Segment(RealFileSystem(), sealed.path)) as segment:
        byte = next(segment.frames()).payload_byte
    damage(tmp_path, byte)
    report = compacted(tmp_path, last, "key", tombstones=0.0)
    assert len(report.problems) == 1
    damage(tmp_path, byte)
    assert list(everything(tmp_path)) == [0, 1, 2, 3, 4]


def test_the_last_entry_of_a_namespace_stays_even_if_it_is_a_tombstone(tmp_path: Path) -> None:
    """A namespace's last entry stays even if it is a tombstone, because readers may request it."""
    messages = [Message("gone", None, b"k", "delete"), *keyed("d=1")]
    last = write_log(tmp_path, [[Frame(messages)], [Frame(keyed("e=1"))]])
    compacted(tmp_path, last, "key", tombstones=0.0)
    assert list(everything(tmp_path)) == [0, 1, 2]


@pytest.mark.parametrize("keep", ["namespace", "key"])
def test_keys_that_do_not_fit_are_left_to_another_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str
) -> None:
    """With room for few keys or masks the result is that of one pass (Invariant 17)."""
    monkeypatch.setattr("transporter.log.key_history.SEEN_BYTES", 120)
    monkeypatch.setattr("transporter.log.sealed_segments.CHUNK_FRAMES", 2)
    monkeypatch.setattr("transporter.log.compaction_targets.MASK_ROWS", 12)
    segments = [
        [
            Frame(
                [Message(f"n{at * 7 % 5}", b"d", b"key %d" % (at * step % 23)) for at in range(3)]
            )
            for step in range(base, base + 4)
        ]
        for base in range(1, 9)
    ]
    last = write_log(tmp_path, segments)
    before = everything(tmp_path)
    ends = [each.end for each in sealed_segments(RealFileSystem(), tmp_path)]
    compacted(tmp_path, last, keep)  # type: ignore[arg-type]
    assert set(everything(tmp_path)) == expected(before, ends, last, keep)  # type: ignore[arg-type]


def test_a_dry_run_tells_and_changes_nothing(tmp_path: Path) -> None:
    """A dry run counts the obsolete entries and changes no file."""
    last = write_log(tmp_path, [[Frame(letters("AAAB"))], [Frame(letters("A"))]])
    content = {path: path.read_bytes() for path in tmp_path.iterdir()}
    report = compacted(tmp_path, last, dry_run=True)
    assert [(each.entries, each.kept, each.after) for each in report.segments] == [(4, 2, None)]
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == content


def test_a_second_compaction_finds_nothing_to_do(tmp_path: Path) -> None:
    """A compacted segment is left alone."""
    last = write_log(tmp_path, [[Frame(letters("AAAB"))], [Frame(letters("A"))]])
    assert compacted(tmp_path, last).dropped_entries == 2
    content = (tmp_path / segment_name(0)).read_bytes()
    assert compacted(tmp_path, last).segments == ()
    assert (tmp_path / segment_name(0)).read_bytes() == content


def test_small_frames_are_joined(tmp_path: Path) -> None:
    """A segment of many tiny frames becomes one of few, also without obsolete entries."""
    frames = [Frame([Message(f"n{at}", b"d" * 50)], position=str(at)) for at in range(200)]
    last = write_log(tmp_path, [frames, [Frame(letters("A"))]])
    before = everything(tmp_path)
    size = (tmp_path / segment_name(0)).stat().st_size
    compacted(tmp_path, last)
    assert everything(tmp_path) == before
    assert (tmp_path / segment_name(0)).stat().st_size < size // 2
    with closing(Segment(RealFileSystem(), tmp_path / segment_name(0))) as segment:
        assert [(frame.first, frame.last) for frame in segment.frames()] == [(0, 199)]


def test_large_frames_are_cut_and_coverage_has_no_hole(tmp_path: Path) -> None:
    """Frames cover each offset of the segment, obsolete ones too, and are about 1 MiB long."""
    rows = [Message("A" if at % 2 else f"n{at}", b"x" * 60_000) for at in range(80)]
    last = write_log(tmp_path, [[Frame(rows[:40]), Frame(rows[40:])], [Frame(letters("B"))]])
    before = everything(tmp_path)
    compacted(tmp_path, last)
    assert set(everything(tmp_path)) == expected(before, [79], last, "namespace")
    with closing(Segment(RealFileSystem(), tmp_path / segment_name(0))) as segment:
        frames = list(segment.frames())
        trailer = segment.trailer()
    assert [frame.first for frame in frames] == [0, *(frame.last + 1 for frame in frames[:-1])]
    assert all(frame.entries_bytes < 2 << 20 for frame in frames)
    assert trailer is not None
    assert (frames[-1].last, trailer.last) == (79, 79)


def test_positions_and_who_read_what_survive(tmp_path: Path) -> None:
    """Each reader's newest position is kept, and no frame mixes two readers."""
    frames = [
        Frame(letters("A"), "one", "1"),
        Frame(letters("B"), "two", "2"),
        Frame(letters("A"), "one", "3"),
        Frame(letters("C"), "one", None),
        Frame(letters("A"), "two", "4"),
        Frame(letters("C"), "one", "5"),
        Frame(letters("BAD"), "three", None),
    ]
    last = write_log(tmp_path, [frames, [Frame(letters("E"), "three", "6")]])
    compacted(tmp_path, last)
    assert list(everything(tmp_path)) == [5, 6, 7, 8, 9]
    positions: dict[str, str] = {}
    with LogReader(tmp_path) as reader:
        found = []
        for each in reader.frames(0, 8):
            source = each.source()
            assert source is not None
            positions |= source.checkpoint or {}
            positions |= {source.reader: source.position} if source.position else {}
            found.append((source.reader, each.entries().column("offset").to_pylist()))
    assert found == [("one", [5]), ("three", [6, 7, 8])]
    assert positions == {"one": "5", "two": "4"}
    with CommitLog.open(tmp_path) as log:
        assert log.positions == {"one": "5", "two": "4", "three": "6"}


def test_log_times_stay(tmp_path: Path) -> None:
    """An entry keeps its log time, and a search by time finds the first entry left."""
    times = iter(range(100))
    frames = [Frame(letters("A")) for _ in range(5)] + [Frame(letters("B"))]
    last = write_log(tmp_path, [frames, [Frame(letters("C"))]], clock=lambda: next(times))
    before = everything(tmp_path)
    compacted(tmp_path, last)
    after = everything(tmp_path)
    assert list(after) == [4, 5, 6]
    with LogReader(tmp_path) as reader:
        for entry in after.values():
            assert entry.logged_at == before[entry.offset].logged_at
            assert first_offset_since(reader, entry.logged_at, last) == entry.offset


def torn_gap(directory: Path) -> int:
    """Write a log whose third segment is behind offsets that a recovery cut. Return its base."""
    log = CommitLog.open(directory, compression=None, clock=lambda: 0)
    log.append(messages_to_batch(letters("AB")), "one", "1")
    unsynced(log, messages_to_batch(letters("AAB")), "two", "2")
    torn = unsynced(log, messages_to_batch(letters("ABAB")), "one", "lost")
    crash(log)
    damage(directory, torn.payload_byte)
    with CommitLog.open(directory, compression=None, clock=lambda: 0) as again:
        append_segments(again, [[Frame(letters("AA"), "one", "3")]])
    return 9


def lost_gap(directory: Path) -> int:
    """Write a log whose third segment is behind entries that a repair gave up. Return its base."""
    frames = [
        Frame(letters("AB"), "one", "1"),
        Frame(letters("AB"), "two", "2"),
        Frame(letters("AA"), "one", "3"),
    ]
    write_log(directory, [[Frame(letters("AB"))], frames])
    with closing(Segment(RealFileSystem(), directory / segment_name(2))) as segment:
        _, hurt, _ = segment.frames()
    damage(directory, hurt.payload_byte, base=2)
    assert repair_log(directory, verify(directory), 0).kept
    return 6


@pytest.mark.parametrize("make", [torn_gap, lost_gap])
def test_a_gap_that_a_header_declares_survives(tmp_path: Path, make: Callable[[Path], int]) -> None:
    """A compacted segment declares the same gap before it as the old one."""
    base = make(tmp_path)
    with CommitLog.open(tmp_path, compression=None, clock=lambda: 0) as log:
        append_segments(log, [[Frame(letters("A"))]])
        last = log.durable
    path = tmp_path / segment_name(base)
    with closing(Segment(RealFileSystem(), path)) as segment:
        old = segment.header
    assert old.previous == base - (5 if make is torn_gap else 3)
    assert old.lost is (make is lost_gap)
    assert old.positions == {"one": "1", "two": "2"}
    compacted(tmp_path, last)
    with closing(Segment(RealFileSystem(), path)) as segment:
        new = segment.header
    assert new.segment_id != old.segment_id
    assert replace(new, segment_id=old.segment_id) == old


def test_the_index_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new index replaces the old one and is confirmed by the new segment."""
    monkeypatch.setattr("transporter.log.index.STRIDE", 1 << 20)
    monkeypatch.setattr("transporter.log.segment_rewriter.STRIDE", 1 << 20)
    rows = [Message(f"n{at}", b"x" * 60_000) for at in range(100)]
    frames = [Frame([row, Message("A", b"")]) for row in rows]
    last = write_log(tmp_path, [frames, [Frame(letters("B"))]])
    compacted(tmp_path, last)
    with closing(Segment(RealFileSystem(), tmp_path / segment_name(0))) as segment:
        known = confirmed_entries(RealFileSystem(), segment)
        places = {frame.byte: frame for frame in segment.frames()}
        sources = {each.byte: segment.source(places[each.byte]) for each in known}
    assert len(known) >= 4
    assert known[0].byte == min(places)
    assert all(source is not None and source.checkpoint is not None for source in sources.values())
    assert index_path(tmp_path / segment_name(0)).exists()


def test_a_reader_goes_on_in_a_segment_that_was_replaced(tmp_path: Path) -> None:
    """A reader discards remembered places of a segment that was replaced."""
    count = MOST + 3
    segments = [[Frame(letters("A")), Frame(letters(f"A{chr(97 + at)}"))] for at in range(count)]
    last = write_log(tmp_path, [*segments, [Frame(letters("A"))]])
    before = everything(tmp_path)
    with LogReader(tmp_path) as reader:

        def offsets(first: int, end: int) -> list[int]:
            found = reader.read(first, end)
            return [each for batch in found for each in batch.column("offset").to_pylist()]

        assert offsets(0, 0) == [0]
        compacted(tmp_path, last)
        assert offsets(1, 2) == [2]
        assert offsets(3, 5) == [5]
        for at in range(1, count):
            offsets(3 * at, 3 * at)
        assert offsets(1, 4) == [2]
        assert set(offsets(0, last)) == set(everything(tmp_path)) <= set(before)


def test_a_slice_is_bounded_by_the_entries_that_are_left(tmp_path: Path) -> None:
    """A route passes a region that compaction emptied in one step."""
    last = write_log(tmp_path, [[Frame(letters("A")) for _ in range(300)], [Frame(letters("B"))]])
    compacted(tmp_path, last)
    with LogReader(tmp_path) as reader:
        assert reader.slice_end(0, last, rows=10, size=1 << 20) == last


def test_a_damaged_segment_is_left_alone_and_named(tmp_path: Path) -> None:
    """A segment that cannot be read is kept whole and named, and the others are compacted."""
    last = write_log(
        tmp_path,
        [
            [Frame(letters("AAB"))],
            [Frame(letters("AAC"))],
            [Frame(letters("AAD"))],
            [Frame(letters("E"))],
        ],
    )
    path = tmp_path / segment_name(3)
    with closing(Segment(RealFileSystem(), path)) as segment:
        byte = next(segment.frames()).payload_byte
    damage(tmp_path, byte, base=3)
    content = path.read_bytes()
    report = compacted(tmp_path, last)
    assert path.read_bytes() == content
    assert [segment_name(3) in problem for problem in report.problems] == [True]
    damage(tmp_path, byte, base=3)
    assert list(everything(tmp_path)) == [2, 3, 4, 5, 7, 8, 9]


@pytest.mark.parametrize("part", ["header", "payload"])
def test_a_segment_that_the_disk_cannot_read_is_left_alone_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """A bad sector is damage like any other: the other segments are compacted."""
    last = write_log(tmp_path, [[Frame(letters("AAB"))] for _ in range(4)])
    with closing(Segment(RealFileSystem(), tmp_path / segment_name(3))) as segment:
        frame = next(segment.frames())
        bad = segment.first_byte if part == "header" else frame.payload_byte
    opened = RealFileSystem.open

    def opening(files: RealFileSystem, path: Path, **how: bool) -> Any:
        file = opened(files, path, **how)
        if path.name == segment_name(3):
            read = file.pread

            def pread(size: int, byte: int) -> bytes:
                if byte <= bad < byte + size and (part == "payload" or byte > 0):
                    raise OSError(errno.EIO, "Input/output error")
                return read(size, byte)

            file.pread = pread  # type: ignore[method-assign]
        return file

    with monkeypatch.context() as patch:
        patch.setattr(RealFileSystem, "open", opening)
        report = compacted(tmp_path, last)
    assert [segment_name(3) in problem for problem in report.problems] == [True]
    assert list(everything(tmp_path)) == [2, 3, 4, 5, 7, 8, 9, 10, 11]


def test_a_full_disk_leaves_the_segment_as_it_was(tmp_path: Path) -> None:
    """Without room for the copy nothing changes, and no partial file stays."""
    disk = Disk()
    last = write_log(tmp_path, [[Frame(letters("AAAB"))], [Frame(letters("A"))]])
    disk.failing_at = ("pwrite", f"{segment_name(0)}.tmp", OSError(errno.ENOSPC, "no space"))
    with pytest.raises(LogFull):
        compacted(tmp_path, last, files=disk)
    assert list(everything(tmp_path)) == [0, 1, 2, 3, 4]
    assert not list(tmp_path.glob("*.tmp"))


class _Filling(Disk):
    """A disk with a given number of free bytes, and none from a given check on."""

    def __init__(self, free: int, looks: int = 1 << 60) -> None:
        super().__init__()
        self.left, self.looks = free, looks

    def free_bytes(self, directory: Path) -> int:
        self.looks -= 1
        return self.left if self.looks >= 0 else 0


def test_without_room_for_a_copy_nothing_is_read(tmp_path: Path) -> None:
    """A compaction begins only with free space for its copy and a reserve for appends."""
    last = write_log(tmp_path, [[Frame(letters("AAAB"))], [Frame(letters("A"))]])
    read: list[int] = []
    settings = CompactionSettings(0.0, compression=None)
    for free, done in ((ROOM, False), (ROOM + (1 << 20), True)):
        with nullcontext() if done else pytest.raises(LogFull, match="free bytes"):
            compact(
                tmp_path,
                _Filling(free),
                watermark=lambda: last,
                settings=settings,
                now=LATE * SECOND,
                progress=read.append,
            )
        assert bool(read) == done
    assert list(everything(tmp_path)) == [2, 3, 4]


def test_a_disk_that_fills_during_the_copy_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that other writers fill ends the copy, which frees its own space."""
    monkeypatch.setattr(segment_rewriter, "SYNC_BYTES", 100)
    last = write_log(tmp_path, [[Frame(letters("AAAB"))], [Frame(letters("A"))]])
    disk = _Filling(1 << 40, looks=2)
    with pytest.raises(LogFull):
        compacted(tmp_path, last, files=disk)
    assert not list(tmp_path.glob("*.tmp"))
    assert list(everything(tmp_path)) == [0, 1, 2, 3, 4]


class _Counting(Disk):
    """Counts reads between two progress callbacks, and keeps the maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = self.most = 0

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        file = super().open(path, write=write, create=create)
        disk, pread = self, file.pread

        class Counted:
            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

            def pread(self, size: int, byte: int) -> bytes:
                disk.reads += 1
                disk.most = max(disk.most, disk.reads)
                return pread(size, byte)

        return Counted()

    def hear(self, _: int) -> None:
        self.reads = 0


@pytest.mark.parametrize("act", ["compact", "reindex"])
def test_paced_work_can_be_ended_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """Few frames lie between two checks for a stop, however many there are."""
    monkeypatch.setattr("transporter.log.sealed_segments.CHUNK_FRAMES", 50)
    monkeypatch.setattr("transporter.log.index._STEP", 16384)
    frames = [Frame(letters("A")) for _ in range(600)]
    last = write_log(tmp_path, [frames, frames, [Frame(letters("A"))]])
    for path in tmp_path.glob("*.index"):
        path.unlink()
    disk = _Counting()
    if act == "reindex":
        reindex(disk, tmp_path, disk.hear)
    else:
        settings = CompactionSettings(0.0, compression=None)
        compact(
            tmp_path,
            disk,
            watermark=lambda: last,
            settings=settings,
            now=LATE * SECOND,
            progress=disk.hear,
        )
    assert 10 < disk.most < 250


@pytest.mark.parametrize("call", ["sync", "sync_directory"])
def test_a_failed_sync_is_final(tmp_path: Path, call: str) -> None:
    """A failed sync is as final for the engine as any other (Invariant 13)."""
    disk = Disk()
    last = write_log(tmp_path, [[Frame(letters("AAAB"))], [Frame(letters("A"))]])
    disk.failing[call] = OSError(errno.EIO, "Input/output error")
    with pytest.raises(LogPoisoned):
        compacted(tmp_path, last, files=disk)


def test_whoever_hears_of_progress_can_end_it(tmp_path: Path) -> None:
    """A progress callback that raises leaves a whole log without a partial file."""
    last = write_log(
        tmp_path, [[Frame(letters("AAB"))], [Frame(letters("AAC"))], [Frame(letters("D"))]]
    )

    class Enough(Exception):
        pass

    def enough() -> None:
        raise Enough

    hear = _while_it_is_written(tmp_path, enough, base=3)
    settings = CompactionSettings(0.0, compression=None)
    with pytest.raises(Enough):
        compact(
            tmp_path, watermark=lambda: last, settings=settings, now=LATE * SECOND, progress=hear
        )
    assert not list(tmp_path.glob("*.tmp"))
    assert list(everything(tmp_path)) == [2, 3, 4, 5, 6]


def test_a_replay_that_begins_meanwhile_keeps_what_it_needs(tmp_path: Path) -> None:
    """The watermark is read again before each copy and each switch."""
    last = write_log(
        tmp_path, [[Frame(letters("AAB"))], [Frame(letters("AAC"))], [Frame(letters("D"))]]
    )
    answers = iter([last, last, last, 2])
    report = compact(
        tmp_path,
        watermark=lambda: next(answers),
        settings=CompactionSettings(0.0, compression=None),
        now=LATE * SECOND,
    )
    assert [each.name for each in report.segments] == [segment_name(0)]
    assert list(everything(tmp_path)) == [2, 3, 4, 5, 6]


def test_a_replay_that_begins_during_the_copy_loses_nothing(tmp_path: Path) -> None:
    """The hold is read when the files are switched, not before the copy (Invariant 11)."""
    last = write_log(
        tmp_path, [[Frame(letters("AAB"))], [Frame(letters("AAC"))], [Frame(letters("D"))]]
    )

    def begin(route: OffsetLog) -> None:
        route.begin_replay(0, last)

    with OffsetLog(tmp_path, "route") as route:
        route.settle(Range(0, last), last)
        report = compact(
            tmp_path,
            watermark=lambda: hold_of("route", route.state).through,
            settings=CompactionSettings(0.0, compression=None),
            now=LATE * SECOND,
            progress=_while_it_is_written(tmp_path, lambda: begin(route)),
        )
    assert report.segments == ()
    assert list(everything(tmp_path)) == list(range(last + 1))
    assert not list(tmp_path.glob("*.tmp"))


def test_a_copy_leaves_the_gate_to_others(tmp_path: Path) -> None:
    """Retention and replays wait for the switch of two files, not for the paced copy."""
    last = write_log(tmp_path, [[Frame(letters("AAB"))], [Frame(letters("A"))]])
    gate, passed = RetentionGate(), threading.Event()

    def enter() -> None:
        with gate:
            passed.set()

    def wait() -> None:
        threading.Thread(target=enter).start()
        assert passed.wait(10)

    report = compact(
        tmp_path,
        watermark=lambda: last,
        settings=CompactionSettings(0.0, compression=None),
        now=LATE * SECOND,
        progress=_while_it_is_written(tmp_path, wait),
        gate=gate,
    )
    assert report.dropped_entries == 1
    assert passed.is_set()


def test_a_segment_that_retention_removed_meanwhile_stays_removed(tmp_path: Path) -> None:
    """A rename of a replacement never brings back a segment that retention has removed."""
    last = write_log(
        tmp_path, [[Frame(letters("AAB"))], [Frame(letters("AAC"))], [Frame(letters("D"))]]
    )

    def remove() -> None:
        assert (
            next(
                apply_retention(tmp_path, watermark=lambda: 2, settings=RetentionSettings(0), now=0)
            ).end
            == 2
        )

    report = compact(
        tmp_path,
        watermark=lambda: last,
        settings=CompactionSettings(0.0, compression=None),
        now=LATE * SECOND,
        progress=_while_it_is_written(tmp_path, remove),
    )
    assert [each.name for each in report.segments] == [segment_name(3)]
    assert not list(tmp_path.glob(f"{segment_name(0)[:20]}.*"))
    assert list(everything(tmp_path)) == [4, 5, 6]


def test_a_route_goes_on_behind_an_entry_that_was_compacted_away(tmp_path: Path) -> None:
    """A restart whose last acked offset was dropped reads on behind it."""
    last = write_log(
        tmp_path, [[Frame(letters("AAAB"))], [Frame(letters("AC"))], [Frame(letters("A"))]]
    )
    with OffsetLog(tmp_path, "route") as route:
        route.settle(Range(0, 3), last, {"A": 2, "B": 3})
    compacted(tmp_path, last)
    with OffsetLog(tmp_path, "route") as route, LogReader(tmp_path) as reader:
        found = reader.read(route.state.next_unsettled(), last)
        assert [each for batch in found for each in batch.column("offset").to_pylist()] == [4, 5, 6]


def test_a_log_that_is_compacted_again_and_again_stays_small(tmp_path: Path) -> None:
    """A repeatedly compacted log stays as small as its live entries, whatever was written."""
    sizes = []
    with CommitLog.open(tmp_path, compression=None) as log:
        for _ in range(6):
            frames = [Frame([Message("A", b"x" * 5000), *letters("B")]) for _ in range(20)]
            append_segments(log, [frames])
            compacted(tmp_path, log.durable)
            sealed = sealed_segments(RealFileSystem(), tmp_path)
            sizes.append(sum(each.size for each in sealed))
    # Of 600 000 bytes the last 5 000 are left, and of each segment a header and its end.
    assert sizes[-1] < 15_000


def test_a_log_that_is_compacted_stays_one_that_opens_and_grows(tmp_path: Path) -> None:
    """After a restart the log goes on at the next offset, and is as compacted as before."""
    last = write_log(
        tmp_path, [[Frame(letters("AAB"))], [Frame(letters("AAC"))], [Frame(letters("D"))]]
    )
    compacted(tmp_path, last)
    assert write_log(tmp_path, [[Frame(letters("E"))]]) == last + 1
    assert list(everything(tmp_path)) == [2, 4, 5, 6, 7]

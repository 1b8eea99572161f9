"""The commit log against a list of the appended entries, through restarts, kills, power cuts."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from log_tools import crash, held_in, small_log, unsynced

from transporter.errors import Corrupt, UnknownFormat
from transporter.log.commit_log import CommitLog
from transporter.log.inspection import inspect
from transporter.log.reader import LogReader
from transporter.log.segment import segment_name
from transporter.message import Message, messages_to_batch

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.format import FrameHeader

DAMAGED = (Corrupt, UnknownFormat)


def messages(number: int, rows: int, size: int) -> pa.RecordBatch:
    """Return a batch whose data are unique to its number."""
    data = [b"%d/%d " % (number, row) + b"x" * size for row in range(rows)]
    return messages_to_batch([Message("n", each, b"k%d" % number) for each in data])


@dataclass
class Written:
    """A frame with its place, its entries, and the position that came with it."""

    header: FrameHeader
    data: dict[int, bytes]
    reader: str
    position: str | None


@dataclass
class World:
    """A log with the entries and positions that it must contain."""

    directory: Path
    segment_bytes: int
    log: CommitLog = field(init=False)
    data: dict[int, bytes] = field(default_factory=dict)
    positions: dict[str, str] = field(default_factory=dict)
    loose: list[Written] = field(default_factory=list)
    """Frames that no sync has covered."""
    given: int = -1
    """The highest offset that an append has returned, or that a frame still shows."""
    count: int = 0

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        """Open the log."""
        self.log = CommitLog.open(
            self.directory, segment_bytes=self.segment_bytes, compression=None
        )

    def append(self, rows: int, size: int, reader: str, *, tells: bool) -> None:
        """Append a batch, whose sync covers everything before it."""
        batch, position = self._next(rows, size, tells=tells)
        first, last = self.log.append(batch, reader, position)
        assert first > self.given
        assert last - first + 1 == rows
        self.given = last
        self.settle_loose()
        self._keep(_by_offset(batch, first), reader, position)

    def write(self, rows: int, size: int, reader: str, *, tells: bool) -> None:
        """Write a frame as an append that no sync follows."""
        batch, position = self._next(rows, size, tells=tells)
        frame = unsynced(self.log, batch, reader, position)
        assert frame.first > self.given
        self.loose.append(Written(frame, _by_offset(batch, frame.first), reader, position))

    def settle_loose(self) -> None:
        """Count every frame as part of the log."""
        for frame in self.loose:
            self._keep(frame.data, frame.reader, frame.position)
        self.loose = []

    def power_cut(self, fates: list[tuple[str, float]]) -> None:
        """Crash, with each frame that no sync covered reaching the disk according to *fates*."""
        crash(self.log)
        path = self.directory / segment_name(self.log._active.header.base)
        original = path.read_bytes()
        data = bytearray(original)
        whole = 0
        for frame, (fate, where) in zip(self.loose, fates, strict=False):
            start, end = frame.header.byte, frame.header.end
            byte = start + int(where * (end - start))
            payload_end = frame.header.payload_byte + frame.header.payload_length
            before = bytes(data[start:payload_end])
            if fate == "flip":
                data[byte] ^= 0x10
            elif fate == "lost":
                data[start:end] = bytes(end - start)
            elif fate == "half":
                data[byte:end] = bytes(end - byte)
            elif fate == "cut":
                del data[byte:]
            if bytes(data[start:payload_end]) == before and len(data) >= end:
                whole += 1
            else:
                break
        else:
            whole = len(self.loose)
        path.write_bytes(data)
        self._use_up(bytes(data), original)
        self.open()
        kept = sum(frame.header.last <= self.log.durable for frame in self.loose)
        # A frame whose padding alone was damaged is whole.
        assert kept == whole
        self.loose = self.loose[:kept]
        self.settle_loose()

    def _use_up(self, data: bytes, original: bytes) -> None:
        """Count the offsets of every frame whose header is still there as used (Invariant 4)."""
        for frame in self.loose:
            header = slice(frame.header.byte, frame.header.extension_byte)
            if data[header] == original[header] and frame.header.end <= len(data):
                self.given = max(self.given, frame.header.last)

    def check(self) -> None:
        """Compare the log with its expected content."""
        last = max(self.data, default=-1)
        assert self.log.durable == last
        assert self.log.positions == self.positions
        assert held_in(self.directory, last) == self.data
        with LogReader(self.directory) as reader:
            found = [one.frame for one in reader.frames_backwards(last)]
        assert sum(frame.count for frame in found) == len(self.data)
        assert all(one.first > other.last for one, other in pairwise(found))

    def _next(self, rows: int, size: int, *, tells: bool) -> tuple[pa.RecordBatch, str | None]:
        self.count += 1
        return messages(self.count, rows, size), str(self.count) if tells else None

    def _keep(self, data: dict[int, bytes], reader: str, position: str | None) -> None:
        self.data |= data
        if position is not None:
            self.positions[reader] = position


def _by_offset(batch: pa.RecordBatch, first: int) -> dict[int, bytes]:
    return dict(enumerate(batch.column("data").to_pylist(), start=first))


READERS = st.sampled_from(["a", "b", "é"])
FRAME = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 4),
        "size": st.sampled_from([0, 10, 200, 1200]),
        "reader": READERS,
        "tells": st.booleans(),
    }
)
FATES = st.lists(
    st.tuples(st.sampled_from(["kept", "flip", "lost", "half", "cut"]), st.floats(0, 0.999)),
    max_size=6,
)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), FRAME),
        st.tuples(st.just("write"), FRAME),
        st.tuples(st.just("write"), FRAME),
        st.tuples(st.just("close"), st.none()),
        st.tuples(st.just("kill"), st.none()),
        st.tuples(st.just("power"), FATES),
    ),
    max_size=22,
)


@given(ACTS, st.sampled_from([1, 2000, 1 << 20]))
@settings(max_examples=30)
def test_a_log_holds_what_was_appended(acts: list[tuple[str, Any]], segment_bytes: int) -> None:
    """No acked entry is lost, altered or given an offset twice (Invariants 1, 2, 4 and 18).

    Frames that no sync covered are kept up to the first that did not reach the
    disk, whatever happened to those behind it. Positions are those of the kept frames.
    """
    with small_log() as directory:
        world = World(directory, segment_bytes)
        for act, argument in acts:
            match act:
                case "append":
                    world.append(**argument)
                case "write":
                    world.write(**argument)
                case "close":
                    world.log.close()
                    world.settle_loose()
                    world.open()
                case "kill":
                    crash(world.log)
                    world.settle_loose()
                    world.open()
                case "power":
                    world.power_cut(argument)
            if not world.loose:
                world.check()
        world.append(1, 0, "a", tells=True)
        world.check()
        world.log.close()


@given(st.integers(2, 8), st.integers(0, 3), st.data())
@settings(max_examples=30)
def test_a_hurt_tail_costs_nothing_that_was_proved(
    appends: int, loose: int, data: st.DataObject
) -> None:
    """Damage above the floor leaves a prefix with everything below it (Invariants 2 and 3)."""
    with small_log() as directory:
        world = World(directory, 1 << 20)
        ends = []
        for _ in range(appends):
            world.append(2, 30, "a", tells=True)
            ends.append(world.log._active.byte)
        for _ in range(loose):
            world.write(2, 30, "b", tells=True)
        crash(world.log)
        world.settle_loose()
        # Each frame proves those before it, so only a later one proves the last append.
        proved = appends if loose else appends - 1
        path = directory / segment_name(0)
        content = bytearray(path.read_bytes())
        byte = data.draw(st.integers(ends[proved - 1], world.log._active.byte - 1))
        if data.draw(st.booleans()):
            content = content[:byte]
        else:
            content[byte] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        confirmed = inspect(directory)
        with CommitLog.open(directory) as log:
            assert log.durable == confirmed.last
            assert log.durable >= 2 * proved - 1
            kept = held_in(directory, log.durable)
            assert kept == {n: world.data[n] for n in range(log.durable + 1)}
            first, _ = log.append(messages(99, 1, 0), "a")
            assert first > max(kept)
        assert held_in(directory, first) == kept | {first: b"99/0 "}


@given(st.data())
@settings(max_examples=30)
def test_damage_is_refused_or_harmless(data: st.DataObject) -> None:
    """No reader gets an altered entry, whatever byte of a log changes (Invariants 2 and 3)."""
    with small_log() as directory:
        expected = _some_log(directory)
        path = data.draw(st.sampled_from(sorted(directory.iterdir())))
        before = path.read_bytes()
        if not before:
            return
        content = bytearray(before)
        byte = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[byte] ^= data.draw(st.integers(1, 255))
        else:
            content = content[:byte]
        path.write_bytes(content)
        _read_each(directory, expected)
        _open(directory, expected)


def _some_log(directory: Path) -> dict[int, bytes]:
    """Write a log of several segments, one of which a killed engine has left."""
    world = World(directory, 1200)
    for number in range(4):
        world.append(2, 150, "a", tells=True)
        world.write(1, 50 * number, "b", tells=False)
    world.append(1, 0, "a", tells=True)
    crash(world.log)
    world.open()
    for _ in range(4):
        world.append(2, 100, "b", tells=True)
    world.log.close()
    return world.data


def _read_each(directory: Path, expected: dict[int, bytes]) -> None:
    """Read every entry on its own, and check that it is exact or its damage is named."""
    for offset, data in expected.items():
        with LogReader(directory) as reader:
            try:
                found = [
                    one
                    for batch in reader.read(offset, offset)
                    for one in batch["data"].to_pylist()
                ]
            except DAMAGED:
                continue
            assert found == [data]


def _open(directory: Path, expected: dict[int, bytes]) -> None:
    """Open the log, and check that it is refused and unchanged, or holds only written entries."""
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    try:
        with CommitLog.open(directory) as log:
            last = log.durable
            assert last == max(expected)
            assert log.append(messages(1, 1, 0), "a")[0] > last
    except DAMAGED:
        for path in copy.iterdir():
            if path.name != "lock":
                assert (directory / path.name).read_bytes() == path.read_bytes()
        return
    try:
        assert held_in(directory, last) == expected
    except DAMAGED:
        return

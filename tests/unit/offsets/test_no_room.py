"""An offset log on a full disk, where copy-on-write systems need room even to overwrite."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING

import pytest
from disks.faulty import Fault, FaultyDisk

from transporter.errors import LogFull, LogPoisoned, OffsetRefused
from transporter.log.filesystem import RealFileSystem
from transporter.offsets import offset_log as module
from transporter.offsets import record as records
from transporter.offsets import state as states
from transporter.offsets.offset_log import OffsetLog, read_state
from transporter.offsets.record import Record, decode_records
from transporter.offsets.state import Range, RouteState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transporter.log.filesystem import File

FAR = 1 << 40
FULL = (errno.ENOSPC, errno.EDQUOT)


def no_room(code: int = errno.ENOSPC, part: float = 0.5) -> Fault:
    """Return a fault that fails each write after a *part* of it, until the disk is healed."""
    return Fault(1, code, frozenset({"pwrite", "allocate"}), part, lasts=True)


@pytest.fixture
def disk() -> FaultyDisk:
    """Return the real disk, which can be made full."""
    return FaultyDisk(RealFileSystem())


class _Full(RealFileSystem):
    """The real disk. While ``full`` is set files do not grow, and room that is freed goes."""

    full = False

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        file = super().open(path, write=write, create=create)
        pwrite, allocate = file.pwrite, file.allocate

        def refuse(end: int) -> None:
            if self.full and end > file.size():
                raise OSError(errno.ENOSPC, "No space left on device")

        def writing(data: bytes, byte: int) -> None:
            refuse(byte + len(data))
            pwrite(data, byte)

        def allocating(byte: int, size: int) -> None:
            refuse(byte + size)
            allocate(byte, size)

        file.pwrite, file.allocate = writing, allocating  # type: ignore[method-assign]
        return file


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a turn end after a few records."""
    monkeypatch.setattr(module, "FILE_BYTES", 2048)


@pytest.mark.parametrize("code", FULL)
@pytest.mark.parametrize("part", [0.0, 0.5, 0.9])
def test_what_was_delivered_is_kept_until_there_is_room(
    tmp_path: Path, disk: FaultyDisk, code: int, part: float
) -> None:
    """A full disk refuses no ack, and unwritten events are written later (Invariant 14)."""
    offsets = OffsetLog(tmp_path, "r", disk)
    offsets.settle(Range(0, 4), FAR)
    disk.strike(no_room(code, part))
    assert offsets.settle(Range(5, 9), FAR).watermark == 9
    with pytest.raises(LogFull, match="offsets/r"):
        offsets.write_pending()
    with pytest.raises(LogFull):
        offsets.sync()
    assert read_state(tmp_path, "r").watermark == offsets.confirmed_state().watermark == 4
    disk.heal()
    offsets.write_pending()
    assert offsets.confirmed_state().watermark == 9
    assert read_state(tmp_path, "r").watermark == 9
    assert offsets.settle(Range(10, 12), FAR).watermark == 12
    assert read_state(tmp_path, "r").watermark == 12
    offsets.close()
    with OffsetLog(tmp_path, "r") as again:
        assert again.state.watermark == 12


def test_the_next_event_writes_what_found_no_room(tmp_path: Path, disk: FaultyDisk) -> None:
    """The first event that finds room is written behind all earlier ones, without a gap."""
    offsets = OffsetLog(tmp_path, "r", disk)
    disk.strike(no_room())
    offsets.settle(Range(0, 4), FAR)
    offsets.settle(Range(5, 9), FAR)
    disk.heal()
    offsets.settle(Range(10, 14), FAR)
    assert read_state(tmp_path, "r").watermark == 14
    offsets.close()


@pytest.mark.parametrize(
    "act",
    [
        OffsetLog.pause,
        lambda offsets: offsets.request_retries([1]),
        lambda offsets: offsets.begin_replay(0, 3),
        lambda offsets: offsets.settle(Range(7, 8, "operator"), FAR),
    ],
)
def test_what_an_operator_asks_for_is_refused_whole(
    tmp_path: Path, disk: FaultyDisk, act: Callable[[OffsetLog], object]
) -> None:
    """An operator's request without room changes nothing and can be repeated."""
    offsets = OffsetLog(tmp_path, "r", disk)
    before = offsets.settle(Range(0, 4), FAR)
    disk.strike(no_room())
    with pytest.raises(LogFull):
        act(offsets)
    assert offsets.state == before
    disk.heal()
    act(offsets)
    assert offsets.state != before
    offsets.close()


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("code", [*FULL, errno.EMFILE])
@pytest.mark.parametrize("part", [0.0, 0.7])
def test_a_turn_that_cannot_begin_leaves_the_one_that_runs(
    tmp_path: Path, disk: FaultyDisk, code: int, part: float
) -> None:
    """The file in use stays whole until the other one holds a synced snapshot."""
    offsets = OffsetLog(tmp_path, "r", disk)
    kinds = frozenset({"open"} if code == errno.EMFILE else {"pwrite"})
    for offset in range(60):
        offsets.settle(Range(offset, offset), FAR)
        if offset % 7 == 3:
            disk.strike(Fault(1, code, kinds, part, lasts=True))
        elif offset % 7 == 0:
            disk.heal()
            offsets.write_pending()
            assert read_state(tmp_path, "r").watermark == offset
        assert read_state(tmp_path, "r").watermark <= offset
    disk.heal()
    offsets.close()
    assert read_state(tmp_path, "r").watermark == 59


def test_a_close_without_room_leaves_what_is_written(tmp_path: Path, disk: FaultyDisk) -> None:
    """A stop on a full disk costs redeliveries, never the offset log."""
    offsets = OffsetLog(tmp_path, "r", disk)
    offsets.settle(Range(0, 4), FAR)
    disk.strike(no_room())
    offsets.settle(Range(5, 9), FAR)
    offsets.close()
    with OffsetLog(tmp_path, "r") as again:
        assert again.state.watermark == 4


def test_a_sync_without_room_is_final(tmp_path: Path, disk: FaultyDisk) -> None:
    """A failed sync is final whatever its errno, because its outcome is unknown (Invariant 13)."""
    offsets = OffsetLog(tmp_path, "r", disk)
    offsets.settle(Range(0, 4), FAR)
    disk.strike(Fault(1, errno.ENOSPC, frozenset({"sync"})))
    with pytest.raises(LogPoisoned):
        offsets.sync()
    disk.heal()
    with pytest.raises(LogPoisoned):
        offsets.settle(Range(5, 9), FAR)
    offsets.close()


# Events that could not be read again are not written


def test_a_record_that_could_not_be_read_again_is_refused() -> None:
    """A record larger than a read allows is not written (Invariant 17)."""
    event = {"type": "replay", "first": 0, "last": 1, "namespace": "x" * records.MAX_RECORD}
    with pytest.raises(OffsetRefused, match="bytes"):
        Record(1, 0, event).encode()


def test_a_request_that_is_too_large_changes_nothing(tmp_path: Path) -> None:
    """An operator's request that no record can hold is refused and changes nothing."""
    with OffsetLog(tmp_path, "r") as offsets:
        before = offsets.settle(Range(0, 4), FAR)
        with pytest.raises(OffsetRefused):
            offsets.begin_replay(0, 3, "x" * records.MAX_RECORD)
        assert offsets.state == before
        offsets.settle(Range(5, 6), FAR)
    assert read_state(tmp_path, "r").watermark == 6


def test_a_slice_of_many_long_namespaces_is_settled_readably(tmp_path: Path) -> None:
    """An event takes the newest namespaces that have room, because only operators use them."""
    names = {f"{n:06d}{'n' * 400}": n for n in range(50_000)}
    with OffsetLog(tmp_path, "r") as offsets:
        offsets.settle(Range(0, 49_999), FAR, names)
        offsets.settle(Range(50_000, 50_000), FAR)
        assert read_state(tmp_path, "r").watermark == 50_000
        assert f"{49_999:06d}{'n' * 400}" in offsets.state.namespaces
        assert sum(map(len, offsets.state.namespaces)) <= states.NAMESPACE_BYTES


def test_many_superseded_ranges_are_split_into_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More ranges than a record may hold are written in several, the mark with the last."""
    monkeypatch.setattr(module, "RANGES_A_RECORD", 100)
    parts = [(2 * n + 1, 2 * n + 1) for n in range(350)]
    with OffsetLog(tmp_path, "r") as offsets:
        state = offsets.supersede("in", 900, parts, FAR)
        assert [(each.first, each.last) for each in state.above] == parts
        assert state.superseded == {"in": 900}
        found = [
            record.event
            for name in module.NAMES
            if (path := offsets.folder / name).exists()
            for record in decode_records(path.read_bytes(), name)
            if record.event["type"] == "superseded"
        ]
    assert [len(event["ranges"]) for event in found] == [100, 100, 100, 50]
    assert [event["through"] for event in found] == [-1, -1, -1, 900]
    assert read_state(tmp_path, "r").above == state.above


def test_a_state_that_no_snapshot_could_hold_is_refused(tmp_path: Path) -> None:
    """An operator's acks cannot grow the state beyond the size that an open can read."""
    with OffsetLog(tmp_path, "r") as offsets:
        with pytest.raises(OffsetRefused, match="too many"):
            offsets.request_retries(range(states.MAX_STATE // states.RETRY_BYTES + 1))
        assert offsets.state == RouteState()


@pytest.mark.parametrize("grown", ["while it runs", "at an open"])
def test_a_route_of_many_namespaces_opens_on_a_full_disk(tmp_path: Path, grown: str) -> None:
    """The spare has room for a snapshot of any size, or no start could make room (Invariant 14)."""
    disk = _Full()
    offsets = OffsetLog(tmp_path, "r", disk)
    for number in range(3000):
        offsets.settle(Range(number, number), FAR, {f"shop_{number:05d}.public.orders": number})
    if grown == "at an open":
        offsets.close()
        offsets = OffsetLog(tmp_path, "r", disk)
    offsets.sync()
    disk.full = True
    with OffsetLog(tmp_path, "r", disk) as again:
        assert again.state.watermark == 2999
        assert len(again.state.namespaces) == 3000
    offsets.close()


def test_what_is_written_behind_a_large_snapshot_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn ends where an open reads no more, however large the file has become."""
    monkeypatch.setattr(module, "FILE_BYTES", 4096)
    monkeypatch.setattr(records, "MAX_RECORD", 64 << 10)
    with OffsetLog(tmp_path, "r") as offsets:
        offsets.request_retries(range(8000))
        for number in range(3000):
            offsets.settle(Range(number, number), FAR)
            if number % 50 == 0:
                offsets.sync()
                assert read_state(tmp_path, "r").watermark == number


def test_a_snapshot_larger_than_a_file_is_read_and_gone_on_behind(tmp_path: Path) -> None:
    """A large state begins one turn with room for many events, not a turn for each event."""
    turns = set()
    with OffsetLog(tmp_path, "r") as offsets:
        offsets.request_retries(range(200_000))
        for offset in range(20):
            offsets.settle(Range(offset, offset), FAR)
            turns.add(offsets.turn)
        offsets.sync()
        state = read_state(tmp_path, "r")
        assert (state.watermark, len(state.retries)) == (19, 200_000)
    assert len(turns) <= 2


def test_the_largest_snapshot_can_be_read() -> None:
    """The largest allowed state fits a record, whatever its names hold."""
    ranges = tuple(
        Range(2**62 + 2 * n, 2**62 + 2 * n, "superseded")
        for n in range(states.MAX_STATE // states.RANGE_BYTES - 1)
    )
    names = {"\0" * 500 + str(n): 2**62 for n in range(10_000)}
    state = RouteState(above=ranges, namespaces=names)
    states.refuse_growth("r", state)
    body = json.dumps(states.snapshot_event(state), ensure_ascii=False, separators=(",", ":"))
    assert len(body.encode()) <= records.MAX_RECORD

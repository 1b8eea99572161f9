"""A route's offset log on the real file system: the states that survive, and the refusals."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from log_tools import Disk, crash, damage

from transporter.audit import AUDIT
from transporter.errors import (
    Corrupt,
    EnvironmentFault,
    LogPoisoned,
    OffsetRefused,
    UnknownFormat,
    UnknownName,
)
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.log.reader import LogReader
from transporter.offsets import offset_log as module
from transporter.offsets.offset_log import (
    NAMES,
    OffsetLog,
    declared_routes,
    proved_offset,
    read_state,
    route_folder,
)
from transporter.offsets.record import decode_records
from transporter.offsets.state import Range, Replay, RouteState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

FAR = 1 << 40
"""An offset beyond all that a test settles: everything is durable."""


def settle_each(offsets: OffsetLog, first: int, last: int) -> None:
    """Settle the offsets *first* to *last*, one record each."""
    for offset in range(first, last + 1):
        offsets.settle(Range(offset, offset), FAR, {f"n{offset % 3}": offset})


def left_behind(directory: Path, copy: Path) -> RouteState:
    """Return the state that a new process would find if this one were killed now."""
    shutil.copytree(route_folder(directory, "r"), route_folder(copy, "r"))
    return read_state(copy, "r")


def in_use(directory: Path) -> Path:
    """Return the file of the newest turn."""
    turns = {}
    for name in NAMES:
        path = route_folder(directory, "r") / name
        if path.exists():
            found = list(decode_records(path.read_bytes(), name))
            turns[path] = found[0].turn if found else -1
    return max(turns, key=lambda path: turns[path])


FIRST = 64 << 10
"""Bytes that are set aside for each file of a new route."""


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a turn end after a few records."""
    monkeypatch.setattr(module, "FILE_BYTES", 2048)


def test_a_route_comes_back_as_it_was(tmp_path: Path) -> None:
    """After a clean stop every part of the state is the same (Invariant 18)."""
    with OffsetLog(tmp_path, "r") as offsets:
        offsets.settle(Range(0, 9), FAR, {"a": 9, "b": 3})
        offsets.settle(Range(12, 14, "operator"), FAR)
        offsets.begin_replay(2, 5)
        offsets.advance_replay(3, 1)
        before = offsets.state
    assert before.replay == Replay(2, 5, 4)
    with OffsetLog(tmp_path, "r") as offsets:
        assert offsets.state == before
    assert read_state(tmp_path, "r") == before


def test_a_route_that_is_forgotten_meanwhile_proves_nothing(tmp_path: Path) -> None:
    """Commands read without the lock, beside one that forgets a route."""

    class Forgetting(RealFileSystem):
        def names(self, directory: Path) -> list[str]:
            found = super().names(directory)
            if directory.name == "r":
                shutil.rmtree(directory)
            return found

    for route, last in [("kept", 4), ("r", 9)]:
        with OffsetLog(tmp_path, route) as offsets:
            offsets.settle(Range(0, last), FAR)

    assert proved_offset(tmp_path, Forgetting()) == 4


@pytest.mark.usefixtures("_short")
def test_two_files_are_used_in_turn(tmp_path: Path) -> None:
    """Very many events use the two files in turn, and fill neither of them."""
    used = set()
    with OffsetLog(tmp_path, "r") as offsets:
        for offset in range(300):
            settle_each(offsets, offset, offset)
            used.add(in_use(tmp_path).name)
            assert read_state(tmp_path, "r") == offsets.state
    assert used == set(NAMES)
    state = read_state(tmp_path, "r")
    assert (state.watermark, state.namespaces) == (299, {"n0": 297, "n1": 298, "n2": 299})
    folder = route_folder(tmp_path, "r")
    assert all((folder / name).stat().st_size == 2048 for name in NAMES)


def test_the_files_are_reserved_when_they_are_made(tmp_path: Path) -> None:
    """Commits need no new blocks, so that a full disk does not stop them (Invariant 14)."""
    with OffsetLog(tmp_path, "r") as offsets:
        settle_each(offsets, 0, 9)
    with OffsetLog(tmp_path, "r"):
        pass
    for name in NAMES:
        found = (route_folder(tmp_path, "r") / name).stat()
        assert (found.st_size, found.st_blocks * 512) == (FIRST, FIRST)


def test_the_files_of_a_busy_route_grow_with_its_turns(tmp_path: Path) -> None:
    """A turn has twice the room of the one before, so files are begun ever less often."""
    sizes, turns = [], []
    with OffsetLog(tmp_path, "r") as offsets:
        for offset in range(40_000):
            offsets.settle(Range(offset, offset), FAR)
            if offsets.turn not in turns:
                turns.append(offsets.turn)
                sizes.append(in_use_size(tmp_path))
        assert read_state(tmp_path, "r") == offsets.state
    assert sizes[:6] == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST, 16 * FIRST, 16 * FIRST]
    assert 16 * FIRST == module.FILE_BYTES


def test_a_turn_goes_without_more_room_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn without more room goes on within the room reserved before (Invariant 14)."""
    real = os.posix_fallocate

    def full(descriptor: int, byte: int, size: int) -> None:
        if byte:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor, byte, size)

    with OffsetLog(tmp_path, "r") as offsets:
        monkeypatch.setattr(os, "posix_fallocate", full)
        first = offsets.turn
        for offset in range(5_000):
            offsets.settle(Range(offset, offset), FAR)
        assert offsets.turn > first + 1
        assert not offsets.pending
        assert in_use_size(tmp_path) == FIRST
    assert read_state(tmp_path, "r").watermark == 4_999


def in_use_size(directory: Path) -> int:
    """Return the bytes of the file of the newest turn."""
    return in_use(directory).stat().st_size


def test_a_kill_loses_nothing_that_was_written(tmp_path: Path) -> None:
    """Written records, synced or not, survive a kill of the process (Invariant 6)."""
    offsets = OffsetLog(tmp_path / "live", "r")
    settle_each(offsets, 0, 20)
    assert left_behind(tmp_path / "live", tmp_path / "killed") == offsets.state
    offsets.close()


@pytest.mark.usefixtures("_short")
def test_a_kill_at_any_record_loses_nothing_that_was_written(tmp_path: Path) -> None:
    """A kill at any record, also at a turn's start or end, loses nothing (Invariant 6)."""
    offsets = OffsetLog(tmp_path / "live", "r")
    for offset in range(60):
        settle_each(offsets, offset, offset)
        copy = tmp_path / str(offset)
        assert left_behind(tmp_path / "live", copy) == offsets.state
        with OffsetLog(copy, "r") as again:
            assert again.state == offsets.state
    offsets.close()


def test_a_torn_last_record_falls_back_to_the_one_before(tmp_path: Path) -> None:
    """A record torn by a power cut is redelivered, and earlier ones stay settled (Invariant 6)."""
    offsets = OffsetLog(tmp_path / "live", "r")
    settle_each(offsets, 0, 9)
    offsets.sync()
    path = in_use(tmp_path / "live")
    records = list(decode_records(path.read_bytes(), "f"))
    ends = [sum(len(record.encode()) for record in records[: n + 1]) for n in range(len(records))]
    for number, byte in enumerate(range(ends[-2], ends[-1] - 4, 5)):
        copy = tmp_path / str(number)
        left_behind(tmp_path / "live", copy)
        torn = route_folder(copy, "r") / path.name
        torn.write_bytes(torn.read_bytes()[:byte] + bytes(module.FILE_BYTES - byte))
        with OffsetLog(copy, "r") as again:
            assert again.state.watermark == 8
            again.settle(Range(9, 9), FAR)
        assert read_state(copy, "r").watermark == 9
    offsets.close()


@pytest.mark.usefixtures("_short")
def test_a_turn_of_which_nothing_reached_the_disk_falls_back_to_the_former(tmp_path: Path) -> None:
    """A torn snapshot leaves the other file, which is not reused before the snapshot is synced."""
    with OffsetLog(tmp_path, "r") as offsets:
        settle_each(offsets, 0, 60)
    newest = in_use(tmp_path)
    newest.write_bytes(bytes(10) + newest.read_bytes()[10:])
    with OffsetLog(tmp_path, "r") as offsets:
        assert 0 < offsets.state.watermark < 60
        settle_each(offsets, offsets.state.next_unsettled(), 99)
    assert read_state(tmp_path, "r").watermark == 99


@pytest.mark.usefixtures("_short")
def test_a_turn_begins_with_a_synced_snapshot(tmp_path: Path) -> None:
    """A file's snapshot is durable before another record is written to it."""
    disk = Disk()
    with OffsetLog(tmp_path, "r", disk) as offsets:
        settle_each(offsets, 0, 99)
    calls = [(call, name) for call, name in disk.calls if call in ("pwrite", "sync")]
    changes = [
        at for at, (before, after) in enumerate(pairwise(calls), start=1) if before[1] != after[1]
    ]
    assert len(changes) >= 3
    for at in changes:
        assert [call for call, _ in calls[at : at + 2]] == ["pwrite", "sync"]


@pytest.mark.usefixtures("_short")
def test_a_snapshot_larger_than_a_file_is_kept(tmp_path: Path) -> None:
    """Very many ranges, as left by an operator's acks, are slow to write and never lost."""
    offsets = OffsetLog(tmp_path / "live", "r")
    for offset in range(2, 400, 2):
        offsets.settle(Range(offset, offset, "operator"), FAR)
    assert left_behind(tmp_path / "live", tmp_path / "killed") == offsets.state
    offsets.close()
    with OffsetLog(tmp_path / "live", "r") as again:
        assert len(again.state.above) == 199


def test_a_failed_sync_poisons_the_offset_log(tmp_path: Path) -> None:
    """After a failed sync every write is refused with an error (Invariant 13)."""
    disk = Disk()
    offsets = OffsetLog(tmp_path, "r", disk)
    offsets.settle(Range(0, 0), FAR)
    disk.failing["sync"] = OSError(errno.EIO, "Input/output error")
    with pytest.raises(LogPoisoned, match="Input/output error"):
        offsets.sync()
    disk.failing.clear()
    for act in (offsets.sync, lambda: offsets.settle(Range(1, 1), FAR), offsets.cancel_replay):
        with pytest.raises(LogPoisoned):
            act()
    offsets.close()


def test_a_failed_write_poisons_the_offset_log(tmp_path: Path) -> None:
    """A record that may have been written in part is never overwritten."""
    disk = Disk()
    offsets = OffsetLog(tmp_path, "r", disk)
    disk.failing["pwrite"] = OSError(errno.EIO, "Input/output error")
    with pytest.raises(LogPoisoned):
        offsets.settle(Range(0, 0), FAR)
    disk.failing.clear()
    with pytest.raises(LogPoisoned):
        offsets.settle(Range(0, 0), FAR)
    offsets.close()
    assert read_state(tmp_path, "r").watermark == -1


@pytest.mark.usefixtures("_short")
def test_a_turn_that_cannot_begin_poisons_and_still_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log poisoned because its other file cannot be opened still closes its own file."""
    disk = Disk()
    offsets = OffsetLog(tmp_path, "r", disk)
    settle_each(offsets, 0, 3)

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk, "open", refuse)
    with pytest.raises(LogPoisoned, match="Input/output error"):
        settle_each(offsets, 4, 99)
    offsets.close()
    assert read_state(tmp_path, "r").watermark >= 3


def test_a_folder_that_cannot_be_made_is_said_in_one_line(tmp_path: Path) -> None:
    """A disk error is raised with the route's folder."""
    (tmp_path / "offsets").write_text("a file")
    with pytest.raises(EnvironmentFault, match="offsets/r"):
        OffsetLog(tmp_path, "r")


@pytest.mark.parametrize(
    "part", [Range(0, 10), Range(10, 10), Range(-1, 3), Range(5, 4), Range(11, 20, "operator")]
)
def test_what_is_not_durable_cannot_be_settled(tmp_path: Path, part: Range) -> None:
    """An offset beyond the durable one cannot be settled (Invariant 3)."""
    with OffsetLog(tmp_path, "r") as offsets:
        with pytest.raises(OffsetRefused):
            offsets.settle(part, durable=9)
        assert offsets.state == RouteState()
        offsets.settle(Range(0, 9), durable=9)


@pytest.mark.parametrize("part", [(-1, 3), (5, 4), (3, 10), (10, 12)])
def test_only_what_was_delivered_can_be_replayed(tmp_path: Path, part: tuple[int, int]) -> None:
    """A replay lies within the offsets that the route has passed."""
    with OffsetLog(tmp_path, "r") as offsets:
        offsets.settle(Range(0, 9), FAR)
        with pytest.raises(OffsetRefused, match="up to 9"):
            offsets.begin_replay(*part)
        assert offsets.state.generation == 0


def test_a_replay_is_not_displaced_by_the_next(tmp_path: Path) -> None:
    """A replay that is not finished is only ended by delivery or by a cancel."""
    with OffsetLog(tmp_path, "r") as offsets:
        offsets.settle(Range(0, 9), FAR)
        offsets.begin_replay(2, 7)
        offsets.advance_replay(3, 1)
        with pytest.raises(OffsetRefused, match=r"4\.\.7"):
            offsets.begin_replay(0, 1)
        offsets.cancel_replay()
        assert offsets.begin_replay(0, 1).generation == 2


@pytest.mark.parametrize("step", ["begin", "end", "cancel"])
def test_the_bounds_of_a_replay_are_durable_at_once(tmp_path: Path, step: str) -> None:
    """A replay's start, end and cancel are synced at once, not at the next commit."""
    disk = Disk()
    with OffsetLog(tmp_path, "r", disk) as offsets:
        offsets.settle(Range(0, 9), FAR)
        offsets.begin_replay(2, 7)
        if step != "begin":
            disk.calls.clear()
        if step == "end":
            offsets.advance_replay(7, 1)
        if step == "cancel":
            offsets.cancel_replay()
        assert disk.calls[-1][0] == "sync"


def test_a_sync_without_news_costs_nothing(tmp_path: Path) -> None:
    """A sync without new records does nothing."""
    disk = Disk()
    with OffsetLog(tmp_path, "r", disk) as offsets:
        offsets.settle(Range(0, 9), FAR)
        offsets.sync()
        disk.calls.clear()
        offsets.sync()
        assert disk.calls == []


def test_a_new_route_begins_where_it_is_told(tmp_path: Path) -> None:
    """A new route's first offset is durable with its declaration, and determined once."""
    offsets = OffsetLog(tmp_path / "live", "r", first_offset=lambda: 7)
    assert offsets.is_new
    assert left_behind(tmp_path / "live", tmp_path / "killed").next_unsettled() == 7
    offsets.close()
    with OffsetLog(tmp_path / "killed", "r", first_offset=lambda: 99) as offsets:
        assert (offsets.is_new, offsets.state.next_unsettled()) == (False, 7)


def test_a_route_whose_beginning_cannot_be_told_stays_new(tmp_path: Path) -> None:
    """A start that fails does not declare the route, which would then begin elsewhere."""

    def unknown() -> int:
        raise OffsetRefused("nothing was logged at or after that time")

    with pytest.raises(OffsetRefused):
        OffsetLog(tmp_path, "r", first_offset=unknown)
    with OffsetLog(tmp_path, "r", first_offset=lambda: 7) as offsets:
        assert (offsets.is_new, offsets.state.next_unsettled()) == (True, 7)


def test_routes_are_declared_by_their_folder(tmp_path: Path) -> None:
    """A route that was ever opened is known, also without a settled offset (Invariant 11)."""
    assert declared_routes(tmp_path) == []
    for name in ("b", "a"):
        OffsetLog(tmp_path, name).close()
    (tmp_path / "offsets" / "notes.txt").touch()
    assert declared_routes(tmp_path) == ["a", "b"]
    assert read_state(tmp_path, "a") == RouteState()


def test_an_unknown_route_is_named_with_those_that_are_known(tmp_path: Path) -> None:
    """A request for an unknown route names the known ones."""
    with pytest.raises(UnknownName, match="known: none"):
        read_state(tmp_path, "x")
    OffsetLog(tmp_path, "orders").close()
    with pytest.raises(UnknownName, match="known: orders"):
        read_state(tmp_path, "x")


def test_the_highest_settled_offset_of_all_routes_is_proved(tmp_path: Path) -> None:
    """An offset settled by any route, also above its watermark, was durable (Invariant 3)."""
    assert proved_offset(tmp_path) == -1
    for name, last in (("a", 5), ("b", 7)):
        with OffsetLog(tmp_path, name) as offsets:
            offsets.settle(Range(0, last), FAR)
    assert proved_offset(tmp_path) == 7
    with OffsetLog(tmp_path, "a") as offsets:
        offsets.settle(Range(20, 21, "operator"), FAR)
    assert proved_offset(tmp_path) == 21


def test_a_log_that_lost_what_a_route_has_settled_is_refused(
    tmp_path: Path, batch: Callable[..., pa.RecordBatch]
) -> None:
    """An offset log proves that a shorter log is corrupt and not torn (Invariant 3)."""
    log = CommitLog.open(tmp_path)
    log.append(batch(3), "r")
    with OffsetLog(tmp_path, "r") as offsets:
        offsets.settle(Range(0, 2), log.durable)
    crash(log)
    with LogReader(tmp_path) as reader:
        frame = next(reader.frames(0, 2)).frame
    damage(tmp_path, frame.byte + 9)
    with pytest.raises(Corrupt, match="offset 2 was proved durable"):
        CommitLog.open(tmp_path, proved=lambda: proved_offset(tmp_path))


def test_an_offset_log_of_another_version_is_refused(tmp_path: Path) -> None:
    """An unknown version is named with its file, and nothing is overwritten (Invariant 19)."""
    OffsetLog(tmp_path, "r").close()
    path = in_use(tmp_path)
    record = next(decode_records(path.read_bytes(), "f"))
    data = bytearray(record.encode())
    data[4] = 7
    from crc32c import crc32c  # noqa: PLC0415

    size = int.from_bytes(data[8:12], "little")
    check = crc32c(bytes(data[32 : 32 + size]), crc32c(bytes(data[:28])))
    data[28:32] = check.to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(UnknownFormat, match=f"{path.name}: format version 7"):
        OffsetLog(tmp_path, "r")
    assert path.read_bytes() == data


def test_what_an_operator_did_is_kept_for_good(tmp_path: Path) -> None:
    """The audit file keeps the action, operator, time and reason longer than the offset log."""
    for number in range(3):
        with OffsetLog(tmp_path, "r") as offsets:
            offsets.audit("ack", first=number, last=number, reason='it "broke" \n é')
    lines = (tmp_path / AUDIT).read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert [entry["first"] for entry in entries] == [0, 1, 2]
    assert all(entry["at"] > 0 for entry in entries)
    assert entries[0] | {"at": 0, "id": "x"} == {
        "at": 0,
        "id": "x",
        "who": "the engine",
        "action": "ack",
        "route": "r",
        "first": 0,
        "last": 0,
        "reason": 'it "broke" \n é',
    }


def test_many_threads_may_settle(tmp_path: Path) -> None:
    """Events of several threads are all written, also with a sync in between."""
    with OffsetLog(tmp_path, "r") as offsets:

        def settle(start: int) -> None:
            for offset in range(start, 400, 4):
                offsets.settle(Range(offset, offset), FAR)
                offsets.sync()

        threads = [threading.Thread(target=settle, args=(start,)) for start in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert offsets.state == RouteState(watermark=399)
    assert read_state(tmp_path, "r") == RouteState(watermark=399)


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    """A closed offset log can be closed again."""
    offsets = OffsetLog(tmp_path, "r")
    offsets.close()
    offsets.close()

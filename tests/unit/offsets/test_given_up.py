"""Lines about skipped entries: durable, bounded, and never in the way of a delivery."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from disks.crashes import crash_states
from disks.faulty import Fault, FaultyDisk
from disks.simulated import SimulatedDisk

from transporter.errors import EnvironmentFault, LockLost, LogPoisoned
from transporter.log.filesystem import RealFileSystem, make_directory
from transporter.offsets import given_up as module
from transporter.offsets.given_up import NEWEST, OLDER, RESERVE, GivenUpLog, read_given_up

if TYPE_CHECKING:
    from transporter.log.filesystem import File

ROUTE = Path("/log/offsets/r")


class FullDisk(RealFileSystem):
    """The real disk, on which no file grows while it is full. Overwriting needs no room."""

    full = False

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open *path*, with writes behind its end refused while the disk is full."""
        if create and self.full and not path.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        file = super().open(path, write=write, create=create)
        pwrite = file.pwrite

        def checked(data: bytes, byte: int) -> None:
            if self.full and byte + len(data) > file.size():
                raise OSError(errno.ENOSPC, "No space left on device")
            pwrite(data, byte)

        file.pwrite = checked  # type: ignore[method-assign]
        return file


def offsets(folder: Path, files: Any = None) -> list[int]:
    """Return the offsets of all lines."""
    return [line["offset"] for line in read_given_up(folder, files) if "offset" in line]


def record(log: GivenUpLog, *numbers: int, error: str = "no") -> list[bool]:
    """Record skips, and return whether each was written."""
    return [log.record("entry-skipped", each, error, attempts=5) for each in numbers]


def test_each_line_has_what_became_of_the_entry(tmp_path: Path) -> None:
    """A line is one JSON object, and the file is JSON lines for any other tool."""
    log = GivenUpLog(tmp_path)
    assert log.record("entry-skipped", 7, "no city\nin it", attempts=5, generation=2)
    (line,) = read_given_up(tmp_path)
    assert line.pop("at") > 1_700_000_000
    assert line == {
        "event": "entry-skipped",
        "offset": 7,
        "attempts": 5,
        "generation": 2,
        "error": "no city\nin it",
    }
    texts = (tmp_path / NEWEST).read_text().split()
    assert json.loads(" ".join(texts))["offset"] == 7


def test_lines_follow_those_of_the_run_before(tmp_path: Path) -> None:
    """A new run appends, and its reserve does not grow with each start."""
    for number in range(5):
        log = GivenUpLog(tmp_path)
        log.reserve()
        record(log, number)
    assert offsets(tmp_path) == [0, 1, 2, 3, 4]
    assert (tmp_path / NEWEST).stat().st_size < 2 * RESERVE


def test_two_files_are_used_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest lines go with the older file, so the lines never take more than two files."""
    monkeypatch.setattr(module, "FILE_BYTES", 4_000)
    monkeypatch.setattr(module, "RESERVE", 500)
    log = GivenUpLog(tmp_path)
    for number in range(120):
        assert record(log, number) == [True]
        found = offsets(tmp_path)
        assert found == [*range(found[0], number + 1)]
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 10_000
    assert 20 < len(found) < 110
    assert sorted(path.name for path in tmp_path.iterdir()) == [OLDER, NEWEST]


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_torn_line_spoils_no_other(tmp_path: Path, cut: int) -> None:
    """After a crash within a line, the next one is read, and the torn one is passed."""
    record(GivenUpLog(tmp_path), 1, 2)
    path = tmp_path / NEWEST
    lines = path.read_bytes().rstrip(b"\n")
    path.write_bytes(lines[:-cut] + b"\n" * 50 + b"\0" * 50)
    assert offsets(tmp_path) == [1]
    record(GivenUpLog(tmp_path), 3)
    assert offsets(tmp_path) == [1, 3]


def test_a_line_is_durable_when_it_is_reported() -> None:
    """Whatever a power cut takes, no reported line is missing (Invariants 5 and 15)."""
    disk = SimulatedDisk()
    make_directory(disk, ROUTE)
    log = GivenUpLog(ROUTE, disk)
    reserved = False
    for number in range(6):
        if number == 3:
            # The next run, which reserves room first.
            log, reserved = GivenUpLog(ROUTE, disk), True
        if reserved:
            log.reserve()
        assert record(log, number) == [True]
        for image in crash_states(disk, Random(number), 25):
            assert offsets(ROUTE, image.disk()) == [*range(number + 1)]


def test_a_line_is_durable_across_a_change_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut around the change of files loses no line that is still to be kept."""
    monkeypatch.setattr(module, "FILE_BYTES", 600)
    monkeypatch.setattr(module, "RESERVE", 200)
    disk = SimulatedDisk()
    make_directory(disk, ROUTE)
    log = GivenUpLog(ROUTE, disk)
    for number in range(15):
        assert record(log, number) == [True]
        kept = offsets(ROUTE, disk)
        for image in crash_states(disk, Random(number), 25):
            assert offsets(ROUTE, image.disk()) == kept


def test_a_full_disk_leaves_the_reserved_room(tmp_path: Path) -> None:
    """On a full disk lines take the reserved room, the last ones short, and then wait in memory."""
    disk = FullDisk()
    log = GivenUpLog(tmp_path, disk)
    log.reserve()
    disk.full = True
    written = record(log, *range(200), error="e" * 1_500)
    count = written.index(False)
    assert count > 40
    assert not any(written[count:])
    assert offsets(tmp_path) == [*range(count)]
    shortened = [line for line in read_given_up(tmp_path) if "error" not in line]
    assert shortened, "the last of the room is for lines without their errors"
    assert len(log.waiting) == 200 - count
    disk.full = False
    log.write_waiting(now=True)
    assert offsets(tmp_path) == [*range(200)]
    assert len(log.waiting) == 0


def test_a_full_disk_takes_the_older_file_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a line waits, the oldest lines give their room to it."""
    monkeypatch.setattr(module, "FILE_BYTES", 4_000)
    monkeypatch.setattr(module, "RESERVE", 500)
    disk = FullDisk()
    remove = disk.remove

    def free(path: Path) -> None:
        disk.full = False
        remove(path)

    log = GivenUpLog(tmp_path, disk)
    record(log, *range(60))
    assert (tmp_path / OLDER).exists()
    monkeypatch.setattr(disk, "remove", free)
    disk.full = True
    assert all(record(log, *range(60, 70)))
    assert not (tmp_path / OLDER).exists()
    assert offsets(tmp_path)[-10:] == [*range(60, 70)]


def test_lines_that_wait_are_bounded_and_what_is_dropped_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory does not grow with a full disk, and a line counts what could not be kept."""
    monkeypatch.setattr(module, "WAITING", 10)
    disk = FullDisk()
    disk.full = True
    log = GivenUpLog(tmp_path, disk)
    log.waiting = type(log.waiting)(maxlen=10)
    assert not any(record(log, *range(25)))
    disk.full = False
    assert record(log, 25) == [True]
    assert offsets(tmp_path) == [*range(16, 26)]
    *_, last = read_given_up(tmp_path)
    assert (last["event"], last["count"]) == ("lines-dropped", 16)


def test_waiting_lines_are_not_tried_all_the_time(tmp_path: Path) -> None:
    """A route that goes on delivering tries to write waiting lines once a second."""
    disk, now = FaultyDisk(RealFileSystem()), [10.0]
    log = GivenUpLog(tmp_path, disk, clock=lambda: now[0])
    log.write_waiting()
    assert disk.calls == []
    disk.strike(Fault(1, errno.ENOSPC, frozenset({"pwrite", "open"}), lasts=True))
    assert record(log, 1) == [False]
    before = len(disk.calls)
    for _ in range(50):
        log.write_waiting()
    assert len(disk.calls) == before
    disk.heal()
    now[0] += 1.1
    log.write_waiting()
    assert offsets(tmp_path) == [1]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("kind", ["pwrite", "open"])
@pytest.mark.parametrize("part", [0.0, 0.6])
def test_back_pressure_refuses_no_line(tmp_path: Path, code: int, kind: str, part: float) -> None:
    """Without room or descriptors a line waits, also where overwriting needs room."""
    disk = FaultyDisk(RealFileSystem())
    log = GivenUpLog(tmp_path, disk)
    record(log, 1)
    disk.strike(Fault(1, code, frozenset({kind}), part, lasts=True))
    log.reserve()
    assert record(log, 2, 3) == [False, False]
    disk.heal()
    assert record(log, 4) == [True]
    assert offsets(tmp_path) == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["sync", "sync_directory"])
def test_a_failed_sync_is_final(tmp_path: Path, kind: str) -> None:
    """No line counts as written after a failed sync (Invariant 13)."""
    disk = FaultyDisk(RealFileSystem(), Fault(1, errno.EIO, frozenset({kind})))
    with pytest.raises(LogPoisoned):
        record(GivenUpLog(tmp_path, disk), 1)


def test_another_fault_is_an_error_with_its_place(tmp_path: Path) -> None:
    """A disk that cannot be written for another reason halts the route visibly."""
    disk = FaultyDisk(RealFileSystem(), Fault(1, errno.EIO, frozenset({"pwrite"}), lasts=True))
    with pytest.raises(EnvironmentFault, match=r"given-up\.jsonl"):
        record(GivenUpLog(tmp_path, disk), 1)


def test_another_engines_files_are_not_touched(tmp_path: Path) -> None:
    """An engine that has lost its lock writes no line (Invariant 12)."""

    def guard() -> None:
        raise LockLost("the lock is gone")

    with pytest.raises(LockLost):
        record(GivenUpLog(tmp_path, guard=guard), 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"\0" * 200_000, b'[1]\n{}\n7\n\xff\n{"event": 1}\n'])
def test_a_file_of_another_author_is_read_as_far_as_it_goes(tmp_path: Path, content: bytes) -> None:
    """Empty, blank and foreign content is passed over, and lines follow it."""
    (tmp_path / NEWEST).write_bytes(content)
    assert offsets(tmp_path) == []
    record(GivenUpLog(tmp_path), 9)
    assert offsets(tmp_path) == [9]


def test_a_route_without_lines_has_none(tmp_path: Path) -> None:
    """A folder without the files has no lines."""
    assert list(read_given_up(tmp_path / "none")) == []

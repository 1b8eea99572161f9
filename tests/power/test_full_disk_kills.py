"""A log that is killed on a disk without a free block, for each size of its reserve."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import zlib
from contextlib import closing, contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest
from acceptance_tools import TRANSPORTER
from leader_tools import Node, await_true
from mend_tools import Mend
from power.filler import filler
from power.loop import MAKE, loop, memory

from transporter.log.filesystem import RealFileSystem
from transporter.log.inspection import inspect
from transporter.log.reader import LogReader
from transporter.log.reserve import RESERVE
from transporter.log.segment import Segment, segment_bases, segment_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MEMORY: Final = 96 << 20
LINES: Final = 300
LARGE: Final = 8_000_000
MIDDLE: Final = 2_000_000
SMALL: Final = 500_000
RESERVES: Final = {SMALL: 5 << 18, MIDDLE: 5 << 20, LARGE: 20 << 20}
"""The reserve's size by the size of the largest group."""
KINDS: Final = ("tmpfs", *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in MAKE))
_BLOCK: Final = 4096


@contextmanager
def disk(folder: Path, kind: str) -> Iterator[Path]:
    """Hold a small file system of *kind* below *folder*. Yield its mount point."""
    if kind == "tmpfs":
        with memory(folder / "disk", MEMORY):
            yield folder / "disk"
        return
    with loop(folder, kind) as made:
        made.mount()
        yield made.place


def fill(place: Path, spare: int = 0) -> None:
    """Take every block of the disk, also those kept for root, but leave *spare* bytes."""
    room = os.statvfs(place)
    step = room.f_bfree * room.f_frsize
    with (place / "ballast").open("ab") as file:
        while step >= _BLOCK:
            try:
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), step)
            except OSError:
                step //= 2
        file.truncate(file.seek(0, os.SEEK_END) - spare)
        os.fsync(file.fileno())


def contents(directory: Path) -> dict[int, int]:
    """Return the checksum of every entry in the log by its offset, which must grow."""
    with LogReader(directory) as reader:
        found = [
            (offset, zlib.crc32(data))
            for batch in reader.read(reader.first_offset(), inspect(directory).last)
            for offset, data in zip(
                batch.column("offset").to_pylist(), batch.column("data").to_pylist(), strict=True
            )
        ]
    assert all(one < other for (one, _), (other, _) in pairwise(found))
    return dict(found)


def bytes_to_copy(directory: Path) -> int:
    """Return how much of the last segment none of its headers proves durable."""
    files = RealFileSystem()
    path = directory / segment_name(segment_bases(files, directory)[-1])
    with closing(Segment(files, path)) as segment:
        frames = list(segment.frames())
    floor = max(frame.durable for frame in frames)
    return sum(frame.end - frame.byte for frame in frames if frame.first > floor)


@pytest.mark.parametrize("size", [SMALL, MIDDLE, LARGE])
@pytest.mark.parametrize("kind", KINDS)
def test_a_log_killed_on_a_full_disk_opens_whatever_its_largest_group(
    tmp_path: Path, needs: Callable[..., None], kind: str, size: int
) -> None:
    """Invariants 2, 13 and 14: the reserve has the room for the frames a start must copy."""
    needs(*(MAKE[kind][:1] if kind in MAKE else ()), root=True)
    acked: dict[int, int] = {}
    with disk(tmp_path, kind) as place:
        log = place / "log"
        with filler(log, acked) as process:
            process.append_pair(size)
            fill(place)
            assert not process.append(size)
            process.kill()
        assert bytes_to_copy(log) >= 2 * size
        reserved = (log / RESERVE).stat().st_size
        for _ in range(2):
            with filler(log, acked) as process:
                assert contents(log) == acked
                fill(place)
                assert not process.append(LARGE)
                process.kill()
        (place / "ballast").unlink()
        with filler(log, acked) as process:
            assert process.append(LARGE)
            process.close()
        assert contents(log) == acked
    assert reserved == RESERVES[size]


@pytest.mark.parametrize("kind", KINDS)
def test_a_larger_group_waits_where_its_reserve_finds_no_room(
    tmp_path: Path, needs: Callable[..., None], kind: str
) -> None:
    """Invariant 13: also where the group itself has room. Small ones go on, kills are harmless."""
    needs(*(MAKE[kind][:1] if kind in MAKE else ()), root=True)
    acked: dict[int, int] = {}
    with disk(tmp_path, kind) as place:
        log = place / "log"
        for _ in range(2):
            with filler(log, acked) as process:
                assert process.append(1000)
                if not (place / "ballast").exists():
                    fill(place, spare=MIDDLE + 2 * SMALL)
                assert not process.append(MIDDLE)
                assert process.append(SMALL)
                assert (log / RESERVE).stat().st_size == RESERVES[SMALL]
                process.kill()
            assert contents(log) == acked
        (place / "ballast").unlink()
        with filler(log, acked) as process:
            assert process.append(MIDDLE)
            assert (log / RESERVE).stat().st_size == RESERVES[MIDDLE]
            process.close()
        assert contents(log) == acked


@contextmanager
def engine(folder: Path, log: Path, rows: Path, out: Path) -> Iterator[Node]:
    """Run an engine that follows *rows* into an exact file. Kill it afterwards."""
    rows.touch()
    reader = {"name": "rows", "adaptor": "file", "path": str(rows), "follow": True}
    route = {"name": "out", "writer": {"adaptor": "file", "path": str(out)}}
    node = Node(
        folder,
        {"name": "full", "log": {"dir": str(log)}, "readers": [reader], "routes": [route]},
    )
    node.start()
    try:
        await_true(lambda: node.ready)
        yield node
    finally:
        node.stop(signal.SIGKILL)


def numbers_in(file: Path) -> list[int]:
    """Return the numbers of the lines that were delivered, in their order."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line)["data"]["n"] for line in lines if line.endswith("\n")]


def state_of_the_reader(pipeline: Path) -> str:
    """Return the state of the only reader, empty before the engine listens to ``status``."""
    command = [*TRANSPORTER, "status", "--json", str(pipeline)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    readers = json.loads(said)["result"]["readers"]
    return str(readers[0]["state"]) if readers else ""


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_killed_on_a_full_disk_waits_for_room_and_goes_on(
    tmp_path: Path, needs: Callable[..., None], kind: str
) -> None:
    """Invariants 6, 13 and 14: every line arrives once, in order, and waiting can be seen."""
    needs(*(MAKE[kind][:1] if kind in MAKE else ()), root=True)
    rows, out = tmp_path / "rows.txt", tmp_path / "out.jsonl"
    with disk(tmp_path, kind) as place, engine(tmp_path / "node", place / "log", rows, out) as node:
        fill(place, spare=MIDDLE + LARGE)
        rows.write_text(
            "".join(f'{{"n":{n},"x":"{os.urandom(50_000).hex()}"}}\n' for n in range(LINES))
        )
        await_true(lambda: node.events("log-full"))
        node.stop(signal.SIGKILL)
        fill(place)
        waited = len(node.events("log-full"))
        node.start()
        await_true(lambda: len(node.events("log-full")) > waited)
        # A full XFS does not have room for the sockets either, which the engine reports.
        await_true(
            lambda: (
                node.events("control-unavailable")
                or state_of_the_reader(node.folder / "pipeline.yaml") == "no space"
            )
        )
        assert len(numbers_in(out)) < LINES
        node.stop(signal.SIGKILL)
        (place / "ballast").unlink()
        node.start()
        await_true(lambda: len(numbers_in(out)) >= LINES)
        node.stop()
    assert numbers_in(out) == list(range(LINES))


CONTROLS: Final = (
    Mend(
        "a reserve without blocks",
        "log/reserve.py",
        "file.allocate(0, _least_size())",
        "file.truncate(_least_size())",
        "tests/power/test_full_disk_kills.py",
        ("test_a_log_killed_on_a_full_disk_opens_whatever_its_largest_group[tmpfs-500000]",),
    ),
    Mend(
        "a reserve that grows without blocks",
        "log/reserve.py",
        "file.allocate(self._bytes, size - self._bytes)",
        "file.truncate(size)",
        "tests/power/test_full_disk_kills.py",
        (
            "test_a_log_killed_on_a_full_disk_opens_whatever_its_largest_group[tmpfs-2000000]",
            "test_a_log_killed_on_a_full_disk_opens_whatever_its_largest_group[tmpfs-8000000]",
        ),
    ),
    Mend(
        "a reserve that does not grow",
        "log/commit_log.py",
        "            self._reserve.grow(group)\n",
        "            pass\n",
        "tests/power/test_full_disk_kills.py",
        (
            "test_a_log_killed_on_a_full_disk_opens_whatever_its_largest_group[tmpfs-2000000]",
            "test_a_log_killed_on_a_full_disk_opens_whatever_its_largest_group[tmpfs-8000000]",
        ),
    ),
    Mend(
        "a reserve that is kept when the start needs it",
        "log/opening.py",
        "            raise\n        free_reserve(files, directory)\n",
        "            raise\n",
        "tests/power/test_full_disk_kills.py",
        (
            "test_a_log_killed_on_a_full_disk_opens_whatever_its_largest_group[tmpfs-500000]",
            "test_a_log_killed_on_a_full_disk_opens_whatever_its_largest_group[tmpfs-8000000]",
        ),
    ),
    Mend(
        "a group that the reserve does not cover",
        "log/commit_log.py",
        "if self._reserve.covered_bytes < min(size, GROUP_BYTES):",
        "if False:",
        "tests/power/test_full_disk_kills.py",
        ("test_a_larger_group_waits_where_its_reserve_finds_no_room[tmpfs]",),
    ),
)


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mend", CONTROLS, ids=lambda mend: mend.name)
def test_without_the_room_that_is_set_aside_a_test_fails(
    mend: Mend, tmp_path: Path, needs: Callable[..., None]
) -> None:
    """Control: a log killed on a full disk fails without any one rule of the reserve."""
    needs(*(tools[0] for tools in MAKE.values()), root=True)
    assert mend.fits()
    mend.control(tmp_path, 60)

"""Logs on an operator's machine: many gigabytes, and 1 024 descriptors a process."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from acceptance_tools import Running, await_true, kind_of, running, transporter

from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import OffsetLog

if TYPE_CHECKING:
    from transporter.log.filesystem import File

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]
GIB = 1 << 30
BLOCK = 1 << 16
ROUTES = 64
LINES = 20_000
PADDING = "x" * 200


class SparseFile:
    """A file whose zeros are holes, so that a log of gigabytes takes a few megabytes of disk."""

    def __init__(self, file: File) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def allocate(self, byte: int, size: int) -> None:
        """Extend the file to that length."""
        self._file.truncate(max(self._file.size(), byte + size))

    def pwrite(self, data: bytes, byte: int) -> None:
        """Write the blocks that are not all zeros."""
        self.allocate(byte, len(data))
        view, nothing = memoryview(data).cast("B"), bytes(BLOCK)
        for begin in range(0, len(view), BLOCK):
            part = view[begin : begin + BLOCK]
            if part != nothing[: len(part)]:
                self._file.pwrite(part, byte + begin)


class SparseFileSystem(RealFileSystem):
    """A file system with sparse files."""

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> Any:
        """Open *path* as a sparse file."""
        return SparseFile(super().open(path, write=write, create=create))


def length(log: Path) -> int:
    """Return the bytes in the closed segments of *log*."""
    sizes = []
    for path in sorted(log.glob("0*.log"))[:-1]:
        with suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sum(sizes)


def write_pipeline(folder: Path, routes: int, **log: str) -> Path:
    """Write a pipeline of one followed file and *routes* routes into files."""
    keys = "".join(f", {key}: {value}" for key, value in log.items())
    copies = "".join(
        f"  - {{name: r{each}, writer: {{adaptor: file, path: out{each}.jsonl, format: data}}}}\n"
        for each in range(routes)
    )
    path = folder / "pipeline.yaml"
    path.write_text(
        f"log: {{dir: log{keys}}}\n"
        "readers: [{name: lines, adaptor: file, path: in.txt, follow: true, batch_rows: 100}]\n"
        f"routes:\n{copies}"
    )
    return path


def test_forty_gib_give_room_at_once(tmp_path: Path) -> None:
    """An exceeded budget does not wait for compaction, however much of the log it has to read."""
    big = messages_to_batch([Message(f"n{each}", bytes(1 << 20)) for each in range(7)])
    log = CommitLog.open(tmp_path / "log", compression=None, files=SparseFileSystem())
    while length(tmp_path / "log") < 40 * GIB:
        last = log.append(big, "lines")[1]
    log.close()
    (tmp_path / "in.txt").touch()
    pipeline = write_pipeline(tmp_path, 1, compression="none", compaction="{after: 0s}")
    OffsetLog(tmp_path / "log", "r0").close()
    transporter("ack", str(pipeline), "r0", f"0..{last}", "--reason", "delivered elsewhere")
    with running(pipeline) as engine:
        engine.await_event("engine-started", last_offset=last)
        # Compaction reads 16 MiB a second: it would take 40 minutes. Room takes a second on an
        # idle machine, and ten on a busy one.
        read = psutil.Process(engine.process.pid).io_counters
        before = read().read_chars
        await_true(lambda: read().read_chars > before + (64 << 20), 60, "compaction reads")
        write_pipeline(tmp_path, 1, compression="none", compaction="{after: 0s}", max_bytes="4GiB")
        transporter("reload", str(pipeline), "--reason", "a budget")
        begun = time.monotonic()
        with (tmp_path / "in.txt").open("a") as file:
            file.write("there is room\n")
        await_true(lambda: length(tmp_path / "log") <= 4 * GIB, 120, "room", pause=0.01)
        took = time.monotonic() - begun
        await_true((tmp_path / "out0.jsonl").exists, 20, "delivered")
        assert engine.stop() == 0
    print(f"\nroom after {took:.2f} s")  # noqa: T201 - the figure


def whole(path: Path, size: int) -> bool:
    """Return whether *path* has *size* bytes."""
    return path.exists() and path.stat().st_size == size


def removed(process: psutil.Process, log: Path) -> list[str]:
    """Return the segments of *log* that *process* has open although they are removed."""
    found = []
    for each in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(OSError):
            path = str(each.readlink())
            if path.startswith(str(log)) and path.endswith("(deleted)"):
                found.append(path)
    return found


def test_many_routes_need_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 routes on one log run with 1 024 of them, and close segments that retention removes."""
    limited = ("sh", "-c", 'ulimit -n 1024; exec "$@"', "sh", *Running.command)
    monkeypatch.setattr(Running, "command", limited)
    lines = "".join(f'"{each:05} {PADDING}"\n' for each in range(LINES))
    (tmp_path / "in.txt").write_text(lines)
    log = tmp_path / "log"
    pipeline = write_pipeline(
        tmp_path, ROUTES, segment_bytes="64KiB", max_bytes="1MiB", compression="none"
    )
    outputs = [tmp_path / f"out{each}.jsonl" for each in range(ROUTES)]
    with running(pipeline) as engine:
        await_true(lambda: all(whole(path, len(lines)) for path in outputs), 900, "delivered")
        everybody = [psutil.Process(engine.process.pid), *engine.descendants()]
        used = max(each.num_fds() for each in everybody)
        await_true(lambda: length(log) <= 1 << 20, 20, "removed")
        await_true(
            lambda: not (left := [removed(each, log) for each in everybody]) or not any(left),
            60,
            "let go of what is removed",
        )
        assert {kind_of(each) for each in everybody} >= {"worker", "jvm"}
        assert engine.stop() == 0
    assert used < 1024
    assert not [each for each in engine.events if each["event"] == "route-stopped"]

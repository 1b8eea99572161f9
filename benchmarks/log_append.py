"""Appending to the log against the same bytes written and synced by hand."""

from __future__ import annotations

import os
import shutil
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.figures import Aim, Comparison, Section
from benchmarks.messages import batches
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem, opened
from transporter.log.reader import LogReader

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

    from benchmarks.setting import Setting
    from transporter.log.filesystem import File

_ROWS: Final = 1000
_DELAY: Final = 0.002
_AIM: Final = Aim(0.85, at_least=True)

METHOD: Final = f"""\
`CommitLog.append` of ready record batches ({_ROWS} messages of about 200 bytes of JSON), one
caller, each append durable before the next. The floor writes the very bytes of those frames with
`pwrite` to a file that was reserved beforehand, and calls `fdatasync` after each frame; it
encodes, checks and locks nothing. "Uncompressed bytes" is the same floor for what the messages
are in memory, which is what somebody without a codec would write. With "2 ms" every
`fdatasync` of both sides is preceded by a sleep of 2 ms, as a disk without a write cache needs."""
LIMITS: Final = """\
An append costs the Arrow encoding, lz4 and the CRC-32C of the payload, on one core, before the
disk sees anything; the faster the disk, the larger their share."""


class SlowDisk(RealFileSystem):
    """The real file system with a sync that takes *delay* seconds longer."""

    def __init__(self, delay: float) -> None:
        """Delay every sync of a file by *delay* seconds."""
        self._delay = delay

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open *path*; what is opened syncs late."""
        file = super().open(path, write=write, create=create)
        prompt = file.sync

        def late() -> None:
            time.sleep(self._delay)
            prompt()

        if self._delay:
            file.sync = late  # type: ignore[method-assign]
        return file


def measure(setting: Setting) -> Section:
    """Compare for both codecs, with and without a slow disk, in batches and message by message."""
    ready = batches(20, _ROWS)
    single = [batch.slice(0, 1) for batch in ready]
    lz4 = _frames(setting.place("lz4"), ready, "lz4")
    plain = _frames(setting.place("plain"), ready, None)
    bare = [batch.serialize().to_pybytes() for batch in ready]
    alone = _frames(setting.place("alone"), single, "lz4")
    place, count = setting.place("log"), setting.scaled(200, 40)
    append, write = partial(_append, place), partial(_write, place)
    found = setting.interleaved(
        {
            "append": partial(append, ready, "lz4", count),
            "write": partial(write, lz4, _ROWS, count),
            "write bare": partial(write, bare, _ROWS, count),
            "append plain": partial(append, ready, None, count),
            "write plain": partial(write, plain, _ROWS, count),
            "append slowly": partial(append, ready, "lz4", count // 4, _DELAY),
            "write slowly": partial(write, lz4, _ROWS, count // 4, _DELAY),
            "append alone": partial(append, single, "lz4", count),
            "write alone": partial(write, alone, 1, count),
        }
    )
    floor, default = "write + fdatasync of its frames", "append, lz4 (the default)"
    size = f"A frame of {_ROWS} messages takes {_mean(plain)} bytes, {_mean(lz4)} with lz4."
    return Section(
        "log-append",
        METHOD,
        (
            _compared(found, ("append", default), ("write", floor), _AIM),
            _compared(found, ("append", default), ("write bare", "the same, uncompressed"), None),
            _compared(found, ("append plain", "append, no codec"), ("write plain", floor), _AIM),
            _compared(
                found,
                ("append slowly", "append, lz4, sync + 2 ms"),
                ("write slowly", f"{floor} + 2 ms"),
                _AIM,
            ),
            _compared(found, ("append alone", "append of one"), ("write alone", floor), None),
        ),
        (size,),
        LIMITS,
    )


def _compared(
    found: dict[str, tuple[float, ...]],
    ours: tuple[str, str],
    theirs: tuple[str, str],
    aim: Aim | None,
) -> Comparison:
    """Compare two sides, each given as its name and what the report calls it."""
    (mine, subject), (other, rival) = ours, theirs
    return Comparison(subject, rival, "messages/s", found[mine], found[other], aim)


def _append(
    folder: Path,
    ready: Sequence[pa.RecordBatch],
    compression: str | None,
    count: int,
    delay: float = 0.0,
) -> float:
    """Return the messages appended in a second."""
    rows = int(ready[0].num_rows)
    directory = folder / "log"
    shutil.rmtree(directory, ignore_errors=True)
    with CommitLog.open(directory, compression=compression, files=SlowDisk(delay)) as log:
        began = time.perf_counter()
        for number in range(count):
            log.append(ready[number % len(ready)], "bench", "position")
        return count * rows / (time.perf_counter() - began)


def _write(
    folder: Path, frames: Sequence[bytes], rows: int, count: int, delay: float = 0.0
) -> float:
    """Return the messages written in a second; each frame holds *rows* of them."""
    path = folder / "raw"
    path.unlink(missing_ok=True)
    with opened(SlowDisk(delay), path, write=True, create=True) as file:
        file.allocate(0, sum(map(len, frames)) * (count // len(frames) + 1))
        file.sync()
        byte = 0
        began = time.perf_counter()
        for number in range(count):
            frame = frames[number % len(frames)]
            file.pwrite(frame, byte)
            file.sync()
            byte += len(frame)
        return count * rows / (time.perf_counter() - began)


def _frames(
    directory: Path, ready: Sequence[pa.RecordBatch], compression: str | None
) -> list[bytes]:
    """Return the bytes of the frames that the log makes of *ready*."""
    with CommitLog.open(directory, compression=compression) as log:
        for batch in ready:
            log.append(batch, "bench", "position")
        last = log.durable
    with LogReader(directory) as reader:
        return [
            _bytes(found.segment.path, found.frame.byte, found.frame.end)
            for found in reader.frames(0, last)
        ]


def _bytes(path: Path, first: int, end: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, end - first, first)
    finally:
        os.close(descriptor)


def _mean(frames: Sequence[bytes]) -> int:
    return sum(map(len, frames)) // len(frames)

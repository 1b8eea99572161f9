"""The log reader against reading and checking the bytes."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from benchmarks.figures import Aim, Comparison, Section
from benchmarks.messages import batches
from transporter.log.commit_log import CommitLog
from transporter.log.reader import LogReader

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from benchmarks.setting import Setting

_AIM: Final = Aim(0.5, at_least=True)
_PAGE: Final = 4096
_SMALL, _LARGE = 1000, 10_000

METHOD: Final = f"""\
`LogReader.read` over {{count}} messages of about 200 bytes of JSON, in frames of {_SMALL} and of
{_LARGE}. Every frame is found by its header, its checksum is verified, all columns are decoded,
and a byte of each {_PAGE} of every buffer is read.

The floor reads the same frames one by one with `pread` and computes the CRC-32C of their bytes.
It decodes nothing and has the beginning of each frame. "The same, uncompressed" is the floor of
the log without a codec, which holds the same messages, as a program that writes them unchanged
would read them. Everything is in the page cache."""
LIMITS: Final = """\
The floor does not decode. A reader does, and validates to the last byte what this run of the engine
has not written itself, because another program may have (Invariant 17). With lz4 it decompresses
such a frame twice: Arrow does not report whether the data had the size that it claims."""


class WrittenLog(NamedTuple):
    """A log, and the places of its frames."""

    directory: Path
    last: int
    rows: int
    path: Path
    frames: tuple[tuple[int, int], ...]


def measure(setting: Setting) -> Section:
    """Compare for both codecs, in frames of two sizes."""
    count = setting.scale(1_000_000, 100_000)
    logs = {
        (codec, rows): write_log(
            setting.make_folder(f"{codec}-{rows}") / "log", batches(10, rows), count // rows, codec
        )
        for codec in ("lz4", None)
        for rows in (_SMALL, _LARGE)
    }
    sides = {("read", *name): partial(read_rate, log) for name, log in logs.items()}
    floors = {("check", *name): partial(check_rate, log) for name, log in logs.items()}
    named = {str(name): side for name, side in (sides | floors).items()}
    found = setting.interleave(named)
    comparisons = [
        Comparison(
            f"read, {codec or 'no codec'}, frames of {rows}",
            rival,
            "messages/s",
            found[str(("read", codec, rows))],
            found[str(("check", theirs, rows))],
            aim,
        )
        for rows in (_SMALL, _LARGE)
        for codec, theirs, rival, aim in (
            (None, None, "pread + CRC-32C of its frames", _AIM),
            ("lz4", None, "the same, uncompressed", _AIM),
            ("lz4", "lz4", "pread + CRC-32C of its frames", None),
        )
    ]
    sizes = " and ".join(
        f"{sum(end - first for first, end in logs[codec, _SMALL].frames) >> 20} MiB {name}"
        for codec, name in ((None, "without a codec"), ("lz4", "with lz4"))
    )
    note = f"In frames of {_SMALL} the messages take {sizes}."
    return Section("log-read", METHOD.format(count=count), tuple(comparisons), (note,), LIMITS)


def write_log(
    directory: Path, ready: list[pa.RecordBatch], count: int, compression: str | None
) -> WrittenLog:
    """Make a log of *count* frames, of *ready* in turn."""
    with CommitLog.open(directory, compression=compression) as log:
        for number in range(count):
            log.append(ready[number % len(ready)], "bench", "position")
        last = log.durable
    with LogReader(directory) as reader:
        found = list(reader.frames(0, last))
        frames = tuple((each.frame.byte, each.frame.end) for each in found)
        return WrittenLog(directory, last, ready[0].num_rows, found[0].segment.path, frames)


def read_rate(log: WrittenLog) -> float:
    """Return the messages read in a second, each with all its columns."""
    began = time.perf_counter()
    with LogReader(log.directory) as reader:
        rows = 0
        for entries in reader.read(0, log.last):
            touch(entries)
            rows += entries.num_rows
    took = time.perf_counter() - began
    if rows != log.last + 1:
        raise RuntimeError(f"{rows} of {log.last + 1} entries were read")
    return rows / took


def touch(entries: pa.RecordBatch) -> int:
    """Read each page of every buffer of every column, and return the bytes that they hold."""
    size = 0
    for column in entries.columns:
        for buffer in column.buffers():
            if buffer is not None:
                sum(memoryview(buffer)[::_PAGE])
                size += buffer.size
    return size


def check_rate(log: WrittenLog) -> float:
    """Return the messages of which the bytes are read and their CRC-32C computed in a second."""
    descriptor = os.open(log.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        began = time.perf_counter()
        for first, end in log.frames:
            crc32c(os.pread(descriptor, end - first, first))
        return (log.last + 1) / (time.perf_counter() - began)
    finally:
        os.close(descriptor)

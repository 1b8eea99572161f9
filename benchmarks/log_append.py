"""Appending to the log against the same bytes written and synced by hand."""

from __future__ import annotations

import os
import shutil
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks.figures import OURS, Aim, Comparison, Section
from benchmarks.messages import batches, messages
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem, open_file
from transporter.log.format import FRAME_HEADER_BYTES, align
from transporter.log.reader import LogReader
from transporter.message import messages_to_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pyarrow as pa

    from benchmarks.setting import Setting
    from transporter.log.filesystem import File
    from transporter.log.reader import LocatedFrame
    from transporter.message import Message

_ROWS: Final = 1000
_DELAY: Final = 0.002
_PLAIN_AIM: Final = Aim(0.8, at_least=True)
_LZ4_AIM: Final = Aim(0.5, at_least=True)
_SLOW_AIM: Final = Aim(0.85, at_least=True)
_OBJECTS_AIM: Final = Aim(0.2, at_least=True)
_ROW_BYTES: Final = 200
_ROW_AIM: Final = Aim(1.3 * 1024, at_least=False, figure=OURS)

METHOD: Final = f"""\
`CommitLog.append` of ready record batches ({_ROWS} messages of about 200 bytes of JSON), one
caller, each append durable before the next. The floor writes the same bytes of those frames with
`pwrite` to a file that was reserved beforehand, and calls `fdatasync` after each frame. It does not
encode, check or lock anything.

- "The same, uncompressed" is the same floor for the messages as they are in memory, as a program
  without a codec would write them.
- "From objects" begins with `Message` objects: `messages_to_batch`, then `append`.
- With "2 ms" every `fdatasync` of both sides is preceded by a sleep of 2 ms, as a disk without a
  write cache needs.
- "On disk" is the growth of a log's folder, segments and index, with each message that was
  appended alone."""
LIMITS: Final = """\
An append costs the Arrow encoding, lz4 and the CRC-32C of the payload, on one core, before the
disk sees anything. The faster the disk, the larger their share. From objects, Python also looks at
each field of each message."""


class SlowDisk(RealFileSystem):
    """The real file system with a sync that takes *delay* seconds longer."""

    def __init__(self, delay: float) -> None:
        """Delay every sync of a file by *delay* seconds."""
        self._delay = delay

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open *path* with late syncs."""
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
    ready, objects = batches(20, _ROWS), _objects(20)
    single = [batch.slice(0, 1) for batch in ready]
    lz4 = _frames(setting.make_folder("lz4"), ready, "lz4")
    plain = _frames(setting.make_folder("plain"), ready, None)
    bare = [batch.serialize().to_pybytes() for batch in ready]
    alone = _frames(setting.make_folder("alone"), single, "lz4")
    place, count = setting.make_folder("log"), setting.scale(200, 40)
    append, write = partial(_append, place), partial(_write, place)
    found = setting.interleave(
        {
            "append": partial(append, ready, "lz4", count),
            "write": partial(write, lz4, _ROWS, count),
            "append objects": partial(append, objects, "lz4", count, encode=messages_to_batch),
            "write bare": partial(write, bare, _ROWS, count),
            "append plain": partial(append, ready, None, count),
            "write plain": partial(write, plain, _ROWS, count),
            "append slowly": partial(append, ready, "lz4", count // 4, _DELAY),
            "write slowly": partial(write, lz4, _ROWS, count // 4, _DELAY),
            "append alone": partial(append, single, "lz4", count),
            "write alone": partial(write, alone, 1, count),
        }
    )
    size = f"A frame of {_ROWS} messages takes {_mean(plain)} bytes, {_mean(lz4)} with lz4."
    row, parts = _compare_sizes(setting)
    return Section("log-append", METHOD, (*_compare(found), row), (size, parts), LIMITS)


def _compare(found: dict[str, tuple[float, ...]]) -> tuple[Comparison, ...]:
    floor, default = "write + fdatasync of its frames", "append, lz4 (the default)"
    bare, objects = "the same, uncompressed", "append, lz4, from objects"
    slow = ("write slowly", f"{floor} + 2 ms")
    return (
        _comparison(found, ("append", default), ("write", floor), None),
        _comparison(found, ("append", default), ("write bare", bare), _LZ4_AIM),
        _comparison(found, ("append objects", objects), ("write", floor), None),
        _comparison(found, ("append objects", objects), ("write bare", bare), _OBJECTS_AIM),
        _comparison(
            found, ("append plain", "append, no codec"), ("write plain", floor), _PLAIN_AIM
        ),
        _comparison(found, ("append slowly", "append, lz4, sync + 2 ms"), slow, _SLOW_AIM),
        _comparison(found, ("append alone", "append of one"), ("write alone", floor), None),
    )


def _objects(count: int) -> list[list[Message]]:
    """Return *count* lists of messages, those of the ready batches."""
    found = messages(count * _ROWS)
    return [found[at : at + _ROWS] for at in range(0, len(found), _ROWS)]


def _compare_sizes(setting: Setting) -> tuple[Comparison, str]:
    """Compare a message of 200 bytes on disk with its bytes. Describe the parts of its frame."""
    count = setting.scale(1000, 100)
    rows = (message for message in messages(2 * count) if len(message.data or b"") == _ROW_BYTES)
    ready = [messages_to_batch([row]) for row, _ in zip(rows, range(count), strict=False)]
    nothing, full = setting.make_folder("nothing") / "log", setting.make_folder("rows") / "log"
    _fill(nothing, [], "lz4")
    _fill(full, ready, "lz4")
    each = (_size(full) - _size(nothing)) / len(ready)
    subject = f"on disk, a message of {_ROW_BYTES} bytes appended alone"
    found = Comparison(subject, "its data", "bytes", (each,), (float(_ROW_BYTES),), _ROW_AIM)
    with LogReader(full) as reader:
        return found, describe_parts(next(reader.frames(len(ready) - 1, len(ready) - 1)))


def describe_parts(found: LocatedFrame) -> str:
    """Return a text with the bytes of each part of the frame on the disk."""
    frame, entries = found.frame, found.entries()
    whole = entries.serialize()
    # An IPC message: four bytes of ones, the metadata's length, the metadata, the body.
    metadata = 8 + int.from_bytes(whole[4:8], "little")
    used = FRAME_HEADER_BYTES + frame.extension_length + frame.payload_length
    return (
        f"A frame of {frame.count} message takes {align(used)} bytes: header "
        f"{FRAME_HEADER_BYTES}, extension {frame.extension_length}, payload "
        f"{frame.payload_length}, padding {align(used) - used}; of the payload, before any "
        f"codec, Arrow's metadata takes {metadata} and its buffers {len(whole) - metadata}."
    )


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def _comparison(
    found: dict[str, tuple[float, ...]],
    ours: tuple[str, str],
    theirs: tuple[str, str],
    aim: Aim | None,
) -> Comparison:
    """Compare two sides, each given as its name and its title in the report."""
    (mine, subject), (other, rival) = ours, theirs
    return Comparison(subject, rival, "messages/s", found[mine], found[other], aim)


def _return_unchanged(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _append(
    folder: Path,
    ready: Sequence[Any],
    compression: str | None,
    count: int,
    delay: float = 0.0,
    encode: Callable[[Any], pa.RecordBatch] = _return_unchanged,
) -> float:
    """Return the messages appended in a second, the time of *encode* included."""
    rows = len(ready[0])
    directory = folder / "log"
    shutil.rmtree(directory, ignore_errors=True)
    with CommitLog.open(directory, compression=compression, files=SlowDisk(delay)) as log:
        began = time.perf_counter()
        for number in range(count):
            log.append(encode(ready[number % len(ready)]), "bench", "position")
        return count * rows / (time.perf_counter() - began)


def _write(
    folder: Path, frames: Sequence[bytes], rows: int, count: int, delay: float = 0.0
) -> float:
    """Return the messages written in a second. Each frame holds *rows* of them."""
    path = folder / "raw"
    path.unlink(missing_ok=True)
    with open_file(SlowDisk(delay), path, write=True, create=True) as file:
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
    last = _fill(directory, ready, compression)
    with LogReader(directory) as reader:
        return [
            _bytes(found.segment.path, found.frame.byte, found.frame.end)
            for found in reader.frames(0, last)
        ]


def _fill(directory: Path, ready: Sequence[pa.RecordBatch], compression: str | None) -> int:
    """Make a log of *ready* and return its last offset."""
    with CommitLog.open(directory, compression=compression) as log:
        for batch in ready:
            log.append(batch, "bench", "position")
        return log.durable


def _bytes(path: Path, first: int, end: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, end - first, first)
    finally:
        os.close(descriptor)


def _mean(frames: Sequence[bytes]) -> int:
    return sum(map(len, frames)) // len(frames)

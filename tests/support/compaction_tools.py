"""Shared tools for tests of compaction and retention: logs cut to order, and plain models."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from transporter.log.commit_log import CommitLog
from transporter.log.compaction import CompactionSettings, Report, compact, preview
from transporter.log.filesystem import RealFileSystem
from transporter.log.inspection import inspect
from transporter.log.reader import LogReader
from transporter.log.segment import segment_bases
from transporter.message import Entries, Message, messages_to_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from transporter.log.filesystem import FileSystem
    from transporter.log.key_history import Keep
    from transporter.message import Entry

LATE = 10**10
"""Seconds after which all entries that a test has logged are old."""
SECOND = 1_000_000


class Frame(NamedTuple):
    """An append: its messages, their reader, and the position behind them."""

    messages: Sequence[Message]
    reader: str = "r"
    position: str | None = None


def letters(text: str, op: str = "insert") -> list[Message]:
    """Return a message in the namespace of each letter of *text*."""
    return [Message(each, b"data of %d" % at, op=op) for at, each in enumerate(text)]


def keyed(*pairs: str) -> list[Message]:
    """Return messages of one namespace, each ``key=data``, ``key`` (a tombstone) or ``=data``."""
    found = []
    for pair in pairs:
        key, has_data, data = pair.partition("=")
        op = "insert" if has_data else "delete"
        found.append(Message("n", data.encode() if has_data else None, key.encode() or None, op))
    return found


def write_log(
    directory: Path,
    segments: Sequence[Sequence[Frame]],
    files: FileSystem | None = None,
    clock: Callable[[], int] = lambda: 0,
) -> int:
    """Append *segments* to the log in *directory*, one frame at a time. Return the last offset."""
    with CommitLog.open(directory, files=files, compression=None, clock=clock) as log:
        append_segments(log, segments)
        return log.durable


def append_segments(log: CommitLog, segments: Sequence[Sequence[Frame]]) -> None:
    """Append *segments* to *log*, rolling before each unless it is empty."""
    usual = log._segment_bytes
    for frames in segments:
        log._segment_bytes = 1
        for frame in frames:
            log.append(messages_to_batch(frame.messages), frame.reader, frame.position)
            log._segment_bytes = usual


def bases_of(directory: Path) -> list[int]:
    """Return the base offsets of the segments in *directory*."""
    return segment_bases(RealFileSystem(), directory)


def everything(directory: Path, files: FileSystem | None = None) -> dict[int, Entry]:
    """Return all entries that can be read from the log."""
    with LogReader(directory, files) as reader:
        last = inspect(directory, files=files).last if files is None else _last(directory, files)
        return {
            entry.offset: entry
            for batch in reader.read(reader.first_offset(), last)
            for entry in Entries(batch)
        }


def _last(directory: Path, files: FileSystem) -> int:
    from transporter.log.meta import read_meta  # noqa: PLC0415 - as its name says

    meta = read_meta(files, directory)
    assert meta is not None
    return meta.proved


def compacted(
    directory: Path,
    watermark: int,
    keep: Keep = "namespace",
    files: FileSystem | None = None,
    *,
    tombstones: float = LATE,
    dry_run: bool = False,
) -> Report:
    """Compact the log in *directory*, in which everything is old except tombstones."""
    settings, now = CompactionSettings(0.0, keep, tombstones, None), LATE * SECOND // 2
    if dry_run:
        return preview(directory, files, watermark=watermark, settings=settings, now=now)
    return compact(directory, files, watermark=lambda: watermark, settings=settings, now=now)


def expected(
    entries: dict[int, Entry], ends: Sequence[int], watermark: int, keep: Keep
) -> set[int]:
    """Return the offsets that a compaction must leave, worked out one by one.

    *ends* are the last offsets of the sealed segments.
    """
    below = [end for end in ends if end <= watermark]
    limit = below[-1] if below else -1
    kept, seen = set(), set()
    for offset, entry in sorted(entries.items(), reverse=True):
        message = entry.message
        name = (message.namespace, message.key if keep == "key" else None)
        keyless = keep == "key" and message.key is None
        if offset > limit or keyless or name not in seen or offset in below:
            kept.add(offset)
        if offset <= limit and not keyless:
            seen.add(name)
    return kept

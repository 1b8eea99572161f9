"""Disk, memory and descriptors that a pipeline needs: ``transporter plan``, docs/sizing.md.

Bytes on the disk are not modelled. Messages are encoded into a frame as the log encodes
them, and the frame is measured. All other figures are the constants below, which were
measured on a running engine. docs/sizing.md describes how.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from transporter.log.active_segment import PREALLOCATION
from transporter.log.format import FRAME_HEADER_BYTES, Source, align, encode_payload
from transporter.log.open_segments import MOST
from transporter.log.reserve import RESERVE_BYTES
from transporter.message import Message, messages_to_batch, with_offsets
from transporter.pipeline.config import LogConfig
from transporter.pipeline.retention_config import SEGMENTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transporter.pipeline.config import Keys, RouteConfig

_MIB: Final = 1 << 20

ENGINE: Final = 120 * _MIB
"""RSS of the engine's process, also behind a backlog."""
SPARK: Final = (88 + 240 + 98) * _MIB
"""RSS of the Spark host, its JVM and the worker daemon."""
DATAFRAME_SPARK: Final = 512 * _MIB
"""More of the JVM's heap with DataFrame routes: its limit is 1 GiB instead of 512 MiB."""
WORKER: Final = 94 * _MIB
"""RSS of a worker between two slices."""
WORKER_SLICES: Final = 7
"""Memory of a slice in a worker at its peak, as a multiple of ``slice_bytes``."""

DESCRIPTORS: Final = 16
"""Descriptors of an engine's process without readers and routes."""
READER_DESCRIPTORS: Final = 4
"""Connections and wake-ups of a reader. A Kafka client has more: one for each broker."""
ROUTE_DESCRIPTORS: Final = 3
"""The offset log, the lock and the connection of a worker."""

CYCLE: Final = 0.005
"""Seconds between two appends of a busy reader: poll, append, sync, acknowledgement.

What a source commits meanwhile is logged at once, in one frame.
"""
MOST_IN_A_FRAME: Final = 1000

_MADE_UP: Final = 8 * _MIB
"""Bytes of made-up documents: a reader logs no more at once."""
_COPY: Final = 64 * _MIB
"""Free space that a compaction leaves beside its copy of a segment."""
_USUAL: Final = 0.8
"""The part of ``max_bytes`` from which on delivered entries are removed early."""
_WORDS: Final = ("placed", "paid", "Amsterdam", "express", "customer", "returned", "EUR", "parcel")
_TIME: Final = 1_900_000_000_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """Messages that a pipeline reads.

    Attributes:
        rate: messages in a second.
        batch: messages of one append.
        data: the data of typical messages.

    """

    rate: float
    batch: int
    data: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes of memory of the processes of one pipeline at their peak."""

    engine: int
    spark: int
    workers: int

    @property
    def total(self) -> int:
        """All together."""
        return self.engine + self.spark + self.workers


@dataclass(frozen=True, slots=True)
class Plan:
    """Needs of a pipeline. Sizes are bytes, and ``None`` means without a limit.

    Attributes:
        message: bytes of the disk for each message.
        hour: bytes of an hour.
        outage: bytes of entries that wait for a sink which is down.
        retention: further bytes of entries that every route has delivered.
        log: the greatest size of the log.
        segments: files of that log.
        max_bytes: the suggestion for ``log.max_bytes``.
        disk: the size of a file system for it, with reserve and room for compaction.
        descriptors: open files of the engine's process.
        memory: memory of all processes.

    """

    message: float
    hour: int
    outage: int
    retention: int | None
    log: int | None
    segments: int | None
    max_bytes: int
    disk: int
    descriptors: int
    memory: MemoryNeed


def batch_of(rate: float) -> int:
    """Return the messages that a reader logs at once, of a source with *rate* in a second."""
    return max(1, min(MOST_IN_A_FRAME, round(rate * CYCLE)))


def made_up_data(size: int, count: int = MOST_IN_A_FRAME) -> list[bytes]:
    """Return *count* JSON documents of *size* bytes: repeated names, and values that vary.

    Large ones are fewer, 8 MiB together and one at least.
    """
    count = min(count, max(1, _MADE_UP // size))
    chance = random.Random(size)  # noqa: S311 - the same documents in every call
    return [_document(chance, number, size) for number in range(count)]


def _document(chance: random.Random, number: int, size: int) -> bytes:
    text = f'{{"id": {number}'
    while len(text) < size:
        field = (
            f', "{chance.choice(_WORDS)}_id": {chance.randrange(10**6)}, '
            f'"{chance.choice(_WORDS)}": "{chance.choice(_WORDS)}", '
            f'"ref": "{chance.getrandbits(48):012x}"'
        )
        text += field
    return (text[: max(2, size) - 1] + "}").encode()


def message_bytes(load: Load, compression: str | None) -> float:
    """Return the bytes of the disk that one message takes, measured on encoded frames.

    No frame holds a message twice, because a codec would remove the copy.
    """
    batch = min(load.batch, len(load.data))
    frames = min(100, len(load.data) // batch)
    sizes = [
        _frame_bytes(load.data[first : first + batch], first, compression)
        for first in range(0, frames * batch, batch)
    ]
    return sum(sizes) / (frames * batch)


def _frame_bytes(data: Sequence[bytes], first: int, compression: str | None) -> int:
    messages = [
        Message(
            "public.orders",
            each,
            f"customer-{(number * 7919) % 1000}".encode(),
            timestamp=_TIME + number * 500,
            source_id=f"outbox/{number}",
        )
        for number, each in enumerate(data, start=first)
    ]
    entries = with_offsets(messages_to_batch(messages), first, _TIME)
    extension = Source("outbox", position=str(first), term=1).encode()
    return align(FRAME_HEADER_BYTES + len(extension) + len(encode_payload(entries, compression)))


def make_plan(load: Load, outage: float, keys: Keys | None = None, routes: int = 1) -> Plan:
    """Return the needs of a pipeline under *load* whose sinks may be down for *outage* seconds.

    *keys* are those of its file. Without them settings are the defaults, and there are a
    reader and as many *routes*.
    """
    log = _default_log() if keys is None else keys.log
    each = message_bytes(load, log.codec)
    pace = load.rate * each
    waiting = round(pace * outage)
    kept = _retained(log, pace, outage)
    whole = None if kept is None else waiting + kept + PREALLOCATION
    budget = _budget(whole if whole is not None else waiting + PREALLOCATION, log.segment_bytes)
    segment = max(1.0, min(log.segment_bytes, pace * log.roll_after))
    segments = None if whole is None else math.ceil(whole / segment)
    return Plan(
        message=each,
        hour=round(pace * 3600),
        outage=waiting,
        retention=kept,
        log=whole,
        segments=segments,
        max_bytes=budget,
        disk=budget + RESERVE_BYTES + (_COPY + log.segment_bytes if log.compaction.after else 0),
        descriptors=_descriptors(keys, routes, segments),
        memory=memory_need(keys, routes),
    )


def _default_log() -> LogConfig:
    from pathlib import Path  # noqa: PLC0415 - only here

    return LogConfig(dir=Path("log"))


def _retained(log: LogConfig, pace: float, outage: float) -> int | None:
    """Return the bytes of delivered entries beside an *outage*, or nothing without a limit.

    Only sealed segments are removed, so entries outlive their age by the time of one.
    """
    age, most = log.retention.age, log.retention.bytes
    if age is None and most is None:
        return None
    kept = math.inf if age is None else pace * (max(0.0, age - outage) + log.roll_after)
    if most is not None:
        kept = min(kept, max(0.0, most - pace * outage) + log.segment_bytes)
    return round(kept)


def _budget(size: int, segment_bytes: int) -> int:
    """Return a budget of whole GiB that *size* bytes do not fill up to its warning mark."""
    wanted = max(size / _USUAL, SEGMENTS * segment_bytes)
    unit = 1 << 30 if wanted >= 1 << 30 else _MIB
    return math.ceil(wanted / unit) * unit


def _descriptors(keys: Keys | None, routes: int, segments: int | None) -> int:
    readers = 1 if keys is None else len(keys.readers)
    workers = routes if keys is None else sum(each.parallelism for each in keys.routes)
    files = MOST if segments is None else min(MOST, segments)
    return DESCRIPTORS + readers * READER_DESCRIPTORS + workers * ROUTE_DESCRIPTORS + files


def memory_need(keys: Keys | None = None, routes: int = 1) -> MemoryNeed:
    """Return the memory of a pipeline of these *keys*, or of *routes* with default settings."""
    slices = 16 * _MIB
    if keys is None:
        return MemoryNeed(ENGINE, SPARK, routes * _worker_bytes(slices))
    spark = SPARK + (DATAFRAME_SPARK if any(each.on_frames for each in keys.routes) else 0)
    return MemoryNeed(ENGINE, spark, sum(_route_bytes(each) for each in keys.routes))


def _route_bytes(route: RouteConfig) -> int:
    return route.parallelism * _worker_bytes(route.slice_bytes)


def _worker_bytes(slice_bytes: int) -> int:
    return WORKER + WORKER_SLICES * slice_bytes

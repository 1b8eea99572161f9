"""Byte format of markers, which report a consumer's messages in progress to a tracker. Pure.

::

    0     3     4       8      9      10   12        16      20       28
    ┌─────┬─────┬───────┬──────┬──────┬────┬─────────┬───────┬────────┬──────
    │ TQM │ver. │CRC-32C│ kind │ flag │ T  │partition│ count │ millis │T bytes
    └─────┴─────┴───────┴──────┴──────┴────┴─────────┴───────┴────────┴──────
    ┬─────────────────┬ of a Start only: ──┬──────────────────┬────────┬─────────┐
    │ count * offset 8│ count * value len 4│ count * hdrs len 4│ values │ headers │
    ┴─────────────────┴────────────────────┴──────────────────┴────────┴─────────┘

Integers are little-endian. The checksum covers everything behind it. Magic,
version and checksum have the same place in every version, so a marker of
another version is distinguishable from a damaged one. One marker names any
number of messages of one partition of the queue topic. T bytes of text are the
queue's name in a Start and the reason in a Nack. A value length of -1 means no value.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from transporter.queue.failures import BadMarker, UnknownMarker
from transporter.queue.message import cut_reason

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION: Final = 1
_MAGIC: Final = b"TQM"
_FRONT: Final = struct.Struct("<3sBI")
_HEAD: Final = struct.Struct("<BBHiIq")
_BODY: Final = _FRONT.size + _HEAD.size
_START, _KEEP_ALIVE, _END, _NACK = range(1, 5)
_FLAG: Final = 1
"""In a Start: restated by the tracker. In a Nack: does not count as a delivery."""

PER_MESSAGE: Final = 16
"""Bytes of a Start for each message besides its value and headers."""
OVERHEAD: Final = _BODY
"""Bytes of a marker besides its text and messages."""


@dataclass(frozen=True, slots=True)
class Start:
    """Processing of these messages has begun.

    They are redelivered unless a later marker comes in time.
    """

    queue: str
    partition: int
    offsets: tuple[int, ...]
    after_ms: int
    """Milliseconds from the tracker's read of the marker to the redelivery."""
    values: tuple[bytes | None, ...]
    headers: tuple[bytes, ...]
    """Packed; see :func:`transporter.queue.message.pack_headers`."""
    restated: bool = False
    """Whether a tracker wrote it again to replace an older Start."""


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Processing of these messages continues. The time to their redelivery restarts."""

    partition: int
    offsets: tuple[int, ...]
    after_ms: int


@dataclass(frozen=True, slots=True)
class End:
    """These messages are settled."""

    partition: int
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Nack:
    """These messages are to be redelivered, at once or after a delay."""

    partition: int
    offsets: tuple[int, ...]
    delay_ms: int = 0
    reason: str = ""
    released: bool = False
    """Whether they were not processed yet, so that this redelivery does not count."""


Marker = Start | KeepAlive | End | Nack


def encode_marker(marker: Marker) -> bytes:
    """Return the bytes of *marker*."""
    flag, text, millis, rest = 0, b"", 0, b""
    match marker:
        case Start():
            kind, flag, text = _START, int(marker.restated), marker.queue.encode()
            millis, rest = marker.after_ms, _pack_messages(marker)
        case KeepAlive():
            kind, millis = _KEEP_ALIVE, marker.after_ms
        case End():
            kind = _END
        case Nack():
            kind, flag, millis = _NACK, int(marker.released), marker.delay_ms
            text = cut_reason(marker.reason)
    count = len(marker.offsets)
    head = _HEAD.pack(kind, flag, len(text), marker.partition, count, millis)
    body = b"".join((head, text, struct.pack(f"<{count}q", *marker.offsets), rest))
    return _FRONT.pack(_MAGIC, VERSION, crc32c(body)) + body


def _pack_messages(marker: Start) -> bytes:
    count = len(marker.offsets)
    lengths = [-1 if value is None else len(value) for value in marker.values]
    packed = struct.pack(f"<{count}i{count}I", *lengths, *map(len, marker.headers))
    return b"".join((packed, *filter(None, marker.values), *marker.headers))


def decode_marker(data: bytes) -> Marker:
    """Return the marker in *data*.

    Raises:
        UnknownMarker: If it has another version.
        BadMarker: If it is damaged, or is not a marker.
    """
    if len(data) < _BODY or data[:3] != _MAGIC:
        raise BadMarker(f"{len(data)} bytes that are not a marker")
    _, version, checksum = _FRONT.unpack_from(data)
    if version != VERSION:
        raise UnknownMarker(
            f"a marker of version {version}, but this program supports version {VERSION} only;"
            " upgrade it to the version of the newest consumer"
        )
    if crc32c(memoryview(data)[_FRONT.size :]) != checksum:
        raise BadMarker("a marker whose checksum does not match")
    try:
        return _decode_body(data)
    except (struct.error, UnicodeDecodeError) as error:
        raise BadMarker("a marker that is shorter than its header states") from error


def _decode_body(data: bytes) -> Marker:
    kind, flags, text_size, partition, count, millis = _HEAD.unpack_from(data, _FRONT.size)
    place = _BODY + text_size
    offsets = struct.unpack_from(f"<{count}q", data, place)
    if partition < 0 or millis < 0 or flags & ~_FLAG:
        raise BadMarker("a marker with an impossible partition, time or flag")
    text, flag, end = data[_BODY:place].decode(), bool(flags), place + 8 * count
    if kind == _START:
        values, headers = _unpack_contents(data, end, count)
        return Start(text, partition, offsets, millis, values, headers, flag)
    if end != len(data):
        raise BadMarker("a marker that is longer than its header states")
    if kind == _KEEP_ALIVE:
        return KeepAlive(partition, offsets, millis)
    if kind == _END:
        return End(partition, offsets)
    if kind == _NACK:
        return Nack(partition, offsets, millis, text, flag)
    raise UnknownMarker(f"a marker of the unknown kind {kind}; upgrade this program")


def _unpack_contents(
    data: bytes, place: int, count: int
) -> tuple[tuple[bytes | None, ...], tuple[bytes, ...]]:
    numbers = struct.unpack_from(f"<{count}i{count}I", data, place)
    lengths, sizes = numbers[:count], numbers[count:]
    start = place + 8 * count
    known = [max(0, length) for length in lengths]
    if min(lengths, default=0) < -1 or start + sum(known) + sum(sizes) != len(data):
        raise BadMarker("a marker whose lengths do not add up")
    values = _slices(data, start, known)
    if -1 in lengths:
        pairs = zip(values, lengths, strict=True)
        return tuple(None if length < 0 else value for value, length in pairs), _unpack_headers(
            data, start + sum(known), sizes
        )
    return values, _unpack_headers(data, start + sum(known), sizes)


def _unpack_headers(data: bytes, start: int, sizes: Sequence[int]) -> tuple[bytes, ...]:
    return _slices(data, start, sizes) if any(sizes) else (b"",) * len(sizes)


def _slices(data: bytes, start: int, lengths: Sequence[int]) -> tuple[bytes, ...]:
    bounds = pairwise(accumulate(lengths, initial=start))
    return tuple([data[first:last] for first, last in bounds])

"""Message of a queue, and the Kafka headers that transporter adds to the sender's. Pure."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from transporter.queue.failures import BadMarker

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MessageId = tuple[int, int]
"""Partition and offset in the queue topic."""

Header = tuple[str, bytes | None]
Headers = tuple[Header, ...]

PREFIX: Final = "transporter-"
"""Prefix of the names of our headers."""
KEY: Final = PREFIX + "key"
REDELIVERIES: Final = PREFIX + "redeliveries"
ORIGIN_TOPIC: Final = PREFIX + "origin-topic"
ORIGIN_PARTITION: Final = PREFIX + "origin-partition"
ORIGIN_OFFSET: Final = PREFIX + "origin-offset"
REASON: Final = PREFIX + "reason"
TIME: Final = PREFIX + "time"

LONGEST_NAME: Final = 65_535
"""Maximum length of a header's name in bytes."""

LONGEST_REASON: Final = 4096
"""Maximum length of a reason in bytes, so that a dead letter is little larger than its message."""

_SIZES: Final = struct.Struct("<Hi")


class QueueMessage(NamedTuple):
    """One delivery of a message, to ack, to nack or to leave for redelivery."""

    id: MessageId
    queue: str
    value: bytes | None
    key: bytes | None = None
    """The sender's key."""
    headers: Headers = ()
    """The sender's headers."""
    redeliveries: int = 0
    """Number of redeliveries so far; 0 at the first delivery."""
    origin: MessageId | None = None
    """The id of the first delivery; ``None`` at the first delivery."""
    sent: int = -1
    """Kafka's timestamp of this delivery, in milliseconds since the epoch; -1: unknown."""


def message_from_record(
    message_id: MessageId,
    queue: str,
    value: bytes | None,
    headers: Sequence[Header] | None,
    sent: int,
) -> QueueMessage:
    """Return the message in a record of the queue topic."""
    if not headers:
        return QueueMessage(message_id, queue, value, None, (), 0, None, sent)
    ours = dict(header for header in headers if header[0].startswith(PREFIX))
    theirs = tuple(header for header in headers if not header[0].startswith(PREFIX))
    return QueueMessage(
        message_id, queue, value, ours.get(KEY), theirs, _redeliveries(ours), _origin(ours), sent
    )


def redelivery_count(headers: Iterable[Header]) -> int:
    """Return the number of redeliveries of the message with *headers*."""
    return _redeliveries(dict(headers))


def redelivery_headers(
    headers: Sequence[Header], topic: str, message_id: MessageId, count: int
) -> Headers:
    """Return *headers* for redelivery number *count* of the message at *message_id*."""
    known = dict(headers)
    partition, offset = message_id
    kept = tuple(header for header in headers if header[0] != REDELIVERIES)
    origin: Headers = ()
    if ORIGIN_TOPIC not in known:
        origin = (
            (ORIGIN_TOPIC, topic.encode()),
            (ORIGIN_PARTITION, b"%d" % partition),
            (ORIGIN_OFFSET, b"%d" % offset),
        )
    return (*kept, *origin, (REDELIVERIES, b"%d" % count))


def dead_letter_headers(headers: Sequence[Header], reason: str, time: str) -> Headers:
    """Return the headers of a dead letter from *headers*, those of its next delivery."""
    kept = tuple(header for header in headers if header[0] not in {REASON, TIME})
    return (*kept, (REASON, cut_reason(reason)), (TIME, time.encode()))


def cut_reason(reason: str) -> bytes:
    """Return *reason* in UTF-8, cut at the end of a character if it is too long."""
    text = reason.encode(errors="replace")[:LONGEST_REASON]
    return text.decode(errors="ignore").encode()


def pack_headers(headers: Sequence[Header] | None) -> bytes:
    """Return *headers* as the bytes in a Start marker."""
    if not headers:
        return b""
    parts = []
    for name, value in headers:
        text = name.encode()
        parts += [_SIZES.pack(len(text), -1 if value is None else len(value)), text, value or b""]
    return b"".join(parts)


def unpack_headers(data: bytes) -> Headers:
    """Return the headers in *data*, the inverse of :func:`pack_headers`."""
    found: list[Header] = []
    place = 0
    while place < len(data):
        try:
            size, length = _SIZES.unpack_from(data, place)
            name = data[place + _SIZES.size : place + _SIZES.size + size].decode()
        except (struct.error, UnicodeDecodeError) as error:
            raise BadMarker("a marker with damaged headers") from error
        start = place + _SIZES.size + size
        place = start + max(0, length)
        if length < -1 or place > len(data):
            raise BadMarker("a marker with damaged headers")
        found.append((name, None if length < 0 else data[start:place]))
    return tuple(found)


def _redeliveries(ours: dict[str, Any]) -> int:
    text = ours.get(REDELIVERIES) or b""
    return int(text) if text.isdigit() and len(text) <= len(str(2**31)) else 0


def _origin(ours: dict[str, Any]) -> MessageId | None:
    partition, offset = ours.get(ORIGIN_PARTITION) or b"", ours.get(ORIGIN_OFFSET) or b""
    limit = len(str(2**63))
    if partition.isdigit() and offset.isdigit() and max(len(partition), len(offset)) <= limit:
        return int(partition), int(offset)
    return None

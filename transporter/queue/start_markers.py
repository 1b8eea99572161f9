"""Conversion of queue topic records to messages, and to the Starts that announce them. Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from transporter.queue.markers import OVERHEAD, PER_MESSAGE, Start
from transporter.queue.message import message_from_record, pack_headers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transporter.queue.message import Headers, QueueMessage

_HEADERS: Final = methodcaller("headers")
"""Not ``record.headers()``, because its error may surface at some later, unrelated call."""
_MOST: Final = 1000
"""Maximum number of messages that one Start announces."""


@dataclass(slots=True)
class StartBatch:
    """Records of one read: their offsets, and the messages for our queue."""

    queue: str
    messages: list[QueueMessage] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    """The offset behind the last record read, by partition."""
    firsts: dict[int, int] = field(default_factory=dict)
    """The first offset read, by partition."""
    contents: dict[int, list[tuple[int, bytes | None, bytes]]] = field(default_factory=dict)
    """Contents of the Starts, by partition: offset, value and packed headers."""
    unreadable: int = 0
    """Number of messages whose headers cannot be read and are left out."""

    def add_records(self, records: Iterable[Any]) -> None:
        """Add *records*, none of which is an error."""
        key = self.queue.encode()
        for record in records:
            partition, offset = record.partition(), record.offset()
            self.firsts.setdefault(partition, offset)
            self.ends[partition] = offset + 1
            if record.key() == key:
                value, (headers, packed) = record.value(), self._read_headers(record)
                where, sent = (partition, offset), record.timestamp()[1]
                self.messages.append(message_from_record(where, self.queue, value, headers, sent))
                self.contents.setdefault(partition, []).append((offset, value, packed))

    def _read_headers(self, record: Any) -> tuple[Headers | None, bytes]:  # noqa: ANN401 - a record
        """Return the headers of *record*, and the same headers packed.

        The client raises an error for a name that is not UTF-8, and a name that is too long
        cannot be packed. The message matters more than its headers.
        """
        try:
            headers = _HEADERS(record)
            return headers, pack_headers(headers)
        except (SystemError, UnicodeError, struct.error):
            self.unreadable += 1
            return None, b""

    def start_markers(self, after_ms: int, most_bytes: int) -> Iterator[Start]:
        """Return Starts for all messages, larger than *most_bytes* only for one large message."""
        for partition, contents in self.contents.items():
            for part in _split_contents(contents, most_bytes - OVERHEAD - len(self.queue)):
                offsets, values, headers = zip(*part, strict=True)
                yield Start(self.queue, partition, offsets, after_ms, values, headers)


def _split_contents(
    contents: list[tuple[int, bytes | None, bytes]], most_bytes: int
) -> Iterator[list[tuple[int, bytes | None, bytes]]]:
    part: list[tuple[int, bytes | None, bytes]] = []
    size = 0
    for content in contents:
        _, value, headers = content
        more = PER_MESSAGE + len(headers) + (len(value) if value else 0)
        if part and (size + more > most_bytes or len(part) == _MOST):
            yield part
            part, size = [], 0
        part.append(content)
        size += more
    if part:
        yield part

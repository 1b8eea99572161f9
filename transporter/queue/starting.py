"""From records of the queue topic to messages and the Starts that announce them. Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from transporter.queue.markers import OVERHEAD, PER_MESSAGE, Start
from transporter.queue.message import pack, received

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transporter.queue.message import Headers, QueueMessage

_HEADERS: Final = methodcaller("headers")
"""Not ``record.headers()``, which may raise what is wrong at some later call of anything."""
_MOST: Final = 1000
"""Messages that one Start announces."""


@dataclass(slots=True)
class Batch:
    """What was read at once: how far, and what of it is for our queue."""

    queue: str
    messages: list[QueueMessage] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    """Of each partition, the offset behind what was read."""
    firsts: dict[int, int] = field(default_factory=dict)
    """Of each partition, the first offset that was read."""
    contents: dict[int, list[tuple[int, bytes | None, bytes]]] = field(default_factory=dict)
    """Of each partition, what Starts carry: offset, value and packed headers."""
    unreadable: int = 0
    """Messages whose headers cannot be read, and are left out."""

    def read(self, records: Iterable[Any]) -> None:
        """Take in *records*, none of which is an error."""
        key = self.queue.encode()
        for record in records:
            partition, offset = record.partition(), record.offset()
            self.firsts.setdefault(partition, offset)
            self.ends[partition] = offset + 1
            if record.key() == key:
                value, (headers, packed) = record.value(), self._headers(record)
                where, sent = (partition, offset), record.timestamp()[1]
                self.messages.append(received(where, self.queue, value, headers, sent))
                self.contents.setdefault(partition, []).append((offset, value, packed))

    def _headers(self, record: Any) -> tuple[Headers | None, bytes]:  # noqa: ANN401 - a record
        """Return the headers of *record*, and as bytes.

        The client raises what a name makes it raise that is not UTF-8; one too long cannot be
        packed. The message counts for more than what is said about it.
        """
        try:
            headers = _HEADERS(record)
            return headers, pack(headers)
        except (SystemError, UnicodeError, struct.error):
            self.unreadable += 1
            return None, b""

    def starts(self, after_ms: int, most_bytes: int) -> Iterator[Start]:
        """Return Starts for all messages; none larger than *most_bytes* without need."""
        for partition, contents in self.contents.items():
            for part in _parts(contents, most_bytes - OVERHEAD - len(self.queue)):
                offsets, values, headers = zip(*part, strict=True)
                yield Start(self.queue, partition, offsets, after_ms, values, headers)


def _parts(
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

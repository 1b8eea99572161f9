"""Messages of a queue as messages of the log, and entries as messages of a queue. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from transporter.message import ERROR_HEADER, Message
from transporter.queue import Outgoing
from transporter.queue.message import PREFIX, REDELIVERIES
from transporter_adaptors.kafka.records import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transporter.message import Entries, Headers
    from transporter.queue import QueueMessage

_NO_TIME: Final = -1
"""Kafka's value for a message without a time."""


def to_message(
    message: QueueMessage, topic: str, namespace: str, content_type: str | None
) -> Message:
    """Return *message* of *topic* as it is logged.

    Its source id, ``<topic>/<partition>/<offset>``, is that of its first delivery.
    """
    partition, offset = message.origin or message.id
    time, headers = _time_and_headers(message)
    return Message(
        namespace,
        message.value,
        message.key,
        "insert" if message.value is not None else "delete",
        timestamp=time * 1000,
        source_id=f"{topic}/{partition}/{offset}",
        content_type=content_type,
        headers=headers,
    )


def oldest_sent(messages: Iterable[QueueMessage]) -> float | None:
    """Return the oldest send time of *messages* in seconds since 1970, or ``None`` if unknown."""
    times = [message.sent / 1000 for message in messages if message.sent != _NO_TIME]
    return min(times, default=None)


def _time_and_headers(message: QueueMessage) -> tuple[int, Headers]:
    """Return the time in ms, limited to a message's range, and the headers with our own."""
    time, headers = message.sent, message.headers
    if message.redeliveries:
        headers = ((REDELIVERIES, b"%d" % message.redeliveries), *headers)
    if time == _NO_TIME:
        return 0, headers
    if not EARLIEST <= time <= LATEST:
        problem = f"its time, {time} ms after 1970, is not between the years 1 and 9999"
        return min(max(time, EARLIEST), LATEST), ((ERROR_HEADER, problem.encode()), *headers)
    return time, headers


def to_outgoing(entries: Entries, queue: str) -> Iterator[Outgoing]:
    """Yield *entries* as messages. *queue* may hold ``{namespace}``.

    Headers that queues themselves have made are left out, because a new message begins here.
    """
    for _, _, message in entries:
        headers = [each for each in message.headers if not each[0].startswith(PREFIX)]
        name = queue.format(namespace=message.namespace)
        yield Outgoing(name, message.data, message.key, headers)

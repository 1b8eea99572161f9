"""Hung transactions of dead producers, which block read_committed consumers."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from confluent_kafka import TopicPartition

from transporter.errors import TransporterError
from transporter.queue.progress import blocked_offsets, blocked_partitions, record_at
from transporter.queue.transactions import WRITER, end_transaction

if TYPE_CHECKING:
    from confluent_kafka import Message

    from transporter.queue.progress import Offsets
    from transporter.queue.settings import QueueSettings

_MOST: Final = 100
"""Maximum number of Starts that are remembered for each queue."""
_LOGGER: Final = logging.getLogger(__name__)


class HungTransactions:
    """Finder of transactions of dead producers that last longer than any may.

    The brokers lost their ends (see :mod:`transporter.queue.transactions`). Their
    producers are dead, or they would have ended the transactions themselves. Not
    thread-safe.

    A transaction in the markers topic names its producer there. One that only blocks the progress
    of a queue's group, and with it all its consumers, does not. It is the last one of a consumer
    that died, so the Start of a message whose deadline has passed since names it.
    """

    def __init__(self, settings: QueueSettings) -> None:
        """Keep *settings* without connecting."""
        self._settings = settings
        self._patience = 2 * settings.transaction_timeout
        self._next_check_at = time.monotonic()
        self._seen_before: dict[int, int] = {}
        self._blocked_before: dict[str, Offsets] = {}
        self._overdue: dict[str, deque[tuple[int, int]]] = {}
        """By queue the Starts, by partition and offset, of messages whose deadlines have passed."""

    def note_overdue(self, queue: str, partition: int, start: int) -> None:
        """Take note that a message was not acked in time; its Start is at offset *start*."""
        starts = self._overdue.setdefault(queue, deque(maxlen=_MOST))
        if (partition, start) not in starts:
            starts.append((partition, start))

    def end_all(self) -> None:
        """End the transactions that were already open at the previous check.

        Does nothing if that check lies within the time that no transaction outlasts.
        """
        now = time.monotonic()
        if now < self._next_check_at:
            return
        self._next_check_at = now + self._patience
        try:
            self._end(self._hung_writers(), "markers")
            self._end(self._writers_that_block_groups(), "its queue")
        except TransporterError as error:
            _LOGGER.warning("cannot end the transactions of dead processes: %s", error)
            if not error.retriable:
                self._overdue.clear()  # Not each time.

    def _end(self, names: set[str], blocked: str) -> None:
        for name in sorted(names):
            end_transaction(self._settings, name)
            _LOGGER.warning(
                "%s is dead; ended its last transaction, which blocked %s", name, blocked
            )

    def _hung_writers(self) -> set[str]:
        places = blocked_partitions(self._settings, [self._settings.markers_topic])
        before, self._seen_before = (
            self._seen_before,
            {each.partition: each.offset for each in places},
        )
        hung = [each for each in places if before.get(each.partition) == each.offset]
        return {name for each in hung if (name := self._find_hung_writer(each))}

    def _writers_that_block_groups(self) -> set[str]:
        """Return the consumers with overdue messages in queues whose groups stay blocked."""
        names = set[str]()
        before, self._blocked_before = self._blocked_before, {}
        for queue in list(self._overdue):
            group = self._settings.consumer_group(queue)
            blocked = blocked_offsets(self._settings, group, self._settings.queue_topic)
            if not blocked:
                del self._overdue[queue]
                continue
            self._blocked_before[queue] = blocked
            if blocked.items() & before.get(queue, {}).items():
                topic = self._settings.markers_topic
                starts = (TopicPartition(topic, *each) for each in self._overdue[queue])
                writers = map(self._find_writer, starts)
                # A Start that was written again is a tracker's.
                names.update(name for name in writers if name.startswith(f"{group}/"))
        return names

    def _find_hung_writer(self, place: TopicPartition) -> str:
        """Return the writer of the record at *place*, the first one of the transaction."""
        if not (name := self._find_writer(place)):
            _LOGGER.error(
                "%s, partition %d: a transaction that began at offset %d does not end, and its"
                " writer is unknown: see kafka-transactions.sh find-hanging",
                place.topic,
                place.partition,
                place.offset,
            )
        return name

    def _find_writer(self, place: TopicPartition) -> str:
        record = record_at(self._settings, place)
        return "" if record is None else _writer_name(record)


def _writer_name(record: Message) -> str:
    """Return the name of the producer that wrote *record* in a transaction, or an empty text."""
    try:
        name = dict(record.headers() or ()).get(WRITER)
        return name.decode() if isinstance(name, bytes) else ""
    except (SystemError, UnicodeError):  # Another program's record, unreadable for the client.
        return ""

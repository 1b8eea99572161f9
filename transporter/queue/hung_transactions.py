"""Hung transactions of dead producers, which block read_committed consumers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from transporter.errors import TransporterError
from transporter.queue.progress import blocked_partitions, record_at
from transporter.queue.transactions import WRITER, end_transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message, TopicPartition

    from transporter.queue.settings import QueueSettings

_LOGGER: Final = logging.getLogger(__name__)


class HungTransactions:
    """Finder of transactions in the markers topic that last longer than any may.

    The brokers lost their ends (see :mod:`transporter.queue.transactions`). Their
    producers are dead, or they would have ended the transactions themselves. Not
    thread-safe.
    """

    def __init__(self, settings: QueueSettings, clock: Callable[[], float]) -> None:
        """Keep *settings* without connecting."""
        self._settings, self._clock = settings, clock
        self._patience = 2 * settings.transaction_timeout
        self._next_check_at = clock()
        self._seen_before: dict[int, int] = {}

    def end_all(self) -> None:
        """End the transactions that were already open at the previous check.

        Does nothing if that check lies within the time that no transaction outlasts.
        """
        now = self._clock()
        if now < self._next_check_at:
            return
        self._next_check_at = now + self._patience
        try:
            for name in self._hung_writers():
                end_transaction(self._settings, name)
                _LOGGER.warning(
                    "%s is dead; ended its last transaction, which blocked markers", name
                )
        except TransporterError as error:
            _LOGGER.warning("cannot end the transactions that block markers: %s", error)

    def _hung_writers(self) -> list[str]:
        places = blocked_partitions(self._settings, [self._settings.markers_topic])
        before, self._seen_before = (
            self._seen_before,
            {each.partition: each.offset for each in places},
        )
        hung = [each for each in places if before.get(each.partition) == each.offset]
        return sorted({name for each in hung if (name := self._find_writer(each))})

    def _find_writer(self, place: TopicPartition) -> str | None:
        """Return the writer of the record at *place*, the first one of the transaction."""
        record = record_at(self._settings, place)
        name = None if record is None else _writer_name(record)
        if name is None:
            _LOGGER.error(
                "%s, partition %d: a transaction that began at offset %d does not end, and its"
                " writer is unknown: see kafka-transactions.sh find-hanging",
                place.topic,
                place.partition,
                place.offset,
            )
        return name


def _writer_name(record: Message) -> str | None:
    try:
        name = dict(record.headers() or ()).get(WRITER)
        return name.decode() if isinstance(name, bytes) else None
    except (SystemError, UnicodeError):  # Another program's record, unreadable for the client.
        return None

"""Transactions of those who are gone, which hold back what is behind them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from transporter.errors import TransporterError
from transporter.queue.progress import held_back, record_at
from transporter.queue.transactions import WRITER, end

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message, TopicPartition

    from transporter.queue.settings import QueueSettings

_LOGGER: Final = logging.getLogger(__name__)


class Hanging:
    """Ends transactions in the markers topic that go on for longer than any may.

    Their ends were lost (see :mod:`transporter.queue.transactions`), and whoever
    wrote them is gone, or it would have ended them itself. Not thread-safe.
    """

    def __init__(self, settings: QueueSettings, clock: Callable[[], float]) -> None:
        """Look at nothing yet."""
        self._settings, self._clock = settings, clock
        self._patience = 2 * settings.transaction_timeout
        self._look_at = clock()
        self._before: dict[int, int] = {}

    def end(self) -> None:
        """Look, unless that was done within the time that no transaction outlasts.

        What was there at the last look, too, is ended.
        """
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + self._patience
        try:
            for name in self._lasting():
                end(self._settings, name)
                _LOGGER.warning("%s is gone; what it committed last was held back", name)
        except TransporterError as error:
            _LOGGER.warning("what holds back markers cannot be ended: %s", error)

    def _lasting(self) -> list[str]:
        places = held_back(self._settings, [self._settings.markers_topic])
        before, self._before = self._before, {each.partition: each.offset for each in places}
        lasting = [each for each in places if before.get(each.partition) == each.offset]
        return sorted({name for each in lasting if (name := self._writer(each))})

    def _writer(self, place: TopicPartition) -> str | None:
        """Return who wrote the record at *place*, with which the transaction began."""
        record = record_at(self._settings, place)
        name = None if record is None else _named(record)
        if name is None:
            _LOGGER.error(
                "%s, partition %d: a transaction that began at offset %d does not end, and does"
                " not say whose it is: see kafka-transactions.sh find-hanging",
                place.topic,
                place.partition,
                place.offset,
            )
        return name


def _named(record: Message) -> str | None:
    try:
        name = dict(record.headers() or ()).get(WRITER)
        return name.decode() if isinstance(name, bytes) else None
    except (SystemError, UnicodeError):  # A stranger's, which the client cannot read.
        return None

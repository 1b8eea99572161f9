"""Where a tracker begins to read the partitions that are assigned to it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeVar

from confluent_kafka import KafkaException

from transporter.queue.failures import is_fault

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from confluent_kafka import Consumer, TopicPartition

_ASK: Final = 5.0
_PAUSE: Final = 1.0
_LOGGER: Final = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class Beginnings:
    """Asks for the offsets that were committed until there is an answer. Not thread-safe."""

    def __init__(self, stopping: threading.Event, meanwhile: Callable[[], None]) -> None:
        """Give up when *stopping* is set; do *meanwhile* what may help."""
        self._stopping, self._meanwhile = stopping, meanwhile
        self.lost = 0
        """Markers that retention took unread."""

    def find(self, consumer: Consumer, places: list[TopicPartition]) -> list[TopicPartition]:
        """Return *places* with the offsets to begin at.

        Raises:
            KafkaException: If the brokers refuse, or when we are to stop.
        """
        found: list[TopicPartition] = self._insist(lambda: consumer.committed(places, _ASK))
        for place in found:
            place.offset = self._first(consumer, place)
        return found

    def _first(self, consumer: Consumer, place: TopicPartition) -> int:
        """Return where to begin; what retention has taken unread is told, and counted."""
        bounds: tuple[int, int] = self._insist(
            lambda: consumer.get_watermark_offsets(place, timeout=_ASK)
        )
        low = bounds[0]
        if 0 <= place.offset < low:
            _LOGGER.error(
                "%s, partition %d: offsets %d to %d are gone, and with them perhaps messages in"
                " progress: the topic's retention is shorter than trackers were away",
                place.topic,
                place.partition,
                place.offset,
                low - 1,
            )
            self.lost += low - place.offset
        first: int = max(place.offset, low)
        return first

    def _insist(self, ask: Callable[[], _Answer]) -> _Answer:
        while True:
            try:
                return ask()
            except KafkaException as error:
                if is_fault(error.args[0]) or self._stopping.wait(_PAUSE):
                    raise
                _LOGGER.warning("tracker: where to begin is not known yet: %s", error.args[0].str())
                self._meanwhile()

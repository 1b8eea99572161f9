"""Start offsets of the partitions that are assigned to a tracker."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeVar

from confluent_kafka import KafkaException

from transporter.queue.failures import is_fault

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from confluent_kafka import Consumer, TopicPartition

_TIMEOUT: Final = 5.0
_PAUSE: Final = 1.0
_LOGGER: Final = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class StartOffsets:
    """Lookup of committed offsets that retries until the brokers answer. Not thread-safe."""

    def __init__(self, stopping: threading.Event, between_tries: Callable[[], None]) -> None:
        """Stop retrying when *stopping* is set; call *between_tries*, which may help, meanwhile."""
        self._stopping, self._between_tries = stopping, between_tries
        self.lost = 0
        """Number of offsets that retention deleted before they were read."""

    def find(self, consumer: Consumer, places: list[TopicPartition]) -> list[TopicPartition]:
        """Return *places* with their start offsets.

        Raises:
            KafkaException: If the brokers refuse, or if the tracker is stopping.
        """
        found: list[TopicPartition] = self._retry_until_answered(
            lambda: consumer.committed(places, _TIMEOUT)
        )
        for place in found:
            place.offset = self._start_offset(consumer, place)
        return found

    def _start_offset(self, consumer: Consumer, place: TopicPartition) -> int:
        """Return the start offset, and log and count unread offsets that retention has deleted."""
        bounds: tuple[int, int] = self._retry_until_answered(
            lambda: consumer.get_watermark_offsets(place, timeout=_TIMEOUT)
        )
        low = bounds[0]
        if 0 <= place.offset < low:
            _LOGGER.error(
                "%s, partition %d: offsets %d to %d were deleted before a tracker read them, and"
                " messages in progress may be lost; raise the topic's retention",
                place.topic,
                place.partition,
                place.offset,
                low - 1,
            )
            self.lost += low - place.offset
        first: int = max(place.offset, low)
        return first

    def _retry_until_answered(self, request: Callable[[], _Answer]) -> _Answer:
        while True:
            try:
                return request()
            except KafkaException as error:
                if is_fault(error.args[0]) or self._stopping.wait(_PAUSE):
                    raise
                _LOGGER.warning(
                    "tracker: the start offset is not available yet: %s", error.args[0].str()
                )
                self._between_tries()

"""Writer thread of a consumer's Ends, Nacks and KeepAlives, many messages to a marker."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException

from transporter.queue import clients
from transporter.queue.failures import QueueUnavailable, translate_error
from transporter.queue.markers import End, KeepAlive, Nack, encode_marker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from confluent_kafka import KafkaError, Message

    from transporter.queue.consumer_state import ConsumerState, Work
    from transporter.queue.markers import Marker
    from transporter.queue.message import MessageId
    from transporter.queue.settings import QueueSettings

_LOGGER: Final = logging.getLogger(__name__)
_MOST: Final = 10_000
"""Maximum number of messages in one marker: 80 kB."""
_KEEP_ALIVES: Final = 3
"""Number of keep-alives of a message within ``redeliver_after``."""
_PATIENCE: Final = 0.5
_SILENCE: Final = 2.0
"""Seconds after which a consumer without markers to write probes the brokers."""


class MarkerWriter:
    """Writer of a consumer's markers, until the consumer's state is drained."""

    def __init__(self, settings: QueueSettings, state: ConsumerState, partitions: int) -> None:
        """Connect. *partitions* is the partition count of the markers topic."""
        self._settings, self._state, self._partitions = settings, state, partitions
        self._interval = settings.redeliver_after / _KEEP_ALIVES
        self._client = clients.producer(settings, **{"linger.ms": 0})
        self._failures: list[KafkaError] = []
        self._give_up_at = math.inf

    def run(self) -> None:
        """Write until no more work will come and report any failure to the state."""
        try:
            self._write_until_drained()
        except BaseException as error:  # noqa: BLE001 - every error goes to the thread's owner
            self._state.fail_writing(clients.translate_exception(self._settings, error))
        finally:
            with suppress(KafkaException):  # A client with a fatal error raises it again here.
                self._client.purge()
                self._client.close()

    def give_up(self, seconds: float) -> None:
        """Stop trying *seconds* from now."""
        self._give_up_at = time.monotonic() + seconds

    def _write_until_drained(self) -> None:
        keep_at = time.monotonic() + self._interval
        while (work := self._state.next_work(keep_at, self._interval / 2, _SILENCE)) is not None:
            if (now := time.monotonic()) >= keep_at:
                keep_at = now + self._interval
            self._write_markers(work)
            self._state.finish_work()
            if self._state.is_silent(_SILENCE):
                self._probe_brokers()

    def _write_markers(self, work: Work) -> None:
        for marker in to_markers(work, math.ceil(self._settings.redeliver_after * 1000)):
            self._client.produce(
                self._settings.markers_topic,
                encode_marker(marker),
                None,
                marker.partition % self._partitions,
                self._on_delivery,
            )
        while left := self._client.flush(_PATIENCE):
            if time.monotonic() > self._give_up_at:
                raise QueueUnavailable(
                    f"{self._settings.place}: {left} markers were not confirmed in time; the"
                    " acked messages may be redelivered: check whether the brokers are up"
                )
        if self._failures:
            raise translate_error(
                self._failures[0], f"markers topic {self._settings.markers_topic}"
            )

    def _probe_brokers(self) -> None:
        """Check whether a broker answers, because no write has shown it recently."""
        try:
            self._client.list_topics(self._settings.markers_topic, timeout=_PATIENCE)
        except KafkaException as error:
            _LOGGER.info("%s: %s", self._settings.place, error)
        else:
            self._state.note_answer()

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failures.append(error)


def to_markers(work: Work, after_ms: int) -> Iterator[Marker]:
    """Return *work* as markers, each for one partition of the queue topic. Pure."""
    for partition, offsets in _by_partition(work.alive):
        yield KeepAlive(partition, offsets, after_ms)
    for partition, offsets in _by_partition(work.ended):
        yield End(partition, offsets)
    kinds: dict[Nack, list[MessageId]] = defaultdict(list)
    for each, nack in work.nacked:
        kinds[nack].append(each)
    for nack, ids in kinds.items():
        for partition, offsets in _by_partition(ids):
            yield replace(nack, partition=partition, offsets=offsets)


def _by_partition(ids: Iterable[MessageId]) -> Iterator[tuple[int, tuple[int, ...]]]:
    found: dict[int, list[int]] = defaultdict(list)
    for partition, offset in ids:
        found[partition].append(offset)
    for partition, offsets in found.items():
        for first in range(0, len(offsets), _MOST):
            yield partition, tuple(offsets[first : first + _MOST])

"""Consumer of one queue, with an ack for each message."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from confluent_kafka import KafkaException

from transporter.errors import ConfigError
from transporter.kafka.errors import CLIENT_ERRORS
from transporter.queue import clients
from transporter.queue.consumer_state import ConsumerState
from transporter.queue.failures import QueueUnavailable, translate_error
from transporter.queue.fetcher import Fetcher
from transporter.queue.in_flight import InFlight
from transporter.queue.markers import End, KeepAlive, Nack, encode_marker
from transporter.queue.message import MessageId, QueueMessage
from transporter.queue.settings import check_queue_name
from transporter.queue.topics import partition_counts, retention_problems

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import KafkaError, Message

    from transporter.queue.consumer_state import Work
    from transporter.queue.markers import Marker
    from transporter.queue.metrics import ConsumerMetrics
    from transporter.queue.settings import QueueSettings

_LOGGER: Final = logging.getLogger(__name__)
_MOST: Final = 3000
"""Maximum number of messages in one marker: 24 kB, which fit whatever ``max_message_bytes`` is."""
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
            with suppress(*CLIENT_ERRORS):  # A client with a fatal error raises it again here.
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


Messages = QueueMessage | Iterable[QueueMessage | MessageId]
"""One message or several; each is a received message or its id."""
_CLOSED: Final = "its consumer was closed"
_LEAST_SILENCE: Final = 10.0
"""Seconds; a shorter silence is normal."""


class QueueConsumer:
    """Receiver of one queue's messages; messages that are not acked are redelivered.

    Each message goes to one consumer of the queue at a time, in no particular
    order. The consumer keeps it alive for ``hold`` seconds. It is redelivered to
    any consumer ``redeliver_after`` seconds after its last sign of life. Redelivery
    requires a running tracker.

    Delivery is at least once. A message is delivered twice if its consumer died
    after processing it, or was slower than the settings allow.

    Thread-safe: several threads may share one consumer. It has two threads of its
    own, which :meth:`close` joins. If one dies, the next call raises its error. Use
    it as a context manager: unsettled messages are redelivered at once at the end.

    Raises:
        QueueFault: If topics, rights or settings are wrong.
        QueueUnavailable: If no broker answers in time.
    """

    def __init__(self, settings: QueueSettings, queue: str) -> None:
        """Connect and start to fetch."""
        self.queue = check_queue_name(queue)
        self._settings = settings
        self._state = ConsumerState(
            InFlight(settings.in_flight, settings.hold, settings.redeliver_after, settings.ahead)
        )
        topics = [settings.queue_topic, settings.markers_topic]
        _, count = partition_counts(settings, topics)
        self.problems = retention_problems(settings, topics)
        """Topic settings that delete records which are still needed, as found at the start."""
        for problem in self.problems:
            _LOGGER.warning(problem)
        self._fetcher = Fetcher(queue, settings, self._state, count)
        self._marker_writer = MarkerWriter(settings, self._state, count)
        self._threads = [
            threading.Thread(target=self._fetcher.run, name=f"queue-fetcher-{queue}", daemon=True),
            threading.Thread(
                target=self._marker_writer.run, name=f"queue-markers-{queue}", daemon=True
            ),
        ]
        self._closed = False
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def receive(self, timeout: float = 1.0) -> QueueMessage | None:
        """Return the next message, or ``None`` if none arrives within *timeout* seconds."""
        found = self._state.take(1, timeout)
        return found[0] if found else None

    def receive_many(
        self, most: int, timeout: float = 1.0, most_bytes: int | None = None
    ) -> list[QueueMessage]:
        """Return up to *most* messages as soon as any are there; none after *timeout* seconds.

        With *most_bytes*, their values take no more than that, except for the last message.
        """
        return self._state.take(most, timeout, most_bytes)

    def ack(self, messages: Messages) -> None:
        """Acknowledge *messages*, one or several.

        Returns at once. Acks are written together within some milliseconds. If the
        process is killed before an ack is written, its message is redelivered.
        :meth:`flush` waits for the write.
        """
        self._state.ack(_ids(messages))

    def nack(self, messages: Messages, delay: float = 0.0, reason: str = "") -> None:
        """Request redelivery of *messages* after *delay* seconds; dead-lettered at the limit.

        A dead letter carries *reason* in its headers, at most its first 4096 bytes.
        """
        if delay < 0:
            raise ConfigError(f"nack: the delay is {delay:g} s; use 0 s or more")
        nack = Nack(0, (), math.ceil(delay * 1000), reason or "its consumer nacked it")
        self._state.nack(_ids(messages), nack)

    def extend(self, messages: Messages) -> None:
        """Keep *messages* alive now, and restart their ``hold`` time."""
        self._state.extend(_ids(messages))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the brokers have every ack and nack so far.

        Raises:
            QueueUnavailable: If they are not written within *timeout* seconds.
        """
        seconds = self._settings.timeout if timeout is None else timeout
        if not self._state.flush(seconds):
            raise QueueUnavailable(
                f"{self._settings.place}: acks were not confirmed within {seconds:g} s;"
                " the acked messages may be redelivered"
            )

    def check(self) -> None:
        """Check the consumer's threads and connection without waiting.

        Raises:
            QueueUnavailable: If no broker has answered for ``redeliver_after``, 10 s at
                least. Messages in progress here may then have gone to another consumer.
        """
        limit = max(self._settings.redeliver_after, _LEAST_SILENCE)
        if not self._state.check(limit):
            raise QueueUnavailable(
                f"{self._settings.place}: no broker has answered for {limit:g} s; messages in"
                " progress here may be redelivered: check whether the brokers are up"
            )

    def metrics(self) -> ConsumerMetrics:
        """Return the counters so far."""
        return self._state.metrics()

    def oldest_sent(self) -> float | None:
        """Return the send time of the oldest message that was begun and not yet received.

        In seconds since 1970; ``None`` without such a message.
        """
        sent = self._state.oldest_sent()
        return None if sent is None else sent / 1000

    def close(self, *, counted: bool = True) -> None:
        """Write every ack, release unsettled messages and leave the group. Safe to call twice.

        Received and unsettled messages count as delivered unless *counted* is false.

        Raises:
            QueueUnavailable: If acks could not be written in time.
        """
        if self._closed:
            return
        self._closed = True
        fetching, writing = self._threads
        self._state.close()
        fetching.join()
        self._state.give_back(_CLOSED, counted=counted)
        self._marker_writer.give_up(self._settings.timeout)
        writing.join()
        self._fetcher.close()
        self.flush(0)


def _ids(messages: Messages) -> list[MessageId]:
    if isinstance(messages, QueueMessage):
        return [messages.id]
    return [each.id if isinstance(each, QueueMessage) else each for each in messages]

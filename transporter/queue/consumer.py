"""Receives messages of one queue, each to be acked by itself."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Self

from transporter.errors import ConfigError
from transporter.queue.exchange import Exchange
from transporter.queue.failures import QueueUnavailable
from transporter.queue.fetcher import Fetcher
from transporter.queue.in_flight import InFlight
from transporter.queue.keeper import Keeper
from transporter.queue.markers import Nack
from transporter.queue.message import MessageId, QueueMessage
from transporter.queue.settings import queue_name
from transporter.queue.topics import counted, retention_problems

if TYPE_CHECKING:
    from transporter.queue.metrics import ConsumerMetrics
    from transporter.queue.settings import QueueSettings

Messages = QueueMessage | Iterable[QueueMessage | MessageId]
"""One message or several, each as it was received, or its id."""
_LOGGER: Final = logging.getLogger(__name__)
_CLOSED: Final = "its consumer was closed"
_LEAST_SILENCE: Final = 10.0
"""Seconds; what is shorter is a hiccup."""


class QueueConsumer:
    """Receives messages of one queue; what is not acked comes again.

    Each message goes to one consumer of the queue at a time, in no particular
    order. It is kept alive for ``hold`` seconds, and redelivered
    ``redeliver_after`` seconds after it was last heard of, to any consumer. A
    tracker must run for that.

    Delivery is at least once: a message comes twice when its consumer died
    after working on it, or was slower than the settings allow.

    Thread-safe: several threads may share one. It has two threads of its own,
    which :meth:`close` joins; when one dies, the next call raises why. Use it
    as a context manager: what is unsettled at the end is redelivered at once.

    Raises:
        QueueFault: If topics, rights or settings are wrong.
        QueueUnavailable: If no broker answers in time.
    """

    def __init__(self, settings: QueueSettings, queue: str) -> None:
        """Connect and begin to fetch."""
        self.queue = queue_name(queue)
        self._settings = settings
        self._exchange = Exchange(
            InFlight(settings.in_flight, settings.hold, settings.redeliver_after, settings.ahead)
        )
        topics = [settings.queue_topic, settings.markers_topic]
        _, count = counted(settings, topics)
        self.problems = retention_problems(settings, topics)
        """How the topics delete what is still needed, as it was at the start."""
        for problem in self.problems:
            _LOGGER.warning(problem)
        self._fetcher = Fetcher(queue, settings, self._exchange, count)
        self._keeper = Keeper(settings, self._exchange, count)
        self._threads = [
            threading.Thread(target=self._fetcher.run, name=f"queue-fetcher-{queue}", daemon=True),
            threading.Thread(target=self._keeper.run, name=f"queue-keeper-{queue}", daemon=True),
        ]
        self._closed = False
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def receive(self, timeout: float = 1.0) -> QueueMessage | None:
        """Return the next message; ``None`` when there is none for *timeout* seconds."""
        found = self._exchange.take(1, timeout)
        return found[0] if found else None

    def receive_many(
        self, most: int, timeout: float = 1.0, most_bytes: int | None = None
    ) -> list[QueueMessage]:
        """Return up to *most* messages as soon as there are any; none after *timeout* seconds.

        With *most_bytes* no more than that of values, but for the last message.
        """
        return self._exchange.take(most, timeout, most_bytes)

    def ack(self, messages: Messages) -> None:
        """Note that *messages*, one or several, are done with.

        Returns at once: acks are written together, within some milliseconds.
        What was acked and not yet written when the process is killed comes
        again; :meth:`flush` waits.
        """
        self._exchange.ack(_ids(messages))

    def nack(self, messages: Messages, delay: float = 0.0, reason: str = "") -> None:
        """Let *messages* be redelivered, after *delay* seconds; dead-lettered at the limit.

        *reason* is told in the headers of a dead letter.
        """
        if delay < 0:
            raise ConfigError(f"nack: a delay of {delay:g} s; it must be 0 or more")
        nack = Nack(0, (), math.ceil(delay * 1000), reason or "its consumer nacked it")
        self._exchange.nack(_ids(messages), nack)

    def extend(self, messages: Messages) -> None:
        """Keep *messages* alive now, and hold them from now on anew."""
        self._exchange.extend(_ids(messages))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every ack and nack so far is on the brokers.

        Raises:
            QueueUnavailable: If they are not within *timeout* seconds.
        """
        seconds = self._settings.timeout if timeout is None else timeout
        if not self._exchange.flush(seconds):
            raise QueueUnavailable(
                f"{self._settings.place}: acks were not confirmed within {seconds:g} s;"
                " what they ack may come again"
            )

    def check(self) -> None:
        """See whether all is well, without a wait.

        Raises:
            QueueUnavailable: If no broker has answered for ``redeliver_after``, 10 s at
                least: what is in progress here may have gone to another consumer.
        """
        limit = max(self._settings.redeliver_after, _LEAST_SILENCE)
        if not self._exchange.check(limit):
            raise QueueUnavailable(
                f"{self._settings.place}: no broker has answered for {limit:g} s; what is in"
                " progress here may be redelivered: see whether the brokers are up"
            )

    def metrics(self) -> ConsumerMetrics:
        """Return what was counted so far."""
        return self._exchange.metrics()

    def oldest_sent(self) -> float | None:
        """Return when the oldest message was sent that was begun and not yet received.

        In seconds since 1970; ``None`` without any.
        """
        sent = self._exchange.oldest_sent()
        return None if sent is None else sent / 1000

    def close(self, *, counted: bool = True) -> None:
        """Write every ack, give back what is unsettled, leave the group; safe to call twice.

        What was received and not settled counts as delivered, unless *counted* is false.

        Raises:
            QueueUnavailable: If acks could not be written in time.
        """
        if self._closed:
            return
        self._closed = True
        fetching, keeping = self._threads
        self._exchange.close()
        fetching.join()
        self._exchange.give_back(_CLOSED, counted=counted)
        self._keeper.give_up(self._settings.timeout)
        keeping.join()
        self._fetcher.close()
        self.flush(0)


def _ids(messages: Messages) -> list[MessageId]:
    if isinstance(messages, QueueMessage):
        return [messages.id]
    return [each.id if isinstance(each, QueueMessage) else each for each in messages]

"""Sending of messages in order, with the outcome of each of them."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import KafkaError

from transporter.kafka.errors import CLIENT_ERRORS, is_bystander, kafka_error
from transporter.queue.failures import (
    QueueTimeout,
    QueueUnavailable,
    is_denied,
    is_refusal,
    translate_error,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka import Message, Producer

    from transporter.errors import TransporterError
    from transporter.queue.message import Header

_PURGE_SECONDS: Final = 5.0


class Outgoing(NamedTuple):
    """A message to send."""

    queue: str
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()


class Sent(NamedTuple):
    """Number of messages, from the first on, that have arrived, and the error after them."""

    arrived: int
    error: TransporterError | None = None
    blamed: int | None = None
    """Index, from 0, of the message that was itself refused, if it can be identified."""
    fatal: bool = False
    """Whether this producer is unusable, so that a new one is required."""


class Sending:
    """Sender that hands messages to *client* and waits for the brokers' report on each.

    After the first failure no message is handed over, and messages that still wait in the
    client are purged. It belongs to one thread, which must have exclusive use of the client.
    """

    def __init__(self, client: Producer, topic: str, place: str, deadline: float) -> None:
        """Send to *topic* until *deadline*, by the monotonic clock."""
        self._client, self._topic, self._place = client, topic, place
        self._deadline = deadline
        self._arrived = bytearray()
        self._failures: dict[int, KafkaError] = {}
        self._refusal: TransporterError | None = None
        self._fatal_error: KafkaError | None = None

    def send(self, message: Outgoing, headers: list[Header] | None) -> bool:
        """Hand over *message* with *headers* and return whether more can follow."""
        report: Any = partial(self._on_delivery, len(self._arrived))
        self._arrived.append(0)
        try:
            self._produce(message, headers, report)
        except CLIENT_ERRORS as error:
            self._record_error(error)
        return not (self._failures or self._fatal_error or self._is_late)

    def refuse(self, error: TransporterError) -> None:
        """Record that the next message cannot be sent, because of *error*."""
        self._refusal = error

    def finish(self) -> None:
        """Wait for the reports. At the deadline, purge the messages that are left."""
        try:
            if self._client.flush(max(0.0, self._deadline - time.monotonic())):
                self._client.purge(blocking=False)
                self._client.flush(_PURGE_SECONDS)
        except CLIENT_ERRORS as error:
            self._record_error(error)

    def result(self) -> Sent:
        """Return the outcome of all messages."""
        count = self._arrived.find(0)
        if count < 0:
            count = len(self._arrived)
            if self._refusal is None:
                return Sent(count)
            return Sent(count, self._refusal, count)
        blamed = {
            index: error
            for index, error in sorted(self._failures.items())
            if not is_bystander(error)
        }
        for index, error in blamed.items():
            # A broker refuses a whole batch because of one of its messages.
            alone = len(blamed) == 1 and is_refusal(error)
            failure = translate_error(error, self._place)
            return Sent(count, failure, index if alone else None, self._is_fatal)
        return Sent(count, self._stop_reason(), None, self._is_fatal)

    @property
    def _is_fatal(self) -> bool:
        return self._fatal_error is not None

    @property
    def _is_late(self) -> bool:
        return time.monotonic() >= self._deadline

    def _stop_reason(self) -> TransporterError:
        if self._fatal_error is not None:
            if is_denied(self._fatal_error):
                return translate_error(self._fatal_error, self._place)
            return QueueUnavailable(
                f"{self._place}: {self._fatal_error.str()} ({self._fatal_error.name()})"
            )
        return QueueTimeout(
            f"{self._place}: some messages were not confirmed in time;"
            " check whether the brokers are up"
        )

    def _produce(self, message: Outgoing, headers: list[Header] | None, report: Any) -> None:  # noqa: ANN401 - a callback of the client's
        while True:
            try:
                self._client.produce(
                    self._topic, message.value, message.queue, -1, report, None, 0, headers
                )
            except BufferError:
                if self._is_late or self._failures:
                    return
                self._client.poll(0.1)
            else:
                self._client.poll(0)
                return

    def _on_delivery(self, index: int, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self._arrived[index] = 1
            return
        if not self._failures:
            # Purge the messages that still wait in the client's queue.
            self._client.purge(in_queue=True, in_flight=False, blocking=False)
        self._failures[index] = error

    def _record_error(self, error: BaseException) -> None:
        """Record an error that the client raised: a refused message, or a fatal error."""
        found = kafka_error(error)
        if found is None:
            raise error
        if found.fatal() or found.code() == KafkaError._FATAL:  # noqa: SLF001 - a public code
            self._fatal_error = found
        else:
            self._failures.setdefault(len(self._arrived) - 1, found)

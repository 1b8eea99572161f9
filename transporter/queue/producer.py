"""Producer of queue messages."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from transporter.errors import ConfigError
from transporter.kafka.errors import CLIENT_ERRORS
from transporter.queue import clients
from transporter.queue.failures import MessageRefused, QueueClosed, QueueTimeout, translate_error
from transporter.queue.message import KEY, LONGEST_NAME, PREFIX, pack_headers
from transporter.queue.ordered_sender import Sending, Sent
from transporter.queue.settings import check_queue_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from confluent_kafka import KafkaError, Message

    from transporter.queue.message import Header, MessageId
    from transporter.queue.ordered_sender import Outgoing
    from transporter.queue.settings import QueueSettings


class QueueProducer:
    """Sender of messages to any queue. None is lost or repeated once :meth:`send` has returned.

    The producer is idempotent, and waits for all in-sync replicas. Messages are
    spread over all partitions at random, so a queue does not guarantee an order.
    Messages that are unconfirmed when an error is raised may arrive or not.

    Thread-safe. Close it, or use it as a context manager.

    Raises:
        QueueFault: If topics or settings are wrong.
        QueueUnavailable: If no broker answers in time.
    """

    def __init__(self, settings: QueueSettings) -> None:
        """Connect."""
        self._settings = settings
        self._lock = threading.Lock()
        self._failures: list[KafkaError] = []
        self._closed = False
        self._client = clients.producer(
            settings, **{"message.timeout.ms": max(1, int(settings.timeout * 1000))}
        )
        try:
            clients.count_partitions(self._client, settings, [settings.queue_topic])
        except BaseException:
            self.drop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(
        self,
        queue: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
    ) -> MessageId:
        """Send one message and return its id once the brokers have it.

        Each call takes a round trip. Use :meth:`send_many` or :meth:`post` for many messages.
        """
        reports: list[tuple[KafkaError | None, Message]] = []
        self._produce(queue, value, key, headers, lambda *report: reports.append(report))
        deadline = time.monotonic() + self._settings.timeout
        with self._translate_errors():
            self._client.flush(self._settings.timeout)
            while not reports and (left := deadline - time.monotonic()) > 0:
                self._client.poll(left)  # Another thread may be delivering the report just now.
        if not reports:
            raise self._timeout_error(1)
        error, record = reports[0]
        if error is not None:
            raise translate_error(error, self._settings.place)
        return record.partition(), record.offset()

    def send_many(self, queue: str, values: Iterable[bytes | None]) -> int:
        """Send *values* and return their number once the brokers have all of them."""
        count = 0
        for count, value in enumerate(values, start=1):  # noqa: B007 - the last one counts
            self.post(queue, value)
        self.flush()
        return count

    def post(
        self,
        queue: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
    ) -> None:
        """Send one message without waiting. :meth:`flush` reports whether it has arrived."""
        self._produce(queue, value, key, headers, self._on_delivery)

    def deliver(self, messages: Iterable[Outgoing], timeout: float | None = None) -> Sent:
        """Send *messages* in order and report how many have arrived within *timeout* seconds.

        After the first failure nothing more is sent, and unsent messages are purged. Messages
        already in flight may still arrive. Failures of messages are returned, not raised. No
        other thread may use the producer meanwhile.
        """
        self._raise_if_closed()
        seconds = self._settings.timeout if timeout is None else timeout
        deadline = time.monotonic() + seconds
        topic, place = self._settings.queue_topic, self._settings.place
        sending = Sending(self._client, topic, place, deadline)
        for message in messages:
            try:
                headers = self._record_headers(*message)
            except (MessageRefused, ConfigError) as error:
                sending.refuse(error)
                break
            if not sending.send(message, headers):
                break
        sending.finish()
        return sending.result()

    def flush(self) -> None:
        """Wait until all posted messages have arrived and raise the first failure."""
        with self._translate_errors():
            left = self._client.flush(self._settings.timeout)
        with self._lock:
            failed, self._failures = self._failures, []
        if failed:
            error = translate_error(failed[0], self._settings.place)
            raise type(error)(f"{error} ({len(failed)} messages failed)")
        if left:
            raise self._timeout_error(left)

    def close(self) -> None:
        """Wait for the posted messages, and disconnect. Safe to call twice."""
        if not self._closed:
            try:
                self.flush()
            finally:
                self.drop()

    def drop(self) -> None:
        """Disconnect and discard unsent messages. Safe to call twice."""
        if not self._closed:
            self._closed = True
            with suppress(*CLIENT_ERRORS):  # A client with a fatal error raises it again here.
                self._client.purge()
                self._client.close()

    def _produce(
        self,
        queue: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[Header],
        report: Callable[..., Any],
    ) -> None:
        self._raise_if_closed()
        given = self._record_headers(queue, value, key, headers)
        deadline = time.monotonic() + self._settings.timeout
        try:
            while True:
                try:
                    self._client.produce(
                        self._settings.queue_topic, value, queue, -1, report, None, 0, given
                    )
                except BufferError:
                    if time.monotonic() > deadline:
                        raise self._timeout_error(len(self._client)) from None
                    self._client.poll(0.1)
                else:
                    self._client.poll(0)
                    return
        except CLIENT_ERRORS as error:
            raise clients.kafka_failure(self._settings, error) from error

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise QueueClosed("this producer is closed; create a new one")

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise the client's errors as ours. Whatever serves callbacks may raise a fatal one."""
        try:
            yield
        except CLIENT_ERRORS as error:
            raise clients.kafka_failure(self._settings, error) from error

    def _record_headers(
        self, queue: str, value: bytes | None, key: bytes | None, headers: Sequence[Header]
    ) -> list[Header] | None:
        """Return the headers of the record, or raise if the message cannot be sent."""
        check_queue_name(queue)
        given = [*headers] if key is None else [(KEY, key), *headers]
        if ours := [name for name, _ in headers if name.startswith(PREFIX)]:
            raise MessageRefused(
                f"header {ours[0]}: names that begin with {PREFIX} are reserved; use another name"
            )
        if long := [name for name, _ in headers if len(name.encode()) > LONGEST_NAME]:
            raise MessageRefused(
                f"header {long[0][:40]}…: the name is longer than {LONGEST_NAME} bytes; shorten it"
            )
        size = len(value or b"") + len(pack_headers(given))
        if size > self._settings.max_message_bytes:
            raise MessageRefused(
                f"a message of {size} bytes for queue {queue}: the limit is"
                f" {self._settings.max_message_bytes} bytes; make it smaller, or raise"
                " max_message_bytes and the topics' max.message.bytes"
            )
        return given or None

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            with self._lock:
                self._failures.append(error)

    def _timeout_error(self, count: int) -> QueueTimeout:
        return QueueTimeout(
            f"{self._settings.place}: {count} messages were not confirmed within"
            f" {self._settings.timeout:g} s; check whether the brokers are up"
        )

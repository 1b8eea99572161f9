"""Kafka transactions that are either done, not done, or asked about before the next one."""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException

from transporter.queue import clients
from transporter.queue.failures import QueueFault, QueueUnavailable, is_refusal, translated

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from confluent_kafka import Consumer, Message, Producer, TopicPartition

    from transporter.queue.message import Header
    from transporter.queue.settings import QueueSettings

_GRACE: Final = 1.0
ANY: Final = -1
"""Any partition."""

Record = tuple[str, bytes | None, str | None, int, "Sequence[Header]"]
"""Topic, value, key, partition and headers."""


class Transactions:
    """Runs one transaction after the other; not thread-safe.

    Each sends records and commits offsets of a consumer, which fences off a
    member of the group whose partitions have gone to another.
    """

    def __init__(self, settings: QueueSettings, role: str) -> None:
        """Keep who we are; :meth:`open` connects."""
        self._settings = settings
        self._name = f"{role}/{settings.instance or uuid.uuid4().hex}"
        self._client: Producer | None = None
        self._refused: list[KafkaError] = []
        self.written: dict[tuple[str, int], int] = {}
        """Of each topic and partition, the last offset that the last transaction wrote."""

    def open(self) -> Producer:
        """Return the producer; what an earlier one left open is settled before it is there.

        :raises TransporterError: when the brokers do not let us in.
        """
        if self._client is None:
            self._client = clients.transactional(self._settings, self._name)
        return self._client

    def run(
        self, records: Iterable[Record], consumer: Consumer, offsets: Sequence[TopicPartition]
    ) -> None:
        """Send *records* and commit *offsets*, both or neither.

        :raises MessageRefused: one of the records is refused; nothing is done.
        :raises TransporterError: it is not done, or it is not known. In the
            latter case it is known, and visible, when :meth:`open` has returned.
        """
        client = self.open()
        self._refused.clear()
        self.written.clear()
        try:
            client.begin_transaction()
            for topic, value, key, partition, headers in records:
                self._send(client, topic, value, key, partition, headers)
            self._send_offsets(client, list(offsets), consumer.consumer_group_metadata())
            self._commit(client)
        except KafkaException as error:
            self._undo(client, error.args[0])
            found = self._refused[0] if self._refused else error.args[0]
            raise translated(found, self._settings.place) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Disconnect; what is open is aborted, now or by the next one of our name."""
        client, self._client = self._client, None
        if client is not None:
            client.purge()
            client.close()

    def _send(
        self,
        client: Producer,
        topic: str,
        value: bytes | None,
        key: str | None,
        partition: int,
        headers: Sequence[Header],
    ) -> None:
        while True:
            try:
                client.produce(
                    topic, value, key, partition, self._report, None, 0, list(headers) or None
                )
            except BufferError:
                client.poll(1.0)
            else:
                return

    def _report(self, error: KafkaError | None, record: Message) -> None:
        if error is None:
            self.written[record.topic(), record.partition()] = record.offset()
        elif is_refusal(error):
            self._refused.append(error)

    def _send_offsets(self, client: Producer, offsets: list[TopicPartition], group: object) -> None:
        """Hand over *offsets*, or give the client up.

        After its coordinator was away it may hang here for ever, whatever time it is given. It
        is then left to a thread that ends with the process; the next one of its name shuts it
        out.
        """
        seconds = self._settings.transaction_timeout
        failed: list[BaseException] = []

        def send() -> None:
            try:
                client.send_offsets_to_transaction(offsets, group, seconds)
            except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
                failed.append(error)

        thread = threading.Thread(target=send, name="queue-offsets", daemon=True)
        thread.start()
        thread.join(seconds + _GRACE)
        if thread.is_alive():
            self._client = None
            raise QueueUnavailable(
                f"{self._settings.place}: the client hangs in a transaction; a new one takes over"
            )
        if failed:
            raise failed[0]

    def _commit(self, client: Producer) -> None:
        deadline = time.monotonic() + self._settings.transaction_timeout
        while True:
            try:
                client.commit_transaction(max(0.1, deadline - time.monotonic()))
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return

    def _undo(self, client: Producer, error: KafkaError) -> None:
        if self._settings.instance and error.code() == KafkaError._FENCED:  # noqa: SLF001 - public
            self.close()
            raise QueueFault(
                f"another process of the instance {self._settings.instance!r} has taken over;"
                " give each its own"
            )
        if error.fatal() or error.retriable():
            self.close()  # The next one asks what has become of it.
            return
        try:
            client.abort_transaction(self._settings.transaction_timeout)
        except KafkaException:
            self.close()

"""Kafka transactions that are committed, aborted, or settled before the next one.

While a partition has no leader, as after a crash of every broker that keeps it, Kafka (4.3) treats
it as deleted and never writes the end of a transaction to it. The records committed there, and all
records behind them, are then blocked. The end of the next transaction of the same name ends that
transaction, too.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException

from transporter.kafka.errors import CLIENT_ERRORS
from transporter.kafka.groups import NOWHERE, non_member_metadata
from transporter.queue import clients
from transporter.queue.failures import QueueFault, QueueUnavailable, is_refusal, translate_error
from transporter.queue.markers import End, encode_marker
from transporter.queue.progress import blocked_offsets, blocked_partitions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from confluent_kafka import Consumer, Message, Producer, TopicPartition

    from transporter.queue.message import Header
    from transporter.queue.settings import QueueSettings

_GRACE: Final = 1.0
_LOGGER: Final = logging.getLogger(__name__)
ANY: Final = -1
"""Any partition."""
WRITER: Final = "transporter-transaction"
"""Header of a marker written in a transaction: the name of its producer."""

Record = tuple[str, bytes | None, str | None, int, "Sequence[Header]"]
"""Topic, value, key, partition and headers."""


class Transactions:
    """Runner of one transaction after the other. Not thread-safe.

    Each transaction sends records and commits a consumer's offsets. This fences a
    member of the group whose partitions have moved to another. If the brokers have
    lost the end of an earlier transaction of our name, its records become visible
    with the next :meth:`open`.
    """

    def __init__(self, settings: QueueSettings, group: str, name: str = "") -> None:
        """Set the transactional id: *name* within *group*, else the instance's, else a random one.

        :meth:`open` connects.
        """
        known = name or settings.instance
        self._settings, self._group = settings, group
        self._name = f"{group}/{known or uuid.uuid4().hex}"
        self._name_used = bool(known)
        queue, markers, _ = settings.topics
        tracking = group == settings.tracker_group
        self._read_topic = markers if tracking else queue
        self._written_topics = (queue, markers) if tracking else (markers,)
        self._all_brokers_down = False
        self._client: Producer | None = None
        self._refusals: list[KafkaError] = []
        self.written: dict[tuple[str, int], int] = {}
        """The last offset that the last transaction wrote, by topic and partition."""

    def open(self) -> Producer:
        """Return the producer, after settling what an earlier one of our name left open.

        It is a new producer if all brokers were away, because they may have lost the end of one
        of our transactions.

        Raises:
            TransporterError: If the brokers do not admit us.
        """
        if self._client is not None and self._lost_all_brokers(self._client):
            self.close()
        if self._client is None:
            self._all_brokers_down = False
            self._client = clients.transactional_producer(
                self._settings, self._name, self._on_error
            )
            if self._name_used:
                self._end_earlier_transactions(self._client)
            self._name_used = True
        return self._client

    def run(
        self, records: Iterable[Record], consumer: Consumer, offsets: Sequence[TopicPartition]
    ) -> None:
        """Send *records* and commit *offsets*, both or neither.

        Raises:
            MessageRefused: If one of the records is refused. The transaction is aborted.
            TransporterError: If the transaction is not committed, or its outcome is unknown. In
                the latter case the outcome is settled and visible once :meth:`open` has returned.
        """
        client = self.open()
        self._refusals.clear()
        self.written.clear()
        try:
            self._run_transaction(
                client, records, list(offsets), consumer.consumer_group_metadata()
            )
        except KafkaException as error:
            self._abort(client, error.args[0])
            found = self._refusals[0] if self._refusals else error.args[0]
            raise translate_error(found, self._settings.place) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Disconnect. An open transaction is aborted, now or by the next producer of our name.

        After an outage the client has been observed to wait here for ever. It is then left to a
        daemon thread, which ends with this process, and the next producer fences it.
        """
        client, self._client = self._client, None
        if client is not None:
            closing = threading.Thread(
                target=_close_client, args=(client,), name="queue-disconnect", daemon=True
            )
            closing.start()
            closing.join(self._settings.transaction_timeout + _GRACE)
            if closing.is_alive():
                _LOGGER.warning("%s: its client does not close; a new one takes over", self._name)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - a public code
            self._all_brokers_down = True

    def _lost_all_brokers(self, client: Producer) -> bool:
        client.poll(0)  # Deliver the errors that have been queued since the last use.
        return self._all_brokers_down

    def _end_earlier_transactions(self, client: Producer) -> None:
        """End transactions committed under our name whose ends the brokers have lost."""
        try:
            # This also finds open transactions of other producers. Empty records are harmless.
            if records := list(self._empty_records()):
                self._run_transaction(client, records, None)
                _LOGGER.warning(
                    "%s: ended a transaction that blocked %d partitions", self._name, len(records)
                )
            if blocked_offsets(self._settings, self._group, self._read_topic):
                self._run_transaction(client, [], [NOWHERE], non_member_metadata(self._group))
                _LOGGER.warning("%s: ended a transaction that blocked the group", self._name)
        except KafkaException as error:
            self.close()
            raise clients.kafka_failure(self._settings, error) from error
        except BaseException:
            self.close()
            raise

    def _empty_records(self) -> Iterator[Record]:
        """Return a record without content for each of our partitions that is blocked."""
        markers = self._settings.markers_topic
        for place in blocked_partitions(self._settings, self._written_topics):
            value = encode_marker(End(0, ())) if place.topic == markers else None
            yield place.topic, value, None, place.partition, ()

    def _run_transaction(
        self,
        client: Producer,
        records: Iterable[Record],
        offsets: list[TopicPartition] | None,
        group: object = None,
    ) -> None:
        client.begin_transaction()
        for topic, value, key, partition, headers in records:
            self._send(client, topic, value, key, partition, headers)
        if offsets is not None:
            self._send_offsets(client, offsets, group)
        self._commit(client)

    def _send(
        self,
        client: Producer,
        topic: str,
        value: bytes | None,
        key: str | None,
        partition: int,
        headers: Sequence[Header],
    ) -> None:
        all_headers = list(headers)
        if topic == self._settings.markers_topic:
            all_headers.append((WRITER, self._name.encode()))
        while True:
            try:
                client.produce(
                    topic, value, key, partition, self._on_delivery, None, 0, all_headers or None
                )
            except BufferError:
                client.poll(0.1)
            else:
                return

    def _on_delivery(self, error: KafkaError | None, record: Message) -> None:
        if error is None:
            self.written[record.topic(), record.partition()] = record.offset()
        elif is_refusal(error):
            self._refusals.append(error)

    def _send_offsets(self, client: Producer, offsets: list[TopicPartition], group: object) -> None:
        """Send *offsets*, or drop the client if it hangs.

        After an outage of its coordinator the client may hang here for ever, whatever its
        time-out. It is then left to a daemon thread, which ends with the process, and the next
        producer of its name fences it.
        """
        seconds = self._settings.transaction_timeout
        failed: list[BaseException] = []

        def send() -> None:
            try:
                client.send_offsets_to_transaction(offsets, group, seconds)
            except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
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

    def _abort(self, client: Producer, error: KafkaError) -> None:
        if error.code() == KafkaError._FENCED:  # noqa: SLF001 - a public code
            self.close()
            if self._settings.instance:
                raise QueueFault(
                    f"another process of the instance {self._settings.instance!r} has taken over;"
                    " give each process its own instance"
                )
            raise QueueUnavailable(f"{self._name} was fenced as dead, and starts again")
        if error.fatal() or error.retriable():
            self.close()  # The next client finds out the outcome.
            return
        try:
            client.abort_transaction(self._settings.transaction_timeout)
        except KafkaException:
            self.close()


def _close_client(client: Producer) -> None:
    with suppress(*CLIENT_ERRORS):  # A fenced client raises its error again here.
        client.purge()
        client.close()


def end_transaction(settings: QueueSettings, name: str) -> None:
    """End the last transaction of the dead producer *name*. A live producer is fenced.

    Raises:
        TransporterError: If the brokers do not answer, or refuse.
    """
    group, _, last = name.rpartition("/")
    transactions = Transactions(settings, group, last)
    transactions.open()
    transactions.close()

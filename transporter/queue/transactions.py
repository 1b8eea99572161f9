"""Kafka transactions that are either done, not done, or asked about before the next one.

While a partition has no leader, as after a crash of every broker that keeps it, Kafka (4.3) takes
it for deleted and never tells it that a transaction has ended. What was committed there, and all
behind it, is held back then. The end of the next transaction of the same name ends that one, too.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException

from transporter.kafka_groups import NOWHERE, membership
from transporter.queue import clients
from transporter.queue.failures import QueueFault, QueueUnavailable, is_refusal, translated
from transporter.queue.markers import End, encode
from transporter.queue.progress import group_is_held_back, held_back

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
"""Header of a marker that was written in a transaction: the name of who wrote it."""

Record = tuple[str, bytes | None, str | None, int, "Sequence[Header]"]
"""Topic, value, key, partition and headers."""


class Transactions:
    """Runs one transaction after the other; not thread-safe.

    Each sends records and commits offsets of a consumer, which fences off a
    member of the group whose partitions have gone to another. What an earlier
    one of our name has committed, and the brokers hold back because they have
    lost its end, becomes visible with the next :meth:`open`.
    """

    def __init__(self, settings: QueueSettings, group: str, name: str = "") -> None:
        """Keep who we are: *name* within *group*, or one that nobody has, or the instance's.

        :meth:`open` connects.
        """
        known = name or settings.instance
        self._settings, self._group = settings, group
        self._name = f"{group}/{known or uuid.uuid4().hex}"
        self._used = bool(known)
        queue, markers, _ = settings.topics
        tracking = group == settings.tracker_group
        self._reads = markers if tracking else queue
        self._writes = (queue, markers) if tracking else (markers,)
        self._alone = False
        self._client: Producer | None = None
        self._refused: list[KafkaError] = []
        self.written: dict[tuple[str, int], int] = {}
        """Of each topic and partition, the last offset that the last transaction wrote."""

    def open(self) -> Producer:
        """Return the producer; what an earlier one left open is settled before it is there.

        It is a new one when all brokers were away: they may have lost an end of ours.

        Raises:
            TransporterError: If the brokers do not let us in.
        """
        if self._client is not None and self._was_alone(self._client):
            self.close()
        if self._client is None:
            self._alone = False
            self._client = clients.transactional(self._settings, self._name, self._heard)
            if self._used:
                self._end_earlier(self._client)
            self._used = True
        return self._client

    def run(
        self, records: Iterable[Record], consumer: Consumer, offsets: Sequence[TopicPartition]
    ) -> None:
        """Send *records* and commit *offsets*, both or neither.

        Raises:
            MessageRefused: one of the records is refused; nothing is done.
            TransporterError: it is not done, or it is not known. In the
                latter case it is known, and visible, when :meth:`open` has returned.
        """
        client = self.open()
        self._refused.clear()
        self.written.clear()
        try:
            self._transact(client, records, list(offsets), consumer.consumer_group_metadata())
        except KafkaException as error:
            self._undo(client, error.args[0])
            found = self._refused[0] if self._refused else error.args[0]
            raise translated(found, self._settings.place) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Disconnect; what is open is aborted, now or by the next one of our name.

        After an outage the client has been seen to wait for ever here. It is then left to a
        thread that ends with this process, and the next one shuts it out.
        """
        client, self._client = self._client, None
        if client is not None:
            closing = threading.Thread(
                target=_disconnect, args=(client,), name="queue-disconnect", daemon=True
            )
            closing.start()
            closing.join(self._settings.transaction_timeout + _GRACE)
            if closing.is_alive():
                _LOGGER.warning("%s: its client does not end; a new one goes on", self._name)

    def _heard(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - a public code
            self._alone = True

    def _was_alone(self, client: Producer) -> bool:
        client.poll(0)  # What it has heard since it was last used waits there.
        return self._alone

    def _end_earlier(self, client: Producer) -> None:
        """End what was committed under our name, should the brokers have lost its end."""
        try:
            # Of others, too, what goes on there is found: records that say nothing do no harm.
            if records := list(self._nothing()):
                self._transact(client, records, None)
                _LOGGER.warning(
                    "%s: made good what held back %d partitions", self._name, len(records)
                )
            if group_is_held_back(self._settings, self._group, self._reads):
                self._transact(client, [], [NOWHERE], membership(self._group))
                _LOGGER.warning("%s: made good what held back the group", self._name)
        except KafkaException as error:
            self.close()
            raise clients.failure(self._settings, error) from error
        except BaseException:
            self.close()
            raise

    def _nothing(self) -> Iterator[Record]:
        """Return a record that says nothing for each partition of ours that is held back."""
        markers = self._settings.markers_topic
        for place in held_back(self._settings, self._writes):
            value = encode(End(0, ())) if place.topic == markers else None
            yield place.topic, value, None, place.partition, ()

    def _transact(
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
        told = list(headers)
        if topic == self._settings.markers_topic:
            told.append((WRITER, self._name.encode()))
        while True:
            try:
                client.produce(topic, value, key, partition, self._report, None, 0, told or None)
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
        if error.code() == KafkaError._FENCED:  # noqa: SLF001 - a public code
            self.close()
            if self._settings.instance:
                raise QueueFault(
                    f"another process of the instance {self._settings.instance!r} has taken over;"
                    " give each its own"
                )
            raise QueueUnavailable(f"{self._name} was taken for dead, and begins anew")
        if error.fatal() or error.retriable():
            self.close()  # The next one asks what has become of it.
            return
        try:
            client.abort_transaction(self._settings.transaction_timeout)
        except KafkaException:
            self.close()


def _disconnect(client: Producer) -> None:
    with suppress(KafkaException):  # One that was shut out says so once more.
        client.purge()
        client.close()


def end(settings: QueueSettings, name: str) -> None:
    """End the transaction that *name*, who is gone, has committed; who is not gone is shut out.

    Raises:
        TransporterError: If the brokers do not answer, or refuse.
    """
    group, _, last = name.rpartition("/")
    transactions = Transactions(settings, group, last)
    transactions.open()
    transactions.close()

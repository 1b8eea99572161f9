"""Fetcher thread: reads a queue, writes Starts, commits, and only then hands messages over."""

from __future__ import annotations

import logging
import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from transporter.errors import TransporterError
from transporter.kafka.errors import CLIENT_ERRORS, kafka_error
from transporter.queue import clients
from transporter.queue.failures import (
    MessageRefused,
    QueueFault,
    QueueUnavailable,
    is_fault,
    is_missing,
    is_reading_fault,
    is_refusal,
    is_stale,
    reading_fault,
    translate_error,
)
from transporter.queue.markers import encode_marker
from transporter.queue.start_markers import StartBatch
from transporter.queue.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import Consumer, Message, Producer

    from transporter.queue.consumer_state import ConsumerState
    from transporter.queue.settings import QueueSettings
    from transporter.queue.transactions import Record

_BATCH: Final = 1000
_WAIT: Final = 0.2
"""Seconds that one read waits for messages; closing may take as long."""
_LAST: Final = 2.0
"""Seconds that a started batch has for its completion when the consumer closes."""
_FULL: Final = 1.0
_FOREIGN_COMMIT: Final = 1.0
"""Seconds between commits that only skip messages of other queues."""
_BACKOFF: Final = 0.2
_TIMEOUT: Final = 5.0
_LOGGER: Final = logging.getLogger(__name__)


class Fetcher:
    """Reader that fills a consumer's state with messages of one queue, as far as there is room.

    When the consumer is full, the partitions are paused. The group then sees a
    live member however long the program processes a message. A program that
    receives nothing for ``leave_after`` seconds loses its partitions.
    """

    def __init__(
        self, queue: str, settings: QueueSettings, state: ConsumerState, partitions: int
    ) -> None:
        """Connect. *partitions* is the partition count of the markers topic."""
        self._queue, self._settings, self._state = queue, settings, state
        self._partitions = partitions
        self._group = group = settings.consumer_group(queue)
        self._transactions = Transactions(settings, group) if settings.transactional else None
        self._client = self._transactions.open() if self._transactions else self._plain_producer()
        self._consumer: Consumer = clients.consumer(settings, group)
        self._pending_records: list[Message] = []
        self._next_offsets: dict[int, int] = {}
        self._foreign_ends: dict[int, int] = {}
        self._committed_at = time.monotonic()
        self._paused = False
        self._failures: list[KafkaError] = []

    def run(self) -> None:
        """Fetch until the consumer closes and report any failure to its state."""
        try:
            self._subscribe()
            while not self._state.is_closing:
                self._run_once()
        except BaseException as error:  # noqa: BLE001 - every error goes to the thread's owner
            self._state.fail_fetching(clients.translate_exception(self._settings, error))

    def close(self) -> None:
        """Leave the group and disconnect. Call this after the thread has ended."""
        with suppress(KafkaException):
            self._commit_foreign()
        self._consumer.close()
        if self._transactions:
            self._transactions.close()
        else:
            with suppress(*CLIENT_ERRORS):  # A client with a fatal error raises it again here.
                self._client.purge()
                self._client.close()

    def _plain_producer(self) -> Producer:
        return clients.producer(self._settings, **{"linger.ms": 0})

    def _run_once(self) -> None:
        if self._transactions and not self._can_transact(self._transactions):
            self._state.pause(_BACKOFF)
        elif not self._state.has_demand(self._settings.leave_after):
            self._leave_group()
        elif room := self._state.await_room(_FULL):
            self._resume()
            self._fetch(min(room, _BATCH))
        else:
            self._stay_in_group()

    def _fetch(self, most: int) -> None:
        records = self._read_records(most)
        self._count_deleted(records)
        batch = StartBatch(self._queue)
        batch.add_records(records)
        if batch.unreadable:
            _LOGGER.warning(
                "queue %s: %d messages have unreadable headers and are delivered without them",
                self._queue,
                batch.unreadable,
            )
        if not batch.messages:
            self._skip_foreign(batch.ends)
        elif self._transactions:
            self._start_in_transaction(batch, self._transactions)
        else:
            self._start_batch(batch)

    def _read_records(self, most: int) -> list[Message]:
        """Return the next messages. A fault waits for the next call if messages come before it."""
        records, self._pending_records = self._pending_records, []
        if not records:
            records = self._consumer.consume(1, _WAIT)
            if records and most > 1:
                records += self._consumer.consume(most - 1, 0)
        messages: list[Message] = []
        for number, record in enumerate(records):
            error = record.error()
            if len(messages) == most or (messages and error and is_reading_fault(error)):
                self._pending_records = records[number:]
                break
            if self._is_message(record):
                messages.append(record)
        return messages

    def _is_message(self, record: Message) -> bool:
        error = record.error()
        if error is None:
            return True
        if is_reading_fault(error):
            raise reading_fault(record, self._settings.place, self._group)
        _LOGGER.log(
            logging.WARNING if is_missing(error) else logging.INFO,
            "queue %s: %s",
            self._queue,
            error.str(),
        )
        return False

    def _count_deleted(self, records: list[Message]) -> None:
        """Count offsets that were deleted between the previous read and *records*."""
        for record in records:
            partition, offset = record.partition(), record.offset()
            if partition not in self._next_offsets:
                self._next_offsets[partition] = self._committed_offset(partition, offset)
            at = self._next_offsets[partition]
            # Ends of transactions leave gaps. Only a gap below the first offset is a loss.
            if offset > at and (end := min(offset, self._first_offset(partition))) > at:
                self._state.count_lost(end - at)
                _LOGGER.error(
                    "queue %s: topic %s, partition %d: offsets %d to %d were deleted before they"
                    " were read, and messages may be lost; raise the topic's retention",
                    self._queue,
                    self._settings.queue_topic,
                    partition,
                    at,
                    end - 1,
                )
            self._next_offsets[partition] = offset + 1

    def _committed_offset(self, partition: int, otherwise: int) -> int:
        """Return the committed offset of *partition*, or *otherwise* without one."""
        place = TopicPartition(self._settings.queue_topic, partition)
        found = self._retry_until_answered(
            lambda: self._consumer.committed([place], timeout=_TIMEOUT)
        )
        return found[0].offset if found and found[0].offset >= 0 else otherwise

    def _first_offset(self, partition: int) -> int:
        """Return the first offset of *partition*; 0 if the consumer closes before an answer."""
        place = TopicPartition(self._settings.queue_topic, partition)
        found = self._retry_until_answered(
            lambda: self._consumer.get_watermark_offsets(place, timeout=_TIMEOUT)
        )
        return found[0] if found else 0

    def _retry_until_answered(self, request: Callable[[], Any]) -> Any:  # noqa: ANN401 - the answer, whatever it is
        """Return the brokers' answer, or ``None`` if the consumer closes before it."""
        while not self._state.is_closing:
            try:
                return request()
            except KafkaException as error:
                if is_fault(error.args[0]):
                    raise
                self._state.pause(_BACKOFF)
        return None

    def _start_batch(self, batch: StartBatch) -> None:
        """Write Starts, commit, hand over. A kill in between repeats messages but loses none."""
        now = time.monotonic()
        for topic, value, key, partition, _ in self._start_records(batch):
            self._client.produce(topic, value, key, partition, self._on_delivery)
        while self._client.flush(_WAIT):
            if self._state.is_closing and self._client.flush(_LAST):
                return
        self._raise_failure()
        if self._commit({**self._foreign_ends, **batch.ends}):
            self._foreign_ends.clear()
            self._state.add(batch.messages, now)

    def _start_in_transaction(self, batch: StartBatch, transactions: Transactions) -> None:
        """Write Starts and commit in one transaction."""
        now = time.monotonic()
        try:
            transactions.run(
                self._start_records(batch),
                self._consumer,
                self._places({**self._foreign_ends, **batch.ends}),
            )
        except MessageRefused as error:
            raise self._marker_too_large(error) from error
        except TransporterError as error:
            cause = kafka_error(error)
            if not error.retriable and not (cause and is_stale(cause)):
                raise
            _LOGGER.warning("queue %s: %s", self._queue, error)
            self._rejoin_group(transactions)
        else:
            self._foreign_ends.clear()
            self._state.add(batch.messages, now)

    def _start_records(self, batch: StartBatch) -> Iterator[Record]:
        after = math.ceil(self._settings.redeliver_after * 1000)
        for start in batch.start_markers(after, clients.max_marker_bytes(self._settings)):
            partition = start.partition % self._partitions
            yield self._settings.markers_topic, encode_marker(start), None, partition, ()

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failures.append(error)

    def _raise_failure(self) -> None:
        if not self._failures:
            return
        error = self._failures[0]
        if is_refusal(error):
            raise self._marker_too_large(error.str())
        raise translate_error(error, f"markers topic {self._settings.markers_topic}")

    def _marker_too_large(self, problem: object) -> QueueFault:
        return QueueFault(
            f"markers topic {self._settings.markers_topic}: {problem}; its max.message.bytes must"
            f" be 64 KiB larger than that of {self._settings.queue_topic}"
        )

    def _rejoin_group(self, transactions: Transactions) -> None:
        """Rejoin the group and read from the committed offsets, so no position is beyond them."""
        self._state.pause(_BACKOFF)
        self._consumer.unsubscribe()
        self._consumer.poll(0)
        while self._consumer.assignment() and not self._state.is_closing:
            self._consumer.poll(_WAIT)
        self._pending_records, self._foreign_ends = [], {}
        while not self._state.is_closing and not self._can_transact(transactions):
            self._state.pause(_BACKOFF)
        self._subscribe()

    def _can_transact(self, transactions: Transactions) -> bool:
        """Return whether the brokers admit us. If so, our last transaction is settled."""
        try:
            transactions.open()
        except QueueUnavailable as error:
            _LOGGER.warning("queue %s: %s", self._queue, error)
            return False
        return True

    def _commit(self, ends: dict[int, int]) -> bool:
        """Commit *ends*, or return false if the partitions were no longer ours."""
        while True:
            try:
                for place in self._consumer.commit(offsets=self._places(ends), asynchronous=False):
                    if place.error is not None:
                        raise KafkaException(place.error)  # noqa: TRY301 - one way for both
            except KafkaException as error:
                found = error.args[0]
                if is_stale(found):
                    # Another consumer starts these messages, and its Start replaces ours.
                    _LOGGER.info("queue %s: partitions were lost: %s", self._queue, found.str())
                    return False
                if is_fault(found):
                    raise
                if self._state.is_closing:
                    return False
                self._state.pause(_BACKOFF)
            else:
                self._committed_at = time.monotonic()
                return True

    def _skip_foreign(self, ends: dict[int, int]) -> None:
        self._foreign_ends.update(ends)
        if time.monotonic() - self._committed_at > _FOREIGN_COMMIT:
            self._commit_foreign()

    def _commit_foreign(self) -> None:
        foreign, self._foreign_ends = self._foreign_ends, {}
        if foreign:
            self._committed_at = time.monotonic()
            self._consumer.commit(offsets=self._places(foreign), asynchronous=True)

    def _places(self, ends: dict[int, int]) -> list[TopicPartition]:
        topic = self._settings.queue_topic
        return [TopicPartition(topic, partition, end) for partition, end in ends.items()]

    def _subscribe(self) -> None:
        topic = self._settings.queue_topic
        self._consumer.subscribe(
            [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )

    def _on_assign(self, _: Consumer, places: list[Any]) -> None:
        for place in places:
            self._next_offsets.pop(place.partition, None)

    def _on_revoke(self, consumer: Consumer, places: list[Any]) -> None:
        with suppress(KafkaException):
            consumer.resume(places)  # Otherwise they are still paused when assigned again.
        gone = {place.partition for place in places}
        self._pending_records = [
            each for each in self._pending_records if each.partition() not in gone
        ]
        for partition in gone:
            self._foreign_ends.pop(partition, None)
            self._next_offsets.pop(partition, None)

    def _stay_in_group(self) -> None:
        """Stay in the group, paused, while there is no room."""
        self._pause()
        record = self._consumer.poll(0)
        # Its partition was assigned just now. A fault waits for the messages before it.
        if record is not None and (self._pending_records or self._is_message(record)):
            self._pending_records.append(record)

    def _pause(self) -> None:
        self._paused = True
        self._consumer.pause(self._consumer.assignment())

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._consumer.resume(self._consumer.assignment())

    def _leave_group(self) -> None:
        """Leave the partitions to other consumers until the program receives again."""
        self._state.release("its consumer's program received nothing for too long")
        self._commit_foreign()
        self._consumer.unsubscribe()
        _LOGGER.info("queue %s: left the group until the program receives again", self._queue)
        wait = 0.0
        while not self._state.is_closing and not self._state.await_demand(wait):
            self._consumer.poll(0)  # The client leaves the group only while it is polled.
            wait = _WAIT if self._consumer.assignment() else _FULL
        self._pending_records, self._paused = [], False
        self._subscribe()

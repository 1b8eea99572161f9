"""The thread that reads a queue, writes Starts, commits, and only then hands over."""

from __future__ import annotations

import logging
import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from transporter.errors import TransporterError
from transporter.queue import clients
from transporter.queue.failures import (
    MessageRefused,
    QueueFault,
    QueueUnavailable,
    is_fault,
    is_missing,
    is_refusal,
    is_stale,
    kafka_error,
    translated,
)
from transporter.queue.markers import encode
from transporter.queue.starting import Batch
from transporter.queue.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import Consumer, Message, Producer

    from transporter.queue.exchange import Exchange
    from transporter.queue.settings import QueueSettings
    from transporter.queue.transactions import Record

_BATCH: Final = 1000
_WAIT: Final = 0.2
"""Seconds for which one look for messages lasts; so long may closing take."""
_LAST: Final = 2.0
"""Seconds that a batch which was begun gets to come to its end when everything closes."""
_FULL: Final = 1.0
_FOREIGN: Final = 1.0
"""Seconds after which is committed that other queues' messages were passed."""
_BACKOFF: Final = 0.2
_ASK: Final = 5.0
_LOGGER: Final = logging.getLogger(__name__)


class Fetcher:
    """Fills an exchange with messages of one queue, as many as it has room for.

    When the exchange is full the partitions are paused, so that the group sees
    a live member however long the program works on a message. A program that
    asks for nothing for ``leave_after`` seconds loses its partitions.
    """

    def __init__(
        self, queue: str, settings: QueueSettings, exchange: Exchange, partitions: int
    ) -> None:
        """Connect; *partitions* is how many the markers topic has."""
        self._queue, self._settings, self._exchange = queue, settings, exchange
        self._partitions = partitions
        group = settings.consumer_group(queue)
        self._transactions = Transactions(settings, group) if settings.transactional else None
        self._client = self._transactions.open() if self._transactions else self._plain()
        self._consumer: Consumer = clients.consumer(settings, group)
        self._carried: list[Message] = []
        self._next: dict[int, int] = {}
        self._foreign: dict[int, int] = {}
        self._committed_at = time.monotonic()
        self._paused = False
        self._failures: list[KafkaError] = []

    def run(self) -> None:
        """Fetch until the exchange closes; tell it what goes wrong."""
        try:
            self._subscribe()
            while not self._exchange.closing:
                self._turn()
        except BaseException as error:  # noqa: BLE001 - the thread's owner is told of any
            self._exchange.fetching_failed(clients.told(self._settings, error))

    def close(self) -> None:
        """Leave the group and disconnect; call it when the thread has ended."""
        with suppress(KafkaException):
            self._commit_foreign()
        self._consumer.close()
        if self._transactions:
            self._transactions.close()
        else:
            with suppress(KafkaException):  # a client that has failed for good says so once more
                self._client.purge()
                self._client.close()

    def _plain(self) -> Producer:
        return clients.producer(self._settings, **{"linger.ms": 0})

    def _turn(self) -> None:
        if self._transactions and not self._is_in(self._transactions):
            self._exchange.pause(_BACKOFF)
        elif not self._exchange.asked(self._settings.leave_after):
            self._leave()
        elif room := self._exchange.room(_FULL):
            self._resume()
            self._fetch(min(room, _BATCH))
        else:
            self._stay()

    def _fetch(self, most: int) -> None:
        records = self._read(most)
        self._count_deleted(records)
        batch = Batch(self._queue)
        batch.read(records)
        if batch.unreadable:
            _LOGGER.warning(
                "queue %s: %d messages have headers that cannot be read, and come without them",
                self._queue,
                batch.unreadable,
            )
        if not batch.messages:
            self._pass(batch.ends)
        elif self._transactions:
            self._begin_at_once(batch, self._transactions)
        else:
            self._begin(batch)

    def _read(self, most: int) -> list[Message]:
        carried, self._carried = self._carried[:most], self._carried[most:]
        if carried:
            return carried
        records = self._consumer.consume(1, _WAIT)
        if records and most > 1:
            records += self._consumer.consume(most - 1, 0)
        return [record for record in records if self._is_message(record)]

    def _is_message(self, record: Message) -> bool:
        error = record.error()
        if error is None:
            return True
        if is_fault(error):
            raise translated(error, self._settings.place)
        _LOGGER.log(
            logging.WARNING if is_missing(error) else logging.INFO,
            "queue %s: %s",
            self._queue,
            error.str(),
        )
        return False

    def _count_deleted(self, records: list[Message]) -> None:
        """Count what was deleted between what was read before and *records*."""
        for record in records:
            partition, offset = record.partition(), record.offset()
            if partition not in self._next:
                self._next[partition] = self._committed(partition, offset)
            at = self._next[partition]
            # A gap is the rule where transactions end; only one below the first offset is a loss.
            if offset > at and (end := min(offset, self._first(partition))) > at:
                self._exchange.lost(end - at)
                _LOGGER.error(
                    "queue %s: topic %s, partition %d: offsets %d to %d were deleted before they"
                    " were read, and with them perhaps messages: its retention is too short",
                    self._queue,
                    self._settings.queue_topic,
                    partition,
                    at,
                    end - 1,
                )
            self._next[partition] = offset + 1

    def _committed(self, partition: int, otherwise: int) -> int:
        """Return where the queue was in *partition*; *otherwise* if it never was there."""
        place = TopicPartition(self._settings.queue_topic, partition)
        found = self._insist(lambda: self._consumer.committed([place], timeout=_ASK))
        return found[0].offset if found and found[0].offset >= 0 else otherwise

    def _first(self, partition: int) -> int:
        """Return where *partition* begins; 0 when we are to stop before that is known."""
        place = TopicPartition(self._settings.queue_topic, partition)
        found = self._insist(lambda: self._consumer.get_watermark_offsets(place, timeout=_ASK))
        return found[0] if found else 0

    def _insist(self, ask: Callable[[], Any]) -> Any:  # noqa: ANN401 - the answer, whatever it is
        """Return what brokers answer; ``None`` when everything closes before they do."""
        while not self._exchange.closing:
            try:
                return ask()
            except KafkaException as error:
                if is_fault(error.args[0]):
                    raise
                self._exchange.pause(_BACKOFF)
        return None

    def _begin(self, batch: Batch) -> None:
        """Write Starts, commit, hand over: a kill in between repeats, and loses nothing."""
        now = time.monotonic()
        for topic, value, key, partition, _ in self._starts(batch):
            self._client.produce(topic, value, key, partition, self._report)
        while self._client.flush(_WAIT):
            if self._exchange.closing and self._client.flush(_LAST):
                return
        self._check()
        if self._commit({**self._foreign, **batch.ends}):
            self._foreign.clear()
            self._exchange.add(batch.messages, now)

    def _begin_at_once(self, batch: Batch, transactions: Transactions) -> None:
        """Write Starts and commit in one transaction."""
        now = time.monotonic()
        try:
            transactions.run(
                self._starts(batch),
                self._consumer,
                self._places({**self._foreign, **batch.ends}),
            )
        except MessageRefused as error:
            raise self._too_large(error) from error
        except TransporterError as error:
            cause = kafka_error(error)
            if not error.retriable and not (cause and is_stale(cause)):
                raise
            _LOGGER.warning("queue %s: %s", self._queue, error)
            self._start_over(transactions)
        else:
            self._foreign.clear()
            self._exchange.add(batch.messages, now)

    def _starts(self, batch: Batch) -> Iterator[Record]:
        after = math.ceil(self._settings.redeliver_after * 1000)
        for start in batch.starts(after, clients.most_marker_bytes(self._settings)):
            partition = start.partition % self._partitions
            yield self._settings.markers_topic, encode(start), None, partition, ()

    def _report(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failures.append(error)

    def _check(self) -> None:
        if not self._failures:
            return
        error = self._failures[0]
        if is_refusal(error):
            raise self._too_large(error.str())
        raise translated(error, f"markers topic {self._settings.markers_topic}")

    def _too_large(self, problem: object) -> QueueFault:
        return QueueFault(
            f"markers topic {self._settings.markers_topic}: {problem}; its max.message.bytes must"
            f" be 64 KiB larger than that of {self._settings.queue_topic}"
        )

    def _start_over(self, transactions: Transactions) -> None:
        """Read again what is committed, in a new membership: no position is beyond it then."""
        self._exchange.pause(_BACKOFF)
        self._consumer.unsubscribe()
        self._consumer.poll(0)
        while self._consumer.assignment() and not self._exchange.closing:
            self._consumer.poll(_WAIT)
        self._carried, self._foreign = [], {}
        while not self._exchange.closing and not self._is_in(transactions):
            self._exchange.pause(_BACKOFF)
        self._subscribe()

    def _is_in(self, transactions: Transactions) -> bool:
        """Tell whether brokers let us in; what became of our last transaction is known then."""
        try:
            transactions.open()
        except QueueUnavailable as error:
            _LOGGER.warning("queue %s: %s", self._queue, error)
            return False
        return True

    def _commit(self, ends: dict[int, int]) -> bool:
        """Commit *ends*; tell whether the partitions were ours still, so that it was done."""
        while True:
            try:
                for place in self._consumer.commit(offsets=self._places(ends), asynchronous=False):
                    if place.error is not None:
                        raise KafkaException(place.error)  # noqa: TRY301 - one way for both
            except KafkaException as error:
                found = error.args[0]
                if is_stale(found):
                    # Another consumer begins these messages, and its Start replaces ours.
                    _LOGGER.info("queue %s: partitions have gone: %s", self._queue, found.str())
                    return False
                if is_fault(found):
                    raise
                if self._exchange.closing:
                    return False
                self._exchange.pause(_BACKOFF)
            else:
                self._committed_at = time.monotonic()
                return True

    def _pass(self, ends: dict[int, int]) -> None:
        self._foreign.update(ends)
        if time.monotonic() - self._committed_at > _FOREIGN:
            self._commit_foreign()

    def _commit_foreign(self) -> None:
        foreign, self._foreign = self._foreign, {}
        if foreign:
            self._committed_at = time.monotonic()
            self._consumer.commit(offsets=self._places(foreign), asynchronous=True)

    def _places(self, ends: dict[int, int]) -> list[TopicPartition]:
        topic = self._settings.queue_topic
        return [TopicPartition(topic, partition, end) for partition, end in ends.items()]

    def _subscribe(self) -> None:
        topic = self._settings.queue_topic
        self._consumer.subscribe(
            [topic], on_assign=self._come, on_revoke=self._gone, on_lost=self._gone
        )

    def _come(self, _: Consumer, places: list[Any]) -> None:
        for place in places:
            self._next.pop(place.partition, None)

    def _gone(self, consumer: Consumer, places: list[Any]) -> None:
        with suppress(KafkaException):
            consumer.resume(places)  # else they are paused still when they come back
        gone = {place.partition for place in places}
        self._carried = [each for each in self._carried if each.partition() not in gone]
        for partition in gone:
            self._foreign.pop(partition, None)
            self._next.pop(partition, None)

    def _stay(self) -> None:
        """Stay in the group while there is no room: paused, but heard of."""
        self._pause()
        record = self._consumer.poll(0)
        if record is not None and self._is_message(record):
            self._carried.append(record)  # of a partition that was assigned just now

    def _pause(self) -> None:
        self._paused = True
        self._consumer.pause(self._consumer.assignment())

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._consumer.resume(self._consumer.assignment())

    def _leave(self) -> None:
        """Leave the partitions to others until the program asks again."""
        self._exchange.release("its consumer's program was busy elsewhere")
        self._commit_foreign()
        self._consumer.unsubscribe()
        _LOGGER.info("queue %s: left, until somebody asks again", self._queue)
        wait = 0.0
        while not self._exchange.closing and not self._exchange.await_demand(wait):
            self._consumer.poll(0)  # it leaves only while it is served
            wait = _WAIT if self._consumer.assignment() else _FULL
        self._carried, self._paused = [], False
        self._subscribe()

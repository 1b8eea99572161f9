"""The rows of a slice: made part by part, sent to Kafka, and counted when they are delivered."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from transporter.kafka.errors import CLIENT_ERRORS, is_bystander, kafka_error
from transporter.message import Entries, headers_of, microseconds
from transporter_adaptors.kafka.client import seconds_left
from transporter_adaptors.kafka.config import ENTRY_ID, SOURCE_ID
from transporter_adaptors.kafka.failures import is_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    import pyarrow as pa
    from confluent_kafka import Message, Producer

_CHUNK: Final = 1000
"""Rows between two checks for failures."""

_PURGE_SECONDS: Final = 5.0
_TRIGGER_SECONDS: Final = 0.001
"""The shortest wait that the client supports."""

_LEAST_ROWS: Final = 1500
"""Small enough that a kill repeats at most 3000, the unsettled part and the next one."""
_MOST_ROWS: Final = 48_000
_TOO_LONG: Final = 0.25
"""Share of the time that may be spent waiting for the brokers."""
_SLOW_PARTS: Final = 32
_QUICK_PARTS: Final = 200

Header = tuple[str, bytes | None]
Row = tuple[str, bytes | None, bytes | None, int, list[Header] | None]
"""Topic, value, key, time in ms and headers, as the client takes them."""

Content = tuple[str, bytes, bytes]
"""Topic, value and key: the identity of a message in its delivery report."""


class Outgoing:
    """The rows of a batch, made on demand.

    The rows of about 1500 entries fit into the processor's caches and are gone before the next.
    That alone saves a third of the time.
    """

    def __init__(
        self, batch: Entries, topic_of: Callable[[str], str], *, ids: bool = False
    ) -> None:
        """Make no rows yet. *topic_of* returns a namespace's topic, or an empty text.

        With *ids* each row's headers include its entry's ids.
        """
        self.batch, self.offsets = batch, batch.offsets
        self._topic_of, self._ids = topic_of, ids
        self.row_without_topic: int | None = None
        """The first row found to have no topic."""

    def rows(self, first: int, most: int) -> list[Row]:
        """Return about *most* rows from row *first* on, but none of an entry without a topic.

        A part ends at the end of an entry, so that all of it can be acked.
        """
        if self.row_without_topic is not None:
            return []
        end = self._end_of_entry(first + most)
        part = Entries(self.batch.batch.slice(first, end - first), self.batch.log_id)
        made = _rows_of(part, self._topic_of, ids=self._ids)
        index = next((index for index, row in enumerate(made) if not row[0]), None)
        if index is None:
            return made
        self.row_without_topic = first + index
        return made[: self.batch.whole(self.row_without_topic) - first]

    def _end_of_entry(self, row: int) -> int:
        offsets = self.offsets
        while row < len(offsets) and offsets[row - 1] == offsets[row]:
            row += 1
        return min(row, len(offsets))


def _rows_of(entries: Entries, topic_of: Callable[[str], str], *, ids: bool = False) -> list[Row]:
    """Return *entries* as rows, with *ids* among their headers if requested.

    *topic_of* returns the topic of a namespace.
    """
    column = entries.batch.column
    headers: Iterable[Sequence[Header]] = headers_of(column("headers"))
    if ids:
        headers = map(_with_ids, headers, entries.row_ids(), column("source_id").to_pylist())
    namespaces = column("namespace").to_pylist()
    topics = {namespace: topic_of(namespace) for namespace in set(namespaces)}
    return list(
        zip(
            [topics[namespace] for namespace in namespaces],
            column("data").to_pylist(),
            column("key").to_pylist(),
            _milliseconds(column("timestamp")),
            ([*pairs] or None for pairs in headers),
            strict=True,
        )
    )


def _with_ids(headers: Sequence[Header], entry_id: str, source_id: str | None) -> list[Header]:
    """Return *headers* followed by the ids, because consumers look for a name's last header."""
    source = [] if source_id is None else [(SOURCE_ID, source_id.encode())]
    return [*headers, (ENTRY_ID, entry_id.encode()), *source]


def _milliseconds(column: pa.Array) -> list[int]:
    """Return a timestamp column in ms. Times before 1970 become 0, which means now."""
    return [max(0, time_us // 1000) for time_us in microseconds(column)]


class PartSize:
    """The number of rows that are sent before a wait for the brokers.

    As few as keep the client busy, because a kill repeats those on their way. The next rows
    are made meanwhile, which hides a wait of some milliseconds. For more distant brokers
    a part has more rows.
    """

    def __init__(self) -> None:
        """Begin with the least rows."""
        self.rows = _LEAST_ROWS
        self._slow = self._quick = 0

    def record_wait(self, seconds: float, total: float) -> None:
        """Record a wait of *seconds* for a part that took *total* seconds in all."""
        slow = seconds > total * _TOO_LONG
        self._slow, self._quick = (self._slow + 1, 0) if slow else (0, self._quick + 1)
        if self._slow == _SLOW_PARTS:
            self.rows, self._slow = min(2 * self.rows, _MOST_ROWS), 0
        elif self._quick == _QUICK_PARTS:
            self.rows, self._quick = max(self.rows // 2, _LEAST_ROWS), 0


class SliceFailure(NamedTuple):
    """The earliest row that the client or the broker refused because of its content."""

    error: KafkaError
    row: int
    is_cause: bool
    """Whether this row is the reason, and not one that shared its batch."""


@dataclass(slots=True)
class SentSlice:
    """Rows that are sent in order, once, and the prefix of them that was delivered.

    A closure per message would halve the speed, so one callback serves the
    slice. It is called for failures only and without the row's number, so the
    rows are found again by content. Equal rows all count as failed
    when one of them did: nothing undelivered is ever acked, at the price of
    repeating some.
    """

    producer: Producer
    rows: list[Row]
    ends: float
    """The monotonic time of the deadline."""
    batch_bytes: int
    sent: int = 0
    refusal: KafkaError | None = None
    """The reason why the client did not accept row ``sent``."""
    failures: list[tuple[KafkaError, Content]] = field(default_factory=list)
    unsettled: int = 0
    """Messages of unknown state, not even certainly taken back."""
    fatal_error: KafkaError | None = None
    """The reason why the client can never be used again."""

    def deliver(self) -> None:
        """Send the rows and wait until each is settled, at most until ``ends``."""
        self.send()
        self.settle()

    def send(self) -> None:
        """Pass the rows to the client, which collects them for a while."""
        with self._keep_fatal():
            self._send()

    def trigger_send(self) -> None:
        """Make the client send the rows that it still collects, as it does during a wait."""
        with self._keep_fatal():
            self.producer.flush(_TRIGGER_SECONDS)

    def settle(self) -> None:
        """Wait until each row is settled, at most until ``ends``."""
        if self.fatal_error is not None:
            return
        with self._keep_fatal():
            if self.producer.flush(seconds_left(self.ends)):
                self.producer.purge(blocking=False)
                self.unsettled = self.producer.flush(_PURGE_SECONDS)

    @contextmanager
    def _keep_fatal(self) -> Iterator[None]:
        """Keep the error that the client raises when it can never be used again."""
        try:
            yield
        except CLIENT_ERRORS as error:
            self.fatal_error = kafka_error(error)
            if self.fatal_error is None:
                raise
            self.unsettled = 1

    def count_delivered(self) -> int:
        """Return the number of rows, from the first on, that are certainly delivered."""
        if not self.failures and not self.unsettled:
            return self.sent
        rows = self._rows_like({content for _, content in self.failures})
        if self.unsettled or len(rows) < len(self.failures):
            return 0  # Some failure matches no row, so nothing is acked.
        return rows[0]

    def failure(self) -> SliceFailure | None:
        """Return the earliest row that failed by its own fault, or ``None``."""
        blamed = [(why, what) for why, what in self.failures if not is_bystander(why)]
        causes = {what: why for why, what in reversed(blamed)}
        if rows := self._rows_like(causes.keys()):
            first = rows[0]
            error = causes[_content(self.rows[first])]
            is_cause = len(blamed) == 1 or not is_shared(error) or self._is_large(self.rows[first])
            return SliceFailure(error, first, is_cause)
        return SliceFailure(self.refusal, self.sent, is_cause=True) if self.refusal else None

    def _send(self) -> None:
        for row in self.rows:
            large = self._is_large(row)
            if large and not self._wait_until_settled():
                return
            if not self._produce(row):
                return
            self.sent += 1
            if large and not self._wait_until_settled():
                return
            if self.sent % _CHUNK == 0:
                self.producer.poll(0)
                if self.failures:
                    return  # Invariant 9: after the first failure nothing more is sent.

    def _wait_until_settled(self) -> bool:
        """Wait for all rows that were sent, so that none passes a row that may be refused."""
        return not (self.producer.flush(seconds_left(self.ends)) or self.failures)

    def _produce(self, row: Row) -> bool:
        topic, value, key, timestamp, headers = row
        while True:
            try:
                self.producer.produce(
                    topic, value, key, -1, self._record_failure, None, timestamp, headers
                )
            except BufferError:
                if time.monotonic() >= self.ends or self.failures:
                    return False
                self.producer.poll(seconds_left(self.ends))
            except KafkaException as error:
                if error.args[0].code() == KafkaError._FATAL:  # noqa: SLF001 - a public code
                    raise
                if error.args[0].code() != KafkaError._STATE:  # noqa: SLF001 - a public code
                    # In that state a transaction accepts nothing, because of an earlier row.
                    self.refusal = error.args[0]
                return False
            else:
                return True

    def _record_failure(self, error: KafkaError, message: Message) -> None:
        content = (message.topic(), message.value() or b"", message.key() or b"")
        self.failures.append((error, content))
        if len(self.failures) == 1:
            # Invariant 9: rows that still wait in the client's queue are taken back.
            self.producer.purge(in_queue=True, in_flight=False, blocking=False)

    def _rows_like(self, contents: Collection[Content]) -> list[int]:
        rows = self.rows[: self.sent] if contents else []
        return [index for index, row in enumerate(rows) if _content(row) in contents]

    def _is_large(self, row: Row) -> bool:
        """Return whether *row* is in a batch of its own, and may exceed the topic's limit."""
        return len(row[1] or b"") + len(row[2] or b"") > self.batch_bytes


def _content(row: Row) -> Content:
    return row[0], row[1] or b"", row[2] or b""

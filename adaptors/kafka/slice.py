"""One slice on its way to Kafka, and what became of it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from adaptors.kafka.client import left
from adaptors.kafka.config import ENTRY_ID, SOURCE_ID
from adaptors.kafka.failures import is_bystander, is_shared
from transporter.message import headers_of, microseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    import pyarrow as pa
    from confluent_kafka import Message, Producer

    from transporter.message import Entries

_CHUNK: Final = 1000
"""Rows between two looks at what has failed so far."""

_PURGE_SECONDS: Final = 5.0
_HURRY_SECONDS: Final = 0.001
"""The least that the client can wait."""

Header = tuple[str, bytes | None]
Row = tuple[str, bytes | None, bytes | None, int, list[Header] | None]
"""Topic, value, key, time in ms and headers, as the client takes them."""

Content = tuple[str, bytes, bytes]
"""Topic, value and key: what a delivery report tells of its message."""


class Failure(NamedTuple):
    """The earliest row that the client or the broker refused for its own sake."""

    error: KafkaError
    row: int
    alone: bool
    """Whether this row is the reason, and not one that shared its batch."""


@dataclass(slots=True)
class Slice:
    """Sends rows in order, once, and finds the prefix that was delivered.

    A closure per message would halve the speed, so one callback serves the
    slice. It hears of failures only and does not learn which row it was; the
    rows are found again by content. Rows that are alike all count as failed
    when one of them did: nothing undelivered is ever acked, at the price of
    repeating some.
    """

    producer: Producer
    rows: list[Row]
    ends: float
    """The monotonic time at which it is given up."""
    batch_bytes: int
    sent: int = 0
    refused: KafkaError | None = None
    """Why the client did not take row ``sent``."""
    failures: list[tuple[KafkaError, Content]] = field(default_factory=list)
    unsettled: int = 0
    """Messages of which nothing is known, not even that they were taken back."""
    fatal: KafkaError | None = None
    """Why the client can never be used again."""

    def deliver(self) -> None:
        """Send the rows and wait until each is settled, at most until ``ends``."""
        self.send()
        self.settle()

    def send(self) -> None:
        """Hand the rows to the client, which gathers them for a while."""
        with self._fatal():
            self._send()

    def hurry(self) -> None:
        """Have the client send what it still gathers: it does when it is waited for."""
        with self._fatal():
            self.producer.flush(_HURRY_SECONDS)

    def settle(self) -> None:
        """Wait until each row is settled, at most until ``ends``."""
        if self.fatal is not None:
            return
        with self._fatal():
            if self.producer.flush(left(self.ends)):
                self.producer.purge(blocking=False)
                self.unsettled = self.producer.flush(_PURGE_SECONDS)

    @contextmanager
    def _fatal(self) -> Iterator[None]:
        """Keep what the client raises when it can never be used again.

        It raises that while it serves callbacks. A callback that runs after that makes a
        SystemError of it, with the fatal error as its cause.
        """
        try:
            yield
        except (KafkaException, SystemError) as error:
            self.fatal = _fatal_of(error)
            self.unsettled = 1

    def delivered(self) -> int:
        """Return how many rows, from the first on, are known to be delivered."""
        if not self.failures and not self.unsettled:
            return self.sent
        rows = self._rows_like({content for _, content in self.failures})
        if self.unsettled or len(rows) < len(self.failures):
            return 0  # Some failure cannot be placed: ack nothing.
        return rows[0]

    def failure(self) -> Failure | None:
        """Return the earliest row that failed for its own sake; ``None`` when there is none."""
        blamed = [(why, what) for why, what in self.failures if not is_bystander(why)]
        causes = {what: why for why, what in reversed(blamed)}
        if rows := self._rows_like(causes.keys()):
            first = rows[0]
            error = causes[_content(self.rows[first])]
            alone = len(blamed) == 1 or not is_shared(error) or self._is_large(self.rows[first])
            return Failure(error, first, alone)
        return Failure(self.refused, self.sent, alone=True) if self.refused else None

    def _send(self) -> None:
        for row in self.rows:
            large = self._is_large(row)
            if large and not self._settled():
                return
            if not self._produce(row):
                return
            self.sent += 1
            if large and not self._settled():
                return
            if self.sent % _CHUNK == 0:
                self.producer.poll(0)
                if self.failures:
                    return  # Invariant 9: after the first failure nothing more is sent.

    def _settled(self) -> bool:
        """Wait for all that was sent, so that nothing passes a row that may be refused."""
        return not (self.producer.flush(left(self.ends)) or self.failures)

    def _produce(self, row: Row) -> bool:
        topic, value, key, timestamp, headers = row
        while True:
            try:
                self.producer.produce(topic, value, key, -1, self._failed, None, timestamp, headers)
            except BufferError:
                if time.monotonic() >= self.ends or self.failures:
                    return False
                self.producer.poll(left(self.ends))
            except KafkaException as error:
                if error.args[0].code() == KafkaError._FATAL:  # noqa: SLF001 - a public code
                    raise
                if error.args[0].code() != KafkaError._STATE:  # noqa: SLF001 - a public code
                    # In that state a transaction takes nothing: an earlier row is the reason.
                    self.refused = error.args[0]
                return False
            else:
                return True

    def _failed(self, error: KafkaError, message: Message) -> None:
        content = (message.topic(), message.value() or b"", message.key() or b"")
        self.failures.append((error, content))
        if len(self.failures) == 1:
            # Invariant 9: what still waits in the client's queue is taken back.
            self.producer.purge(in_queue=True, in_flight=False, blocking=False)

    def _rows_like(self, contents: Collection[Content]) -> list[int]:
        rows = self.rows[: self.sent] if contents else []
        return [index for index, row in enumerate(rows) if _content(row) in contents]

    def _is_large(self, row: Row) -> bool:
        """Tell whether *row* is in a batch of its own, and may exceed the topic's limit."""
        return len(row[1] or b"") + len(row[2] or b"") > self.batch_bytes


def _fatal_of(error: BaseException) -> KafkaError:
    cause = error if isinstance(error, KafkaException) else error.__cause__
    if isinstance(cause, KafkaException):
        return cause.args[0]
    raise error


def _content(row: Row) -> Content:
    return row[0], row[1] or b"", row[2] or b""


def rows_of(entries: Entries, topic_of: Callable[[str], str], *, ids: bool = False) -> list[Row]:
    """Return *entries* as rows, with *ids* among their headers if asked for.

    *topic_of* names the topic of a namespace.
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
    """Return *headers* and the ids behind them, where the last one of a name is looked for."""
    source = [] if source_id is None else [(SOURCE_ID, source_id.encode())]
    return [*headers, (ENTRY_ID, entry_id.encode()), *source]


def _milliseconds(column: pa.Array) -> list[int]:
    """Return a timestamp column in ms; what lies before 1970 becomes 0, which means now."""
    return [max(0, time_us // 1000) for time_us in microseconds(column)]

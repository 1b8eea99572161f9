"""Writes entries to Kafka topics with an idempotent producer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from adaptors.kafka.config import KafkaWriterConfig, is_topic
from adaptors.kafka.failures import is_fault, sink_error
from adaptors.kafka.slice import Slice, rows_of
from transporter.errors import Rejected, RouteFault, SinkError, SinkTimeout

if TYPE_CHECKING:
    from adaptors.kafka.slice import Row
    from transporter.adaptor import Ack, AdaptorConfig, Entries, StoredOffset, WriterContext

_BATCH_BYTES: Final = 1_000_000
"""A batch of several messages is never larger, so it fits every topic's default limit."""


class KafkaWriter:
    """Delivers entries to Kafka in order, each confirmed by all in-sync replicas.

    Key, value, headers and timestamp arrive as they are in the entry (a time in
    ms; none, or one before 1970, becomes the time of sending); no data makes a
    tombstone. Messages with a key go to the partition that Kafka's Java clients
    choose. Delivery is at least once: what was not confirmed is sent again.

    Not promised: that nothing behind a refused message arrives. What was on its
    way already may, and arrives once more, in order, with the next attempt.

    Not thread-safe. The client's own threads are joined by :meth:`close`.
    """

    Config: ClassVar[type[AdaptorConfig]] = KafkaWriterConfig

    def __init__(self, config: KafkaWriterConfig) -> None:
        """Keep *config*; the client is made by :meth:`open`."""
        self._config = config
        self._seconds = 0.0
        self._producer: Producer | None = None
        self._trouble: KafkaError | None = None

    def open(self, context: WriterContext) -> StoredOffset | None:
        """Connect; Kafka stores no offset for us, so there is none to return.

        :raises SinkUnavailable: when no broker answers before the deadline.
        :raises RouteFault: when the settings or the rights do not allow it.
        """
        self._seconds = context.deadline
        producer = self._connect()
        try:
            producer.list_topics(self._config.fixed_topic, timeout=self._seconds)
        except KafkaException as error:
            producer.poll(0)  # The reason, when there is one, waits in the error callback.
            raise sink_error(self._trouble or error.args[0], self._place()) from error
        return None

    def write(self, batch: Entries, ack: Ack) -> None:
        """Send *batch* and wait for the brokers' word, at most the context's deadline."""
        offsets = batch.offsets
        rows = rows_of(batch, self._topic)
        nameless = next((index for index, row in enumerate(rows) if not row[0]), len(rows))
        found = Slice(self._connect(), rows[:nameless], self._seconds, self._batch_bytes())
        found.deliver()
        delivered = found.delivered()
        if delivered == len(rows):
            self._trouble = None
            ack.all()
            return
        ack(offsets[:delivered])
        if delivered == nameless:
            row = batch.batch.column("namespace")[nameless].as_py()
            error: SinkError = Rejected(
                f"{self._place()}: namespace {row!r} makes no topic name", offsets[nameless]
            )
            ack.fail(error, offsets[nameless])
        else:
            ack.fail(*self._reason(found, offsets))
        if found.fatal is not None:
            self.close()  # Only a new client helps; otherwise the old one keeps the order.

    def close(self) -> None:
        """Drop the client and what it still holds; safe to call twice."""
        producer, self._producer, self._trouble = self._producer, None, None
        if producer is not None:
            producer.purge()
            producer.close()

    def _reason(self, found: Slice, offsets: list[int]) -> tuple[SinkError, int | None]:
        if failure := found.failure():
            offset = offsets[failure.row] if failure.alone else None
            place = self._place(found.rows[failure.row])
            fixed = self._config.fixed_topic is not None
            error = sink_error(failure.error, place, offset, fixed_topic=fixed)
            return error, offset if isinstance(error, Rejected) else None
        if trouble := found.fatal or self._trouble:
            return sink_error(trouble, self._place()), None
        return SinkTimeout(
            f"{self._place()}: not everything was confirmed within {self._seconds:g} s"
        ), None

    def _connect(self) -> Producer:
        if self._producer is None:
            try:
                self._producer = Producer(self._settings())
            except KafkaException as error:
                raise RouteFault(f"{self._place()}: {self._shown(error.args[0].str())}") from None
        return self._producer

    def _settings(self) -> dict[str, Any]:
        milliseconds = max(1000, int(self._seconds * 1000))
        return {
            "linger.ms": 5,
            "batch.size": _BATCH_BYTES,
            "partitioner": "murmur2_random",  # as the Java clients do
            # Half the deadline leaves time to reconnect, or to report an unknown topic.
            "request.timeout.ms": milliseconds // 2,
            "topic.metadata.propagation.max.ms": milliseconds // 2,
            **self._config.client,
            "bootstrap.servers": self._config.bootstrap_servers,
            "message.max.bytes": self._config.max_message_bytes,
            # A message never expires alone, which would let later ones pass it: the
            # slice's deadline comes first and takes back all that is left.
            "message.timeout.ms": milliseconds + 1000,
            "enable.idempotence": True,
            "acks": "all",
            "delivery.report.only.error": True,
            "error_cb": self._heard,
            "logger": logging.getLogger(__name__),
        }

    def _heard(self, error: KafkaError) -> None:
        self._trouble = error
        if is_fault(error) and self._producer is not None:
            self._producer.purge(blocking=False)  # Waiting longer would not help.

    def _batch_bytes(self) -> int:
        return int(self._config.client.get("batch.size", _BATCH_BYTES))

    def _topic(self, namespace: str) -> str:
        topic = self._config.topic.format(namespace=namespace)
        return topic if is_topic(topic) else ""

    def _place(self, row: Row | None = None) -> str:
        topic = row[0] if row else self._config.topic
        return f"Kafka topic {topic} at {self._config.bootstrap_servers}"

    def _shown(self, text: str) -> str:
        # Invariant 20: the client repeats a setting that it does not understand.
        for value in self._config.client.values():
            if isinstance(value, str) and value:
                text = text.replace(value, "***")
        return text

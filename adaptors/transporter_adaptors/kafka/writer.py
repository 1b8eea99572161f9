"""Writer of entries to Kafka topics, with an idempotent or a transactional producer.

Topics are looked up first. Missing ones are created where the settings permit it.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from transporter.errors import Rejected
from transporter.kafka.errors import CLIENT_ERRORS
from transporter_adaptors.kafka.client import ProducerFactory
from transporter_adaptors.kafka.config import KafkaWriterConfig, is_topic
from transporter_adaptors.kafka.failures import missing_topic, refused_topic, sink_error
from transporter_adaptors.kafka.probing import probe_writer
from transporter_adaptors.kafka.slice import Outgoing, PartSize, SentSlice
from transporter_adaptors.kafka.transactions import DurableRows, WriterTransactions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from confluent_kafka import Producer

    from transporter.adaptor import (
        Ack,
        AdaptorConfig,
        Entries,
        Finding,
        StoredOffset,
        WriterContext,
    )
    from transporter.errors import SinkError
    from transporter_adaptors.kafka.config import CreateTopics
    from transporter_adaptors.kafka.slice import Row

_BROKERS_DEFAULT: Final = -1
_SHARE: Final = 4
"""A lookup may take this part of a slice's deadline."""


class KafkaWriter:
    """Writer that delivers entries to Kafka in order, each confirmed by all in-sync replicas.

    Key, value, headers and timestamp arrive as they are in the entry. A time has
    ms. A missing one, or one before 1970, becomes the time of sending. Missing data make a
    tombstone. Messages with a key go to the partition that Kafka's Java clients
    choose. Delivery is at least once: unconfirmed messages are sent again. With
    ``transactional`` it is effectively once for consumers of committed messages.

    Not promised: that nothing behind a refused message arrives, unless
    transactional. Messages on their way already may, and arrive once more, in
    order, with the next attempt.

    Not thread-safe. The client's own threads are joined by :meth:`close`.
    """

    Config: ClassVar[type[AdaptorConfig]] = KafkaWriterConfig

    def __init__(self, config: KafkaWriterConfig) -> None:
        """Keep *config*. The client is made by :meth:`open`."""
        self._config = config
        self._delivery: _PlainDelivery | WriterTransactions | None = None
        self._topics: _Topics

    def open(self, context: WriterContext) -> StoredOffset | None:
        """Connect, and return the consumer group's progress if the writer is transactional.

        Raises:
            SinkUnavailable: No broker answers before the deadline, or the topic is missing.
            RouteFault: The settings or the rights do not allow it, or another engine has
                opened the log since.
        """
        client = ProducerFactory(self._config, context.deadline)
        self._topics = _Topics(client, create=self._config.create_topics)
        fixed = self._config.fixed_topic
        if fixed is not None and not self._topics.exists(fixed):
            raise self._missing_topic_error(fixed)
        self._delivery = (
            WriterTransactions(client, context)
            if self._config.transactional
            else _PlainDelivery(client)
        )
        return self._delivery.open()

    def write(self, batch: Entries, ack: Ack) -> None:
        """Send *batch* and wait for confirmations, at most for the context's deadline."""
        assert self._delivery is not None  # noqa: S101 - the engine has opened it
        outgoing = Outgoing(batch, self._topic, ids=self._config.id_headers)
        found = self._delivery.deliver(outgoing, ack) if len(batch) else DurableRows(0)
        if found.rows == len(batch):
            ack.all()
            return
        ack(outgoing.offsets[found.acked : found.rows])
        self._topics.invalidate()
        if found.error is not None:
            ack.fail(found.error, found.offset)
        elif outgoing.row_without_topic is not None:
            ack.fail(
                self._no_topic_error(batch, outgoing.row_without_topic),
                outgoing.offsets[outgoing.row_without_topic],
            )

    def probe(self) -> Iterable[Finding]:
        """Check the topics."""
        return probe_writer(self._config)

    def close(self) -> None:
        """Drop the client and its queue. Safe to call twice."""
        line, self._delivery = self._delivery, None
        if line is not None:
            line.close()

    def _no_topic_error(self, batch: Entries, row: int) -> SinkError:
        namespace, offset = batch.batch.column("namespace")[row].as_py(), batch.offsets[row]
        servers, topic = self._config.bootstrap_servers, self._config.topic
        named = topic.format(namespace=namespace)
        if is_topic(named):
            return self._missing_topic_error(named, offset)
        return Rejected(
            f"Kafka at {servers}: topic {topic} is no valid name for the namespace {namespace!r}: "
            f"{named!r}",
            offset,
        )

    def _missing_topic_error(self, topic: str, offset: int | None = None) -> SinkError:
        """Return the error of *topic*, which is missing and was not created."""
        place = f"Kafka topic {topic} at {self._config.bootstrap_servers}"
        fixed_topic = self._config.fixed_topic is not None
        if (refusal := self._topics.refusal(topic)) is not None:
            return refused_topic(refusal, place, offset, fixed_topic=fixed_topic)
        return missing_topic(f"{place}: the topic does not exist", offset, fixed_topic=fixed_topic)

    def _topic(self, namespace: str) -> str:
        """Return the topic of *namespace*, or an empty text if there is none."""
        topic = self._config.topic.format(namespace=namespace)
        return topic if is_topic(topic) and self._topics.exists(topic) else ""


class _Topics:
    """Topics that are looked up before anything is sent to them. Not thread-safe.

    By default brokers create each topic that a client names. So the clients here
    forbid it, and a mistyped topic is found missing.
    """

    def __init__(self, client: ProducerFactory, *, create: CreateTopics | None) -> None:
        """Connect to nothing yet. *create* has the settings of topics that are created."""
        self._client, self._create = client, create
        self._seconds = client.seconds / _SHARE
        self._admin: Any = None
        self._existing: set[str] = set()
        self._refusals: dict[str, KafkaError] = {}

    def exists(self, topic: str) -> bool:
        """Return whether *topic* exists, or true if the lookup fails, because sending decides then.

        :meth:`refusal` returns the reason why it could not be created.
        """
        if topic in self._existing:
            return True
        try:
            found = self._lookup(topic)
        except KafkaException:
            return True
        if not found and (self._create is None or not self._create_topic(topic, self._create)):
            return False
        self._existing.add(topic)
        return True

    def refusal(self, topic: str) -> KafkaError | None:
        """Return the reason why *topic* could not be created at the last lookup."""
        return self._refusals.get(topic)

    def invalidate(self) -> None:
        """Look each topic up again, because a delivery has failed."""
        self._existing.clear()

    def _lookup(self, topic: str) -> bool:
        if self._admin is None:
            # Some client settings need idempotence, because an AdminClient is a producer to it.
            settings = self._client.connection_settings() | {"enable.idempotence": True}
            self._admin = self._client.build_client(AdminClient, settings)
        found = self._admin.list_topics(topic, timeout=self._seconds).topics[topic]
        if found.error is None:
            return True
        if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return False
        raise KafkaException(found.error)

    def _create_topic(self, topic: str, create: CreateTopics) -> bool:
        """Create *topic*, and return whether it exists, also if another client has created it."""
        self._refusals.pop(topic, None)
        new = NewTopic(
            topic,
            create.partitions or _BROKERS_DEFAULT,
            create.replication or _BROKERS_DEFAULT,
            config=create.settings,
        )
        (future,) = self._admin.create_topics(
            [new], operation_timeout=self._seconds, request_timeout=self._seconds
        ).values()
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                self._refusals[topic] = error.args[0]
                return False
        return True


class _PlainDelivery:
    """Delivery with a producer that is kept over failures, because it keeps the order."""

    def __init__(self, client: ProducerFactory) -> None:
        """Connect to nothing yet."""
        self._client = client
        self._producer: Producer | None = None
        self._part_size = PartSize()

    def open(self) -> StoredOffset | None:
        """Connect, and return ``None``, because Kafka stores no offset for us here."""
        producer = self._connect()
        try:
            producer.list_topics(self._client.config.fixed_topic, timeout=self._client.seconds)
        except KafkaException as error:
            try:
                producer.poll(0)  # The reason, when there is one, waits in the error callback.
                reason = self._client.last_error or error.args[0]
            except KafkaException as fatal:
                reason = fatal.args[0]
            raise sink_error(reason, self._client.place()) from error
        return None

    def deliver(self, outgoing: Outgoing, ack: Ack) -> DurableRows:
        """Send each row of *outgoing* once, part by part, and return the confirmed ones.

        A part is acked when all of it is confirmed, before another one is sent.
        """
        client, offsets = self._client, outgoing.offsets
        ends = time.monotonic() + client.seconds
        done, rows = 0, outgoing.rows(0, self._part_size.rows)
        while True:
            part = SentSlice(self._connect(), rows, ends, client.batch_bytes())
            end = done + len(rows)
            rows = self._send_part(part, outgoing, end)
            delivered = part.count_delivered()
            if delivered < len(part.rows):
                reason = client.delivery_error(part, offsets[done:end])
                if part.fatal_error is not None:
                    self.close()  # Only a new client helps. Otherwise the old one keeps the order.
                return DurableRows(done + delivered, *reason, acked=done)
            if not rows:
                client.last_error = None
                return DurableRows(end, acked=done)
            ack(offsets[done:end])
            done = end

    def _send_part(self, part: SentSlice, outgoing: Outgoing, end: int) -> list[Row]:
        """Send *part*, wait for it, and return the rows that follow, from row *end* on."""
        begun = time.monotonic()
        part.send()
        rows: list[Row] = []
        if end < len(outgoing.offsets):
            part.trigger_send()
            rows = outgoing.rows(end, self._part_size.rows)
        waited = time.monotonic()
        part.settle()
        if rows:
            now = time.monotonic()
            self._part_size.record_wait(now - waited, now - begun)
        return rows

    def close(self) -> None:
        """Drop the producer and its queue."""
        producer, self._producer = self._producer, None
        self._client.drop()
        if producer is not None:
            with suppress(*CLIENT_ERRORS):  # It raises a fatal error that was not raised before.
                producer.purge()
                producer.close()

    def _connect(self) -> Producer:
        if self._producer is None:
            self._producer = self._client.producer()
        return self._producer

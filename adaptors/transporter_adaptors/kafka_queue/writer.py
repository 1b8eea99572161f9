"""Writer of entries to message queues on Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from transporter.errors import TransporterError
from transporter.queue import QueueProducer
from transporter_adaptors.kafka_queue.config import KafkaQueueWriterConfig
from transporter_adaptors.kafka_queue.failures import sink_error
from transporter_adaptors.kafka_queue.probing import probe_queue
from transporter_adaptors.kafka_queue.records import to_outgoing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transporter.adaptor import (
        Ack,
        AdaptorConfig,
        Entries,
        Finding,
        StoredOffset,
        WriterContext,
    )


_PROBE_SECONDS: Final = 10.0


class KafkaQueueWriter:
    """Writer that sends each entry as a message to a queue, confirmed by all in-sync replicas.

    Data, key and headers arrive as they are. Delivery is at least once: unconfirmed
    messages are sent again.

    Not promised: any order, because a queue has none, or that nothing behind a refused message
    arrives. Messages on their way already may, and arrive once more with the next attempt.

    Not thread-safe. The client's own threads are joined by :meth:`close`.
    """

    Config: ClassVar[type[AdaptorConfig]] = KafkaQueueWriterConfig

    def __init__(self, config: KafkaQueueWriterConfig) -> None:
        """Keep *config*. :meth:`open` connects."""
        self._config = config
        self._seconds = 0.0
        self._producer: QueueProducer | None = None

    def open(self, context: WriterContext) -> StoredOffset | None:
        """Connect, and return ``None``, because a queue stores no offset for us.

        Raises:
            SinkUnavailable: No broker answers before the deadline.
            RouteFault: Topic, rights or settings do not meet the requirements.
        """
        self.close()
        self._seconds = context.deadline
        self._connect()
        return None

    def write(self, batch: Entries, ack: Ack) -> None:
        """Send *batch* and wait for confirmations, at most for the context's deadline."""
        if not len(batch):
            ack.all()
            return
        sent = self._connect().deliver(to_outgoing(batch, self._config.queue), self._seconds)
        if sent.fatal:
            self.close()  # Only a new client helps.
        if sent.error is None:
            ack.all()
            return
        offsets = batch.offsets
        ack(offsets[: batch.whole(sent.arrived)])
        blamed = None if sent.blamed is None else offsets[sent.blamed]
        ack.fail(sink_error(sent.error, blamed), blamed)

    def probe(self) -> Iterable[Finding]:
        """Check the topic and its retention of waiting messages."""
        settings = self._config.settings(_PROBE_SECONDS)
        return probe_queue(settings, [settings.queue_topic])

    def close(self) -> None:
        """Drop the client and its queue. Safe to call twice."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.drop()

    def _connect(self) -> QueueProducer:
        if self._producer is None:
            try:
                self._producer = QueueProducer(self._config.settings(self._seconds))
            except TransporterError as error:
                raise sink_error(error) from error
        return self._producer

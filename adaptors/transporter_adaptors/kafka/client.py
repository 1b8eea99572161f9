"""The producers of a writer, and the errors that they report about themselves."""

from __future__ import annotations

import functools
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer

from transporter.errors import Rejected, RouteFault, SinkError, SinkTimeout
from transporter.kafka.clients import ClientLog, is_login_echo
from transporter_adaptors.kafka.failures import is_fault, sink_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter_adaptors.kafka.config import KafkaWriterConfig
    from transporter_adaptors.kafka.slice import Row, SentSlice

_T = TypeVar("_T")

BATCH_BYTES: Final = 1_000_000
"""Most bytes of a batch of several messages, so that it fits every topic's default limit."""

LONGEST_TRANSACTION: Final = 840_000
"""Time-out of a transaction in ms. By default brokers allow up to 900 000."""


class ProducerFactory:
    """A factory of producers for one writer, with the last error of the newest one.

    *seconds* bound a slice. Not thread-safe, as the writer.
    """

    def __init__(self, config: KafkaWriterConfig, seconds: float) -> None:
        """Make no producer yet."""
        self.config = config
        self.seconds = min(seconds, LONGEST_TRANSACTION / 2000) if config.transactional else seconds
        self.last_error: KafkaError | None = None
        self._has_lost_brokers = False
        self._producer: Producer | None = None

    def producer(self, transactional_id: str = "", *, kept: bool = True) -> Producer:
        """Return a new producer. If *kept*, its queue is emptied when waiting would not help.

        Raises:
            RouteFault: The client does not accept the settings.
        """
        settings = self._settings()
        if transactional_id:
            limit = min(LONGEST_TRANSACTION, max(10_000, 2 * self._milliseconds))
            settings = {
                # A client that has lost all its connections would forget the brokers, but not the
                # group's coordinator. The commit of the progress would then never end
                # (librdkafka issue 5511).
                "metadata.recovery.strategy": "none",
                "transaction.timeout.ms": limit,
                **settings,
            }
            settings["transactional.id"] = transactional_id
        producer = self.build_client(Producer, settings)
        if kept:
            self._producer = producer
        return producer

    def build_client(self, kind: Callable[[dict[str, Any]], _T], settings: dict[str, Any]) -> _T:
        """Return the client of *kind* with *settings*, or raise an error without their values."""
        try:
            return kind(settings)
        except KafkaException as error:
            shown = self.config.redact(error.args[0].str())
            raise RouteFault(f"{self.place()}: {shown}: check the client settings") from None

    def has_lost_brokers(self) -> bool:
        """Return whether the kept producer was without any broker at some moment.

        Raises:
            KafkaException: The producer has failed for good since its last use.
        """
        if self._producer is not None:
            self._producer.poll(0)  # Runs the error callbacks that have waited since its last use.
        return self._has_lost_brokers

    def drop(self) -> None:
        """Drop the producer and its queue."""
        producer, self._producer, self.last_error = self._producer, None, None
        self._has_lost_brokers = False
        if producer is not None:
            producer.purge(blocking=False)

    def connection_settings(self) -> dict[str, Any]:
        """Return the settings that every client needs."""
        return {
            "log_level": 2,
            **self.config.client,
            **self.config.security_settings,
            "allow.auto.create.topics": False,
            "bootstrap.servers": self.config.bootstrap_servers,
            "error_cb": self._record_error,
            "logger": ClientLog(__name__, self.config.redact_secrets),
        }

    def batch_bytes(self) -> int:
        """Return the size above which a message is in a batch of its own."""
        return int(self.config.client.get("batch.size", BATCH_BYTES))

    def place(self, row: Row | None = None) -> str:
        """Return the destination of *row*, or of everything, for messages to people."""
        topic = row[0] if row else self.config.topic
        return f"Kafka topic {topic} at {self.config.bootstrap_servers}"

    def delivery_error(self, found: SentSlice, offsets: list[int]) -> tuple[SinkError, int | None]:
        """Return why *found* was not delivered to its end, and the entry's offset, if at fault."""
        if failure := found.failure():
            offset = offsets[failure.row] if failure.is_cause else None
            place = self.place(found.rows[failure.row])
            fixed = self.config.fixed_topic is not None
            error = sink_error(failure.error, place, offset, fixed_topic=fixed)
            return error, offset if isinstance(error, Rejected) else None
        if trouble := found.fatal_error or self.last_error:
            return sink_error(trouble, self.place()), None
        return self.deadline_error(), None

    def deadline_error(self) -> SinkTimeout:
        """Return the error for a deadline that has passed."""
        return SinkTimeout(
            f"{self.place()}: not everything was confirmed within {self.seconds:g} s"
        )

    @property
    def _milliseconds(self) -> int:
        return max(1000, int(self.seconds * 1000))

    def _settings(self) -> dict[str, Any]:
        milliseconds = self._milliseconds
        return {
            "linger.ms": 5,
            "batch.size": BATCH_BYTES,
            "partitioner": "murmur2_random",  # as the Java clients do
            # Half the deadline leaves time to reconnect, or to report an unknown topic.
            "request.timeout.ms": milliseconds // 2,
            "topic.metadata.propagation.max.ms": milliseconds // 2,
            **self.config.client,
            **self.config.security_settings,
            "allow.auto.create.topics": False,  # A mistyped topic would be made and acked.
            "bootstrap.servers": self.config.bootstrap_servers,
            "message.max.bytes": self.config.max_message_bytes,
            # A message never expires alone, which would let later ones pass it: the
            # slice's deadline comes first and takes back all that are left.
            "message.timeout.ms": milliseconds + 1000,
            "enable.idempotence": True,
            "acks": "all",
            "delivery.report.only.error": True,
            "error_cb": self._record_error,
            "logger": ClientLog(__name__, self.config.redact_secrets),
        }

    def _record_error(self, error: KafkaError) -> None:
        alone = error.code() == KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 - a public code
        self._has_lost_brokers |= alone
        # An earlier error explains better why no broker is left, or why a login failed.
        known = self.last_error
        if known is None or not (alone or (is_login_echo(error) and is_fault(known))):
            self.last_error = error
        if is_fault(error) and self._producer is not None:
            self._producer.purge(blocking=False)  # Waiting longer would not help.


def seconds_left(ends: float) -> float:
    """Return the seconds until the monotonic time *ends*, never negative, which means for ever."""
    return max(0.0, ends - time.monotonic())


def limit_time(act: Callable[..., Any]) -> Callable[..., None]:
    """Return *act*, whose last argument is its limit in seconds, aborted when it hangs.

    After its coordinator was away the client has been seen to wait for ever here, whatever
    limit it is given. The producer is then left to a thread that ends with this process,
    and the next producer fences it.
    """

    @functools.wraps(act)
    def limit_time(*values: Any) -> None:  # noqa: ANN401 - those of act
        failed: list[BaseException] = []

        def run() -> None:
            try:
                act(*values)
            except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
                failed.append(error)

        thread = threading.Thread(target=run, name="kafka-offsets", daemon=True)
        thread.start()
        thread.join(values[-1] + 1.0)
        if thread.is_alive():
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - a public code
        if failed:
            raise failed[0]

    return limit_time

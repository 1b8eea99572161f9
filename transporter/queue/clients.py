"""Kafka clients for queues, with the client settings that delivery guarantees rely on."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from transporter.kafka.clients import ClientLog, redact_secrets, redact_values, trust_defaults
from transporter.kafka.errors import kafka_error
from transporter.queue.failures import (
    QueueFault,
    TopicsMissing,
    is_fault,
    translate_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from confluent_kafka import KafkaError

    from transporter.errors import TransporterError
    from transporter.queue.settings import QueueSettings

_GROWTH: Final = 32 * 1024
"""Bytes by which a marker, or a redelivery, may be larger than the original message."""
_FETCH_WAIT_MS: Final = 50
_NEW: Final = 2.0
_LOOK: Final = 0.05
_ASK: Final = 1.0
_PRODUCER_ONLY: Final = ("compression.",)
LOGGER: Final = "transporter.queue.client"
"""Logger that receives the log of the Kafka client itself."""


def max_marker_bytes(settings: QueueSettings) -> int:
    """Return the maximum size of one marker in bytes."""
    return settings.max_message_bytes + _GROWTH // 2


def producer(settings: QueueSettings, **overrides: object) -> Producer:
    """Return an idempotent producer that retries without a time limit."""
    values = _common_config(settings) | {
        "acks": "all",
        "enable.idempotence": True,
        "partitioner": "random",  # The key is the queue's name, and a queue uses all partitions.
        "linger.ms": 5,
        "message.timeout.ms": 0,
        "message.max.bytes": settings.max_message_bytes + _GROWTH,
        "queue.buffering.max.kbytes": 256 * 1024,
    }
    return _create_client(Producer, settings, values | overrides)


def transactional_producer(
    settings: QueueSettings, name: str, on_error: Callable[[KafkaError], None]
) -> Producer:
    """Return a transactional producer, which fences an earlier one of the same *name*.

    Args:
        settings: The settings of the queue.
        name: The transactional id.
        on_error: Called with errors that concern the brokers as a whole.

    Raises:
        TransporterError: If the brokers do not admit it.
    """
    milliseconds = int(settings.transaction_timeout * 1000)
    client = producer(
        settings,
        **{
            "transactional.id": name,
            "error_cb": on_error,
            # A client that has lost all its connections would forget the brokers, but not the
            # group's coordinator. Sending offsets would then never return (librdkafka issue 5511).
            "metadata.recovery.strategy": "none",
            "transaction.timeout.ms": milliseconds,
            "message.timeout.ms": milliseconds,
            "linger.ms": 0,
            # Right after a transaction the coordinator is busy with its end for a moment. One
            # in ten takes 130 ms with the default, 40 ms with this value. While the group's
            # coordinator is away the client may then hang. Transactions._send_offsets drops it.
            "retry.backoff.ms": 5,
        },
    )
    try:
        client.init_transactions(settings.timeout)
    except KafkaException as error:
        raise kafka_failure(settings, error) from error
    return client


def consumer(settings: QueueSettings, group: str, **overrides: object) -> Consumer:
    """Return a member of *group* that reads only committed records and never auto-commits."""
    values = _consumer_config(settings, group) | {
        "session.timeout.ms": int(settings.session_timeout * 1000),
        "heartbeat.interval.ms": max(300, int(settings.session_timeout * 1000) // 15),
    }
    if settings.instance:
        values["group.instance.id"] = settings.instance
    return _create_client(Consumer, settings, values | overrides)


def standalone_consumer(settings: QueueSettings, **overrides: object) -> Consumer:
    """Return a consumer that joins no group. The caller assigns its partitions."""
    values = _consumer_config(settings, "transporter-onlooker") | {"enable.partition.eof": True}
    return _create_client(Consumer, settings, values | overrides)


def admin(settings: QueueSettings) -> AdminClient:
    """Return a client that creates and describes topics."""
    return _create_client(AdminClient, settings, _common_config(settings, producing=False))


def count_partitions(
    client: Any,  # noqa: ANN401 - any client
    settings: QueueSettings,
    topics: Iterable[str],
    metadata_timeout: float = _NEW,
) -> list[int]:
    """Return the number of partitions of each of *topics*.

    A broker may not have the metadata of a new topic yet. The function waits for
    it, *metadata_timeout* seconds at most.

    Raises:
        TopicsMissing: If a topic does not exist.
        QueueUnavailable: If no broker answers.
    """
    names = list(topics)
    deadline = time.monotonic() + metadata_timeout
    while True:
        try:
            known = client.list_topics(timeout=settings.timeout).topics
        except KafkaException as error:
            raise translate_error(
                _connection_fault(settings) or error.args[0], settings.place
            ) from error
        missing = [name for name in names if name not in known or known[name].error]
        if not missing:
            return [len(known[name].partitions) for name in names]
        if time.monotonic() > deadline:
            raise TopicsMissing(
                f"{settings.bootstrap_servers} has no topic {', '.join(missing)} for us:"
                " create it (transporter queue init does), or check its name and your rights"
            )
        time.sleep(_LOOK)  # The client offers no notification to wait for.


def _connection_fault(settings: QueueSettings) -> KafkaError | None:
    """Return why brokers refuse the connection, if the client reports it. A request only fails."""
    errors: list[KafkaError] = []
    client = _create_client(
        Producer, settings, _common_config(settings) | {"error_cb": errors.append}
    )
    deadline = time.monotonic() + _ASK
    try:
        while not any(map(is_fault, errors)) and time.monotonic() < deadline:
            client.poll(_LOOK)
    finally:
        client.close()
    return next(filter(is_fault, errors), None)


def kafka_failure(
    settings: QueueSettings, error: BaseException, place: str = ""
) -> TransporterError:
    """Return an exception of the Kafka client as a :class:`TransporterError`."""
    found = kafka_error(error)
    if found is None:
        raise error
    return translate_error(found, place or settings.place)


def _consumer_config(settings: QueueSettings, group: str) -> dict[str, Any]:
    return _common_config(settings, producing=False) | {
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "fetch.queue.backoff.ms": 10,
        "fetch.wait.max.ms": _FETCH_WAIT_MS,
        "isolation.level": "read_committed",
    }


def translate_exception(settings: QueueSettings, error: BaseException) -> BaseException:
    """Return *error*, translated if it comes from the Kafka client."""
    return error if kafka_error(error) is None else kafka_failure(settings, error)


def _common_config(settings: QueueSettings, *, producing: bool = True) -> dict[str, Any]:
    chosen = {
        name: value
        for name, value in settings.client.items()
        if producing or not name.startswith(_PRODUCER_ONLY)
    }
    return {
        "socket.keepalive.enable": True,
        "topic.metadata.refresh.interval.ms": 60_000,
        **trust_defaults(chosen),
        **chosen,
        "bootstrap.servers": settings.bootstrap_servers,
        "logger": ClientLog(LOGGER, partial(redact_secrets, settings.client)),
    }


def _create_client(
    kind: Callable[..., Any], settings: QueueSettings, values: dict[str, Any]
) -> Any:  # noqa: ANN401 - one of the client's classes
    try:
        return kind(values)
    except KafkaException as error:
        text = redact_values(settings.client, str(error.args[0].str()))
        raise QueueFault(
            f"{settings.bootstrap_servers}: {text}; check the client settings"
        ) from None

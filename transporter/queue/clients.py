"""Kafka clients for queues, with the settings that their promises rest on."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from transporter.kafka_clients import ClientLog, trusted, without_secrets, without_values
from transporter.queue.failures import (
    QueueFault,
    TopicsMissing,
    is_fault,
    kafka_error,
    translated,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from confluent_kafka import KafkaError

    from transporter.errors import TransporterError
    from transporter.queue.settings import QueueSettings

_GROWTH: Final = 32 * 1024
"""Bytes by which a marker, or a redelivery, is larger than what was sent."""
_FETCH_WAIT_MS: Final = 50
_NEW: Final = 2.0
_LOOK: Final = 0.05
_ASK: Final = 1.0
_PRODUCER_ONLY: Final = ("compression.",)
LOGGER: Final = "transporter.queue.client"
"""Hears what the Kafka client itself has to say."""


def most_marker_bytes(settings: QueueSettings) -> int:
    """Return the most bytes that one marker may have."""
    return settings.max_message_bytes + _GROWTH // 2


def producer(settings: QueueSettings, **own: object) -> Producer:
    """Return an idempotent producer that tries again for as long as it takes."""
    values = _common(settings) | {
        "acks": "all",
        "enable.idempotence": True,
        "partitioner": "random",  # the key is the queue's name, and a queue has all partitions
        "linger.ms": 5,
        "message.timeout.ms": 0,
        "message.max.bytes": settings.max_message_bytes + _GROWTH,
        "queue.buffering.max.kbytes": 256 * 1024,
    }
    return _made(Producer, settings, values | own)


def transactional(
    settings: QueueSettings, name: str, hear: Callable[[KafkaError], None]
) -> Producer:
    """Return a producer of transactions; an earlier one of the same *name* is fenced off.

    *hear* is told of trouble with the brokers as a whole.

    Raises:
        TransporterError: If the brokers do not let it in.
    """
    milliseconds = int(settings.transaction_timeout * 1000)
    made = producer(
        settings,
        **{
            "transactional.id": name,
            "error_cb": hear,
            # A client that has lost all its connections would forget the brokers, but not who
            # coordinates the group: handing over offsets would then never end (librdkafka
            # issue 5511).
            "metadata.recovery.strategy": "none",
            "transaction.timeout.ms": milliseconds,
            "message.timeout.ms": milliseconds,
            "linger.ms": 0,
            # Right behind a transaction the coordinator is busy with its end for a moment: one
            # in ten takes 130 ms with the default, 40 with this. Where the group's coordinator
            # is away the client may hang then, and is given up: Transactions._send_offsets.
            "retry.backoff.ms": 5,
        },
    )
    try:
        made.init_transactions(settings.timeout)
    except KafkaException as error:
        raise failure(settings, error) from error
    return made


def consumer(settings: QueueSettings, group: str, **own: object) -> Consumer:
    """Return a member of *group* that reads committed records only, and commits by itself never."""
    values = _reading(settings, group) | {
        "session.timeout.ms": int(settings.session_timeout * 1000),
        "heartbeat.interval.ms": max(300, int(settings.session_timeout * 1000) // 15),
    }
    if settings.instance:
        values["group.instance.id"] = settings.instance
    return _made(Consumer, settings, values | own)


def onlooker(settings: QueueSettings, **own: object) -> Consumer:
    """Return a consumer that joins no group: partitions are assigned to it by hand."""
    values = _reading(settings, "transporter-onlooker") | {"enable.partition.eof": True}
    return _made(Consumer, settings, values | own)


def admin(settings: QueueSettings) -> AdminClient:
    """Return a client that makes and describes topics."""
    return _made(AdminClient, settings, _common(settings, producing=False))


def partitions(
    client: Any,  # noqa: ANN401 - any client
    settings: QueueSettings,
    topics: Iterable[str],
    patience: float = _NEW,
) -> list[int]:
    """Return how many partitions each of *topics* has.

    One that was made just now may be unknown to a broker still: it is waited
    for, *patience* seconds at most.

    Raises:
        TopicsMissing: If one does not exist.
        QueueUnavailable: If no broker answers.
    """
    names = list(topics)
    deadline = time.monotonic() + patience
    while True:
        try:
            known = client.list_topics(timeout=settings.timeout).topics
        except KafkaException as error:
            raise translated(_reason(settings) or error.args[0], settings.place) from error
        missing = [name for name in names if name not in known or known[name].error]
        if not missing:
            return [len(known[name].partitions) for name in names]
        if time.monotonic() > deadline:
            raise TopicsMissing(
                f"{settings.bootstrap_servers} has no topic {', '.join(missing)} for us:"
                " create it (transporter queue init does), or check its name and your rights"
            )
        time.sleep(_LOOK)  # nobody could wake us


def _reason(settings: QueueSettings) -> KafkaError | None:
    """Return why brokers do not let us in, where that can be found out; a request only fails."""
    heard: list[KafkaError] = []
    client = _made(Producer, settings, _common(settings) | {"error_cb": heard.append})
    deadline = time.monotonic() + _ASK
    try:
        while not any(map(is_fault, heard)) and time.monotonic() < deadline:
            client.poll(_LOOK)
    finally:
        client.close()
    return next(filter(is_fault, heard), None)


def failure(settings: QueueSettings, error: BaseException, place: str = "") -> TransporterError:
    """Return an exception of the client as what the caller is told."""
    found = kafka_error(error)
    if found is None:
        raise error
    return translated(found, place or settings.place)


def _reading(settings: QueueSettings, group: str) -> dict[str, Any]:
    return _common(settings, producing=False) | {
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "fetch.queue.backoff.ms": 10,
        "fetch.wait.max.ms": _FETCH_WAIT_MS,
        "isolation.level": "read_committed",
    }


def told(settings: QueueSettings, error: BaseException) -> BaseException:
    """Return *error*, or what it means when it is one of the client's."""
    return error if kafka_error(error) is None else failure(settings, error)


def _common(settings: QueueSettings, *, producing: bool = True) -> dict[str, Any]:
    chosen = {
        name: value
        for name, value in settings.client.items()
        if producing or not name.startswith(_PRODUCER_ONLY)
    }
    return {
        "socket.keepalive.enable": True,
        "topic.metadata.refresh.interval.ms": 60_000,
        **trusted(chosen),
        **chosen,
        "bootstrap.servers": settings.bootstrap_servers,
        "logger": ClientLog(LOGGER, partial(without_secrets, settings.client)),
    }


def _made(kind: Callable[..., Any], settings: QueueSettings, values: dict[str, Any]) -> Any:  # noqa: ANN401 - one of the client's classes
    try:
        return kind(values)
    except KafkaException as error:
        text = without_values(settings.client, str(error.args[0].str()))
        raise QueueFault(
            f"{settings.bootstrap_servers}: {text}; check the client settings"
        ) from None

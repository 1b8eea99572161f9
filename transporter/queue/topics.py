"""Makes the topics of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from transporter.queue import clients

if TYPE_CHECKING:
    from transporter.queue.settings import QueueSettings

_MARGIN: Final = 64 * 1024
"""By how much a marker may be larger than its message, and a dead letter."""
_WEEK_MS: Final = 7 * 24 * 3600 * 1000


def make_topics(
    settings: QueueSettings, partitions: int = 4, replication_factor: int = -1
) -> dict[str, bool]:
    """Make the three topics; return for each whether it was made, or else was there already.

    A replication factor of -1 is the brokers' default. What is there already is
    left as it is.

    :raises TransporterError: when the brokers refuse, or do not answer.
    """
    client = clients.admin(settings)
    limit = settings.max_message_bytes + _MARGIN
    queue, markers, dead = settings.topics
    wanted = [
        NewTopic(queue, partitions, replication_factor, config=_config(limit)),
        # Nothing may take a Start that still counts: trackers restate them in time, not in bytes.
        NewTopic(
            markers,
            partitions,
            replication_factor,
            config=_config(limit + _MARGIN)
            | {"retention.ms": str(_WEEK_MS), "retention.bytes": "-1"},
        ),
        NewTopic(dead, partitions, replication_factor, config=_config(limit + _MARGIN)),
    ]
    made = {}
    for name, future in client.create_topics(
        wanted, operation_timeout=settings.timeout, request_timeout=settings.timeout
    ).items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise clients.failure(settings, error, f"topic {name}") from error
            made[name] = False
        else:
            made[name] = True
    clients.partitions(client, settings, made, settings.timeout)  # until the brokers know them
    return made


def _config(limit: int) -> dict[str, str]:
    return {"cleanup.policy": "delete", "max.message.bytes": str(limit)}

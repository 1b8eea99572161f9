"""Creation of a queue's topics, and checks of existing ones."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType

from transporter.queue import clients
from transporter.queue.failures import QueueFault

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka.admin import AdminClient

    from transporter.queue.settings import QueueSettings

_MARGIN: Final = 64 * 1024
"""Bytes by which a marker, or a dead letter, may be larger than its message."""
_DAY_MS: Final = 24 * 3600 * 1000
_MINUTE_MS: Final = 60 * 1000
_LONGEST_ABSENCE_MS: Final = 30 * _DAY_MS
"""Time for which a queue may be without consumers, unless its messages are deleted earlier."""
_UNLIMITED: Final = -1
_ASK: Final = 5.0
_LOGGER: Final = logging.getLogger(__name__)


def make_topics(
    settings: QueueSettings, partitions: int = 4, replication_factor: int = -1
) -> dict[str, bool]:
    """Create the three topics and return for each whether it was created or already existed.

    A replication factor of -1 is the brokers' default. Existing topics are left
    unchanged.

    Raises:
        TransporterError: If the brokers refuse, or do not answer.
    """
    client = clients.admin(settings)
    limit = settings.max_message_bytes + _MARGIN
    queue, markers, dead = settings.topics
    kept = _min_retention_ms(settings, queue)
    wanted = [
        NewTopic(queue, partitions, replication_factor, config=_topic_config(limit, kept)),
        # A Start that still counts must not be deleted. Trackers restate by age, not by size.
        NewTopic(
            markers,
            partitions,
            replication_factor,
            config=_topic_config(limit + _MARGIN, 7 * _DAY_MS),
        ),
        NewTopic(dead, partitions, replication_factor, config=_topic_config(limit + _MARGIN, kept)),
    ]
    made = {}
    for name, future in client.create_topics(
        wanted, operation_timeout=settings.timeout, request_timeout=settings.timeout
    ).items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise clients.kafka_failure(settings, error, f"topic {name}") from error
            made[name] = False
        else:
            made[name] = True
    clients.count_partitions(client, settings, made, settings.timeout)  # Wait for their metadata.
    return made


def partition_counts(settings: QueueSettings, topics: Sequence[str]) -> list[int]:
    """Return the number of partitions of each of *topics*.

    Raises:
        TopicsMissing: If a topic does not exist.
        QueueUnavailable: If no broker answers.
    """
    client = clients.standalone_consumer(settings)
    try:
        return clients.count_partitions(client, settings, topics)
    finally:
        client.close()


def retention_problems(settings: QueueSettings, topics: Sequence[str]) -> list[str]:
    """Return a message for each of *topics* that deletes needed records, with the fix command.

    For the queue topic, it also reports brokers that delete its consumers' offsets too early. It
    is advice, so it raises nothing. A cluster that has just started, for example, may have no
    controller to ask yet, but already serve the topics.
    """
    client = clients.admin(settings)
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    asked = client.describe_configs(resources, request_timeout=settings.timeout)
    problems = []
    for resource in resources:
        name = resource.name
        try:
            found = asked[resource].result()
        except KafkaException as error:
            failure = clients.kafka_failure(settings, error, f"topic {name}")
            is_fault = isinstance(failure, QueueFault)
            action = "grant the right DescribeConfigs" if is_fault else "the next start checks it"
            problems.append(
                f"cannot check whether topic {name} deletes {_topic_content(settings, name)}"
                f" ({error.args[0].str()}): {action}"
            )
        else:
            values = {key: entry.value for key, entry in found.items()}
            problems += _topic_problems(settings, name, values)
            if name == settings.queue_topic:
                problems += _offset_problems(settings, client, values.get("retention.ms"))
    return problems


def _topic_problems(
    settings: QueueSettings, name: str, found: Mapping[str, str | None]
) -> list[str]:
    least = _min_retention_ms(settings, name)
    wrong = {}
    if (found.get("cleanup.policy") or "delete") != "delete":
        wrong["cleanup.policy"] = "delete"
    if _is_less(found.get("retention.ms"), least):
        wrong["retention.ms"] = str(least)
    if _is_less(found.get("retention.bytes"), _UNLIMITED):
        wrong["retention.bytes"] = str(_UNLIMITED)
    if not wrong:
        return []
    is_now = ", ".join(f"{key}={found[key]}" for key in wrong)
    change = ",".join(f"{key}={value}" for key, value in wrong.items())
    problem = (
        f"topic {name} deletes {_topic_content(settings, name)} ({is_now}): run kafka-configs.sh"
        f" --bootstrap-server {settings.bootstrap_servers} --alter --entity-type topics"
        f" --entity-name {name} --add-config {change}{_retention_hint(settings, name)}"
    )
    return [problem]


def _offset_problems(settings: QueueSettings, client: AdminClient, kept: str | None) -> list[str]:
    """Return a message if offsets are deleted too early. *kept* is the topic's ``retention.ms``."""
    limit = _UNLIMITED if kept is None else int(kept)
    least = _LONGEST_ABSENCE_MS if limit == _UNLIMITED else min(limit, _LONGEST_ABSENCE_MS)
    minutes = _offsets_retention(settings, client)
    if minutes is None or minutes * _MINUTE_MS >= least:
        return []
    days = f"{minutes * _MINUTE_MS / _DAY_MS:g} days"
    problem = (
        f"brokers forget where a queue was once it had no consumer for {days}"
        f" (offsets.retention.minutes={minutes}), and all messages in topic {settings.queue_topic}"
        f" come again: set offsets.retention.minutes={math.ceil(least / _MINUTE_MS)} on the"
        f" brokers, or set the queue's retention and the topic's retention.ms to {days} at most"
    )
    return [problem]


def _offsets_retention(settings: QueueSettings, client: AdminClient) -> int | None:
    """Return the minutes after which offsets without consumers are deleted, if a broker tells."""
    try:
        broker = client.list_topics(settings.queue_topic, timeout=_ASK).controller_id
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        asked = client.describe_configs([resource], request_timeout=_ASK)
        found = asked[resource].result().get("offsets.retention.minutes")
    except KafkaException as error:
        # The right to read all settings of the brokers is much for a warning.
        _LOGGER.info("the brokers' offsets.retention.minutes: %s", error.args[0].str())
        return None
    return None if found is None or found.value is None else int(found.value)


def _topic_content(settings: QueueSettings, name: str) -> str:
    kinds = ("waiting messages", "markers of messages in progress", "dead letters")
    return kinds[settings.topics.index(name)]


def _retention_hint(settings: QueueSettings, name: str) -> str:
    return "" if name == settings.markers_topic else ", or set the queue's retention"


def _min_retention_ms(settings: QueueSettings, name: str) -> int:
    """Return the shortest permissible retention of topic *name* in milliseconds."""
    if name == settings.markers_topic:
        return _DAY_MS
    return _UNLIMITED if settings.retention is None else int(settings.retention * 1000)


def _is_less(found: str | None, least: int) -> bool:
    if found is None or int(found) == _UNLIMITED:
        return False
    return least == _UNLIMITED or int(found) < least


def _topic_config(limit: int, kept_ms: int) -> dict[str, str]:
    return {
        "cleanup.policy": "delete",
        "max.message.bytes": str(limit),
        "retention.ms": str(kept_ms),
        "retention.bytes": str(_UNLIMITED),
    }

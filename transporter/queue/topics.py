"""Makes the topics of a queue, and checks those that are there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType

from transporter.queue import clients
from transporter.queue.failures import QueueFault

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transporter.queue.settings import QueueSettings

_MARGIN: Final = 64 * 1024
"""By how much a marker may be larger than its message, and a dead letter."""
_DAY_MS: Final = 24 * 3600 * 1000
_UNLIMITED: Final = -1


def make_topics(
    settings: QueueSettings, partitions: int = 4, replication_factor: int = -1
) -> dict[str, bool]:
    """Make the three topics; return for each whether it was made, or else was there already.

    A replication factor of -1 is the brokers' default. What is there already is
    left as it is.

    Raises:
        TransporterError: If the brokers refuse, or do not answer.
    """
    client = clients.admin(settings)
    limit = settings.max_message_bytes + _MARGIN
    queue, markers, dead = settings.topics
    kept = _least_ms(settings, queue)
    wanted = [
        NewTopic(queue, partitions, replication_factor, config=_config(limit, kept)),
        # Nothing may take a Start that still counts: trackers restate them in time, not in bytes.
        NewTopic(
            markers, partitions, replication_factor, config=_config(limit + _MARGIN, 7 * _DAY_MS)
        ),
        NewTopic(dead, partitions, replication_factor, config=_config(limit + _MARGIN, kept)),
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


def counted(settings: QueueSettings, topics: Sequence[str]) -> list[int]:
    """Return how many partitions each of *topics* has.

    Raises:
        TopicsMissing: If one does not exist.
        QueueUnavailable: If no broker answers.
    """
    looking = clients.onlooker(settings)
    try:
        return clients.partitions(looking, settings, topics)
    finally:
        looking.close()


def retention_problems(settings: QueueSettings, topics: Sequence[str]) -> list[str]:
    """Return how each of *topics* deletes what is still needed, with the command that helps.

    Raises:
        QueueUnavailable: If no broker answers.
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
            failure = clients.failure(settings, error, f"topic {name}")
            if not isinstance(failure, QueueFault):
                raise failure from error
            problems.append(
                f"whether topic {name} deletes {_kept(settings, name)} is not known"
                f" ({error.args[0].str()}): that takes the right DescribeConfigs"
            )
        else:
            values = {key: entry.value for key, entry in found.items()}
            problems += _problems(settings, name, values)
    return problems


def _problems(settings: QueueSettings, name: str, found: Mapping[str, str | None]) -> list[str]:
    least = _least_ms(settings, name)
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
        f"topic {name} deletes {_kept(settings, name)} ({is_now}): run kafka-configs.sh"
        f" --bootstrap-server {settings.bootstrap_servers} --alter --entity-type topics"
        f" --entity-name {name} --add-config {change}{_otherwise(settings, name)}"
    )
    return [problem]


def _kept(settings: QueueSettings, name: str) -> str:
    kinds = ("messages that wait", "what is known of messages in progress", "dead letters")
    return kinds[settings.topics.index(name)]


def _otherwise(settings: QueueSettings, name: str) -> str:
    return "" if name == settings.markers_topic else ", or set the queue's retention"


def _least_ms(settings: QueueSettings, name: str) -> int:
    """Return how long topic *name* has to keep its records."""
    if name == settings.markers_topic:
        return _DAY_MS
    return _UNLIMITED if settings.retention is None else int(settings.retention * 1000)


def _is_less(found: str | None, least: int) -> bool:
    if found is None or int(found) == _UNLIMITED:
        return False
    return least == _UNLIMITED or int(found) < least


def _config(limit: int, kept_ms: int) -> dict[str, str]:
    return {
        "cleanup.policy": "delete",
        "max.message.bytes": str(limit),
        "retention.ms": str(kept_ms),
        "retention.bytes": str(_UNLIMITED),
    }

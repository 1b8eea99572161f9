"""Checks of topics and groups before anything is read or written."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Literal

from confluent_kafka import KafkaException
from confluent_kafka.admin import AclOperation

from transporter.adaptor import Finding
from transporter.kafka.groups import committed_offsets
from transporter_adaptors.kafka.cluster import REQUEST_SECONDS, Cluster, translate_refusal
from transporter_adaptors.kafka.consumer import make_consumer
from transporter_adaptors.kafka.failures import source_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from confluent_kafka import TopicPartition

    from transporter_adaptors.kafka.config import (
        KafkaConnection,
        KafkaReaderConfig,
        KafkaWriterConfig,
    )


def probe_reader(config: KafkaReaderConfig) -> Iterator[Finding]:
    """Yield findings about the topics and the group that *config* names."""
    cluster = Cluster(config, _place(config))
    names = (
        list(config.topics) if config.pattern is None else cluster.matching_topics(config.pattern)
    )
    yield Finding(f"{_place(config)} answers")
    if not names:
        text = f"no topic matches {config.pattern} yet; topics that are created later are read"
        yield Finding(text, "warning")
    yield from _check_topics(cluster, names, AclOperation.READ, "create it, or correct `topics`")
    yield _check_group(config, cluster.partitions(names))


def _topics(count: int) -> str:
    return f"{count} topic{'' if count == 1 else 's'}"


def probe_writer(config: KafkaWriterConfig) -> Iterator[Finding]:
    """Yield findings about the topics that *config* names."""
    # The setting is for idempotent producers only, which need a right before anything else.
    cluster = Cluster(config, _place(config), **{"enable.gapless.guarantee": False})
    there = cluster.matching_topics("^")
    yield Finding(f"{_place(config)} answers, and lists {_topics(len(there))}")
    names = sorted({name for name in (config.fixed_topic, config.progress_place) if name})
    advice = "it is created with the first entry" if config.create_topics else "create it"
    yield from _check_topics(
        cluster,
        names,
        AclOperation.WRITE,
        advice,
        missing="warning" if config.create_topics else "problem",
    )
    if config.fixed_topic is None:
        text = f"topics {config.topic}: checked when entries arrive, not now"
        if not config.create_topics:
            text += "; without create_topics an entry fails whose topic is missing"
        yield Finding(text)


def _check_group(config: KafkaReaderConfig, places: list[TopicPartition]) -> Finding:
    """Look up the group's commits without joining the group."""
    with translate_refusal(config, _place(config)):
        consumer = make_consumer(config, _ignore, _ignore)
    try:
        found = committed_offsets(consumer, places, monotonic() + REQUEST_SECONDS) if places else []
    except KafkaException as error:
        raise source_error(error.args[0], f"{_place(config)}, group {config.group}") from error
    finally:
        consumer.close()
    begun = sum(each.offset >= 0 for each in found)
    if not begun:
        return Finding(f"group {config.group}: new, and starts at {config.start}")
    return Finding(
        f"group {config.group}: has committed offsets for {begun} of {len(found)} partitions"
    )


def _ignore(*_: object) -> None:
    """Ignore callbacks, because every relevant error is raised."""


def _check_topics(
    cluster: Cluster,
    names: Iterable[str],
    right: AclOperation,
    advice: str,
    *,
    missing: Literal["warning", "problem"] = "problem",
) -> Iterator[Finding]:
    found = cluster.describe_with_rights(names)
    for name in names:
        topic = found.get(name)
        if topic is None:
            yield Finding(f"topic {name} does not exist: {advice}", missing)
        elif _lacks_right(topic, right):
            yield Finding(f"topic {name}: this user lacks the right {right.name} on it", "problem")
        else:
            copies = min((len(each.replicas) for each in topic.partitions), default=0)
            count = len(topic.partitions)
            parts = "1 partition" if count == 1 else f"{count} partitions"
            yield Finding(f"topic {name}: {parts}, {copies} {'copy' if copies == 1 else 'copies'}")


def _lacks_right(described: object, right: AclOperation) -> bool:
    """Return whether the brokers list our rights and *right* is missing."""
    rights = getattr(described, "authorized_operations", None)
    return rights is not None and not {right, AclOperation.ALL} & set(rights)


def _place(config: KafkaConnection) -> str:
    return f"Kafka at {config.bootstrap_servers}"

"""The consumer that a reader uses, and conversions between its partitions and our places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from transporter.kafka.clients import ClientLog
from transporter_adaptors.kafka.partition import Committed, GroupMark
from transporter_adaptors.kafka.position import KafkaOffset

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message as Record

    from transporter_adaptors.kafka.config import KafkaReaderConfig
    from transporter_adaptors.kafka.partition import AssignedPartition


def make_consumer(
    config: KafkaReaderConfig, on_error: Callable[..., None], on_commit: Callable[..., None]
) -> Any:  # noqa: ANN401 - the library has no types
    """Return a consumer that reports errors to *on_error* and results of commits to *on_commit*."""
    return Consumer(
        {
            "fetch.queue.backoff.ms": 10,  # 4 times as fast as the default of a second
            "log_level": 2,
            "queued.max.messages.kbytes": 32 * 1024,  # Invariant 17: the client's own queue
            # A killed engine is replaced this soon. The client's own threads send heartbeats.
            "session.timeout.ms": 10_000,
            "socket.timeout.ms": 15_000,
            "topic.metadata.refresh.interval.ms": 30_000,
            **config.client,
            **config.security_settings,
            "bootstrap.servers": config.bootstrap_servers,
            "group.id": config.group,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,  # Invariant 1
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": config.isolation,
            "partition.assignment.strategy": "cooperative-sticky",
            "error_cb": on_error,
            "on_commit": on_commit,
            "logger": ClientLog(f"{__name__}.client", config.redact_secrets),
        }
    )


def place_behind(record: Record) -> KafkaOffset:
    """Return the place behind *record*."""
    epoch = record.leader_epoch()
    return KafkaOffset(record.offset() + 1, -1 if epoch is None else epoch)


def partition_of(
    held: AssignedPartition, place: KafkaOffset | None = None, metadata: str = ""
) -> TopicPartition:
    """Return *held* as the client's partition, at *place* or at its beginning."""
    where = KafkaOffset(OFFSET_BEGINNING) if place is None else place
    return TopicPartition(held.topic, held.partition, where.next, metadata, where.epoch)


def committed_of(found: TopicPartition) -> Committed | None:
    """Return the group's commit for a partition, or ``None`` when there is none."""
    if found.offset < 0:
        return None
    epoch = -1 if found.leader_epoch is None else found.leader_epoch
    return Committed(KafkaOffset(found.offset, epoch), GroupMark.parse(found.metadata))

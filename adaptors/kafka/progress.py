"""What a consumer group keeps of how far a shard of a route has come."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition

from transporter.adaptor import StoredOffset
from transporter.kafka_groups import AT_ONCE, BLOCKED, NOWHERE, committed_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

    from adaptors.kafka.client import Client

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a shard has come; ``mark`` names the transaction that said so."""

    stored: StoredOffset
    mark: str

    def encode(self) -> str:
        """Return the metadata to keep beside the committed offset."""
        return json.dumps({"v": 1, "mark": self.mark, **asdict(self.stored)})

    @classmethod
    def decode(cls, text: str | None) -> Self | None:
        """Return what *text* says; ``None`` when it was not written by :meth:`encode`."""
        try:
            parts = json.loads(text or "")
            if parts.pop("v") != 1:
                return None
            return cls(mark=parts.pop("mark"), stored=StoredOffset(**parts))
        except (ValueError, TypeError, LookupError, AttributeError):
            return None

    def place(self, topic: str) -> TopicPartition:
        """Return what to commit: our offset as the group's, with all of it as metadata."""
        return TopicPartition(topic, 0, max(0, self.stored.offset), self.encode())


class Groups:
    """Reads what consumer groups keep for partition 0 of one topic. Not thread-safe."""

    def __init__(self, client: Client, topic: str) -> None:
        """Connect to nothing yet."""
        self._client, self._topic = client, topic

    def read(self, group: str, ends: float, *, stable: bool) -> Progress | None:
        """Return what *group* keeps, waiting until the monotonic time *ends* at most.

        *stable* waits for the end of a transaction that is being written;
        without it the answer is what was committed before.

        :raises KafkaException: when the brokers do not answer in time, or refuse.
        :raises RouteFault: when the client does not take the settings.
        """
        level = "read_committed" if stable else "read_uncommitted"
        settings = {
            **self._client.connection(),
            "group.id": group,
            "isolation.level": level,
            "logger": logging.getLogger(__name__),
        }
        consumer = self._client.built(Consumer, settings)
        try:
            (found,) = committed_offsets(consumer, [TopicPartition(self._topic, 0)], ends)
        finally:
            consumer.close()
        return Progress.decode(found.metadata)

    def settled(
        self, group: str, ends: float, commit: Callable[[TopicPartition], None]
    ) -> Progress | None:
        """Return what *group* keeps, when no transaction of its can be under way any more.

        While a partition has no leader, as after a crash of its only broker, Kafka (4.3)
        takes it for deleted and never tells it that a transaction has ended: what was
        committed for the group is held back for ever. The end of the next transaction ends
        that one, too. So *commit* then commits, for the group, a place that means nothing.

        :raises KafkaException: as :meth:`read`, and what *commit* raises.
        """
        try:
            return self.read(group, min(ends, time.monotonic() + AT_ONCE), stable=True)
        except KafkaException as error:
            if error.args[0].code() not in BLOCKED:
                raise
        self.read(group, ends, stable=False)  # Brokers that are away are told here.
        _LOG.warning("group %s: the brokers lost the end of a transaction; it is ended now", group)
        commit(NOWHERE)
        return self.read(group, ends, stable=True)

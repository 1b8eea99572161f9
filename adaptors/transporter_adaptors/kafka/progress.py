"""The progress of a route's shard, as a consumer group stores it."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition

from transporter.adaptor import StoredOffset
from transporter.kafka.groups import AT_ONCE, BLOCKED, NOWHERE, committed_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter_adaptors.kafka.client import ProducerFactory

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The progress of a shard. ``mark`` names the transaction that committed it."""

    stored: StoredOffset
    mark: str

    def encode(self) -> str:
        """Return the metadata to commit beside the offset."""
        return json.dumps({"v": 1, "mark": self.mark, **asdict(self.stored)})

    @classmethod
    def decode(cls, text: str | None) -> Self | None:
        """Parse *text*, or return ``None`` when it was not written by :meth:`encode`."""
        try:
            parts = json.loads(text or "")
            if parts.pop("v") != 1:
                return None
            return cls(mark=parts.pop("mark"), stored=StoredOffset(**parts))
        except (ValueError, TypeError, LookupError, AttributeError):
            return None

    def place(self, topic: str) -> TopicPartition:
        """Return the commit: our offset as the group's, with all of it as metadata."""
        return TopicPartition(topic, 0, max(0, self.stored.offset), self.encode())


class Groups:
    """Reader of consumer groups' commits for partition 0 of one topic. Not thread-safe."""

    def __init__(self, client: ProducerFactory, topic: str) -> None:
        """Connect to nothing yet."""
        self._client, self._topic = client, topic

    def read(self, group: str, ends: float, *, stable: bool) -> GroupProgress | None:
        """Return the progress that *group* stores.

        Args:
            group: The consumer group.
            ends: The monotonic time until which to wait at most.
            stable: Whether to wait for the end of a transaction that is under way. Without it
                the previous commit is returned.

        Raises:
            KafkaException: The brokers do not answer in time, or refuse.
            RouteFault: The client does not accept the settings.
        """
        level = "read_committed" if stable else "read_uncommitted"
        settings = {
            **self._client.connection_settings(),
            "group.id": group,
            "isolation.level": level,
        }
        consumer = self._client.build_client(Consumer, settings)
        try:
            (found,) = committed_offsets(consumer, [TopicPartition(self._topic, 0)], ends)
        finally:
            consumer.close()
        return GroupProgress.decode(found.metadata)

    def read_settled(
        self, group: str, ends: float, commit: Callable[[TopicPartition], None]
    ) -> GroupProgress | None:
        """Return the progress that *group* stores, once no transaction of it is under way.

        While a partition has no leader, as after a crash of its only broker, Kafka (4.3)
        treats it as deleted and never reports a transaction's end to it. Then the group's commit
        is blocked for ever. The end of the next transaction ends that one, too. So *commit*
        then commits, for the group, a place without meaning.

        Raises:
            KafkaException: As :meth:`read`, and whatever *commit* raises.
        """
        try:
            return self.read(group, min(ends, time.monotonic() + AT_ONCE), stable=True)
        except KafkaException as error:
            if error.args[0].code() not in BLOCKED:
                raise
        self.read(group, ends, stable=False)  # This raises if the brokers are away.
        _LOG.warning("group %s: the brokers lost the end of a transaction; it is ended now", group)
        commit(NOWHERE)
        return self.read(group, ends, stable=True)

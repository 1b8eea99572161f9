"""Lookup of topics, and creation of missing ones where the settings permit it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from transporter_adaptors.kafka.client import ProducerFactory
    from transporter_adaptors.kafka.config import CreateTopics

_BROKERS_DEFAULT: Final = -1
_SHARE: Final = 4
"""A lookup may take this part of a slice's deadline."""


class Topics:
    """Topics that are looked up before anything is sent to them. Not thread-safe.

    By default brokers create each topic that a client names. So the clients here
    forbid it, and a mistyped topic is found missing.
    """

    def __init__(self, client: ProducerFactory, *, create: CreateTopics | None) -> None:
        """Connect to nothing yet. *create* has the settings of topics that are created."""
        self._client, self._create = client, create
        self._seconds = client.seconds / _SHARE
        self._admin: Any = None
        self._existing: set[str] = set()
        self._refusals: dict[str, KafkaError] = {}

    def exists(self, topic: str) -> bool:
        """Return whether *topic* exists, or true if the lookup fails, because sending decides then.

        :meth:`refusal` returns the reason why it could not be created.
        """
        if topic in self._existing:
            return True
        try:
            found = self._lookup(topic)
        except KafkaException:
            return True
        if not found and (self._create is None or not self._create_topic(topic, self._create)):
            return False
        self._existing.add(topic)
        return True

    def refusal(self, topic: str) -> KafkaError | None:
        """Return the reason why *topic* could not be created at the last lookup."""
        return self._refusals.get(topic)

    def invalidate(self) -> None:
        """Look each topic up again, because a delivery has failed."""
        self._existing.clear()

    def _lookup(self, topic: str) -> bool:
        if self._admin is None:
            # Some client settings need idempotence, because an AdminClient is a producer to it.
            settings = self._client.connection_settings() | {"enable.idempotence": True}
            self._admin = self._client.build_client(AdminClient, settings)
        found = self._admin.list_topics(topic, timeout=self._seconds).topics[topic]
        if found.error is None:
            return True
        if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return False
        raise KafkaException(found.error)

    def _create_topic(self, topic: str, create: CreateTopics) -> bool:
        """Create *topic*, and return whether it exists, also if another client has created it."""
        self._refusals.pop(topic, None)
        new = NewTopic(
            topic,
            create.partitions or _BROKERS_DEFAULT,
            create.replication or _BROKERS_DEFAULT,
            config=create.settings,
        )
        (future,) = self._admin.create_topics(
            [new], operation_timeout=self._seconds, request_timeout=self._seconds
        ).values()
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                self._refusals[topic] = error.args[0]
                return False
        return True

"""Which topics there are; those that are missing are created where that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from adaptors.kafka.client import Client

_SHARE: Final = 4
"""A look may take this part of a slice's deadline."""


class Topics:
    """Looks topics up before anything is sent to them. Not thread-safe.

    Brokers create each topic that a client names, unless told otherwise. So the clients here
    ask for none to be created, and a mistyped one is found missing.
    """

    def __init__(self, client: Client, *, create: bool) -> None:
        """Connect to nothing yet; *create* those that are missing."""
        self._client, self._create = client, create
        self._seconds = client.seconds / _SHARE
        self._admin: Any = None
        self._there: set[str] = set()

    def has(self, topic: str) -> bool:
        """Return whether *topic* is there, also if that cannot be found out: then sending will."""
        if topic not in self._there:
            try:
                if not self._found(topic) and not (self._create and self._made(topic)):
                    return False
            except KafkaException:
                return True
            self._there.add(topic)
        return True

    def forget(self) -> None:
        """Look each topic up again: something has failed."""
        self._there.clear()

    def _found(self, topic: str) -> bool:
        if self._admin is None:
            # The client's settings may be some that need it: an AdminClient is a producer to it.
            settings = self._client.connection() | {"enable.idempotence": True}
            self._admin = self._client.built(AdminClient, settings)
        found = self._admin.list_topics(topic, timeout=self._seconds).topics[topic]
        if found.error is None:
            return True
        if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return False
        raise KafkaException(found.error)

    def _made(self, topic: str) -> bool:
        """Create *topic* with the broker's defaults; one that somebody else makes will do."""
        (future,) = self._admin.create_topics(
            [NewTopic(topic)], operation_timeout=self._seconds, request_timeout=self._seconds
        ).values()
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        return True

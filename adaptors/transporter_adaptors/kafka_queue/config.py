"""Settings of the ``kafka-queue`` reader and writer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Final, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from transporter.adaptor import Duration, Size  # noqa: TC001 - pydantic reads annotations
from transporter.errors import ConfigError
from transporter.message import JSON
from transporter.queue import QueueSettings, settings_of
from transporter.queue.settings import Topic, check_client_settings, check_queue_name
from transporter_adaptors.kafka.config import KafkaConnection
from transporter_adaptors.templates import fields_of

if TYPE_CHECKING:
    from transporter.kafka.clients import Value

_QUIET: Final[dict[str, Value]] = {"log_level": 2}
"""In an outage the client logs dozens of lines a second. Relevant problems come as errors."""
_MOST_IN_FLIGHT: Final = 1_000_000
"""The engine's ``max_in_flight`` is reached first, unless it is larger."""


def _check_queue(name: str) -> str:
    try:
        return check_queue_name(name)
    except ConfigError as error:
        raise ValueError(str(error)) from None


class KafkaQueueConnection(KafkaConnection):
    """Brokers, TLS and SASL, and the settings that all users of the queue's topics must share."""

    queue_topic: Topic = "queue"
    """Topic of the messages of all queues."""

    max_message_bytes: Annotated[Size, Field(ge=1000, le=1_000_000_000)] = 1_000_000
    """Largest value and headers of a message. Keep it below the topics' ``max.message.bytes``."""

    @field_validator("client")
    @classmethod
    def _check_client(cls, client: dict[str, Value]) -> dict[str, Value]:
        return check_client_settings(client)

    def _settings(self, **more: object) -> QueueSettings:
        return settings_of(
            bootstrap_servers=self.bootstrap_servers,
            queue_topic=self.queue_topic,
            max_message_bytes=self.max_message_bytes,
            client={**_QUIET, **self.client, **self.security_settings},
            **more,
        )


class KafkaQueueReaderConfig(KafkaQueueConnection):
    """The queue to read, and the namespace of its messages."""

    queue: Annotated[str, AfterValidator(_check_queue)]
    """The queue. Engines that read the same one share its messages."""

    markers_topic: Topic = "queue-markers"
    """Topic of the markers that consumers send to trackers."""

    namespace: Annotated[str, Field(min_length=1)] = "{queue}"
    """Namespace of the messages. ``{queue}`` stands for the queue."""

    content_type: Annotated[str, Field(min_length=1)] | None = JSON
    """Content type of the values, or ``null`` if unknown. The values are not parsed."""

    batch_rows: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Maximum messages of one batch. So many may be begun ahead of the log."""

    batch_bytes: Annotated[Size, Field(ge=1, le=256 * 1024**2)] = 8 * 1024**2
    """Bytes of values after which a batch is complete. The last message may exceed it."""

    redeliver_after: Annotated[Duration, Field(ge=0.001)] = 30.0
    """A message is redelivered, here or elsewhere, when its engine has been silent for so long.
    A living engine sends heartbeats for all messages that it has not delivered."""

    leave_after: Annotated[Duration, Field(ge=0.001)] = 60.0
    """An engine that has taken no message for so long, because ``max_in_flight`` is reached or the
    log is full, leaves its share of the queue to the others until it goes on."""

    transactional: bool = False
    """Begin messages in transactions: a killed engine repeats no message that it had not
    logged yet, at fewer messages a second."""

    instance: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{0,100}$")] = ""
    """A name of this engine that survives restarts, unique among those of the queue. It then
    continues at once with its share, which no other engine reads until ``session_timeout``."""

    session_timeout: Annotated[Duration, Field(ge=1)] = 45.0
    """An engine that has been silent to the brokers for so long loses its share of the queue."""

    retention: Annotated[Duration, Field(ge=1)] | None = None
    """Age above which the topic may delete messages, even waiting ones. ``null``: none. The event
    ``queue-deletes`` reports a topic that deletes earlier."""

    timeout: Annotated[Duration, Field(ge=0.001)] = 10.0
    """Longest wait for the brokers at open and close."""

    @field_validator("namespace")
    @classmethod
    def _check_namespace(cls, namespace: str) -> str:
        if fields_of(namespace) - {"queue"}:
            raise ValueError("a namespace may hold the field {queue} and no other")
        return namespace

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        try:
            _ = self.settings
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def needs_delivery(self) -> bool:
        """Whether messages stay until delivery: other engines cannot read this one's log."""
        return True

    @property
    def settings(self) -> QueueSettings:
        """The settings for the queue library."""
        return self._settings(
            markers_topic=self.markers_topic,
            redeliver_after=self.redeliver_after,
            hold=math.inf,  # An entry may be parked for days, and its message stays ours.
            in_flight=_MOST_IN_FLIGHT,
            ahead=self.batch_rows,
            leave_after=self.leave_after,
            transactional=self.transactional,
            instance=self.instance,
            session_timeout=self.session_timeout,
            retention=self.retention,
            timeout=self.timeout,
        )


class KafkaQueueWriterConfig(KafkaQueueConnection):
    """The queue that entries are sent to."""

    queue: Annotated[str, Field(min_length=1)] = "{namespace}"
    """The queue. ``{namespace}`` stands for the entry's namespace."""

    @field_validator("queue")
    @classmethod
    def _check_queue_fields(cls, queue: str) -> str:
        if fields_of(queue) - {"namespace"}:
            raise ValueError("a queue may hold the field {namespace} and no other")
        _check_queue(queue.format(namespace="n"))
        return queue

    def settings(self, deadline: float) -> QueueSettings:
        """Return the settings for the queue library when a slice may take *deadline* seconds."""
        return self._settings(timeout=deadline)

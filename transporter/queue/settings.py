"""Settings of a queue, shared by its producers, consumers and trackers."""

from __future__ import annotations

import re
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from transporter.errors import ConfigError
from transporter.kafka.clients import Value
from transporter.units import Duration, Size

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_CLIENT: Final = re.compile(
    r"(security|sasl|ssl|https|socket|reconnect|retry|metadata|topic\.metadata|broker|client|log)\..+"
    r"|enable\.(sasl|ssl)\..+|compression\.(type|codec|level)|statistics\.interval\.ms|debug|log_level"
)
_LARGEST_SHARE: Final = 1_000_000_000
_SHORTEST_SESSION: Final = 1.0

Topic = Annotated[str, Field(pattern=_NAME.pattern.join("^$"))]
Positive = Annotated[Duration, Field(ge=0.001)]


class QueueSettings(BaseModel):
    """Location and behavior of a queue.

    Durations are seconds in code, and texts such as ``30s`` in a file. All
    programs that share the topics should share the settings, too.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    bootstrap_servers: Annotated[str, Field(min_length=1)]
    """Brokers to start from: ``host:port``, comma-separated."""

    queue_topic: Topic = "queue"
    """Topic of the messages of all queues."""

    markers_topic: Topic = "queue-markers"
    """Topic of the markers that consumers write for trackers."""

    dead_letter_topic: Topic = "queue-dead-letters"
    """Topic of messages that were redelivered too often."""

    redeliver_after: Positive = 30.0
    """Seconds without a sign of life after which a message is redelivered."""

    hold: Annotated[Duration, Field(ge=0)] = 3600.0
    """Seconds for which a consumer keeps each of its messages alive; 0: never."""

    max_redeliveries: Annotated[int, Field(ge=0)] | None = 3
    """Redeliveries of a message before it is dead-lettered; none: no limit."""

    in_flight: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Maximum number of messages that one consumer has begun and not settled."""

    ahead: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Maximum number of those that wait for the program to receive them; none: all."""

    leave_after: Positive = 60.0
    """Seconds without a receive after which a consumer leaves its partitions to others."""

    transactional: bool = False
    """Start and commit in one transaction: a killed consumer repeats nothing."""

    instance: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{0,100}$")] = ""
    """A name of this process that survives restarts, unique in its group."""

    session_timeout: Annotated[Duration, Field(ge=_SHORTEST_SESSION)] = 45.0
    """Seconds without a heartbeat after which a process loses its partitions."""

    transaction_timeout: Annotated[Duration, Field(ge=1)] = 10.0
    """Seconds after which the brokers abort a transaction."""

    restate_after: Positive = 3600.0
    """Age at which a tracker writes a Start again; far below the markers topic's retention."""

    commit_interval: Positive = 1.0
    """Seconds between two commits of a tracker."""

    retention: Annotated[Duration, Field(ge=1)] | None = None
    """Seconds for which topics keep messages and dead letters, waiting or settled;
    none: for ever."""

    timeout: Positive = 30.0
    """Seconds for which sending, opening and closing may wait for the brokers."""

    max_message_bytes: Annotated[Size, Field(ge=1000, le=_LARGEST_SHARE)] = 1_000_000
    """Largest value and headers of a message; below the topics' ``max.message.bytes``."""

    client: dict[str, Value] = Field(default_factory=dict, repr=False)
    """Further librdkafka settings: ``security.*``, ``sasl.*``, ``ssl.*``, ``compression.type`` …"""

    @field_validator("client")
    @classmethod
    def _check_client(cls, client: dict[str, Value]) -> dict[str, Value]:
        return check_client_settings(client)

    @model_validator(mode="after")
    def _check_topics(self) -> Self:
        if len({self.queue_topic, self.markers_topic, self.dead_letter_topic}) < len(self.topics):
            raise ValueError("queue_topic, markers_topic and dead_letter_topic must differ")
        return self

    @property
    def topics(self) -> tuple[str, str, str]:
        """All topics."""
        return self.queue_topic, self.markers_topic, self.dead_letter_topic

    @property
    def place(self) -> str:
        """Location of the queue, for error messages."""
        return f"queue topic {self.queue_topic} at {self.bootstrap_servers}"

    @property
    def tracker_group(self) -> str:
        """Consumer group of the trackers. No queue has it, because topic names have no slash."""
        return f"{self.markers_topic}//tracker"

    def consumer_group(self, queue: str) -> str:
        """Return the consumer group of *queue*."""
        return f"{self.queue_topic}/{queue}"


def settings_of(**values: object) -> QueueSettings:
    """Return settings from *values*, or raise a :class:`ConfigError` naming the wrong one."""
    try:
        return QueueSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(map(str, first["loc"])) or "the queue's settings"
        reason = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{name}: {reason}") from None


def check_client_settings(client: dict[str, Value]) -> dict[str, Value]:
    """Return *client*, or raise :class:`ValueError` if a guarantee needs one of its settings."""
    if unsafe := sorted(name for name in client if not _CLIENT.fullmatch(name)):
        raise ValueError(
            f"may not contain {', '.join(unsafe)}: allowed are security.*, sasl.*, ssl.*, https.*,"
            " socket.*, client.*, broker.*, reconnect.*, retry.*, metadata.* and compression.*"
        )
    return client


def check_queue_name(name: str) -> str:
    """Return *name* if it is a valid queue name, or raise :class:`ConfigError` otherwise."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a queue name; use 1 to 249 letters, digits, '.', '_' and '-'"
        )
    return name

"""Settings of the Kafka writer."""

from __future__ import annotations

import re
from string import Formatter
from typing import Annotated, Final

from pydantic import Field, field_validator

from transporter.adaptor import AdaptorConfig, Size

OWNED: Final = {
    "acks": "every message waits for all in-sync replicas",
    "bootstrap.servers": "use bootstrap_servers",
    "delivery.report.only.error": "the writer relies on it",
    "delivery.timeout.ms": "the slice's deadline rules",
    "dr_cb": "the writer has its own",
    "enable.idempotence": "retries would reorder and repeat messages",
    "error_cb": "the writer has its own",
    "logger": "the writer has its own",
    "message.max.bytes": "use max_message_bytes",
    "message.timeout.ms": "the slice's deadline rules",
    "metadata.broker.list": "use bootstrap_servers",
    "on_delivery": "the writer has its own",
    "request.required.acks": "every message waits for all in-sync replicas",
    "transactional.id": "the writer does not use transactions",
}
"""librdkafka settings that the writer's promises rest on, and why each is refused."""

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class KafkaWriterConfig(AdaptorConfig):
    """Where the messages go, and how the client gets there."""

    bootstrap_servers: Annotated[str, Field(min_length=1)]
    """Brokers to start from: ``host:port``, comma-separated."""

    topic: Annotated[str, Field(min_length=1)] = "{namespace}"
    """The topic; ``{namespace}`` stands for the entry's namespace."""

    max_message_bytes: Annotated[Size, Field(ge=1000, le=1_000_000_000)] = 16 * 1024**2
    """Largest message the client sends. The default leaves it to the topic's own limit."""

    client: dict[str, str | int | float | bool] = Field(default_factory=dict, repr=False)
    """Further librdkafka settings, such as ``security.protocol`` or ``compression.type``."""

    @field_validator("topic")
    @classmethod
    def _only_known_fields(cls, topic: str) -> str:
        fields = [parts[1:] for parts in Formatter().parse(topic) if parts[1] is not None]
        if any(field != ("namespace", "", None) for field in fields):
            raise ValueError("a topic may hold the field {namespace} and no other")
        if not is_topic(topic.format(namespace="n")):
            raise ValueError("a topic has letters, digits, '.', '_' and '-' besides {namespace}")
        return topic

    @field_validator("client")
    @classmethod
    def _nothing_owned(
        cls, client: dict[str, str | int | float | bool]
    ) -> dict[str, str | int | float | bool]:
        if owned := sorted(client.keys() & OWNED.keys()):
            reasons = "; ".join(f"{name}: {OWNED[name]}" for name in owned)
            raise ValueError(f"the writer sets these itself: {reasons}")
        return client

    @property
    def fixed_topic(self) -> str | None:
        """The topic, when it is the same for every entry."""
        return None if "{" in self.topic else self.topic


def is_topic(name: str) -> bool:
    """Tell whether Kafka allows *name* as the name of a topic."""
    return _TOPIC.fullmatch(name) is not None and name not in {".", ".."}

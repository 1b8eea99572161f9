"""Settings of the Kafka reader and the Kafka writer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

import pyarrow as pa
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from transporter.adaptor import AdaptorConfig, Duration, LocalPath, Size
from transporter.kafka.clients import (
    Value,
    redact_secrets,
    redact_values,
    trust_defaults,
    uses_oidc_provider,
)
from transporter.message import JSON
from transporter_adaptors.templates import fields_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OWNED: Final = {
    "acks": "every message waits for all in-sync replicas",
    "allow.auto.create.topics": "use create_topics",
    "bootstrap.servers": "use bootstrap_servers",
    "delivery.report.only.error": "the writer relies on it",
    "delivery.timeout.ms": "the slice's deadline applies",
    "dr_cb": "the writer has its own",
    "enable.idempotence": "retries would reorder and repeat messages",
    "error_cb": "the writer has its own",
    "logger": "the writer has its own",
    "message.max.bytes": "use max_message_bytes",
    "message.timeout.ms": "the slice's deadline applies",
    "metadata.broker.list": "use bootstrap_servers",
    "on_delivery": "the writer has its own",
    "request.required.acks": "every message waits for all in-sync replicas",
    "transactional.id": "use transactional",
}
"""librdkafka settings that the writer's promises rest on, with the reason for refusing each."""

READER_OWNED: Final = {
    "auto.commit.enable": "only what is durable in the log is committed",
    "auto.commit.interval.ms": "use commit_interval",
    "auto.offset.reset": "use start and on_out_of_range",
    "bootstrap.servers": "use bootstrap_servers",
    "enable.auto.commit": "only what is durable in the log is committed",
    "enable.auto.offset.store": "only what is durable in the log is committed",
    "enable.partition.eof": "the reader relies on it",
    "error_cb": "the reader has its own",
    "group.id": "use group",
    "group.protocol": "the reader uses the protocol that all brokers support",
    "isolation.level": "use isolation",
    "logger": "the reader has its own",
    "metadata.broker.list": "use bootstrap_servers",
    "on_commit": "the reader has its own",
    "partition.assignment.strategy": "the reader relies on cooperative-sticky",
    "topic.blacklist": "use pattern",
}
"""librdkafka settings that the reader's promises rest on, with the reason for refusing each."""

ENTRY_ID: Final = "transporter-entry-id"
SOURCE_ID: Final = "transporter-source-id"
"""Headers that ``id_headers`` adds."""

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")

_NAMES: Final = {
    "security_protocol": "security.protocol",
    "sasl_mechanism": "sasl.mechanism",
    "username": "sasl.username",
    "password": "sasl.password",
    "ssl_ca": "ssl.ca.location",
    "ssl_certificate": "ssl.certificate.location",
    "ssl_key": "ssl.key.location",
    "ssl_key_password": "ssl.key.password",
}
"""Our settings, with librdkafka's names."""

_SWITCH: Final = TypeAdapter(bool)

_ALIASES: Final = {"sasl.mechanisms": "sasl.mechanism"}


class KafkaConnection(AdaptorConfig):
    """Brokers, TLS and SASL. All other settings of the client go into ``client``."""

    bootstrap_servers: Annotated[str, Field(min_length=1)]
    """Brokers to start from: ``host:port``, comma-separated."""

    security_protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] | None = None
    """Protocol to the brokers. By default ``plaintext``, or the protocol in ``client``."""

    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = None
    """Proof of user name and password, or ``OAUTHBEARER`` for a token in their place. Needs a
    ``security_protocol`` with SASL."""

    username: Annotated[str, Field(min_length=1)] | None = None
    """User name for SASL."""

    password: Annotated[SecretStr, Field(min_length=1)] | None = None
    """Password for SASL."""

    ssl_ca: LocalPath | None = None
    """PEM file of the authorities that sign the brokers' certificates. By default the system's
    own."""

    ssl_certificate: LocalPath | None = None
    """PEM file with the client's certificate."""

    ssl_key: LocalPath | None = None
    """PEM file with the private key of ``ssl_certificate``."""

    ssl_key_password: Annotated[SecretStr, Field(min_length=1)] | None = None
    """Password of ``ssl_key``."""

    client: dict[str, Value] = Field(default_factory=dict, repr=False)
    """Further librdkafka settings, such as ``socket.timeout.ms`` or ``client.id``."""

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        protocol = self.security_protocol
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password go together")
        if self.username is not None and self.sasl_mechanism is None:
            raise ValueError("username and password need sasl_mechanism")
        if self.sasl_mechanism and protocol not in {"sasl_plaintext", "sasl_ssl"}:
            raise ValueError("sasl_mechanism needs security_protocol sasl_ssl or sasl_plaintext")
        if self.sasl_mechanism == "OAUTHBEARER" and self.username is not None:
            raise ValueError(
                "OAUTHBEARER has no username and password; set sasl.oauthbearer.* in client"
            )
        if (self.ssl_certificate is None) != (self.ssl_key is None):
            raise ValueError("ssl_certificate and ssl_key go together")
        if (self.ssl_ca or self.ssl_key) and protocol not in {"ssl", "sasl_ssl"}:
            raise ValueError("ssl_* needs security_protocol ssl or sasl_ssl")
        given = {_ALIASES.get(name, name) for name in self.client}
        doubled = given & self.security_settings.keys()
        if twice := sorted(name for name, key in _NAMES.items() if key in doubled):
            raise ValueError(f"given here and in client: {', '.join(twice)}")
        return self

    @model_validator(mode="after")
    def _check_tokens(self) -> Self:
        given = {**self.client, **self.security_settings}
        mechanisms = {given.get(name) for name in ("sasl.mechanism", "sasl.mechanisms")}
        unsecured = str(given.get("enable.sasl.oauthbearer.unsecure.jwt", "")).lower() == "true"
        if "OAUTHBEARER" in mechanisms and not uses_oidc_provider(given) and not unsecured:
            raise ValueError("OAUTHBEARER needs sasl.oauthbearer.method: oidc in client")
        return self

    @property
    def security_settings(self) -> dict[str, Value]:
        """The client's settings for TLS and SASL, with its own names and as plain text."""
        return dict(self._pairs())

    def redact(self, text: str) -> str:
        """Return *text* without the values of settings, because the client quotes refused ones."""
        return redact_values({**self.client, **self.security_settings}, text)

    def redact_secrets(self, text: str) -> str:
        """Return *text* without the values of settings that are secrets."""
        return redact_secrets({**self.client, **self.security_settings}, text)

    def _pairs(self) -> Iterator[tuple[str, Value]]:
        for name, key in _NAMES.items():
            value = getattr(self, name)
            if value is not None:
                secret = isinstance(value, SecretStr)
                yield key, value.get_secret_value() if secret else str(value)
        yield from trust_defaults(self.client).items()


LEAST_BACKOFF: Final = 100
"""The client's default in ms. It queries a coordinator three times at this interval."""


class CreateTopics(AdaptorConfig):
    """Settings of the topics that the writer creates."""

    partitions: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """Number of partitions. By default the brokers' own default."""

    replication: Annotated[int, Field(ge=1, le=2**15 - 1)] | None = None
    """Number of replicas of each partition. By default the brokers' own default."""

    config: dict[str, Value] = Field(default_factory=dict)
    """Settings of the topics, such as ``cleanup.policy``."""

    @property
    def settings(self) -> dict[str, str]:
        """The topics' settings in the brokers' form."""
        return {name: _setting_text(value) for name, value in self.config.items()}


def _setting_text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse_switch(value: object) -> object:
    """Turn a switch, which a variable may give, into settings: the brokers' defaults, or none."""
    if value is None or isinstance(value, dict | CreateTopics):
        return value
    try:
        return {} if _SWITCH.validate_python(value) else None
    except ValidationError:
        raise ValueError("must be true, false or a mapping") from None


class KafkaWriterConfig(KafkaConnection):
    """Destination of the messages, and settings of the client."""

    topic: Annotated[str, Field(min_length=1)] = "{namespace}"
    """The topic. ``{namespace}`` stands for the entry's namespace."""

    max_message_bytes: Annotated[Size, Field(ge=1000, le=1_000_000_000)] = 16 * 1024**2
    """Largest message that the client sends. The default leaves it to the topic's own limit."""

    create_topics: Annotated[
        CreateTopics | None,
        BeforeValidator(_parse_switch, json_schema_input_type=bool | CreateTopics),
    ] = None
    """Create topics that are missing: ``true`` with the brokers' defaults, or a mapping of
    ``partitions``, ``replication`` and ``config``. Without it, a fixed topic is waited for, and
    an entry fails whose namespace names a missing one."""

    id_headers: bool = False
    """Add headers with the entry's id and its source id behind the entry's own headers."""

    transactional: bool = False
    """Send each slice in one transaction, together with the route's progress: effectively
    once for consumers that read committed messages only."""

    progress_topic: str | None = None
    """A topic that exists. A transactional route's progress is committed for its partition 0.
    Nothing is written to it. By default ``topic``, which must then be a fixed one."""

    @field_validator("topic")
    @classmethod
    def _check_fields(cls, topic: str) -> str:
        if fields_of(topic) - {"namespace"}:
            raise ValueError("a topic may hold the field {namespace} and no other")
        if not is_topic(topic.format(namespace="n")):
            raise ValueError("a topic has letters, digits, '.', '_' and '-' besides {namespace}")
        return topic

    @field_validator("client")
    @classmethod
    def _check_client(cls, client: dict[str, Value]) -> dict[str, Value]:
        return _refuse_owned(client, OWNED, "writer")

    @field_validator("progress_topic")
    @classmethod
    def _check_name(cls, topic: str | None) -> str | None:
        return topic if topic is None else _check_topic(topic)

    @model_validator(mode="after")
    def _check_progress(self) -> Self:
        if self.progress_topic is not None and not self.transactional:
            raise ValueError("progress_topic needs transactional: true")
        if self.transactional and self.progress_place is None:
            raise ValueError(
                "transactional needs progress_topic, a topic that exists, where the namespace "
                "chooses the topic of a message"
            )
        backoff = self.client.get("retry.backoff.ms", LEAST_BACKOFF)
        if self.transactional and float(backoff) < LEAST_BACKOFF:
            raise ValueError(
                f"transactional needs a retry.backoff.ms of {LEAST_BACKOFF} at least: with less "
                "the client may wait for ever for a coordinator that is not there yet"
            )
        return self

    @property
    def fixed_topic(self) -> str | None:
        """The topic, if it is the same for every entry."""
        return None if "{" in self.topic else self.topic

    @property
    def progress_place(self) -> str | None:
        """The topic for whose partition 0 a transactional writer commits its progress."""
        return self.progress_topic or self.fixed_topic


def _check_topic(name: str) -> str:
    if not is_topic(name):
        several = "; each topic is an item of its own" if "," in name else ""
        raise ValueError(
            f"is not a topic name: use letters, digits, '.', '_' and '-', at most 249{several}"
        )
    return name


class KafkaReaderConfig(KafkaConnection):
    """Topics, group, beginning and namespace of a Kafka reader."""

    topics: tuple[Annotated[str, AfterValidator(_check_topic)], ...] = ()
    """The topics to read."""

    pattern: Annotated[str, Field(min_length=1)] | None = None
    """Instead of ``topics``: a regular expression (RE2) that matches anywhere in the names of
    the topics to read. New topics are noticed within half a minute. Names that begin with
    ``__`` never match."""

    group: Annotated[str, Field(min_length=1, max_length=249)]
    """The consumer group. Engines with the same group share the partitions."""

    namespace: Annotated[str, Field(min_length=1)] = "{topic}"
    """Namespace of the messages. ``{topic}`` stands for the topic."""

    content_type: Annotated[str, Field(min_length=1)] | None = JSON
    """Content type of the values, or ``null`` if unknown. The values are not parsed."""

    start: Literal["earliest", "latest"] = "earliest"
    """Place at which existing topics begin when the group begins. Partitions that are added
    later, and topics that a pattern finds later, are read from their beginning."""

    on_out_of_range: Literal["stop", "earliest", "latest"] = "stop"
    """Reaction when the next records are gone, or were never there: ``stop`` with
    an error, or continue at the partition's beginning or end, with a warning."""

    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """Whether records of open or aborted transactions are left out."""

    follow: bool = True
    """Wait for more records at the end, instead of ending there."""

    batch_rows: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """Maximum messages of one batch."""

    batch_bytes: Annotated[Size, Field(ge=1, le=256 * 1024**2)] = 8 * 1024**2
    """Bytes of values after which a batch is complete. Up to 1000 messages may exceed it."""

    commit_interval: Annotated[Duration, Field(ge=0, le=3600)] = 1.0
    """Time between two commits to the group. The log's own position is never behind."""

    @field_validator("namespace")
    @classmethod
    def _check_fields(cls, namespace: str) -> str:
        if fields_of(namespace) - {"topic"}:
            raise ValueError("a namespace may hold the field {topic} and no other")
        return namespace

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            matching_topics([], pattern)
        return pattern

    @field_validator("client")
    @classmethod
    def _check_client(cls, client: dict[str, Value]) -> dict[str, Value]:
        return _refuse_owned(client, READER_OWNED, "reader")

    @model_validator(mode="after")
    def _check_topics(self) -> Self:
        if bool(self.topics) == (self.pattern is not None):
            raise ValueError("name the topics to read, or give a pattern for their names")
        if twice := sorted({name for name in self.topics if self.topics.count(name) > 1}):
            raise ValueError(f"these topics are named twice: {', '.join(twice)}")
        return self


def is_topic(name: str) -> bool:
    """Return whether Kafka allows *name* as the name of a topic."""
    return _TOPIC.fullmatch(name) is not None and name not in {".", ".."}


def matching_topics(names: list[str], pattern: str) -> list[str]:
    """Return those of *names*, sorted, that match *pattern* anywhere, without internal topics.

    Raises:
        ValueError: *pattern* is not a regular expression.
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - 60 ms that most pipelines do without

    known = sorted(name for name in names if not name.startswith("__"))
    # An empty array would not compile the pattern, so there is always one name.
    column = pa.array([*known, ""], pa.string())
    try:
        found = pc.match_substring_regex(column, pattern=pattern).to_pylist()
    except pa.ArrowInvalid as error:
        # RE2's reason is followed by a piece of the pattern, which may hold a secret.
        reason = str(error).removeprefix("Invalid regular expression: ").partition(": ")[0]
        raise ValueError(f"is not a regular expression that RE2 reads: {reason}") from None
    return [name for name, matches in zip(known, found, strict=False) if matches]


def _refuse_owned(client: dict[str, Value], owned: Mapping[str, str], who: str) -> dict[str, Value]:
    """Return *client*, or raise :class:`ValueError` when it holds a setting that is *owned*."""
    if found := sorted(client.keys() & owned.keys()):
        reasons = "; ".join(f"{name}: {owned[name]}" for name in found)
        raise ValueError(f"the {who} sets these itself: {reasons}")
    return client

"""Settings that choose and configure an elector."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    SecretStr,
    Tag,
    model_validator,
)

from transporter.election.elector import SoleElector
from transporter.kafka.clients import Value, redact_secrets, redact_values
from transporter.units import Duration

if TYPE_CHECKING:
    from transporter.election.elector import Elector

_CLIENT: Final = re.compile(
    r"(security|sasl|ssl|https|socket|reconnect|retry|metadata|topic\.metadata|broker|client|log)\..+"
    r"|enable\.(sasl|ssl)\..+|statistics\.interval\.ms|debug"
)
_OWNED: Final = frozenset({"socket.timeout.ms"})
_SHORTEST_SESSION: Final = 6.0
"""Shortest session that brokers allow by default, in seconds."""
_LONGEST_SESSION: Final = 1800.0
_BEATS: Final = 5
"""Heartbeats of a leader per term, by default."""

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]


def _validate_dsn(dsn: SecretStr) -> SecretStr:
    # Elections without PostgreSQL save the 20 ms of this import.
    from transporter.postgres_dsn import parse_dsn  # noqa: PLC0415

    parse_dsn(dsn.get_secret_value())
    return dsn


Dsn = Annotated[SecretStr, AfterValidator(_validate_dsn)]
"""A PostgreSQL connection string, refused where libpq would misread it, and never quoted."""


class _Election(BaseModel):
    """Settings of all elections."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,  # Invariant 20: a setting may be a secret.
    )

    term: Annotated[Duration, Field(ge=1, le=3600)] = 5.0
    """A leader without a confirmation for this long must stop leading. Another leads within two
    terms, or with Kafka after ``session_timeout`` if that is longer. All candidates must have the
    same term."""


class PostgresElection(_Election):
    """Election by an advisory lock of PostgreSQL, whose holder leads."""

    kind: Literal["postgres"]
    """Elect by PostgreSQL."""

    dsn: Dsn | None = None
    """Connection string of a *direct* connection or a session pool. Set it if the reader's own
    goes through a transaction pooler. It must name the same database for all candidates."""


class KafkaElection(_Election):
    """Election by a consumer group: the member with partition 0 leads while its beats return."""

    kind: Literal["kafka"]
    """Elect by Kafka."""

    bootstrap_servers: Annotated[str, Field(min_length=1)]
    """Brokers to start from: ``host:port``, comma-separated."""

    topic: Name
    """An existing topic for this election alone. One partition is enough."""

    group: Name | None = None
    """The consumer group of all candidates. The default is the topic's name."""

    heartbeat: Annotated[Duration, Field(gt=0)] | None = None
    """Time between two heartbeats of a leader. The default is a fifth of the term by default."""

    session_timeout: Annotated[Duration, Field(ge=1, le=_LONGEST_SESSION)] | None = None
    """Time without a sign of life after which the group replaces a leader. The default is the
    term, but at least 6 s, the brokers' default of ``group.min.session.timeout.ms``."""

    client: dict[str, Value] = Field(default_factory=dict, repr=False)
    """Further librdkafka settings: ``security.*``, ``sasl.*``, ``ssl.*`` …"""

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        unsafe = sorted(
            name for name in self.client if not _CLIENT.fullmatch(name) or name in _OWNED
        )
        if unsafe:
            raise ValueError(
                f"client may not contain {', '.join(unsafe)}: the election sets these itself; "
                "allowed are security.*, sasl.*, ssl.*, socket.* (except socket.timeout.ms), "
                "client.*, broker.*, reconnect.*, retry.* and metadata.*"
            )
        if self.heartbeat_interval > self.term / 2:
            raise ValueError(
                "heartbeat may be at most half of term, because one lost heartbeat must not "
                "fence the leader"
            )
        return self

    @property
    def heartbeat_interval(self) -> float:
        """Seconds between two heartbeats."""
        return self.term / _BEATS if self.heartbeat is None else self.heartbeat

    @property
    def session_seconds(self) -> float:
        """Seconds without a sign of life after which the group removes a member."""
        if self.session_timeout is not None:
            return self.session_timeout
        return min(max(self.term, _SHORTEST_SESSION), _LONGEST_SESSION)

    def redact_values(self, text: str) -> str:
        """Redact the values of settings in *text*, because the client quotes refused values."""
        return redact_values(self.client, text)

    def redact_secrets(self, text: str) -> str:
        """Redact the values of secret settings in *text*."""
        return redact_secrets(self.client, text)


def _election_kind(value: object) -> str | None:
    if isinstance(value, dict):
        return value.get("kind")
    return "none" if value == "none" else getattr(value, "kind", None)


Election = Annotated[
    Annotated[Literal["none"], Tag("none")]
    | Annotated[PostgresElection, Tag("postgres")]
    | Annotated[KafkaElection, Tag("kafka")],
    Discriminator(
        _election_kind,
        custom_error_type="election",
        custom_error_message="use none, or a mapping whose kind is postgres or kafka, "
        "such as {kind: postgres, term: 5s}",
    ),
]
"""Type of a setting that chooses an elector: ``none``, or a mapping with its ``kind``."""


def make_elector(election: Election, name: str, dsn: SecretStr) -> Elector:
    """Return the elector for the election called *name*, which does no I/O before its first pulse.

    An election by PostgreSQL without its own connection string uses *dsn*.
    Drivers are imported only when they are needed.
    """
    if isinstance(election, PostgresElection):
        from transporter.election.postgres import PostgresElector  # noqa: PLC0415 - see above

        return PostgresElector(name, election.dsn or dsn, election.term)
    if isinstance(election, KafkaElection):
        from transporter.election.kafka import KafkaElector  # noqa: PLC0415 - see above

        return KafkaElector(name, election)
    return SoleElector()

"""How an elector is chosen and set up, for the settings of whoever leads by one."""

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

from transporter.election.elector import Alone
from transporter.kafka_clients import Value, without_secrets
from transporter.kafka_clients import without_values as redact_values
from transporter.units import Duration

if TYPE_CHECKING:
    from transporter.election.elector import Elector

_CLIENT: Final = re.compile(
    r"(security|sasl|ssl|https|socket|reconnect|retry|metadata|topic\.metadata|broker|client|log)\..+"
    r"|enable\.(sasl|ssl)\..+|statistics\.interval\.ms|debug"
)
_OWNED: Final = frozenset({"socket.timeout.ms"})
_SHORTEST_SESSION: Final = 6.0
"""Seconds below which brokers allow no session unless told otherwise."""
_LONGEST_SESSION: Final = 1800.0
_BEATS: Final = 5
"""Heartbeats that a leader writes in a term."""

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]


def _conninfo(dsn: SecretStr) -> SecretStr:
    # 20 ms that elections without PostgreSQL do without.
    from transporter.conninfo import parts_of  # noqa: PLC0415

    parts_of(dsn.get_secret_value())
    return dsn


Dsn = Annotated[SecretStr, AfterValidator(_conninfo)]
"""A connection string of PostgreSQL, refused where libpq would misread it, and never repeated."""


class _Election(BaseModel):
    """What all elections share."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,  # Invariant 20: a setting may be a secret
    )

    term: Annotated[Duration, Field(ge=1, le=3600)] = 5.0
    """A leader that has not heard for so long that it still leads must believe that it does not;
    another leads within two terms, by Kafka after ``session_timeout`` where that is longer. All
    who take part must have the same."""


class PostgresElection(_Election):
    """Who holds an advisory lock of PostgreSQL leads."""

    kind: Literal["postgres"]
    """Elect by PostgreSQL."""

    dsn: Dsn | None = None
    """Connection string of a *direct* connection or a session pool, when the one that is used
    otherwise goes through a pooler of transactions; it must name the same database for all."""


class KafkaElection(_Election):
    """Whom a consumer group gives a topic's partition 0 leads, while its heartbeats return."""

    kind: Literal["kafka"]
    """Elect by Kafka."""

    bootstrap_servers: Annotated[str, Field(min_length=1)]
    """Brokers to start from: ``host:port``, comma-separated."""

    topic: Name
    """A topic that exists, for this election alone; one partition is enough."""

    group: Name | None = None
    """The consumer group of all who take part; without it, it is called as the topic is."""

    heartbeat: Annotated[Duration, Field(gt=0)] | None = None
    """Time between two heartbeats of a leader; without it a fifth of the term."""

    session_timeout: Annotated[Duration, Field(ge=1, le=_LONGEST_SESSION)] | None = None
    """The group replaces a leader that it hears nothing of for so long; without it the term, and
    at least 6 s: brokers allow no less, unless ``group.min.session.timeout.ms`` says so there."""

    client: dict[str, Value] = Field(default_factory=dict, repr=False)
    """Further librdkafka settings: ``security.*``, ``sasl.*``, ``ssl.*`` …"""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        unsafe = sorted(
            name for name in self.client if not _CLIENT.fullmatch(name) or name in _OWNED
        )
        if unsafe:
            raise ValueError(
                f"client may not hold {', '.join(unsafe)}: the election rests on them; allowed are "
                "security.*, sasl.*, ssl.*, socket.* but its time-out, client.*, broker.*, "
                "reconnect.*, retry.* and metadata.*"
            )
        if self.heartbeat_interval > self.term / 2:
            raise ValueError("heartbeat may be half of term at most, or one lost beat fences")
        return self

    @property
    def heartbeat_interval(self) -> float:
        """Seconds between two heartbeats."""
        return self.term / _BEATS if self.heartbeat is None else self.heartbeat

    @property
    def session(self) -> float:
        """Seconds after which the group misses a member."""
        if self.session_timeout is not None:
            return self.session_timeout
        return min(max(self.term, _SHORTEST_SESSION), _LONGEST_SESSION)

    def without_values(self, text: str) -> str:
        """Return *text* without the values of settings: the client repeats what it refuses."""
        return redact_values(self.client, text)

    def without_secrets(self, text: str) -> str:
        """Return *text* without the values of settings that are secrets."""
        return without_secrets(self.client, text)


def _kind(value: object) -> str | None:
    if isinstance(value, dict):
        return value.get("kind")
    return "none" if value == "none" else getattr(value, "kind", None)


Election = Annotated[
    Annotated[Literal["none"], Tag("none")]
    | Annotated[PostgresElection, Tag("postgres")]
    | Annotated[KafkaElection, Tag("kafka")],
    Discriminator(
        _kind,
        custom_error_type="election",
        custom_error_message="write none, or a mapping whose kind is postgres or kafka, "
        "such as {kind: postgres, term: 5s}",
    ),
]
"""The type of a setting that chooses an elector: ``none``, or a mapping with its ``kind``."""


def make_elector(election: Election, name: str, dsn: SecretStr) -> Elector:
    """Return the elector for the election called *name*; it does no I/O before its first pulse.

    *dsn* is what an election by PostgreSQL uses that has none of its own.
    Drivers are imported only when they are needed.
    """
    if isinstance(election, PostgresElection):
        from transporter.election.postgres import PostgresElector  # noqa: PLC0415 - see above

        return PostgresElector(name, election.dsn or dsn, election.term)
    if isinstance(election, KafkaElection):
        from transporter.election.kafka import KafkaElector  # noqa: PLC0415 - see above

        return KafkaElector(name, election)
    return Alone()

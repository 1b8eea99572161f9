"""Settings of the ``postgres-outbox`` reader."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, model_validator

from adaptors.postgres.columns import Columns, ColumnsConfig
from adaptors.postgres.router import RouterConfig
from adaptors.postgres.table import TableName
from transporter.adaptor import AdaptorConfig, Duration, Size
from transporter.election.config import Dsn, Election

_OURS: Final = frozenset({"id", "created", "leader"})
"""What an outbox needs that is not in the table of an event router."""


def _alone(claim: str, info: ValidationInfo) -> str:
    if claim == "take" and info.data.get("elector", "none") != "none":
        raise ValueError(
            "is for one engine alone: it purges rows as soon as they are logged here, where the "
            "next leader cannot see them; write mark, or leave the elector out"
        )
    return claim


def _table(text: str) -> str:
    return str(TableName.parse(text))


class OutboxConfig(AdaptorConfig):
    """Where the outbox is, how much is taken at once, and how often it is looked at."""

    # Invariant 20: a refused DSN is not quoted in the error about it.
    model_config = ConfigDict(hide_input_in_errors=True)

    dsn: Dsn
    """Connection string of the database that holds the outbox.

    A direct connection or a session pool: LISTEN needs a session.
    """

    table: Annotated[str, AfterValidator(_table)] = "outbox"
    """The outbox table: ``name``, ``schema.name``, or quoted as in SQL."""

    columns: ColumnsConfig = ColumnsConfig()
    """What the table's columns are called where not as usual: ``id``, ``created``, ``topic``,
    ``key``, ``value``, ``header_keys``, ``header_values``, ``leader``; each written as in SQL."""

    router: RouterConfig | None = None
    """Read the table of Debezium's event router: ``{}`` for its defaults."""

    elector: Election = "none"
    """Who may lead when several engines read this outbox: ``none`` (there is one engine), or
    ``{kind: postgres, term: 5s}``, or ``{kind: kafka, bootstrap_servers: …, topic: …}``."""

    claim: Annotated[Literal["mark", "take"], AfterValidator(_alone)] = "mark"
    """How rows are claimed: ``mark`` holds nothing open; ``take`` is faster, and keeps one
    transaction open while a batch is appended to the log."""

    batch_rows: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """Most rows of one batch."""

    batch_bytes: Annotated[Size, Field(ge=1, le=256 * 1024**2)] = 8 * 1024**2
    """Most bytes of keys, values and headers in one batch; a larger row is a batch of its own."""

    poll_interval: Annotated[Duration, Field(gt=0, le=3600)] = 1.0
    """Longest pause between two looks at the table when no notification arrives."""

    notify_channel: Annotated[str, Field(min_length=1, max_length=63)] = "outbox"
    """Channel of NOTIFY that the table's trigger uses."""

    @model_validator(mode="after")
    def _routed(self) -> Self:
        given = sorted(self.columns.model_fields_set - _OURS)
        if self.router is not None and given:
            raise ValueError(
                f"columns names {', '.join(given)}, which the router makes of its own columns; "
                "with a router it may name id, created and leader"
            )
        return self

    @property
    def names(self) -> Columns:
        """What the rows of the table hold, as the database spells it."""
        if self.router is None:
            return self.columns.names
        given = {role: name for role, name in self.columns if role in _OURS}
        if "id" not in self.columns.model_fields_set:
            del given["id"]
        return self.router.columns(given, marks=self.claim == "mark")

    @property
    def needs_delivery(self) -> bool:
        """Another engine cannot read this one's log: its rows stay until they are delivered."""
        return self.elector != "none"

    @property
    def can_wait_for_delivery(self) -> bool:
        """A transaction that is open for as long as rows are logged cannot wait for routes."""
        return self.claim == "mark"

    @property
    def shared(self) -> bool:
        """Whether other engines may lead."""
        return self.elector != "none"

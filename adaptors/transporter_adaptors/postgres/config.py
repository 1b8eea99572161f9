"""Settings of the ``postgres-outbox`` reader."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, model_validator

from transporter.adaptor import AdaptorConfig, Duration, Size
from transporter.election.config import Dsn, Election
from transporter_adaptors.postgres.columns import ColumnsConfig, OutboxColumns
from transporter_adaptors.postgres.router import RouterConfig
from transporter_adaptors.postgres.table import TableName

_OURS: Final = frozenset({"id", "created", "leader"})
"""Columns that an outbox needs and that an event router's table lacks."""


def _check_claim(claim: str, info: ValidationInfo) -> str:
    if claim == "take" and info.data.get("elector", "none") != "none":
        raise ValueError(
            "is for one engine alone: it purges rows as soon as they are logged here, where the "
            "next leader cannot see them; write mark, or leave the elector out"
        )
    return claim


def _normalize_table(text: str) -> str:
    return str(TableName.parse(text))


class OutboxConfig(AdaptorConfig):
    """The outbox's location, the size of its batches, and the pace of reading."""

    # Invariant 20: the error about a refused DSN does not quote it.
    model_config = ConfigDict(hide_input_in_errors=True)

    dsn: Dsn
    """Connection string of the database that holds the outbox.

    Use a direct connection or a session pool, because LISTEN needs a session.
    """

    table: Annotated[str, AfterValidator(_normalize_table)] = "outbox"
    """The outbox table: ``name``, ``schema.name``, or quoted as in SQL."""

    columns: ColumnsConfig = ColumnsConfig()
    """Names of the table's columns where they are not the usual ones: ``id``, ``created``,
    ``topic``, ``key``, ``value``, ``header_keys``, ``header_values``, ``leader``. Write each as
    in SQL."""

    router: RouterConfig | None = None
    """Read the table of Debezium's event router: ``{}`` for its defaults."""

    elector: Election = "none"
    """Elector for several engines that read this outbox: ``none`` (there is one engine),
    ``{kind: postgres, term: 5s}``, or ``{kind: kafka, bootstrap_servers: …, topic: …}``."""

    claim: Annotated[Literal["mark", "take"], AfterValidator(_check_claim)] = "mark"
    """Way to claim rows: ``mark`` keeps no transaction open. ``take`` is faster, and keeps one
    transaction open while a batch is appended to the log."""

    batch_rows: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """Maximum rows of one batch."""

    batch_bytes: Annotated[Size, Field(ge=1, le=256 * 1024**2)] = 8 * 1024**2
    """Maximum bytes of keys, values and headers in one batch. A larger row is its own batch."""

    poll_interval: Annotated[Duration, Field(gt=0, le=3600)] = 1.0
    """Longest pause between two reads of the table when no notification arrives."""

    notify_channel: Annotated[str, Field(min_length=1, max_length=63)] = "outbox"
    """NOTIFY channel that the table's trigger uses."""

    @model_validator(mode="after")
    def _check_router_columns(self) -> Self:
        given = sorted(self.columns.model_fields_set - _OURS)
        if self.router is not None and given:
            raise ValueError(
                f"columns names {', '.join(given)}, which the router makes of its own columns; "
                "with a router it may name id, created and leader"
            )
        return self

    @property
    def names(self) -> OutboxColumns:
        """The columns of the table's rows, as the database spells them."""
        if self.router is None:
            return self.columns.names
        given = {role: name for role, name in self.columns if role in _OURS}
        if "id" not in self.columns.model_fields_set:
            del given["id"]
        return self.router.columns(given, marks=self.claim == "mark")

    @property
    def needs_delivery(self) -> bool:
        """Whether rows stay until delivery, because another engine cannot read this one's log."""
        return self.elector != "none"

    @property
    def can_wait_for_delivery(self) -> bool:
        """Whether rows can wait for routes, unlike a transaction open while rows are logged."""
        return self.claim == "mark"

    @property
    def shared(self) -> bool:
        """Whether other engines may lead."""
        return self.elector != "none"

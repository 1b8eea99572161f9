"""Settings of the outbox reader: the secrets in a connection string."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from transporter_adaptors.postgres.config import OutboxConfig


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://app:a@hunter22@host/shop",
        "postgresql://app:hunter/22@host/shop",
        "postgresql://hunter22@a@host/shop",
        "host=db port='hunter22",
    ],
)
def test_a_misread_password_is_refused(dsn: str) -> None:
    """A misread password never reaches libpq, which would quote it in errors (Invariant 20)."""
    with pytest.raises(ValidationError) as caught:
        OutboxConfig(dsn=dsn)
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://app:a%40hunter22@host/shop",
        "postgresql://app:1:hunter22@host/shop",
        "postgresql://app:secret@one:5432,two:5433/shop",
        "postgresql:///shop?host=/run/postgresql",
        "host=/tmp/x dbname=shop password='a@b'",
    ],
)
def test_a_whole_connection_string_is_taken(dsn: str) -> None:
    """Escaped passwords, several hosts, sockets and key-value strings are kept unchanged."""
    assert OutboxConfig(dsn=dsn).dsn.get_secret_value() == dsn


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"router": {"topic": "events"}}, "does not hold {routed_by}"),
        ({"router": {"payload": "a.b"}}, "is not a column name"),
        ({"router": {"additional": [{"column": "a", "placement": "partition"}]}}, "envelope"),
        (
            {"router": {"binary": True, "additional": [{"column": "a", "placement": "envelope"}]}},
            "an envelope is JSON",
        ),
        ({"router": {}, "columns": {"value": "payload"}}, "columns names value, which the router"),
    ],
)
def test_what_an_event_router_has_no_use_for_is_refused(
    settings: dict[str, object], problem: str
) -> None:
    """Settings that do not fit an event router are refused, with the remedy."""
    with pytest.raises(ValidationError, match=problem):
        OutboxConfig.model_validate({"dsn": "host=db", **settings})


def test_an_event_router_needs_a_mark_only_to_mark() -> None:
    """Rows are numbered with or without marks, and the time is the named column."""
    given = {"dsn": "host=db", "router": {"timestamp": '"At"'}, "columns": {"leader": "who"}}
    marked = OutboxConfig.model_validate(given).names
    assert (marked.id, marked.created, marked.leader) == ("transporter_id", "At", "who")
    assert OutboxConfig.model_validate({**given, "claim": "take"}).names.leader == ""

"""The parts of an election by PostgreSQL that need no server."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from transporter.election.postgres import (
    PostgresElector,
    _conninfo_per_address,
    _SessionLost,
    lock_key,
)
from transporter.errors import EnvironmentFault

KNOWN = -4426230707906391912


def test_the_lock_of_a_name_never_changes() -> None:
    """The lock key of a name is the same in all versions."""
    assert lock_key("orders") == lock_key("orders")
    assert lock_key("orders") != lock_key("order")
    assert lock_key("public.outbox") == KNOWN


@pytest.mark.parametrize("number", range(50))
def test_every_key_is_a_bigint(number: int) -> None:
    """Every key is a signed number of 64 bits."""
    assert -(2**63) <= lock_key(f"name-{number}") < 2**63


def test_each_host_is_tried_by_itself_with_limits_of_ours() -> None:
    """Each host is tried by itself, and the election's limits replace those of the DSN."""
    found = _conninfo_per_address(
        "postgresql://u@127.0.0.1:1,127.0.0.2:2/d?tcp_user_timeout=90000", 3.0
    )
    parts = [conninfo_to_dict(each) for each in found]
    assert [(each["host"], each["port"]) for each in parts] == [
        ("127.0.0.1", "1"),
        ("127.0.0.2", "2"),
    ]
    assert {each["tcp_user_timeout"] for each in parts} == {"3000"}
    assert {each["keepalives_idle"] for each in parts} == {"1"}


def test_a_server_without_the_setting_is_refused() -> None:
    """A server without ``idle_session_timeout`` is refused, as it keeps a lost leader's lock."""
    elector = PostgresElector("orders", SecretStr("host=127.0.0.1"), 5.0)
    elector._note_failure(_SessionLost("unrecognized configuration parameter", "42704"), 1.0)
    with pytest.raises(EnvironmentFault, match="PostgreSQL 14 or newer"):
        elector.pulse(2.0)


def test_a_standby_is_no_place_for_an_election() -> None:
    """A standby is refused, because its locks do not exclude candidates on another server."""
    elector = PostgresElector("orders", SecretStr("host=127.0.0.1"), 5.0)
    with pytest.raises(_SessionLost, match="standby"):
        elector._finish_preparation(("1", "t", "5s", elector._session_mark))


def test_attempts_come_further_and_further_apart_but_at_least_once_a_term() -> None:
    """The pause between attempts doubles, up to a term."""
    elector = PostgresElector("orders", SecretStr("host=127.0.0.1"), 5.0, jitter=lambda: 1.0)
    waits = []
    for _ in range(6):
        elector._note_failure(_SessionLost("refused"), 100.0)
        waits.append(elector._due_at - 100)
    assert waits == [1, 2, 4, 5, 5, 5]

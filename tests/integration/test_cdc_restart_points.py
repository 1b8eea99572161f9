"""Restart points that ``postgres-cdc`` requests while it copies, so that its slot keeps little."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from cdc_tools import MemoryLog
from transporter_adaptors.postgres_cdc import chunk_reader
from transporter_adaptors.postgres_cdc.chunk_reader import RestartPoints

if TYPE_CHECKING:
    from services.postgres import Database

pytestmark = pytest.mark.postgres

BYTES = 64 << 20
RESTART = "SELECT restart_lsn::text FROM pg_replication_slots WHERE database = current_database()"


def test_the_slot_moves_on_during_a_copy(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server by itself has a restart point each 15 s, so it would take a minute."""
    monkeypatch.setattr(chunk_reader, "_INTERVAL", 1)
    shop.execute("INSERT INTO items SELECT n, 'x' FROM generate_series(1, 100000) n")
    log = MemoryLog(shop, copy_rows=500)
    log.poll()
    seen, ends = set(shop.execute(RESTART)), time.monotonic() + 20
    while len(seen) < 5 and time.monotonic() < ends:
        shop.execute("INSERT INTO items SELECT max(id) + 1, 'y' FROM items")
        log.poll()
        seen.update(shop.execute(RESTART))
    log.kill()
    assert len(seen) == 5


def test_points_are_requested_at_intervals(shop: Database) -> None:
    """The first call only remembers the end of the log."""
    points = [BYTES, 2 * BYTES - 1, 2 * BYTES, 3 * BYTES - 1, 3 * BYTES]
    with shop.connect() as connection:
        executed = list[str]()
        spy = SimpleNamespace(
            info=connection.info,
            execute=lambda query: executed.append(query) or connection.execute(query),
        )
        tested = RestartPoints(cast("Any", spy))
        counts = []
        for end in points:
            tested.request(end)
            counts.append(sum("log_standby" in each for each in executed if "has_" not in each))
    assert counts == [0, 0, 1, 1, 2]


def test_a_role_without_the_right_requests_none(shop: Database) -> None:
    """The server then writes them in its own time."""
    role = f"role_{shop.name}"
    shop.execute(f"CREATE ROLE {role}")
    with shop.connect() as connection:
        connection.execute(f"SET ROLE {role}")  # type: ignore[call-overload]
        tested = RestartPoints(connection)
        tested.request(0)
        tested.request(BYTES)
    shop.execute(f"DROP ROLE {role}")


def test_an_older_server_has_none() -> None:
    """PostgreSQL 15 has no function for them."""
    tested = RestartPoints(
        cast("Any", SimpleNamespace(info=SimpleNamespace(server_version=150000)))
    )
    tested.request(0)
    tested.request(BYTES)

"""Failover of ``postgres-cdc``: standbys with and without lost transactions, older disks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cdc_tools import LOG_ID, MemoryLog, broken, short, started
from engine_tools import until
from pg_nodes import nodes
from services.postgres import Database
from transporter_adaptors.postgres_cdc.reader import CdcReader

from transporter.errors import SourceUnavailable
from transporter.testing import FixedResume

if TYPE_CHECKING:
    from pg_nodes import Node

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]

STANDBY = "standby"


def keys(log: MemoryLog) -> list[str | None]:
    """Return the keys of all rows."""
    return [each[2] for each in short(log.messages) if each[0] != "noop"]


def pair(primary: Node) -> tuple[Node, Database, Database]:
    """Return a standby of *primary*, and the database on both. Both run."""
    primary.start()
    primary.execute("SELECT pg_create_physical_replication_slot(%s, true)", [STANDBY])
    primary.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    primary.stop()
    standby = primary.copy("b")
    primary.start()
    standby.follow(primary, STANDBY)
    standby.start()
    return standby, Database("postgres", primary.service), Database("postgres", standby.service)


def is_level(primary: Node, standby: Node) -> bool:
    """Return whether the standby has everything of *primary*."""
    ((end,),) = primary.execute("SELECT pg_current_wal_lsn()::text")
    return standby.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", [end]) == [(True,)]


@pytest.mark.parametrize("version", ["17", "18"])
def test_a_failover_with_a_synchronized_slot_goes_on(version: str) -> None:
    """Nothing is missing and nothing comes twice; the server before is refused."""
    with nodes(version, synchronized_standby_slots=STANDBY) as primary:
        primary.settings["synchronized_standby_slots"] = ""
        standby, shop, promoted = pair(primary)
        standby.stop()
        standby.settings["sync_replication_slots"] = "on"
        standby.start()
        primary.stop()
        primary.settings["synchronized_standby_slots"] = STANDBY
        primary.start()
        primary.execute("INSERT INTO items VALUES (1)")
        log = started(shop)
        primary.execute("INSERT INTO items VALUES (2)")
        log.drain(shop)
        until(lambda: is_level(primary, standby))
        ready = "SELECT 1 FROM pg_replication_slots WHERE synced AND NOT temporary"
        between = list[str]()

        def is_synchronized() -> bool:
            # The primary's slot has to move on before the standby can have one like it.
            between.append(str(100 + len(between)))
            primary.execute("INSERT INTO items VALUES (%s)", [between[-1]])
            primary.execute("SELECT pg_log_standby_snapshot()")
            log.drain(shop)
            return bool(standby.execute(ready))

        until(is_synchronized)
        # The synchronized slot stands earlier than the log from here on.
        primary.execute("INSERT INTO items VALUES (3)")
        log.drain(shop)
        until(lambda: is_level(primary, standby))
        log.kill()
        log.settings["dsn"] = promoted.dsn
        with pytest.raises(SourceUnavailable):
            log_once(log)
        primary.stop()
        standby.promote()
        standby.execute("INSERT INTO items VALUES (4)")
        log.drain(promoted)
        log.kill()
        assert keys(log) == ["1", "2", *between, "3", "4"]
        standby.stop()
        primary.settings["synchronized_standby_slots"] = ""
        primary.start()
        log.settings["dsn"] = shop.dsn
        assert "is on timeline 1, and the log follows 2" in broken(shop, log)


def log_once(log: MemoryLog) -> None:
    """Open the reader of *log* once."""
    reader = CdcReader(CdcReader.Config.model_validate(log.settings))
    resume = FixedResume(log.position, LOG_ID)
    resume.states = dict(log.states)
    try:
        reader.open(resume)
    finally:
        reader.close()


@pytest.mark.parametrize("version", ["15", "18"])
def test_a_failover_that_lost_transactions_stops_the_reader(version: str) -> None:
    """The log holds what the new primary never had, and the text says how much."""
    with nodes(version) as primary:
        standby, shop, promoted = pair(primary)
        log = started(shop)
        until(lambda: is_level(primary, standby))
        standby.stop()
        primary.execute("INSERT INTO items VALUES (1)")
        log.drain(shop)
        log.kill()
        primary.stop()
        standby.start()
        standby.promote()
        standby.execute("INSERT INTO items VALUES (2)")
        standby.execute("SELECT pg_logical_emit_message(true, 'x', repeat('x', 100000))")
        log.settings["dsn"] = promoted.dsn
        assert "bytes of transactions that the log holds" in broken(promoted, log)
        log.settings |= {"copy_run": 2, "copy_from_empty": True}
        log.drain(promoted)
        log.kill()
        assert keys(log) == ["1", None, "2"]


@pytest.mark.parametrize("version", ["14", "18"])
def test_an_older_disk_of_the_same_timeline_stops_the_reader(version: str) -> None:
    """A snapshot of the disk, brought back, has lost what is logged and does not know it."""
    with nodes(version) as server:
        server.start()
        server.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
        shop = Database("postgres", server.service)
        log = started(shop)
        log.kill()
        server.stop()
        older = server.copy("older")
        server.start()
        server.execute("INSERT INTO items VALUES (1)")
        server.execute("SELECT pg_logical_emit_message(true, 'x', repeat('x', 9000000))")
        log.drain(shop)
        log.kill()
        server.stop()
        server.restore(older)
        server.start()
        assert "the server has lost " in broken(shop, log)

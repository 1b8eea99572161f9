"""``postgres-cdc`` and servers that change: limits, losses of the slot, upgrades, older disks."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from cdc_tools import LOG_ID, MemoryLog, broken, clean_slots, short, started
from engine_tools import until
from pg_nodes import WHEEL, give_away, make_node, nodes, upgrade
from psycopg.conninfo import make_conninfo
from root_tools import cannot_run
from services.postgres import Database, free_port
from transporter_adaptors.postgres_cdc import reader as reader_module
from transporter_adaptors.postgres_cdc import session
from transporter_adaptors.postgres_cdc.reader import CdcReader

from transporter.errors import EnvironmentFault, SourceUnavailable
from transporter.testing import FixedResume

if TYPE_CHECKING:
    from pg_nodes import Node

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]

SLOTS = "SELECT slot_name, invalidation_reason, wal_status FROM pg_replication_slots"


def keys(log: MemoryLog) -> list[int]:
    """Return the keys of all rows."""
    return [int(each[2]) for each in short(log.messages) if each[0] == "insert"]


def shop_of(node: Node, rows: int = 1) -> Database:
    """Start *node*, and return its database with a table of items."""
    node.start()
    node.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    node.execute("INSERT INTO items SELECT generate_series(1, %s)", [rows])
    return Database("postgres", node.service)


def refused(log: MemoryLog) -> str:
    """Open the reader of *log* once, and return why that is to be tried again."""
    reader = CdcReader(CdcReader.Config.model_validate(log.settings))
    resume = FixedResume(log.position, LOG_ID)
    resume.states = dict(log.states)
    try:
        with pytest.raises(SourceUnavailable) as found:
            reader.open(resume)
    finally:
        reader.close()
    return str(found.value)


def write_log(database: Database) -> None:
    """Let the server write some of its log, and remove what no slot may keep."""
    database.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 9000000))")
    database.execute("SELECT pg_switch_wal()")
    database.execute("CHECKPOINT")


def test_a_slot_that_is_idle_for_too_long() -> None:
    """While the engine is away the server gives the slot up, and the remedy is the setting."""
    with nodes("18", idle_replication_slot_timeout="1s") as node:
        shop = shop_of(node)
        log = started(shop)
        log.kill()

        def is_invalid() -> bool:
            node.execute("CHECKPOINT")
            return node.execute(SLOTS)[0][1] == "idle_timeout"

        until(is_invalid)
        found = broken(shop, log)
        assert "was invalidated (idle_timeout)" in found
        assert found.endswith("raise idle_replication_slot_timeout, or let the engine run")
        log.settings["copy_run"] = 2
        log.drain(shop)
        log.kill()
        assert keys(log) == [1, 1]


def test_a_slot_that_is_in_use_is_never_idle() -> None:
    """A reader without changes for longer than the limit keeps its slot."""
    with nodes("18", idle_replication_slot_timeout="1s") as node:
        shop = shop_of(node)
        log = started(shop)
        ends = time.monotonic() + 4
        while time.monotonic() < ends:
            log.poll(0.1)
            node.execute("CHECKPOINT")
        assert node.execute(SLOTS)[0][1] is None
        log.kill()


@pytest.mark.parametrize("version", ["14", "18"])
def test_a_slot_that_is_lost_while_the_log_is_full(version: str) -> None:
    """Nothing is polled. The watch reports the danger, and the session's end stops the reader."""
    with nodes(version, max_slot_wal_keep_size="20MB", min_wal_size="32MB") as node:
        shop = shop_of(node)
        log = started(shop, watch="1s")

        def is_lost() -> bool:
            write_log(shop)
            try:
                log.reader().keep_alive()
                time.sleep(0.1)
            except (SourceUnavailable, EnvironmentFault):
                return True
            return "lost" in str(node.execute("SELECT wal_status FROM pg_replication_slots"))

        until(is_lost)
        log.kill()
        until(lambda: "lost" in str(node.execute("SELECT wal_status FROM pg_replication_slots")))
        found = broken(shop, log)
        assert "was invalidated (wal_removed)" in found
        assert found.endswith("then raise max_slot_wal_keep_size")


def test_a_slot_is_not_lost_by_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream goes on beside the copy, so the server keeps no log for it."""
    monkeypatch.setattr(reader_module, "_IDLE_SECONDS", 0.5)
    with nodes("18", max_slot_wal_keep_size="64MB", min_wal_size="32MB") as node:
        shop = shop_of(node, 2000)
        log = MemoryLog(shop, copy_rows=20)
        for _ in range(40):
            log.poll()
            write_log(shop)
        assert node.execute(SLOTS)[0][2] in ("reserved", "extended")
        log.drain(shop)
        log.kill()
        assert keys(log) == list(range(1, 2001))


def test_no_room_for_a_slot_is_an_error_before_anything_is_created() -> None:
    """The remedy is the server's setting."""
    with nodes("18", max_replication_slots="1") as node:
        shop = shop_of(node)
        node.execute("SELECT pg_create_physical_replication_slot('standby')")
        found = broken(shop, MemoryLog(shop))
        assert "all 1 replication slots are in use; raise max_replication_slots" in found
        assert node.execute("SELECT 1 FROM pg_publication") == []
        node.execute("SELECT pg_drop_replication_slot('standby')")
        log = started(shop)
        log.kill()
        assert keys(log) == [1]


def test_no_room_for_a_session_is_tried_again() -> None:
    """Another walsender may end. The text names the setting, and nothing is created."""
    with nodes("18", max_wal_senders="1", max_replication_slots="2") as node:
        shop = shop_of(node)
        other = MemoryLog(shop, slot="other", publication="other")
        other.drain(shop)
        log = MemoryLog(shop)
        assert "raise max_wal_senders, or end another one" in refused(log)
        assert node.execute("SELECT pubname FROM pg_publication") == [("other",)]
        other.kill()
        log.drain(shop)
        log.kill()
        assert keys(log) == [1]


def test_a_server_without_logical_decoding() -> None:
    """It refuses to start with a logical slot. Without one, the reader says what is needed."""
    with nodes("17") as node:
        shop = shop_of(node)
        log = started(shop)
        # A server that stops waits for those who read its log.
        log.kill()
        node.stop()
        node.settings["wal_level"] = "replica"
        node.start(is_awaited=False)
        assert node.process is not None
        assert node.process.wait(60) != 0
        refused(log)
        node.settings["wal_level"] = "logical"
        node.start()
        node.execute("INSERT INTO items VALUES (2)")
        log.drain(shop)
        log.kill()
        assert keys(log) == [1, 2]
        until(lambda: node.execute("SELECT 1 FROM pg_replication_slots WHERE active") == [])
        node.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        node.stop()
        node.settings["wal_level"] = "replica"
        node.start()
        assert "wal_level is replica: logical is needed" in broken(shop, log)
        fresh = MemoryLog(shop, publication="fresh")
        assert "wal_level is replica: logical is needed" in broken(shop, fresh)
        assert node.execute("SELECT 1 FROM pg_publication WHERE pubname = 'fresh'") == []


def lost(log: MemoryLog) -> str:
    """Poll until the session is lost, and return how that is reported."""
    with pytest.raises(SourceUnavailable) as found:
        until(lambda: log.poll(0.1) is None)
    return str(found.value)


def test_a_server_in_recovery_is_tried_again() -> None:
    """It may be promoted. Nothing is created, also where the dsn insists on the standby."""
    with nodes("18") as node:
        shop_of(node)
        node.execute("SELECT pg_create_physical_replication_slot('standby', true)")
        node.stop()
        standby = node.copy("b")
        node.start()
        standby.follow(node, "standby")
        standby.start()
        database = Database("postgres", standby.service)
        assert "session is read-only" in refused(MemoryLog(database))
        dsn = make_conninfo(database.dsn, target_session_attrs="any")
        assert "is a standby: a copy needs the primary" in refused(MemoryLog(database, dsn=dsn))


def test_a_server_that_starts_again_at_another_port() -> None:
    """The reader goes on by the new address, because the server is the same."""
    with nodes("18", listen_addresses="127.0.0.1") as node:
        shop = shop_of(node)
        node.stop()
        log = MemoryLog(shop)
        for key in (2, 3):
            port = free_port()
            node.settings["port"] = str(port)
            node.start(is_awaited=False)
            dsn = make_conninfo(
                host=str(node.folder), port=port, user="postgres", dbname="postgres"
            )
            until(lambda dsn=dsn: is_reachable(dsn))
            if key == 3:
                assert "connection" in refused(log)
            log.settings["dsn"] = dsn
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("INSERT INTO items VALUES (%s)", [key])
            until(lambda key=key: log.poll(0.1) and keys(log)[-1:] == [key])
            log.kill()
            node.stop()
        assert keys(log) == [1, 2, 3]


def is_reachable(dsn: str) -> bool:
    """Return whether a server accepts sessions."""
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.parametrize("seconds", [5, 70])
def test_a_server_that_is_frozen(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """All of its processes stop, connections stay open, and afterwards nothing is missing.

    After more than a minute the server ends the session itself.
    """
    monkeypatch.setattr(session, "PATIENCE", 1.0)
    for name in ("_SILENCE", "_ANSWER", "_REPORT"):
        monkeypatch.setattr(reader_module, name, 0.5)
    with nodes("18") as node:
        shop = shop_of(node)
        log = started(shop, watch="1s")
        assert node.process is not None
        # The server's processes are sessions of their own, by the parent.
        pids = [node.process.pid, *children(node.process.pid)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        begun = time.monotonic()
        try:
            lost(log)
            assert time.monotonic() - begun < 5
            log.kill()
            begun = time.monotonic()
            # A listening server whose process stands still accepts by its kernel alone.
            refused(through_tcp(log))
            assert time.monotonic() - begun < 6
            time.sleep(max(0.0, seconds - (time.monotonic() - begun)))
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        node.execute("INSERT INTO items VALUES (2)")
        log.drain(shop)
        log.kill()
        assert keys(log) == [1, 2]


def through_tcp(log: MemoryLog) -> MemoryLog:
    """Let *log* wait for a connection for the shortest time."""
    log.settings["dsn"] = make_conninfo(log.settings["dsn"], connect_timeout=2)
    return log


def children(pid: int) -> list[int]:
    """Return the processes that *pid* has started."""
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, check=True
    )
    return [int(each) for each in found.stdout.split()]


def test_a_server_of_a_new_version_is_accepted_only_by_its_id() -> None:
    """Dump and restore from 14 to 18: no slot, no publication, another system id."""
    with nodes("14") as old, nodes("18") as new:
        shop = shop_of(old)
        log = started(shop)
        old.execute("INSERT INTO items VALUES (2)")
        log.drain(shop)
        log.kill()
        old.execute("INSERT INTO items VALUES (3)")
        new.start()
        new.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
        for row in old.execute("SELECT id, name FROM items"):
            new.execute("INSERT INTO items VALUES (%s, %s)", row)
        old.stop()
        after_upgrade(log, Database("postgres", new.service))


DEBIAN = Path("/usr/lib/postgresql/15/bin")
"""The server of Debian 12, which has all programs: the archives of each version do not."""


def test_a_server_after_pg_upgrade_is_accepted_only_by_its_id() -> None:
    """The publication is upgraded with the data and the slot is not, so nothing passes silently."""
    if not (DEBIAN / "pg_upgrade").exists():
        cannot_run("PostgreSQL 15 of Debian is not installed")
    with nodes(WHEEL) as new:
        old = make_node(DEBIAN, new, "old")
        shop = shop_of(old)
        log = started(shop)
        old.execute("INSERT INTO items VALUES (2)")
        log.drain(shop)
        log.kill()
        old.execute("INSERT INTO items VALUES (3)")
        old.stop()
        upgrade(old, new)
        new.start()
        after_upgrade(log, Database("postgres", new.service))


def after_upgrade(log: MemoryLog, upgraded: Database) -> None:
    """Check that *log* goes on with the *upgraded* server only once it is accepted and copied."""
    log.settings["dsn"] = upgraded.dsn
    found = broken(upgraded, log)
    ((system_id,),) = upgraded.execute("SELECT system_identifier::text FROM pg_control_system()")
    assert "this is another server" in found
    assert f"accept this one by server: {system_id}" in found
    log.settings["server"] = system_id
    found = broken(upgraded, log)
    assert (
        "raise the reader's copy_run" in found
        or "have every table copied again by copy_run" in found
    )
    log.settings |= {"copy_run": 2, "copy_from_empty": True}
    with clean_slots(upgraded):
        log.drain(upgraded)
        upgraded.execute("INSERT INTO items VALUES (4)")
        log.drain(upgraded)
        log.kill()
        # Once accepted, the new server's own position is the log's.
        del log.settings["server"]
        upgraded.execute("INSERT INTO items VALUES (5)")
        log.drain(upgraded)
        log.kill()
    assert keys(log) == [1, 2, 1, 2, 3, 4, 5]


def test_a_restore_to_a_moment_before_the_log_is_refused() -> None:
    """Its new timeline left the old one before the log's position, however much it writes."""
    archive = "cp %p ../archive/%f"
    with nodes("18", archive_mode="on", archive_command=archive) as node:
        make_archive(node)
        shop = shop_of(node)
        log = started(shop)
        log.kill()
        node.stop()
        restored = node.copy("restored")
        node.start()
        node.execute("SELECT pg_create_restore_point('before')")
        node.execute("INSERT INTO items VALUES (2)")
        log.drain(shop)
        log.kill()
        node.execute("SELECT pg_switch_wal()")
        until(lambda: node.execute("SELECT last_archived_wal IS NOT NULL FROM pg_stat_archiver"))
        node.stop()
        restored.settings = {
            "restore_command": f"cp {node.folder}/archive/%f %p",
            "recovery_target_name": "before",
            "recovery_target_action": "promote",
        }
        (restored.data / "recovery.signal").touch()
        give_away(restored.folder)
        restored.start()
        until(lambda: restored.execute("SELECT pg_is_in_recovery()") == [(False,)])
        for _ in range(3):
            restored.execute("SELECT pg_logical_emit_message(true, 'x', repeat('x', 9000000))")
        database = Database("postgres", restored.service)
        log.settings["dsn"] = database.dsn
        assert "bytes of transactions that the log holds" in broken(database, log)
        log.settings |= {"copy_run": 2, "copy_from_empty": True}
        log.drain(database)
        log.kill()
        assert keys(log) == [1, 2, 1]


def make_archive(node: Node) -> None:
    """Create the folder of *node*'s archive."""
    (node.folder / "archive").mkdir()
    give_away(node.folder)

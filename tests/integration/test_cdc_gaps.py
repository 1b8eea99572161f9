"""Gaps that ``postgres-cdc`` must see: slots and publications that others have changed."""

from __future__ import annotations

import pytest
from cdc_tools import (
    LOG_ID,
    MemoryLog,
    broken,
    clean_slots,
    need_version,
    short,
    started,
    version,
)
from engine_tools import until
from services.postgres import Database, fresh_database

from transporter.errors import EnvironmentFault, SourceError, SourceUnavailable

pytestmark = pytest.mark.postgres

SLOT = f"transporter_reader_{LOG_ID[:8]}"
PUBLICATION = "transporter_reader"


def drop_slot(database: Database) -> None:
    """Drop the reader's slot once its session has ended."""
    until(lambda: database.execute("SELECT 1 FROM pg_replication_slots WHERE active") == [])
    database.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])


def keys(log: MemoryLog) -> list[str | None]:
    """Return the keys of all rows."""
    return [each[2] for each in short(log.messages) if each[0] != "noop"]


@pytest.mark.parametrize("run", [0, 1, 2], ids=["new", "logged", "copied again"])
def test_a_physical_slot_of_the_name_is_refused(shop: Database, run: int) -> None:
    """A standby may be using it, and no copy needs its name."""
    log = started(shop) if run else MemoryLog(shop)
    log.kill()
    if run:
        drop_slot(shop)
        log.settings["copy_run"] = run
    shop.execute("SELECT pg_create_physical_replication_slot(%s)", [SLOT])
    try:
        assert f"slot {SLOT} is a physical one" in broken(shop, log)
    finally:
        shop.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])


@pytest.mark.parametrize("is_logged", [False, True])
def test_a_slot_of_another_database_is_refused(shop: Database, *, is_logged: bool) -> None:
    """It has the other database's changes, and no retry would help."""
    log = started(shop) if is_logged else MemoryLog(shop)
    log.kill()
    if is_logged:
        drop_slot(shop)
    with fresh_database(shop.server) as other, clean_slots(other):
        other.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
        assert f"belongs to the database {other.name}" in broken(shop, log)


def test_a_slot_that_others_make_is_made_again_by_them(shop: Database) -> None:
    """With ``manage: nothing`` the error has the statements, and the next open takes the slot."""
    shop.execute(
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE items WITH (publish_via_partition_root = true)"
    )
    make = "SELECT pg_create_logical_replication_slot('mine', 'pgoutput')"
    shop.execute(make)
    log = started(shop, slot="mine", manage="nothing")
    log.kill()
    shop.execute("INSERT INTO items VALUES (1)")
    log.settings["copy_run"] = 2
    for _ in range(2):
        text = broken(shop, log)
        log.kill()
    drop = "SELECT pg_drop_replication_slot('mine')"
    assert f"manage is nothing; run {drop}, and then {make}" in text
    shop.execute(drop)
    shop.execute(make)
    log.drain(shop)
    log.kill()
    shop.execute("INSERT INTO items VALUES (2)")
    log.drain(shop)
    log.kill()
    assert keys(log) == ["1", "2"]


def test_a_slot_that_is_older_than_its_publication(shop: Database) -> None:
    """Servers before 18 cannot decode what was in between, and the error says what helps."""
    make = "SELECT pg_create_logical_replication_slot('mine', 'pgoutput')"
    shop.execute(make)
    shop.execute("INSERT INTO items VALUES (1)")
    shop.execute(
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE items WITH (publish_via_partition_root = true)"
    )
    log = MemoryLog(shop, slot="mine", manage="nothing")
    if version(shop) < 18:
        with pytest.raises(SourceError, match=r"does not exist; .* raise the reader's copy_run"):
            log.drain(shop)
        log.kill()
        log.settings["copy_run"] = 2
        drop = "SELECT pg_drop_replication_slot('mine')"
        assert drop in broken(shop, log)
        log.kill()
        shop.execute(drop)
        shop.execute(make)
    log.drain(shop)
    shop.execute("INSERT INTO items VALUES (2)")
    log.drain(shop)
    log.kill()
    assert {*keys(log)} == {"1", "2"}


def test_another_publication_is_a_gap(shop: Database) -> None:
    """Nothing says what it did not publish since the position in the log."""
    log = started(shop)
    log.kill()
    shop.execute("CREATE PUBLICATION mine WITH (publish_via_partition_root = true)")
    log.settings["publication"] = "mine"
    assert "publication mine is not the one that the log follows" in broken(shop, log)
    log.settings["copy_run"] = 2
    shop.execute("INSERT INTO items VALUES (1)")
    log.drain(shop)
    log.kill()
    assert keys(log) == ["1"]


def test_a_slot_that_is_dropped_while_it_is_read(shop: Database) -> None:
    """The session that reads is ended by that, and the next open stops."""
    log = started(shop)
    shop.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
    drop_slot(shop)
    with pytest.raises(SourceUnavailable):
        until(lambda: log.poll(0.1) is None)
    log.kill()
    assert "is gone" in broken(shop, log)


def test_a_slot_that_another_client_reads_between_two_runs(shop: Database) -> None:
    """Its confirmations have moved the slot beyond the log."""
    log = started(shop)
    log.kill()
    until(lambda: shop.execute("SELECT 1 FROM pg_replication_slots WHERE active") == [])
    shop.execute("INSERT INTO items VALUES (1)")
    shop.execute(
        "SELECT count(*) FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL,"
        " 'proto_version', '1', 'publication_names', %s)",
        [SLOT, PUBLICATION],
    )
    assert "another client has read from it" in broken(shop, log)


def test_a_slot_of_two_phases_is_no_danger(shop: Database) -> None:
    """A DBA has made it with that option: prepared transactions are refused, or come whole."""
    shop.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", [SLOT])
    log = started(shop)
    if shop.execute("SHOW max_prepared_transactions") != [("0",)]:
        shop.execute("BEGIN; INSERT INTO items VALUES (1); PREPARE TRANSACTION 'x'")
        shop.execute("COMMIT PREPARED 'x'")
    shop.execute("INSERT INTO items VALUES (2)")
    log.drain(shop)
    log.kill()
    assert keys(log)[-1] == "2"


def test_a_publication_that_leaves_kinds_out_is_noticed(shop: Database) -> None:
    """A running reader looks now and then, because the server just sends less."""
    log = started(shop, watch="1s")
    shop.execute(f"ALTER PUBLICATION {PUBLICATION} SET (publish = 'insert')")
    with pytest.raises(EnvironmentFault, match=r"leaves out updates, deletes, truncates"):
        until(lambda: log.poll(0.1) is None)
    log.kill()


@pytest.mark.parametrize("is_open", [False, True])
def test_a_publication_that_left_kinds_out_for_a_while(shop: Database, *, is_open: bool) -> None:
    """Updates were never sent meanwhile, and only its row in the catalog shows it."""
    shop.execute("INSERT INTO items VALUES (1, 'a')")
    log = started(shop, watch="1s")
    if not is_open:
        log.kill()
    with shop.connect() as connection, connection.transaction():
        connection.execute(f"ALTER PUBLICATION {PUBLICATION} SET (publish = 'insert')")
    shop.execute("UPDATE items SET name = 'b'")
    shop.execute(
        f"ALTER PUBLICATION {PUBLICATION} SET (publish = 'insert, update, delete, truncate')"
    )
    with pytest.raises(EnvironmentFault, match="was altered"):
        until(lambda: log.poll(0.1) is None)
    log.kill()
    log.settings["copy_run"] = 2
    log.drain(shop)
    log.kill()
    assert short(log.messages)[-2][3] == {"id": 1, "name": "b"}


def test_a_table_that_is_added_does_not_look_like_an_alteration(shop: Database) -> None:
    """Tables come and go by ALTER PUBLICATION, too."""
    log = started(shop, watch="1s")
    shop.execute("CREATE TABLE others (id int PRIMARY KEY)")
    until(lambda: log.poll(0.1) and [name for name, _ in log.told].count("table-in-sync") == 2)
    shop.execute("DROP TABLE others")
    until(lambda: log.poll(0.1) and "table-removed" in [name for name, _ in log.told])
    log.kill()
    shop.execute("INSERT INTO items VALUES (1)")
    log.drain(shop)
    log.kill()
    assert keys(log) == ["1"]


def test_a_schema_that_left_the_publication_and_came_back(shop: Database) -> None:
    """A publication of schemas has no membership of single tables, but one of each schema."""
    need_version(shop, 15, "publications of schemas")
    shop.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLES IN SCHEMA public")
    log = started(shop, manage="slot")
    log.kill()
    shop.execute(f"ALTER PUBLICATION {PUBLICATION} DROP TABLES IN SCHEMA public")
    shop.execute("INSERT INTO items VALUES (1)")
    shop.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLES IN SCHEMA public")
    assert "came back" in broken(shop, log)


@pytest.mark.parametrize("what", ["ALL TABLES", "TABLES IN SCHEMA public"])
def test_a_publication_that_a_dba_made(shop: Database, what: str) -> None:
    """It is used as it is, also when fewer tables are wanted than it has."""
    if "SCHEMA" in what:
        need_version(shop, 15, "publications of schemas")
    shop.execute(f"CREATE TABLE others (id int PRIMARY KEY); CREATE PUBLICATION mine FOR {what}")
    shop.execute("SELECT pg_create_logical_replication_slot('mine', 'pgoutput')")
    for manage in ("nothing", "all"):
        log = started(shop, publication="mine", slot="mine", manage=manage)
        shop.execute("INSERT INTO items VALUES (1); INSERT INTO others VALUES (1)")
        log.drain(shop)
        log.kill()
        log.settings["tables"] = ["public.items"]
        shop.execute("INSERT INTO items VALUES (2); INSERT INTO others VALUES (2)")
        log.drain(shop)
        log.kill()
        found = sorted((each.namespace, each.key) for each in log.messages if each.op == "insert")
        assert found == [
            ("public.items", b"1"), ("public.items", b"2"), ("public.others", b"1")
        ]  # fmt: skip
        shop.execute("TRUNCATE items, others")
        shop.execute("SELECT pg_replication_slot_advance('mine', pg_current_wal_lsn())")


def test_the_server_before_a_failover_is_refused(shop: Database) -> None:
    """It has the older timeline, whose end nothing has but its own files."""
    log = started(shop)
    log.kill()
    log.change_position(srv=log.position_fields["srv"].split("/")[0] + "/2")
    assert "is on timeline 1, and the log follows 2" in broken(shop, log)


def test_an_upgraded_server_is_accepted_on_request(shop: Database) -> None:
    """Its system id is another, and its timeline begins again."""
    log = started(shop)
    log.kill()
    log.change_position(srv="123/7")
    found = broken(shop, log)
    log.settings["server"] = found.rpartition("server: ")[2]
    shop.execute("INSERT INTO items VALUES (1)")
    log.drain(shop)
    log.kill()
    assert keys(log) == ["1"]


def test_a_role_with_quotes_is_named_as_in_sql(shop: Database) -> None:
    """The statement that helps can be run as it is."""
    shop.execute('CREATE ROLE "we""ak r" LOGIN')
    try:
        found = broken(shop, MemoryLog(shop, dsn=shop.dsn_as('we"ak r')))
        statement = found.partition("run ")[2].partition(" (RDS")[0]
        shop.execute(statement)
        assert shop.execute("SELECT rolreplication FROM pg_roles WHERE rolname = 'we\"ak r'") == [
            (True,)
        ]
    finally:
        shop.execute('DROP ROLE "we""ak r"')


def test_a_slot_that_lost_its_log_stops_the_reader(shop: Database) -> None:
    """The server keeps no more than ``max_slot_wal_keep_size``."""
    log = started(shop, watch="1s")
    log.kill()
    until(lambda: shop.execute("SELECT 1 FROM pg_replication_slots WHERE active") == [])
    try:
        shop.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        shop.execute("SELECT pg_reload_conf()")
        lost = "SELECT 1 FROM pg_replication_slots WHERE wal_status = 'lost'"

        def is_lost() -> bool:
            shop.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 9000000))")
            shop.execute("SELECT pg_switch_wal()")
            shop.execute("CHECKPOINT")
            return bool(shop.execute(lost))

        until(is_lost)
        assert "was invalidated (wal_removed)" in broken(shop, log)
        log.settings["copy_run"] = 2
        shop.execute("INSERT INTO items VALUES (1)")
    finally:
        shop.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        shop.execute("SELECT pg_reload_conf()")
    log.drain(shop)
    log.kill()
    assert keys(log) == ["1"]


def test_a_slot_that_is_invalidated_while_it_is_read(shop: Database) -> None:
    """Its session is ended, and the next open says why."""
    log = started(shop, watch="1s")
    log.reader()
    try:
        shop.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        shop.execute("SELECT pg_reload_conf()")
        lost = "SELECT 1 FROM pg_replication_slots WHERE wal_status = 'lost'"

        def is_lost() -> bool:
            shop.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 9000000))")
            shop.execute("SELECT pg_switch_wal()")
            shop.execute("CHECKPOINT")
            return bool(shop.execute(lost))

        until(is_lost)
        with pytest.raises((SourceUnavailable, EnvironmentFault)):
            until(lambda: log.poll(0.1) is None)
        log.kill()
        assert "was invalidated (wal_removed)" in broken(shop, log)
    finally:
        shop.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        shop.execute("SELECT pg_reload_conf()")


def test_a_publication_that_is_gone_is_not_tried_for_ever(shop: Database) -> None:
    """A publication that vanishes stops the reader, whatever the server says of it."""
    log = started(shop)
    shop.execute(f"DROP PUBLICATION {PUBLICATION}")
    shop.execute("INSERT INTO items VALUES (1)")
    log.kill()
    assert "was dropped and created again" in broken(shop, log)

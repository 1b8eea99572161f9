"""Tables of ``postgres-cdc`` that change while it runs: columns, names, partitions, the list."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import product
from typing import Any

import pytest
from cdc_tools import (
    LOG_ID,
    MemoryLog,
    broken,
    clean_slots,
    locked,
    need_version,
    short,
    started,
    version,
)
from engine_tools import until
from pydantic import SecretStr
from services.postgres import Database
from transporter_adaptors.postgres_cdc import watch
from transporter_adaptors.postgres_cdc.config import CdcConfig
from transporter_adaptors.postgres_cdc.handover import MAX_CHUNKS
from transporter_adaptors.postgres_cdc.plan import names_of, plan_tables
from transporter_adaptors.postgres_cdc.publication import COLUMN_LISTS, find_member, find_members
from transporter_adaptors.postgres_cdc.publishing import ensure_published
from transporter_adaptors.postgres_cdc.reader import CdcReader
from transporter_adaptors.postgres_cdc.session import connect_queries

from transporter.errors import EnvironmentFault, SourceUnavailable
from transporter.testing import FixedResume

pytestmark = pytest.mark.postgres


def events(log: MemoryLog, *names: str) -> list[tuple[str, dict[str, object]]]:
    """Return the events of these names."""
    return [each for each in log.told if each[0] in names]


def copying(database: Database, **settings: Any) -> MemoryLog:
    """Return the log of a reader that has copied a few rows, two a chunk."""
    log = MemoryLog(database, copy_rows=2, **settings)
    until(lambda: log.poll() and any(each.phase == "copy" for each in log.messages))
    return log


def refusal(database: Database, **settings: Any) -> str:
    """Return the error of a reader that is opened for the first time, and has created nothing."""
    given = {"dsn": database.dsn, "tables": ["public.*"], **settings}
    reader = CdcReader(CdcConfig.model_validate(given))
    with pytest.raises(EnvironmentFault) as found:
        reader.open(FixedResume(None, LOG_ID))
    reader.close()
    assert database.execute("SELECT pubname FROM pg_publication") == []
    assert database.execute("SELECT 1 FROM pg_replication_slots") == []
    return str(found.value)


def test_a_table_without_a_key_is_read_for_its_inserts(shop: Database) -> None:
    """It is in a publication of its own, so its UPDATEs go on in the application."""
    shop.execute("CREATE TABLE clicks (at int, page text); INSERT INTO clicks VALUES (1, 'old')")
    assert "list it with insert_only" in refusal(shop)
    tables = ["public.items", {"table": "public.clicks", "insert_only": True, "copy": "none"}]
    log = started(shop, tables=tables)
    shop.execute(
        "INSERT INTO clicks VALUES (2, 'new'); UPDATE clicks SET page = 'x'; TRUNCATE clicks"
    )
    shop.execute("INSERT INTO items VALUES (1)")
    log.drain(shop)
    log.kill()
    log.drain(shop)
    log.kill()
    assert [(each[0], each[2], each[3]) for each in short(log.messages) if each[1] == "sync"] == [
        ("insert", None, {"at": 2, "page": "new"}),
        ("command", None, {"command": "truncate", "cascade": False, "restart_identity": False}),
        ("insert", "1", {"id": 1, "name": None}),
    ]
    names = shop.execute("SELECT pubname, pubupdate FROM pg_publication ORDER BY 1")
    assert names == [("transporter_reader", True), ("transporter_reader_inserts", False)]


def test_a_table_without_an_order_is_not_copied(shop: Database) -> None:
    """The copy goes by a unique key, and the error says how to do without."""
    shop.execute("CREATE TABLE clicks (at int)")
    found = refusal(shop, tables=[{"table": "clicks", "insert_only": True}])
    assert "write copy: none in its item" in found


def test_a_key_outside_of_the_identity_is_refused(shop: Database) -> None:
    """A DELETE would come without it."""
    shop.execute("CREATE TABLE users (id int PRIMARY KEY, mail text NOT NULL UNIQUE)")
    found = refusal(shop, tables=[{"table": "users", "key": ["mail"]}])
    assert "not part of its replica identity" in found
    shop.execute("ALTER TABLE users REPLICA IDENTITY FULL; INSERT INTO users VALUES (1, 'a@b')")
    log = started(shop, tables=[{"table": "users", "key": ["mail"]}])
    shop.execute("DELETE FROM users")
    log.drain(shop)
    log.kill()
    assert [(each[0], each[2]) for each in short(log.messages)] == [
        ("insert", "a@b"),
        ("noop", None),
        ("delete", "a@b"),
    ]


def test_an_identity_that_loses_the_key_stops_the_reader(shop: Database) -> None:
    """A DELETE without its key cannot be logged, and is not passed."""
    shop.execute("ALTER TABLE items ADD COLUMN other int NOT NULL DEFAULT 1")
    shop.execute("CREATE UNIQUE INDEX other ON items (other)")
    shop.execute("INSERT INTO items VALUES (1)")
    log = started(shop)
    shop.execute("ALTER TABLE items REPLICA IDENTITY USING INDEX other; DELETE FROM items")
    with pytest.raises(EnvironmentFault, match="came without id, which is part of its key"):
        log.drain(shop)
    log.kill()


def test_some_rows_are_copied_and_all_are_followed(shop: Database) -> None:
    """``copy_where`` is a filter for the copy alone, also for rows that change meanwhile."""
    shop.execute("INSERT INTO items SELECT n FROM generate_series(1, 40) n")
    item = {"table": "items", "copy_where": "id > 30"}
    log = MemoryLog(shop, tables=[item], copy_rows=4)
    until(lambda: log.poll() and any(each.phase == "copy" for each in log.messages))
    shop.execute("UPDATE items SET name = 'x' WHERE id IN (5, 38)")
    log.drain(shop)
    log.kill()
    copied = [each[2] for each in short(log.messages) if each[1] == "copy"]
    assert copied == [str(number) for number in range(31, 41)]
    assert [each[2] for each in short(log.messages) if each[0] == "update"] == ["5", "38"]


def test_a_partitioned_table_needs_a_publication_by_its_root(shop: Database) -> None:
    """A DBA's publication that sends partitions by name is refused with the statement."""
    shop.execute(
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);"
        "CREATE PUBLICATION mine FOR TABLE parts"
    )
    reader = CdcReader(
        CdcConfig.model_validate(
            {"dsn": shop.dsn, "tables": ["parts"], "publication": "mine", "manage": "slot"}
        )
    )
    with pytest.raises(EnvironmentFault, match="publish_via_partition_root = true"):
        reader.open(FixedResume(None, LOG_ID))
    reader.close()


@pytest.mark.parametrize(
    "first", ["", "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);"]
)
def test_partitions_that_come_are_reported(shop: Database, first: str) -> None:
    """Rows of a partition that is attached were never sent, also if it is the only one."""
    shop.execute(
        f"CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id); {first}"
        "CREATE TABLE parts_2 (id int PRIMARY KEY); INSERT INTO parts_2 VALUES (15)"
    )
    log = started(shop, watch="1s", tables=["public.parts"])
    shop.execute("ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (10) TO (20)")
    until(lambda: log.poll(0.1) and events(log, "partitions-changed"))
    log.kill()
    log.drain(shop)
    log.kill()
    assert events(log, "partitions-changed") == [("partitions-changed", {"table": "public.parts"})]


def test_tables_come_and_go_while_all_others_go_on(shop: Database) -> None:
    """A pattern's new table is copied, one that is dropped ends, and one without a key is named."""
    log = started(shop, watch="1s")
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1), (2)")
    shop.execute("CREATE TABLE keyless (id int)")
    until(lambda: log.poll(0.1) and events(log, "copy-complete")[1:])
    shop.execute("INSERT INTO orders VALUES (3); INSERT INTO items VALUES (7)")
    log.drain(shop)
    found = [(each.namespace, *each_short) for each, each_short in zip(
        [m for m in log.messages if not (m.op == "noop" and m.data is None)],
        short(log.messages), strict=True,
    )]  # fmt: skip
    assert [each[:4] for each in found if each[1] != "noop"] == [
        ("public.orders", "insert", "copy", "1"),
        ("public.orders", "insert", "copy", "2"),
        ("public.orders", "insert", "sync", "3"),
        ("public.items", "insert", "sync", "7"),
    ]
    ((_, told),) = events(log, "table-left-out")
    assert told["table"] == "public.keyless"
    assert str(told["problem"]).startswith("public.keyless has no primary key")
    # Once it has a key it is read.
    shop.execute("ALTER TABLE keyless ADD PRIMARY KEY (id); INSERT INTO keyless VALUES (1)")
    shop.execute("DROP TABLE orders")
    until(
        lambda: log.poll(0.1) and events(log, "table-removed") and events(log, "copy-complete")[2:]
    )
    shop.execute("INSERT INTO keyless VALUES (2)")
    log.kill()
    log.drain(shop)
    log.kill()
    assert [each.key for each in log.messages if each.namespace == "public.keyless"] == [
        b"1", None, b"2"
    ]  # fmt: skip


@pytest.mark.parametrize("what", ["ALL TABLES", "TABLES IN SCHEMA public", "TABLE items"])
def test_a_new_table_whose_changes_come_before_it_is_followed(shop: Database, what: str) -> None:
    """The server describes a table once, perhaps long before the reader takes it up.

    It does so for a publication of all tables, and for one to which a reader that was killed then
    had added the table.
    """
    if "SCHEMA" in what:
        need_version(shop, 15, "publications of schemas")
    shop.execute(
        f"CREATE PUBLICATION transporter_reader FOR {what} WITH (publish_via_partition_root = true)"
    )
    log = started(shop, watch="1s")
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    if "items" in what:
        shop.execute("ALTER PUBLICATION transporter_reader ADD TABLE orders")
    shop.execute("INSERT INTO orders VALUES (1), (2)")
    # Read before the next look at the tables.
    parts = log.reader()._open_parts
    parts._watch._next = time.monotonic() + 3600
    log.drain(shop)
    assert [each.namespace for each in log.messages if each.op == "insert"] == []
    parts._watch._next = 0.0
    until(lambda: log.poll(0.1) and events(log, "table-in-sync")[1:])
    shop.execute("INSERT INTO orders VALUES (3); DELETE FROM orders WHERE id = 1")
    shop.execute("TRUNCATE orders; INSERT INTO orders VALUES (4)")
    log.drain(shop)
    log.kill()
    ops = [(each.op, each.key) for each in log.messages if each.namespace == "public.orders"]
    assert [each for each in ops if each[0] != "noop"] == [
        ("insert", b"1"), ("insert", b"2"), ("insert", b"3"), ("delete", b"1"),
        ("command", None), ("insert", b"4"),
    ]  # fmt: skip


@pytest.mark.parametrize("is_ahead", [True, False], ids=["look first", "stream first"])
def test_a_new_table_that_gets_its_key_late(shop: Database, *, is_ahead: bool) -> None:
    """What came before the key is in the copy, and stops nobody."""
    shop.execute(
        "CREATE PUBLICATION transporter_reader FOR ALL TABLES"
        " WITH (publish_via_partition_root = true)"
    )
    log = started(shop, watch="1s")
    watch = log.reader()._open_parts._watch
    watch._next = time.monotonic() + 3600
    shop.execute("CREATE TABLE orders (n int)")
    shop.execute("INSERT INTO orders VALUES (1)")
    if not is_ahead:
        log.drain(shop)
    shop.execute("INSERT INTO orders VALUES (2)")
    shop.execute("ALTER TABLE orders ADD id serial PRIMARY KEY; INSERT INTO orders VALUES (3)")
    watch._next = 0.0
    until(lambda: log.poll(0.1) and events(log, "table-in-sync")[1:])
    shop.execute("DELETE FROM orders WHERE n = 2")
    log.drain(shop)
    log.kill()
    assert keys_of(log) == {"public.orders": {"1", "3"}}


def test_a_change_without_a_definition_is_not_passed_over(shop: Database) -> None:
    """Whatever lost it: another session gets it once more."""
    log = started(shop)
    shop.execute("INSERT INTO items VALUES (1)")
    log.drain(shop)
    log.reader()._open_parts._translator._tables.clear()
    shop.execute("INSERT INTO items VALUES (2)")
    with pytest.raises(SourceUnavailable, match=r"public\.items came without the table's definit"):
        log.drain(shop)
    log.kill()
    log.drain(shop)
    log.kill()
    assert keys_of(log) == {"public.items": {"1", "2"}}


def test_a_table_whose_key_is_renamed_is_emptied_at_once(shop: Database) -> None:
    """Both come together, and the entries of the new definition are those of the TRUNCATE, too."""
    shop.execute("INSERT INTO items VALUES (1)")
    log = started(shop)
    shop.execute("ALTER TABLE items RENAME id TO number")
    shop.execute("INSERT INTO items VALUES (2); TRUNCATE items; INSERT INTO items VALUES (3)")
    log.drain(shop)
    log.kill()
    assert keys_of(log) == {"public.items": {"3"}}


def test_definitions_of_tables_that_are_gone_are_forgotten(shop: Database) -> None:
    """Staging tables come and go for years."""
    shop.execute("CREATE PUBLICATION transporter_reader FOR ALL TABLES")
    log = started(shop, watch="1s", tables=["public.items", "public.t*"])
    for name in ("t1", "t2", "staging"):
        shop.execute(f"CREATE TABLE {name} (n int)")
        shop.execute(f"INSERT INTO {name} VALUES (1)")
        log.drain(shop)
    unfollowed = log.reader()._open_parts._translator._unfollowed
    assert {each.name for each in unfollowed.values()} == {"t1", "t2"}
    shop.execute("DROP TABLE t1; CREATE TABLE t3 (n int)")
    until(lambda: log.poll(0.1) and "public.t3" in str(events(log, "table-left-out")))
    unfollowed = log.reader()._open_parts._translator._unfollowed
    log.kill()
    assert {each.name for each in unfollowed.values()} == {"t2"}


def test_a_new_table_that_only_its_owner_may_publish_is_left_out(shop: Database) -> None:
    """An application that creates a table must not end its reader, also not after a kill."""
    role = f"reader_{shop.name}"
    shop.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION; GRANT USAGE ON SCHEMA public TO {role};"
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role};"
        "CREATE PUBLICATION transporter_reader FOR TABLE items"
        " WITH (publish_via_partition_root = true)"
    )
    try:
        log = started(shop, dsn=shop.dsn_as(role), watch="1s")
        shop.execute(f"CREATE TABLE late (id int PRIMARY KEY); GRANT SELECT ON late TO {role}")
        until(lambda: log.poll(0.1) and events(log, "table-left-out"))
        log.kill()
        shop.execute("INSERT INTO items VALUES (1); INSERT INTO late VALUES (1)")
        log.drain(shop)
        add = 'ALTER PUBLICATION "transporter_reader" ADD TABLE "public"."late"'
        assert {str(told["problem"]) for _, told in events(log, "table-left-out")} == {
            f"public.late is not published; have its owner run {add}"
        }
        shop.execute(add)
        until(lambda: log.poll(0.1) and ("insert", "copy", "1", {"id": 1}) in short(log.messages))
        log.drain(shop)
        log.kill()
        assert events(log, "copy-began")[-1][1]["table"] == "public.late"
    finally:
        log.kill()
        until(lambda: not shop.execute("SELECT 1 FROM pg_replication_slots WHERE active"))
        shop.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.exhaustive
def test_a_new_table_that_is_locked_holds_up_no_other(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that is built on it keeps it from being published, perhaps for hours."""
    monkeypatch.setattr(watch, "_RETRY", 1.0)
    log = started(shop, watch="1s")
    shop.execute("CREATE TABLE late (id int PRIMARY KEY); INSERT INTO late VALUES (1)")
    with locked(shop, "late", "SHARE UPDATE EXCLUSIVE"):
        until(lambda: log.poll(0.1) and events(log, "table-left-out"))
        shop.execute("INSERT INTO items VALUES (7)")
        until(
            lambda: (
                log.poll(0.1) and ("insert", "sync", "7") in [e[:3] for e in short(log.messages)]
            )
        )
    until(lambda: log.poll(0.1) and ("insert", "copy", "1", {"id": 1}) in short(log.messages))
    assert log.kills == 0
    log.kill()


@pytest.mark.exhaustive
def test_each_new_problem_of_a_left_out_table_is_reported(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has done what was advised sees what else is missing, and then that it is read."""
    monkeypatch.setattr(watch, "_RETRY", 1.0)
    log = started(shop, watch="1s")
    shop.execute("CREATE TABLE late (id int NOT NULL); INSERT INTO late VALUES (1)")
    until(lambda: log.poll(0.1) and events(log, "table-left-out"))
    shop.execute("ALTER TABLE late REPLICA IDENTITY FULL")
    until(lambda: log.poll(0.1) and events(log, "table-left-out")[1:])
    shop.execute("ALTER TABLE late ADD PRIMARY KEY (id)")
    until(lambda: log.poll(0.1) and ("insert", "copy", "1", {"id": 1}) in short(log.messages))
    log.kill()


def test_a_new_table_whose_changes_would_fail_is_not_published(shop: Database) -> None:
    """One of its partitions has no identity, so the application could not change its rows."""
    log = started(shop, watch="1s")
    shop.execute(
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);"
        "ALTER TABLE parts_1 REPLICA IDENTITY NOTHING; INSERT INTO parts VALUES (1)"
    )
    until(lambda: log.poll(0.1) and events(log, "table-left-out"))
    shop.execute("UPDATE parts SET id = 2; DELETE FROM parts")
    ((_, told),) = events(log, "table-left-out")
    assert "every UPDATE and DELETE of it would fail" in str(told["problem"])
    log.kill()


def test_a_key_that_is_replaced_during_the_copy_stops_the_reader(shop: Database) -> None:
    """Rows with one value of the old key would be passed over."""
    shop.execute(
        "CREATE TABLE keyed (a int PRIMARY KEY, b int NOT NULL);"
        "INSERT INTO keyed SELECT n, n FROM generate_series(1, 20) n"
    )
    log = MemoryLog(shop, tables=["public.keyed"], copy_rows=4)
    until(lambda: log.poll() and len(short(log.messages)) >= 4)
    log.kill()
    shop.execute(
        "ALTER TABLE keyed DROP CONSTRAINT keyed_pkey, ADD PRIMARY KEY (b);"
        "INSERT INTO keyed SELECT 10, n FROM generate_series(100, 120) n"
    )
    with pytest.raises(EnvironmentFault, match="a is no longer its primary key"):
        until(lambda: log.poll() is None)
    log.kill()


def test_columns_that_an_index_only_includes_are_no_key(shop: Database) -> None:
    """A DELETE comes without them."""
    shop.execute("CREATE TABLE wide (id int, v int NOT NULL, PRIMARY KEY (id) INCLUDE (v))")
    shop.execute("INSERT INTO wide VALUES (1, 1)")
    log = started(shop, tables=["public.wide"])
    shop.execute("UPDATE wide SET v = 2; DELETE FROM wide")
    log.drain(shop)
    log.kill()
    found = [each[:3] for each in short(log.messages) if each[0] != "noop"]
    assert found == [("insert", "copy", "1"), ("update", "sync", "1"), ("delete", "sync", "1")]


def test_the_remedy_names_a_run_above_that_of_every_table(shop: Database) -> None:
    """A table that has a higher one of its own would not be copied again."""
    shop.execute("CREATE TABLE other (id int PRIMARY KEY)")
    log = started(shop, tables=["public.*", {"table": "public.items", "copy_run": 2}])
    log.kill()
    until(lambda: not shop.execute("SELECT 1 FROM pg_replication_slots WHERE active"))
    shop.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    assert "raise the reader's copy_run to 3, which" in broken(shop, log)
    log.settings["copy_run"] = 3
    log.drain(shop)
    log.kill()


def test_a_table_that_was_dropped_and_created_again_is_emptied_first(shop: Database) -> None:
    """Its old rows would stay in the sinks for ever."""
    shop.execute("INSERT INTO items VALUES (1), (2)")
    log = started(shop, watch="1s", tables=["public.items"])
    shop.execute(
        "DROP TABLE items; CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items VALUES (2)"
    )
    until(lambda: log.poll(0.1) and events(log, "copy-complete")[1:])
    log.drain(shop)
    log.kill()
    assert [(each[0], each[2]) for each in short(log.messages)] == [
        ("insert", "1"), ("insert", "2"), ("noop", None),
        ("command", None), ("insert", "2"), ("noop", None),
    ]  # fmt: skip
    ids = [each.source_id for each in log.messages if each.source_id]
    assert len(ids) == len({*ids})


def test_a_renamed_table_goes_on_under_its_new_name(shop: Database) -> None:
    """Nothing is copied again, and another table with the old name is a new one."""
    shop.execute("INSERT INTO items SELECT n FROM generate_series(1, 20) n")
    log = copying(shop, watch="1s")
    shop.execute(
        "ALTER TABLE items RENAME TO things; CREATE TABLE items (id int PRIMARY KEY);"
        "INSERT INTO items VALUES (100)"
    )
    until(lambda: log.poll(0.1) and events(log, "copy-complete")[1:])
    shop.execute("INSERT INTO things VALUES (50)")
    log.drain(shop)
    log.kill()
    old = [each for each in log.messages if each.key and each.key != b"100"]
    assert [each.key for each in old] == [b"%d" % number for number in [*range(1, 21), 50]]
    assert old[-1].namespace == "public.things"
    assert [each.namespace for each in log.messages if each.key == b"100"] == ["public.items"]


def sink_of(log: MemoryLog) -> dict[str, dict[str, Any]]:
    """Return the rows that a sink of *log* has, by namespace and key.

    Every namespace with a row has an entry about its columns before it, if there are such entries.
    """
    rows: dict[str, dict[str, Any]] = {}
    described = set()
    wants_entries = log.settings.get("schema") == "entries"
    for each in log.messages:
        if each.content_type == "application/vnd.transporter.schema+json":
            described.add(each.namespace)
        elif each.op == "command":
            rows[each.namespace] = {}
        elif each.op == "delete" and each.key:
            rows.setdefault(each.namespace, {}).pop(each.key.decode(), None)
        elif each.key:
            assert each.namespace in described or not wants_entries, each
            rows.setdefault(each.namespace, {})[each.key.decode()] = json.loads(each.data or b"{}")
    return rows


def keys_of(log: MemoryLog) -> dict[str, set[str]]:
    """Return the keys of :func:`sink_of`, where there are any."""
    return {namespace: {*rows} for namespace, rows in sink_of(log).items() if rows}


RENAMED = {"schema": "entries", "watch": "1s"}


@pytest.mark.parametrize("is_ahead", [True, False], ids=["look first", "stream first"])
@pytest.mark.parametrize("is_together", [True, False], ids=["one look", "two looks"])
def test_the_name_of_a_renamed_table_is_emptied_for_its_next_owner(
    shop: Database, *, is_ahead: bool, is_together: bool
) -> None:
    """A rotation leaves no row of the old table in the namespace, nor its changes of before."""
    shop.execute("INSERT INTO items VALUES (1), (2)")
    log = started(shop, **RENAMED)
    shop.execute("INSERT INTO items VALUES (3)")
    shop.execute("ALTER TABLE items RENAME TO items_11")
    create = "CREATE TABLE items (id int PRIMARY KEY, name text); INSERT INTO items VALUES (2)"
    if is_together:
        shop.execute(create)
    shop.execute("INSERT INTO items_11 VALUES (4)")
    if is_ahead:
        time.sleep(1.1)
    log.drain(shop)
    if not is_together:
        until(lambda: log.poll(0.1) and "items_11" in str(log.states.values()))
        log.kill()
        shop.execute(create)
    until(lambda: log.poll(0.1) and events(log, "copy-complete")[1:])
    shop.execute("INSERT INTO items_11 VALUES (5); INSERT INTO items VALUES (6)")
    log.drain(shop)
    log.kill()
    log.drain(shop)
    log.kill()
    found = keys_of(log)
    assert found["public.items"] == {"2", "6"}
    # Rows of before its rename were in the namespace of its old name.
    assert {"4", "5"} <= found["public.items_11"] <= {"3", "4", "5"}
    assert len(events(log, "copy-complete")) == 2


@pytest.mark.parametrize("schema", ["events", "entries"])
@pytest.mark.parametrize("is_ahead", [True, False], ids=["look first", "stream first"])
def test_tables_that_swap_their_names_are_copied_again(
    shop: Database, schema: str, *, is_ahead: bool
) -> None:
    """Both namespaces end with the rows of the tables that have the names now."""
    shop.execute(
        "CREATE TABLE fresh (id int PRIMARY KEY, name text, more int);"
        "CREATE TABLE other (id int PRIMARY KEY);"
        "INSERT INTO items VALUES (1), (2), (3); INSERT INTO fresh VALUES (2), (7), (8)"
    )
    log = started(shop, watch="1s", schema=schema)
    shop.execute("INSERT INTO items VALUES (4); INSERT INTO fresh VALUES (9)")
    shop.execute("DELETE FROM items WHERE id = 1; DELETE FROM fresh WHERE id = 8")
    shop.execute(
        "ALTER TABLE items RENAME TO swapped; ALTER TABLE fresh RENAME TO items;"
        "ALTER TABLE swapped RENAME TO fresh"
    )
    shop.execute("INSERT INTO items VALUES (10, 'x', 1); INSERT INTO fresh VALUES (5)")
    if is_ahead:
        time.sleep(1.1)
    log.drain(shop)
    until(lambda: log.poll(0.1) and len(events(log, "copy-complete")) >= 5)
    shop.execute("INSERT INTO items VALUES (11, 'x', 1); INSERT INTO fresh VALUES (6)")
    log.drain(shop)
    log.kill()
    log.drain(shop)
    log.kill()
    assert keys_of(log) == {
        "public.items": {"2", "7", "9", "10", "11"},
        "public.fresh": {"2", "3", "4", "5", "6"},
    }
    assert len(events(log, "copy-complete")) == 5
    ids = [(each.op, each.source_id) for each in log.messages if each.source_id]
    assert len(ids) == len({*ids})
    # A higher copy_run than the last that was asked for counts, whatever the names did since.
    log.settings["tables"] = ["public.*", {"table": "public.items", "copy_run": 2}]
    log.drain(shop)
    log.kill()
    assert len(events(log, "copy-complete")) == 6


def test_a_table_that_has_its_old_name_again_is_copied_again(shop: Database) -> None:
    """Its changes of meanwhile are in another namespace."""
    shop.execute("CREATE TABLE other (id int PRIMARY KEY); INSERT INTO items VALUES (1), (2)")
    log = started(shop, **RENAMED)
    shop.execute("ALTER TABLE items RENAME TO things; DELETE FROM things WHERE id = 1")
    log.drain(shop)
    until(lambda: log.poll(0.1) and '"things"' in str(log.states.values()))
    shop.execute("ALTER TABLE things RENAME TO items; INSERT INTO items VALUES (3)")
    log.drain(shop)
    until(lambda: log.poll(0.1) and events(log, "copy-complete")[2:])
    log.drain(shop)
    log.kill()
    assert keys_of(log)["public.items"] == {"2", "3"}


def test_tables_that_swap_their_names_during_their_copies_are_copied_again(shop: Database) -> None:
    """What was copied of them is emptied, and what was read ahead is of no use."""
    shop.execute(
        "CREATE TABLE fresh (id int PRIMARY KEY);"
        "INSERT INTO items SELECT n FROM generate_series(1, 20) n;"
        "INSERT INTO fresh SELECT n FROM generate_series(101, 120) n"
    )
    log = copying(shop, **RENAMED)
    shop.execute(
        "ALTER TABLE items RENAME TO swapped; ALTER TABLE fresh RENAME TO items;"
        "ALTER TABLE swapped RENAME TO fresh; DELETE FROM items WHERE id = 101;"
        "DELETE FROM fresh WHERE id IN (1, 20); INSERT INTO fresh VALUES (21)"
    )
    time.sleep(1.1)
    log.drain(shop)
    log.kill()
    log.drain(shop)
    log.kill()
    assert keys_of(log) == {
        "public.items": {str(number) for number in range(102, 121)},
        "public.fresh": {str(number) for number in (*range(2, 20), 21)},
    }


@pytest.mark.parametrize("is_ahead", [True, False], ids=["look first", "stream first"])
def test_a_table_that_replaces_another_is_copied_into_its_namespace(
    shop: Database, *, is_ahead: bool
) -> None:
    """Online migrations build a table beside the old one, and take its name."""
    shop.execute("CREATE TABLE items_new (id int PRIMARY KEY, name text, more int)")
    shop.execute("INSERT INTO items VALUES (1), (2); INSERT INTO items_new VALUES (2, 'a', 1)")
    log = started(shop, **RENAMED)
    shop.execute("INSERT INTO items VALUES (3)")
    shop.execute("ALTER TABLE items RENAME TO items_old; ALTER TABLE items_new RENAME TO items")
    shop.execute("INSERT INTO items VALUES (4, 'b', 2)")
    if is_ahead:
        time.sleep(1.1)
    log.drain(shop)
    until(lambda: log.poll(0.1) and len(events(log, "copy-complete")) >= 3)
    shop.execute("INSERT INTO items VALUES (5, 'b', 2)")
    log.drain(shop)
    log.kill()
    assert keys_of(log)["public.items"] == {"2", "4", "5"}


DROPPED = "DROP TABLE items; CREATE TABLE items (id int PRIMARY KEY, more text)"
RENAMED_AWAY = """
    ALTER TABLE items RENAME TO items_1; CREATE TABLE items (id int PRIMARY KEY);
    INSERT INTO items_1 VALUES (8)
"""


@pytest.mark.parametrize(
    ("end", "is_open"),
    [
        (DROPPED, True),
        (RENAMED_AWAY, False),
        pytest.param(DROPPED, False, marks=pytest.mark.exhaustive),
        pytest.param(RENAMED_AWAY, True, marks=pytest.mark.exhaustive),
    ],
    ids=["dropped, open", "renamed, closed", "dropped, closed", "renamed, open"],
)
def test_a_table_that_is_gone_ends_behind_its_changes(
    shop: Database, end: str, *, is_open: bool
) -> None:
    """What was committed before comes first, however far the reader is behind the catalog."""
    log = started(shop, watch="1s", tables=["public.items"])
    if not is_open:
        log.kill()
    shop.execute(f"INSERT INTO items VALUES (1); UPDATE items SET name = 'a'; {end}")
    shop.execute("INSERT INTO items VALUES (2)")
    time.sleep(1.1)  # The look at the catalog comes before the stream.
    until(lambda: log.poll(0.1) and len(events(log, "copy-complete")) == 2)
    log.drain(shop)
    log.kill()
    log.drain(shop)
    log.kill()
    assert {each.namespace for each in log.messages} == {"public.items"}
    ops = [(each.op, each.key) for each in log.messages if each.op != "noop"]
    emptied = ops.index(("command", None))
    assert ops[:2] == [("insert", b"1"), ("update", b"1")]
    assert ops[emptied + 1 :] == [("insert", b"2")]
    assert events(log, "table-removed") == [("table-removed", {"table": "public.items"})]


def test_a_table_that_is_gone_and_may_not_be_published_again_ends_behind_its_changes(
    shop: Database,
) -> None:
    """The reader asks for the publication only when it has read all of the old table."""
    log = started(shop, tables=["public.items"])
    log.kill()
    log.settings["manage"] = "slot"
    shop.execute(f"INSERT INTO items VALUES (1); {DROPPED}; INSERT INTO items VALUES (2)")
    with pytest.raises(EnvironmentFault, match=r"lacks public\.items"):
        until(lambda: log.poll(0.1) is None)
    log.kill()
    assert keys_of(log) == {"public.items": {"1"}}
    shop.execute("ALTER PUBLICATION transporter_reader ADD TABLE items")
    until(lambda: log.poll(0.1) and len(events(log, "copy-complete")) == 2)
    log.drain(shop)
    log.kill()
    assert keys_of(log) == {"public.items": {"2"}}


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
def test_a_table_that_is_gone_during_its_copy_ends_behind_its_changes(
    shop: Database, *, is_open: bool
) -> None:
    """The new table is copied from the beginning, and nothing of the old one is left."""
    shop.execute("INSERT INTO items SELECT n, 'old' FROM generate_series(1, 400) n")
    shop.execute("CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (1)")
    log = MemoryLog(shop, watch="1s", copy_rows=20, copy_rate="20KiB")
    until(lambda: log.poll(0.1) and sum(each.op == "insert" for each in log.messages) > 60)
    if not is_open:
        log.kill()
    log.settings["copy_rate"] = None
    shop.execute("UPDATE items SET name = 'changed' WHERE id <= 10; DELETE FROM items WHERE id = 5")
    shop.execute(f"{DROPPED}; INSERT INTO items VALUES (2, 'new'), (3, 'new')")
    until(lambda: log.poll(0.1) and len(events(log, "copy-complete")) >= 2)
    log.drain(shop)
    log.kill()
    log.drain(shop)
    log.kill()
    assert keys_of(log) == {"public.items": {"2", "3"}, "public.other": {"1"}}
    assert events(log, "table-removed") == [("table-removed", {"table": "public.items"})]
    ops = [(each.op, each.key) for each in log.messages if each.namespace == "public.items"]
    emptied = ops.index(("command", None))
    assert ("delete", b"5") in ops[:emptied]


def test_a_table_that_comes_back_long_after_is_emptied_first(shop: Database) -> None:
    """The reader looks in between, and restarts."""
    shop.execute("CREATE TABLE other (id int PRIMARY KEY); INSERT INTO items VALUES (1), (2)")
    log = started(shop, watch="1s")
    shop.execute("DROP TABLE items")
    until(lambda: log.poll(0.1) and events(log, "table-removed"))
    log.drain(shop)
    log.kill()
    shop.execute("CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items VALUES (2)")
    log.drain(shop)
    log.kill()
    assert keys_of(log) == {"public.items": {"2"}}


@pytest.mark.exhaustive
def test_a_migration_that_has_a_table_for_itself_stops_nobody(shop: Database) -> None:
    """Neither a running reader nor one that opens waits for a table that it does not follow."""
    shop.execute("CREATE TABLE other (id int PRIMARY KEY)")
    log = started(shop, watch="1s", tables=["public.items"])
    with locked(shop, "other"):
        began = time.monotonic()
        shop.execute("INSERT INTO items VALUES (1)")
        until(lambda: log.poll(0.1) and time.monotonic() > began + 3)
        log.kill()
        log.drain(shop)
        log.kill()
    assert [each[2] for each in short(log.messages) if each[0] == "insert"] == ["1"]


@pytest.mark.exhaustive
def test_a_migration_that_has_a_followed_table_for_itself_stops_nobody(shop: Database) -> None:
    """A running reader goes on with the other tables, and looks again when it is over."""
    shop.execute("CREATE TABLE other (id int PRIMARY KEY)")
    log = started(shop, watch="1s")
    with locked(shop, "other"):
        shop.execute("INSERT INTO items VALUES (1)")
        began = time.monotonic()
        until(lambda: log.poll(0.1) and time.monotonic() > began + 6)
    assert [each[2] for each in short(log.messages) if each[0] == "insert"] == ["1"]
    shop.execute("CREATE TABLE late (id int PRIMARY KEY); INSERT INTO late VALUES (2)")
    until(lambda: log.poll(0.1) and ("insert", "copy", "2", {"id": 2}) in short(log.messages))
    log.kill()


@pytest.mark.exhaustive
def test_a_migration_that_has_a_partition_for_itself_stops_nobody(shop: Database) -> None:
    """What is known of partitions is in the catalog, for which nobody has to wait."""
    shop.execute(
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20)"
    )
    log = started(shop, watch="1s")
    with locked(shop, "parts_2"):
        began = time.monotonic()
        shop.execute("INSERT INTO parts VALUES (1)")
        until(lambda: log.poll(0.1) and time.monotonic() > began + 3)
        log.kill()
        log.drain(shop)
        log.kill()
    assert [each[2] for each in short(log.messages) if each[0] == "insert"] == ["1"]
    assert events(log, "partitions-changed") == []


def test_a_chunk_waits_for_no_migration_of_another_table(shop: Database) -> None:
    """It has the lock of its own, so with a migration of both it would make a deadlock."""
    shop.execute(
        "CREATE TABLE other (id int PRIMARY KEY, name text);"
        "INSERT INTO other SELECT 1, string_agg(md5(n::text), '') FROM generate_series(1, 999) n;"
        "INSERT INTO items SELECT n FROM generate_series(1, 20) n"
    )
    log = copying(shop, watch="60s")
    with shop.connect() as migration, migration.transaction():
        migration.execute("TRUNCATE other")  # It has the table of its large values for itself, too.
        until(lambda: log.poll() and events(log, "copy-complete"))
    log.kill()
    assert keys_of(log) == {"public.items": {str(number) for number in range(1, 21)}}


def test_a_chunk_gives_way_to_a_migration_of_a_partition(shop: Database) -> None:
    """One that goes on to the partitioned table makes a deadlock, and that is no error."""
    shop.execute(
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100);"
        "INSERT INTO parts SELECT n FROM generate_series(1, 20) n"
    )
    log = copying(shop, tables=["public.parts"], watch="60s")
    waits = "SELECT 1 FROM pg_locks WHERE relation = 'parts_1'::regclass AND NOT granted"
    with ThreadPoolExecutor(1) as pool:
        with shop.connect() as migration, migration.transaction():
            migration.execute("SET LOCAL deadlock_timeout = '1min'")
            migration.execute("LOCK TABLE parts_1")
            polls = pool.submit(lambda: until(lambda: log.poll() and events(log, "copy-complete")))
            until(lambda: shop.execute(waits))
            migration.execute("ALTER TABLE parts ADD COLUMN more int")
        polls.result()
    log.kill()
    assert keys_of(log) == {"public.parts": {str(number) for number in range(1, 21)}}


def test_one_member_is_as_the_server_lists_it(shop: Database) -> None:
    """In publications of tables, of schemas and of everything, with lists, filters, partitions."""
    shop.execute(
        "CREATE SCHEMA apart; CREATE TABLE apart.things (id int PRIMARY KEY);"
        "ALTER TABLE items ADD COLUMN twice int GENERATED ALWAYS AS (id * 2) STORED;"
        "ALTER TABLE items ADD COLUMN gone int; ALTER TABLE items DROP COLUMN gone;"
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE half PARTITION OF parts FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (id);"
        "CREATE TABLE quarter PARTITION OF half FOR VALUES FROM (0) TO (5)"
    )
    contents = ["", "FOR TABLE items", "FOR TABLE items, parts", "FOR TABLE half", "FOR ALL TABLES"]
    if version(shop) >= COLUMN_LISTS:
        contents += [
            "FOR TABLE items (id, name) WHERE (id > 3), parts",
            "FOR TABLE items (id), half WHERE (id < 7)",
            "FOR TABLES IN SCHEMA apart, TABLE half WHERE (id < 7)",
            "FOR TABLES IN SCHEMA public, TABLE items WHERE (id < 7)",
        ]
    if version(shop) >= 180000:
        contents += [
            "FOR ALL TABLES WITH (publish_generated_columns = stored)",
            "FOR TABLE items (id, twice)",
        ]
    tables = [oid for (oid,) in shop.execute("SELECT oid::bigint FROM pg_class WHERE oid >= 16384")]
    counts = list[int]()
    with closing(connect_queries(SecretStr(shop.dsn))) as queries:
        for content, via_root in product(contents, ["true", "false"]):
            shop.execute(f"CREATE PUBLICATION tested {content}")
            shop.execute(f"ALTER PUBLICATION tested SET (publish_via_partition_root = {via_root})")
            listed = find_members(queries, "tested", version(shop))
            found = {oid: find_member(queries, "tested", version(shop), oid) for oid in tables}
            assert {oid: found[oid] for oid in listed} == listed, content
            counts.append(sum(each is not None for each in found.values()))
            shop.execute("DROP PUBLICATION tested")
    assert counts[:8] == [0, 0, 1, 1, 4, 4, 2, 2]


def test_a_table_created_again_and_already_published_is_tried_again(shop: Database) -> None:
    """The plan has the old table. Its name cannot be published once more, and the next plan can."""
    config = CdcConfig.model_validate({"dsn": shop.dsn, "tables": ["public.items"]})
    names = names_of(config, "reader", LOG_ID)
    with closing(connect_queries(config.dsn)) as queries:
        plan = plan_tables(queries, config, names, "here")
        ensure_published(queries, config, names, plan)
        shop.execute(
            "DROP TABLE items; CREATE TABLE items (id int PRIMARY KEY);"
            f"ALTER PUBLICATION {names.publication} ADD TABLE items"
        )
        with pytest.raises(SourceUnavailable, match="created again meanwhile"):
            ensure_published(queries, config, names, plan)
        plan = plan_tables(queries, config, names, "here")
        assert ensure_published(queries, config, names, plan).members.keys() == {*plan.tables}


def test_a_schema_change_is_an_event_and_an_entry(shop: Database) -> None:
    """The columns are logged before the first row with them, once, also across kills."""
    shop.execute("INSERT INTO items VALUES (1, 'a')")
    log = started(shop, schema="entries")
    shop.execute("INSERT INTO items VALUES (2, 'b')")
    shop.execute("ALTER TABLE items ADD COLUMN price numeric(8, 2) NOT NULL DEFAULT 1")
    shop.execute("INSERT INTO items VALUES (3, 'c')")
    log.drain(shop)
    for _ in range(2):
        log.kill()
        shop.execute("UPDATE items SET name = 'd' WHERE id = 3")
        log.drain(shop)
    log.kill()
    made = [
        each
        for each in log.messages
        if each.content_type == "application/vnd.transporter.schema+json"
    ]
    first, second = (json.loads(each.data or b"") for each in made)
    assert first == {
        "command": "schema", "schema": "public", "table": "items", "key": ["id"],
        "columns": [
            {"name": "id", "type": "integer", "not_null": True},
            {"name": "name", "type": "text", "not_null": False},
        ],
    }  # fmt: skip
    assert second["columns"][2] == {"name": "price", "type": "numeric(8,2)", "not_null": True}
    places = [log.messages.index(each) for each in made]
    assert places[0] == next(at for at, each in enumerate(log.messages) if each.op != "noop")
    assert log.messages[places[1] + 1].key == b"3"
    assert events(log, "schema-changed") == [
        (
            "schema-changed",
            {"table": "public.items", "added": ["price"], "dropped": [], "retyped": []},
        )
    ]
    assert len(events(log, "table-rewritten")) == 1


@pytest.mark.parametrize(
    ("statement", "is_reported"),
    [
        ("ALTER COLUMN name TYPE int USING name::int + 1", True),
        ("ADD COLUMN price int NOT NULL DEFAULT 1", True),  # No file changes.
        ("RENAME COLUMN name TO title", True),
        ("ADD COLUMN price int, DROP COLUMN name", False),
    ],
)
@pytest.mark.parametrize(
    "is_partitioned", [False, pytest.param(True, marks=pytest.mark.exhaustive)]
)
def test_values_without_a_change_are_reported(
    shop: Database, statement: str, *, is_reported: bool, is_partitioned: bool
) -> None:
    """Rows that got other values without a change of theirs are not sent: the event says so."""
    if is_partitioned:
        shop.execute(
            "DROP TABLE items; CREATE TABLE items (id int PRIMARY KEY, name text)"
            "PARTITION BY RANGE (id); CREATE TABLE part PARTITION OF items DEFAULT"
        )
    shop.execute("INSERT INTO items VALUES (1, '7')")
    log = started(shop, tables=["public.items"])
    shop.execute(f"ALTER TABLE items {statement}")
    shop.execute("INSERT INTO items (id) VALUES (2)")
    log.drain(shop)
    log.kill()
    assert len(events(log, "schema-changed")) == 1
    told = [each[1]["table"] for each in events(log, "table-rewritten")]
    assert told == ["public.items"] * is_reported


def test_a_value_of_an_altered_composite_is_a_text(shop: Database) -> None:
    """What was written by the old definition cannot be split by that of now, and stops nothing."""
    shop.execute("CREATE TYPE pair AS (a int, b int); ALTER TABLE items ADD COLUMN p pair")
    log = started(shop)
    shop.execute("INSERT INTO items VALUES (1, 'a', '(1,2)'), (2, 'b', '(3,4)')")
    shop.execute("ALTER TYPE pair ADD ATTRIBUTE c int")
    shop.execute("INSERT INTO items VALUES (3, 'c', '(5,6,7)')")
    log.drain(shop)
    log.kill()
    rows = [each[3]["p"] for each in short(log.messages) if each[0] == "insert"]
    assert rows == ["(1,2)", "(3,4)", {"a": 5, "b": 6, "c": 7}]
    assert [each[1]["column"] for each in events(log, "value-as-text")] == ["p"]


def test_large_rows_are_copied_in_small_chunks(shop: Database) -> None:
    """A chunk is bounded by bytes before it is read, so a thousand large rows are no flood."""
    shop.execute("ALTER TABLE items ALTER COLUMN name SET STORAGE EXTERNAL")
    shop.execute("INSERT INTO items SELECT n, repeat('x', 400000) FROM generate_series(1, 30) n")
    log = MemoryLog(shop, copy_bytes="1MiB")
    sizes = []
    until(
        lambda: (
            (batch := log.poll()) is not None
            and (sizes.append(len(batch.messages)) or True)
            and any(each[0] == "copy-complete" for each in log.told)
        )
    )
    log.kill()
    assert max(sizes) <= 4
    assert sum(1 for each in log.messages if each.phase == "copy") == 30


def test_a_database_of_another_encoding_is_copied_as_utf8(postgres: Database) -> None:
    """Copy and stream have the same bytes."""
    name = f"{postgres.name}_latin"
    postgres.execute(
        f"CREATE DATABASE {name} ENCODING LATIN1 LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    latin = Database(name, postgres.server)
    try:
        latin.execute("CREATE TABLE words (k text PRIMARY KEY)")
        latin.execute("INSERT INTO words VALUES ('grün'), ('blau')")
        with clean_slots(latin):
            log = started(latin)
            latin.execute("UPDATE words SET k = k || '!'")
            log.drain(latin)
            log.kill()
    finally:
        postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")
    keys = [each.key.decode() for each in log.messages if each.key and each.op == "insert"]
    assert sorted(keys) == ["blau", "blau!", "grün", "grün!"]
    assert {"k": "grün!"} in [json.loads(each.data) for each in log.messages if each.data]


@pytest.mark.exhaustive
def test_many_tables_make_no_long_positions(shop: Database) -> None:
    """The stream has its turns between the chunks of all tables, which it has to pass."""
    for number in range(60):
        shop.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY)")
    log = MemoryLog(shop)
    under_way = []

    def is_copied() -> bool:
        log.poll()
        under_way.append(len(log.position_fields.get("copy", [])))
        return [name for name, _ in log.told].count("copy-complete") == 61

    until(is_copied)
    log.drain(shop)
    log.kill()
    assert 0 < max(under_way) <= MAX_CHUNKS + 1


def test_the_copy_keeps_to_its_rate(shop: Database) -> None:
    """With ``copy_rate`` the chunks are spread, and changes come in between."""
    shop.execute("INSERT INTO items SELECT n, repeat('x', 100) FROM generate_series(1, 400) n")
    log = MemoryLog(shop, copy_rows=20, copy_rate="100KiB")
    begun = time.monotonic()
    log.drain(shop)
    log.kill()
    # 400 rows of some 300 bytes, of which 20 come at once.
    assert time.monotonic() - begun > 0.8


def test_gauges_are_measured(shop: Database) -> None:
    """Slot, lag and copies are measured from the first poll on."""
    reader = CdcReader(CdcConfig.model_validate({"dsn": shop.dsn, "tables": ["public.*"]}))
    resume = FixedResume(None, LOG_ID)
    reader.open(resume)
    reader.poll(0.1)
    reader.poll(0.1)
    reader.close()
    assert resume.measured["tables_waiting"] == 1
    assert resume.measured["tables_in_sync"] == 0
    assert resume.measured["lag_seconds"] >= 0.0
    assert resume.measured["retained_bytes"] >= 0
    assert resume.measured["safe_bytes"] is None


def test_transactions_are_named_on_request(shop: Database) -> None:
    """With ``transaction`` each change has the number of its transaction and its place in it."""
    log = started(shop, transaction=True, batch_rows=1)
    ((xid,),) = shop.execute(
        "WITH x AS (INSERT INTO items VALUES (1), (2) RETURNING 1)"
        " SELECT (pg_current_xact_id()::text::numeric % 4294967296)::text FROM x LIMIT 1"
    )
    log.drain(shop)
    log.kill()
    found = [dict(each.headers) for each in log.messages if each.op == "insert"]
    assert found == [
        {"pg-xid": xid.encode(), "pg-order": b"1"},
        {"pg-xid": xid.encode(), "pg-order": b"2"},
    ]


@pytest.mark.parametrize("is_followed", [False, True], ids=["new", "followed"])
def test_a_first_table_for_its_inserts_beside_a_stream_that_is_behind(
    shop: Database, *, is_followed: bool
) -> None:
    """Its publication is new, and servers before 18 cannot decode what was before it."""
    shop.execute("CREATE TABLE clicks (n int PRIMARY KEY)")
    log = started(shop, watch="1s", tables=["public.*" if is_followed else "public.items"])
    log.kill()
    shop.execute("INSERT INTO items VALUES (1)")
    clicks = {"table": "public.clicks", "insert_only": True, "copy": "none", "copy_run": 2}
    log.settings["tables"] = ["public.items", clicks]
    with pytest.raises(SourceUnavailable, match="begins again with a publication that is new"):
        until(lambda: log.poll(0.1) is None)
    log.kill()
    shop.execute("INSERT INTO clicks VALUES (2); INSERT INTO items VALUES (3)")
    log.drain(shop)
    log.kill()
    shop.execute("INSERT INTO items VALUES (4)")
    log.settings["tables"] = ["public.items"]
    log.drain(shop)
    log.kill()
    assert [
        (each.namespace, json.loads(each.data or b""))
        for each in log.messages
        if each.op == "insert"
    ] == [
        ("public.items", {"id": 1, "name": None}),
        ("public.clicks", {"n": 2}),
        ("public.items", {"id": 3, "name": None}),
        ("public.items", {"id": 4, "name": None}),
    ]


def test_a_publication_of_the_insert_only_tables_is_watched(shop: Database) -> None:
    """It has its own identity, and a gap of it stops the reader."""
    tables = [{"table": "items", "insert_only": True}]
    log = started(shop, tables=tables)
    log.kill()
    shop.execute("DROP PUBLICATION transporter_reader_inserts")
    shop.execute(
        "CREATE PUBLICATION transporter_reader_inserts FOR TABLE items"
        " WITH (publish = 'insert, truncate')"
    )
    assert "transporter_reader_inserts was dropped and created again" in broken(shop, log)

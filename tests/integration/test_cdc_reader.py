"""The ``postgres-cdc`` reader on a real server: entries, resumption, and every gap that it sees."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cdc_tools import LOG_ID, MemoryLog, broken, clean_slots, short, started
from engine_tools import until
from psycopg.conninfo import make_conninfo
from transporter_adaptors.postgres_cdc import reader as module
from transporter_adaptors.postgres_cdc import wire
from transporter_adaptors.postgres_cdc.config import CdcConfig
from transporter_adaptors.postgres_cdc.reader import CdcReader

from transporter.errors import ConfigError, EnvironmentFault, SourceUnavailable
from transporter.testing import FaultyProxy, FixedResume

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.postgres import Database


pytestmark = pytest.mark.postgres


@pytest.fixture
def shop(postgres: Database) -> Iterator[Database]:
    """Yield a database with a table of items, whose slots are dropped at the end."""
    postgres.execute("CREATE TABLE items (id int PRIMARY KEY, name text, note text)")
    with clean_slots(postgres):
        yield postgres


def test_a_table_is_copied_and_followed(shop: Database) -> None:
    """Rows come as the phases copy, complete and sync, with the key and the row's own JSON."""
    shop.execute("INSERT INTO items VALUES (1, 'a', NULL), (2, 'b', 'n')")
    log = started(shop)
    shop.execute("INSERT INTO items VALUES (3, 'c')")
    shop.execute("UPDATE items SET name = 'A' WHERE id = 1")
    shop.execute("UPDATE items SET id = 20 WHERE id = 2")
    shop.execute("DELETE FROM items WHERE id = 3")
    log.drain(shop)
    log.kill()
    assert short(log.messages) == [
        ("insert", "copy", "1", {"id": 1, "name": "a", "note": None}),
        ("insert", "copy", "2", {"id": 2, "name": "b", "note": "n"}),
        ("noop", "complete", None, {"copied": 2, "run": 1}),
        ("insert", "sync", "3", {"id": 3, "name": "c", "note": None}),
        ("update", "sync", "1", {"id": 1, "name": "A", "note": None}),
        ("delete", "sync", "2", None),
        ("insert", "sync", "20", {"id": 20, "name": "b", "note": "n"}),
        ("delete", "sync", "3", None),
    ]
    assert {each.namespace for each in log.messages if each.data} == {"public.items"}
    assert [name for name, _ in log.told] == [
        "slot-created", "copy-began", "copy-complete", "table-in-sync"
    ]  # fmt: skip


def test_a_copy_is_reported_as_complete_once_it_is_logged(shop: Database) -> None:
    """A crash behind the event repeats nothing, because the end of the copy is durable by then."""
    shop.execute("INSERT INTO items VALUES (1)")
    log = MemoryLog(shop)
    until(lambda: log.poll() and log.messages and log.messages[-1].phase == "complete")
    assert [name for name, _ in log.told] == ["slot-created", "copy-began"]
    log.poll()
    assert [name for name, _ in log.told][2:] == ["copy-complete"]
    log.kill()


def test_an_empty_table_is_complete_at_once(shop: Database) -> None:
    """A copy of nothing is complete, and changes are followed."""
    log = started(shop)
    shop.execute("INSERT INTO items VALUES (1)")
    log.drain(shop)
    log.kill()
    assert [each[:3] for each in short(log.messages)] == [
        ("noop", "complete", None),
        ("insert", "sync", "1"),
    ]


def test_without_a_copy_only_changes_come(shop: Database) -> None:
    """With ``copy: none`` what was there before stays where it is."""
    shop.execute("INSERT INTO items VALUES (1)")
    log = started(shop, copy="none")
    shop.execute("INSERT INTO items VALUES (2)")
    log.drain(shop)
    log.kill()
    assert [each[:3] for each in short(log.messages)] == [("insert", "sync", "2")]


@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.exhaustive), 3, 7])
def test_a_large_transaction_goes_on_where_it_was_cut(shop: Database, rows: int) -> None:
    """A kill in the middle of a transaction repeats nothing and leaves nothing out."""
    log = started(shop, batch_rows=rows)
    # With this position the end of the copy is logged: a TRUNCATE before would begin it again.
    shop.execute("INSERT INTO items VALUES (1000)")
    log.drain(shop)
    shop.execute(
        "BEGIN; INSERT INTO items SELECT n FROM generate_series(1, 20) n; TRUNCATE items;"
        " INSERT INTO items SELECT n FROM generate_series(1, 20) n; UPDATE items SET id = id + 100;"
        " COMMIT"
    )
    begun = len(log.messages)
    while (count := len(log.messages)) < begun + 81:
        log.kill()
        until(lambda count=count: log.poll(0.1) and len(log.messages) > count)  # type: ignore[misc]
    log.drain(shop)
    log.kill()
    inserts = [("insert", str(number)) for number in range(1, 21)]
    moved = [*range(1, 21)]
    moves = [
        pair
        for number in moved
        for pair in (("delete", str(number)), ("insert", str(number + 100)))
    ]
    assert [(each[0], each[2]) for each in short(log.messages[begun:])] == [
        *inserts, ("command", None), *inserts, *moves
    ]  # fmt: skip
    ids = [each.source_id for each in log.messages if each.source_id]
    assert len(ids) == len({*ids})
    assert log.kills > 81 // (2 * rows) - 1


def test_a_truncate_during_the_copy_begins_it_again(shop: Database) -> None:
    """Rows that were copied before a TRUNCATE are followed by it, and later ones come once."""
    shop.execute("INSERT INTO items SELECT n FROM generate_series(1, 50) n")
    log = MemoryLog(shop, copy_rows=10)
    until(lambda: log.poll() and any(each.phase == "copy" for each in log.messages))
    shop.execute("TRUNCATE items; INSERT INTO items SELECT n FROM generate_series(1, 5) n")
    log.kill()
    log.drain(shop)
    log.kill()
    after = [each[:3] for each in short(log.messages)]
    after = after[after.index(("command", "sync", None)) + 1 :]
    # Each row once: from the copy, or from the stream.
    assert sorted(key for _, _, key in after if key) == ["1", "2", "3", "4", "5"]


def test_each_end_of_a_copy_that_begins_again_has_its_own_id(shop: Database) -> None:
    """The copy has seen a TRUNCATE and ended before the stream brings it."""
    shop.execute("INSERT INTO items VALUES (1)")
    log = MemoryLog(shop)
    log.poll()
    shop.execute("TRUNCATE items")
    log.drain(shop)
    log.kill()
    ops = [(each.op, each.phase) for each in log.messages if each.data is not None]
    assert ops == [("noop", "complete"), ("command", "sync"), ("noop", "complete")]
    ids = [each.source_id for each in log.messages if each.data is not None]
    assert len(ids) == len({*ids})


def test_a_column_that_comes_in_the_middle_is_there_from_then_on(shop: Database) -> None:
    """A chunk reads the columns that its snapshot has, and a change those of its moment."""
    shop.execute("INSERT INTO items SELECT n FROM generate_series(1, 30) n")
    log = MemoryLog(shop, copy_rows=5)
    until(lambda: log.poll() and any(each.phase == "copy" for each in log.messages))
    shop.execute("ALTER TABLE items ADD COLUMN extra int; UPDATE items SET extra = id")
    shop.execute("ALTER TABLE items DROP COLUMN note")
    log.drain(shop)
    log.kill()
    last = {each[2]: each[3] for each in short(log.messages) if each[2]}
    assert last["1"] == {"id": 1, "name": None, "note": None, "extra": 1}
    assert last["30"]["extra"] == 30


def test_large_values_that_did_not_change_are_named(shop: Database) -> None:
    """A value that the server leaves out is named in a header, or taken from a full old row."""
    long = "md5(random()::text)"
    shop.execute("ALTER TABLE items ALTER COLUMN note SET STORAGE EXTERNAL")
    shop.execute(
        f"INSERT INTO items SELECT n, 'a', repeat({long}, 200) FROM generate_series(1, 2) n"
    )
    log = started(shop)
    begun = len(log.messages)
    shop.execute("UPDATE items SET name = 'b' WHERE id = 1")
    # Another key is another row, which nobody has seen: its value is fetched.
    shop.execute("UPDATE items SET id = 20 WHERE id = 2")
    shop.execute("ALTER TABLE items REPLICA IDENTITY FULL")
    shop.execute("UPDATE items SET name = 'c' WHERE id = 1")
    log.drain(shop)
    log.kill()
    first, _, moved, full = (
        each for each in log.messages[begun:] if each.namespace == "public.items"
    )
    assert dict(first.headers) == {"pg-unchanged": b'["note"]'}
    assert json.loads(first.data or b"") == {"id": 1, "name": "b"}
    for each in (moved, full):
        assert each.headers == ()
        assert len(json.loads(each.data or b"")["note"]) == 6400


def test_the_old_row_is_in_a_header_on_request(shop: Database) -> None:
    """With ``old`` a change carries the row before it, as far as the identity has it."""
    log = started(shop, old=True)
    shop.execute("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    shop.execute("DELETE FROM items WHERE id = 1")
    shop.execute("ALTER TABLE items REPLICA IDENTITY FULL; UPDATE items SET name = 'B'")
    log.drain(shop)
    log.kill()
    deleted, updated = (each for each in log.messages if each.op in ("delete", "update"))
    assert dict(deleted.headers) == {"pg-old": b'{"id":1}'}
    assert dict(updated.headers) == {"pg-old": b'{"id":2,"name":"b","note":null}'}


def test_keys_of_several_columns_are_arrays(postgres: Database) -> None:
    """Copy and stream write the same key."""
    postgres.execute(
        "CREATE TABLE pairs (b text, a int, v text, PRIMARY KEY (a, b));"
        "INSERT INTO pairs VALUES ('x \"y', 1), ('z', 2)"
    )
    with clean_slots(postgres):
        log = started(postgres)
        postgres.execute("UPDATE pairs SET v = 'new'")
        log.drain(postgres)
        log.kill()
    keys = [each.key for each in log.messages if each.key and each.namespace == "public.pairs"]
    assert keys == [b'[1, "x \\"y"]', b'[2, "z"]'] * 2


def test_a_partitioned_table_is_one_table(postgres: Database) -> None:
    """Rows of partitions come under the name of the whole."""
    postgres.execute(
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);"
        "INSERT INTO parts VALUES (1), (11)"
    )
    with clean_slots(postgres):
        log = started(postgres, tables=["public.*"])
        postgres.execute("INSERT INTO parts VALUES (2), (12)")
        log.drain(postgres)
        log.kill()
    rows = [each for each in log.messages if each.data and each.op == "insert"]
    assert [each.key for each in rows] == [b"1", b"11", b"2", b"12"]
    assert {each.namespace for each in rows} == {"public.parts"}


def test_others_changes_are_confirmed_away(shop: Database) -> None:
    """A slot whose tables are idle does not keep the log of what others write."""
    shop.execute("CREATE TABLE unrelated (id int)")
    log = MemoryLog(shop, tables=["public.items"])
    log.drain(shop)
    before = log.position
    shop.execute("INSERT INTO unrelated SELECT * FROM generate_series(1, 500000)")
    (end,) = shop.execute("SELECT pg_current_wal_lsn()::text")[0]
    confirmed = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots"

    def is_confirmed() -> bool:
        log.poll(0.1)
        log.reader().keep_alive()
        return shop.execute(confirmed, [end]) == [(True,)]

    # 16 MiB of them are a position of their own; the rest waits for a minute.
    until(lambda: log.poll(0.1) and log.position != before)
    shop.execute("INSERT INTO unrelated SELECT * FROM generate_series(1, 500000)")
    until(is_confirmed)
    log.kill()


def test_a_slot_that_is_gone_stops_the_reader(shop: Database) -> None:
    """Nothing creates it again in silence: what was committed meanwhile cannot be read."""
    log = started(shop)
    log.kill()
    drop_slots(shop)
    assert "is gone; what was committed since" in broken(shop, log)


def drop_slots(database: Database) -> None:
    """Drop all slots once their sessions have ended."""
    until(lambda: database.execute("SELECT 1 FROM pg_replication_slots WHERE active") == [])
    database.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def slot_name(database: Database) -> str:
    """Return the name of the only slot."""
    ((name,),) = database.execute("SELECT slot_name FROM pg_replication_slots")
    return str(name)


def test_a_slot_that_another_client_has_moved_stops_the_reader(shop: Database) -> None:
    """A slot beyond the log's position has forgotten changes."""
    log = started(shop)
    log.kill()
    shop.execute("INSERT INTO items VALUES (1)")
    until(lambda: shop.execute("SELECT 1 FROM pg_replication_slots WHERE active") == [])
    shop.execute(
        "SELECT pg_replication_slot_advance(slot_name, pg_current_wal_lsn())"
        " FROM pg_replication_slots"
    )
    assert "another client has read from it" in broken(shop, log)


def test_a_slot_that_was_recreated_at_a_later_place_stops_the_reader(shop: Database) -> None:
    """A new slot of the same name begins behind the gap."""
    log = started(shop)
    log.kill()
    name = slot_name(shop)
    drop_slots(shop)
    shop.execute("INSERT INTO items VALUES (1)")
    shop.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    assert "another client has read from it" in broken(shop, log)


def test_a_publication_that_was_recreated_stops_the_reader(shop: Database) -> None:
    """Between drop and create nothing was published, and the server says nothing about it."""
    log = started(shop)
    log.kill()
    shop.execute("DROP PUBLICATION transporter_reader")
    shop.execute("INSERT INTO items VALUES (1)")
    shop.execute("CREATE PUBLICATION transporter_reader FOR TABLE items")
    assert "was dropped and created again" in broken(shop, log)


def test_a_table_that_left_the_publication_stops_the_reader(shop: Database) -> None:
    """Removed and added again, it has the name and another membership."""
    log = started(shop)
    log.kill()
    shop.execute("ALTER PUBLICATION transporter_reader DROP TABLE items")
    shop.execute("INSERT INTO items VALUES (1)")
    shop.execute("ALTER PUBLICATION transporter_reader ADD TABLE items")
    assert "left the publication transporter_reader and came back" in broken(shop, log)


def test_a_publication_that_changes_meanwhile_is_noticed(shop: Database) -> None:
    """A running reader looks now and then."""
    log = started(shop, watch=1)
    shop.execute("ALTER PUBLICATION transporter_reader DROP TABLE items")
    shop.execute("ALTER PUBLICATION transporter_reader ADD TABLE items")
    with pytest.raises(EnvironmentFault, match="came back"):
        poll_often(log)
    log.kill()


def test_a_table_that_leaves_the_publication_is_noticed(shop: Database) -> None:
    """Its changes are missing from that moment on, and nothing else would show it."""
    log = started(shop, watch=1)
    shop.execute("ALTER PUBLICATION transporter_reader DROP TABLE items")
    with pytest.raises(EnvironmentFault, match=r"items has left the publication"):
        poll_often(log)
    log.kill()


@pytest.mark.exhaustive
def test_a_table_that_is_dropped_is_followed_to_its_end(shop: Database) -> None:
    """A table that is gone needs nothing, and the others go on."""
    shop.execute("CREATE TABLE others (id int PRIMARY KEY)")
    log = started(shop, watch=1)
    shop.execute("DROP TABLE items; INSERT INTO others VALUES (1)")
    poll_often(log)
    assert log.messages[-1].key == b"1"
    log.kill()
    shop.execute("INSERT INTO others VALUES (2)")
    log.drain(shop)
    assert [each.key for each in log.messages if each.op == "insert"] == [b"1", b"2"]
    log.kill()


def test_a_table_that_comes_later_is_copied_beside_the_others(shop: Database) -> None:
    """A new table is published and copied at the next open, and one left out is unpublished."""
    shop.execute("INSERT INTO items VALUES (1)")
    log = started(shop)
    log.kill()
    shop.execute("CREATE TABLE later (id int PRIMARY KEY); INSERT INTO later VALUES (7)")
    shop.execute("INSERT INTO items VALUES (2)")
    log.drain(shop)
    log.kill()
    log.settings["tables"] = ["public.later"]
    shop.execute("INSERT INTO items VALUES (3); INSERT INTO later VALUES (8)")
    log.drain(shop)
    log.kill()
    rows = [(each.namespace, each.phase, each.key) for each in log.messages if each.op == "insert"]
    assert sorted(rows) == [
        ("public.items", "copy", b"1"),
        ("public.items", "sync", b"2"),
        ("public.later", "copy", b"7"),
        ("public.later", "sync", b"8"),
    ]
    assert shop.execute("SELECT tablename FROM pg_publication_tables") == [("later",)]


@pytest.mark.parametrize("from_empty", [False, True])
def test_everything_is_copied_again_after_a_gap(shop: Database, *, from_empty: bool) -> None:
    """With a higher run a lost slot is no reason to stop: the copy has what was missed."""
    shop.execute("INSERT INTO items VALUES (1), (2)")
    log = started(shop)
    log.kill()
    drop_slots(shop)
    shop.execute("DROP PUBLICATION transporter_reader")
    shop.execute("DELETE FROM items WHERE id = 1; INSERT INTO items VALUES (3)")
    log.settings |= {"copy_run": 2, "copy_from_empty": from_empty}
    begun = len(log.messages)
    log.drain(shop)
    shop.execute("UPDATE items SET name = 'x' WHERE id = 3")
    log.drain(shop)
    log.kill()
    found = [each[:3] for each in short(log.messages[begun:])]
    assert found == [
        *([("command", "sync", None)] if from_empty else []),
        ("insert", "copy", "2"),
        ("insert", "copy", "3"),
        ("noop", "complete", None),
        ("update", "sync", "3"),
    ]
    # And the next open finds nothing to do.
    log.drain(shop)
    log.kill()
    assert [each[:3] for each in short(log.messages[begun:])] == found


def test_the_only_table_is_copied_again_beside_the_changes_of_before(shop: Database) -> None:
    """A higher run of its item needs no new slot: sinks lack deletes, which no copy has."""
    shop.execute("INSERT INTO items VALUES (1), (2)")
    log = started(shop)
    log.kill()
    shop.execute("DELETE FROM items WHERE id = 1; INSERT INTO items VALUES (3)")
    log.settings["tables"] = [{"table": "public.items", "copy_run": 2}]
    begun = len(log.messages)
    log.drain(shop)
    log.kill()
    found = [each[:3] for each in short(log.messages[begun:])]
    assert ("delete", "sync", "1") in found
    assert {each for each in found if each[1] == "copy"} == {
        ("insert", "copy", "2"), ("insert", "copy", "3")
    }  # fmt: skip
    assert [each[0] for each in log.told].count("slot-created") == 1


def test_all_tables_are_copied_again_beside_the_changes_of_before(shop: Database) -> None:
    """So are those of which one was created again meanwhile, and one has another key."""
    shop.execute(
        "CREATE TABLE fresh (id int PRIMARY KEY); CREATE TABLE keyed (id int PRIMARY KEY, a int)"
    )
    shop.execute("INSERT INTO items VALUES (1), (2); INSERT INTO keyed VALUES (1, 11), (2, 12)")
    log = started(shop)
    log.kill()
    shop.execute(
        "DELETE FROM items WHERE id = 1; DELETE FROM keyed WHERE id = 1;"
        "DROP TABLE fresh; CREATE TABLE fresh (id int PRIMARY KEY); INSERT INTO fresh VALUES (5);"
        "ALTER TABLE keyed ALTER a SET NOT NULL, DROP CONSTRAINT keyed_pkey, ADD PRIMARY KEY (a);"
        "INSERT INTO keyed VALUES (3, 13)"
    )
    log.settings["tables"] = [
        {"table": f"public.{name}", "copy_run": 2} for name in ("items", "fresh", "keyed")
    ]
    begun = len(log.messages)
    until(lambda: log.poll(0.1) and sum(each[0] == "copy-complete" for each in log.told) == 6)
    log.drain(shop)
    log.kill()
    assert [each[0] for each in log.told].count("slot-created") == 1
    found = {
        (message.namespace.partition(".")[2], message.op, message.phase, message.key.decode())
        for message in log.messages[begun:]
        if message.key is not None
    }
    assert found == {
        ("items", "delete", "sync", "1"),
        ("items", "insert", "copy", "2"),
        ("fresh", "insert", "copy", "5"),
        ("keyed", "delete", "sync", "1"),
        ("keyed", "insert", "sync", "3"),
        ("keyed", "insert", "copy", "12"),
        ("keyed", "insert", "copy", "13"),
    }


def test_one_table_is_copied_again_beside_the_others(shop: Database) -> None:
    """A higher run of one item copies that table alone."""
    shop.execute("CREATE TABLE others (id int PRIMARY KEY); INSERT INTO others VALUES (1)")
    shop.execute("INSERT INTO items VALUES (1), (2)")
    log = started(shop)
    log.kill()
    log.settings["tables"] = ["public.*", {"table": "public.items", "copy_run": 2}]
    begun = len(log.messages)
    shop.execute("UPDATE items SET name = 'x'")
    log.drain(shop)
    log.kill()
    assert sorted(each[:3] for each in short(log.messages[begun:]) if each[2]) == [
        ("insert", "copy", "1"),
        ("insert", "copy", "2"),
        ("update", "sync", "1"),
        ("update", "sync", "2"),
    ]


def poll_often(log: MemoryLog) -> None:
    """Poll for some ten seconds."""
    for _ in range(100):
        log.poll(0.1)


def test_another_server_is_refused(shop: Database) -> None:
    """A position of one server means nothing on another."""
    log = started(shop)
    log.kill()
    log.change_position(srv="123/1")
    assert "this is another server" in broken(shop, log)


def test_a_server_that_lost_what_is_logged_is_refused(shop: Database) -> None:
    """A restored server, or a standby that lagged, has the timeline and not the transactions."""
    log = started(shop)
    log.kill()
    log.change_position(at="FFF/0")
    assert "has lost" in broken(shop, log)


def test_a_slot_in_use_is_waited_for(shop: Database) -> None:
    """Another engine may be about to end, so that is no reason to stop."""
    first, second = started(shop), MemoryLog(shop)
    second.position, second.states = first.position, first.states
    resume = FixedResume(first.position, LOG_ID)
    resume.states = first.states
    other = CdcReader(CdcReader.Config.model_validate(second.settings))
    with pytest.raises(SourceUnavailable, match="is active for PID"):
        other.open(resume)
    other.close()
    first.kill()


@pytest.mark.parametrize(
    ("sql", "settings", "text"),
    [
        ("CREATE TABLE bare (a int)", {}, "has no primary key and no replica identity"),
        ("SELECT 1", {"tables": ["public.nothere"]}, "there is no table public.nothere"),
        ("SELECT 1", {"tables": ["other.*"]}, "no table matches tables"),
        ("CREATE UNLOGGED TABLE u (a int PRIMARY KEY)", {"tables": ["public.u"]}, "is unlogged"),
        ("CREATE VIEW v AS SELECT 1 AS a", {"tables": ["public.v"]}, "is a view"),
        ("SELECT 1", {"manage": "slot"}, "lacks public.items, and manage is slot"),
    ],
)
def test_bad_input_is_an_error_before_anything_is_created(
    shop: Database, sql: str, settings: dict[str, Any], text: str
) -> None:
    """The error says what to do, and there is neither slot nor publication."""
    shop.execute(sql)
    assert text in broken(shop, MemoryLog(shop, **settings))
    assert shop.execute("SELECT 1 FROM pg_replication_slots") == []
    assert shop.execute("SELECT 1 FROM pg_publication") == []


def test_a_publication_of_partitions_is_refused(shop: Database) -> None:
    """It would send changes under the partitions' names, and a partitioned table is one table."""
    shop.execute("CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY HASH (id)")
    shop.execute("CREATE PUBLICATION transporter_reader FOR TABLE items, parts")
    assert "SET (publish_via_partition_root = true)" in broken(shop, MemoryLog(shop))
    shop.execute("ALTER PUBLICATION transporter_reader SET (publish_via_partition_root = true)")
    log = started(shop)
    log.kill()
    assert {table for _, each in log.told if (table := each.get("table"))} == {
        "public.items",
        "public.parts",
    }


def test_a_role_without_rights_is_named(shop: Database) -> None:
    """The error has the statement that helps."""
    shop.execute("CREATE ROLE weak LOGIN")
    try:
        log = MemoryLog(shop, dsn=shop.dsn_as("weak"))
        assert "role weak may not replicate: run ALTER ROLE weak REPLICATION" in broken(shop, log)
    finally:
        shop.execute("DROP ROLE weak")


def test_a_silent_server_is_given_up(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that falls silent is found by an answer that does not come."""
    for name in ("_SILENCE", "_ANSWER", "_REPORT"):
        monkeypatch.setattr(module, name, 0.3)
    with FaultyProxy(("127.0.0.1", shop.server.port)) as proxy:
        dsn = make_conninfo(shop.tcp_dsn(), port=proxy.port)
        log = started(shop, dsn=dsn)
        begun = time.monotonic()
        while time.monotonic() - begun < 1.5:
            log.poll(0.05)
        proxy.hang()
        with pytest.raises(SourceUnavailable, match="has sent nothing for"):
            poll_often(log)
        proxy.heal()
        log.kill()


@pytest.mark.exhaustive
def test_a_server_that_is_not_read_is_not_silent(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the log is full nothing is polled, so what the server sends waits."""
    log = started(shop)
    for name in ("_SILENCE", "_ANSWER", "_REPORT"):
        monkeypatch.setattr(module, name, 0.3)
    shop.execute("INSERT INTO items SELECT n, repeat('x', 1000) FROM generate_series(1, 20000) n")
    begun = time.monotonic()
    while time.monotonic() - begun < 3:
        log.reader().keep_alive()
        time.sleep(0.05)
    log.drain(shop)
    log.kill()
    assert sum(each.op == "insert" for each in log.messages) == 20000


def test_the_stream_is_taken_from_the_server_while_nobody_polls(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to a bound, and each change is there once. What was taken is a sign of life, too."""
    monkeypatch.setattr(wire, "_AHEAD", 4 << 20)
    log = started(shop, batch_bytes="128KiB", batch_rows=100_000)
    shop.execute(
        "INSERT INTO items SELECT n, repeat('x', 1000), md5(n::text)"
        " FROM generate_series(1, 20000) n"
    )
    until(lambda: len(log.poll().messages) > 100)
    stream = log.reader()._open_parts._stream
    until(lambda: stream._ahead >= 4 << 20)
    # A look may take as much as the socket holds.
    assert stream._ahead < 12 << 20
    assert stream.has_input
    log.drain(shop)
    assert not stream.has_input
    log.kill()
    found = [int(each.key) for each in log.messages if each.key is not None]
    assert found == [*range(1, 20001)]


@pytest.mark.exhaustive
def test_a_slow_reader_of_a_large_transaction_needs_no_memory(shop: Database) -> None:
    """However little each call takes, no more than the bound is read ahead, nor kept in libpq."""
    log = started(shop, batch_bytes="128KiB", batch_rows=100_000)
    shop.execute(
        "INSERT INTO items SELECT n, repeat(md5(n::text), 60) FROM generate_series(1, 60000) n"
    )
    until(lambda: len(log.poll().messages) > 10)
    before = memory()
    for _ in range(60):
        assert len(log.poll().messages) > 10
        time.sleep(0.02)
    assert memory() - before < 40 << 20
    log.kill()


def memory() -> int:
    """Return the bytes of memory that this process has for itself."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def test_settings_are_checked() -> None:
    """A bad name or template is refused when the file is read."""
    good: dict[str, Any] = {"dsn": "host=x", "tables": ["public.*"]}
    assert CdcConfig.model_validate(good).copy_tables == "all"
    for bad in (
        {"slot": "Bad-Name"},
        {"namespace": "{nope}"},
        {"tables": []},
        {"tables": ["a.b.c"]},
        {"batch_bytes": "8MiB"},
    ):
        with pytest.raises((ValueError, ConfigError)):
            CdcConfig.model_validate({**good, **bad})
